"""Send a question over plain NATS until a Rebaser answers it, and put the answer together."""

import asyncio
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar

import nats.errors
from nats.aio.subscription import Subscription

from rebaser_client.errors import ReadRefused, TooLarge, Unreachable
from rebaser_core.errors import RebaserError
from rebaser_core.jetstream import JetStream, Oversized, deadlines
from rebaser_core.jetstream.connection import subscribed
from rebaser_core.query_protocol import ACCEPTS_PIECES, RETRY_AFTER, ReplyAssembly, parse_seconds
from rebaser_core.query_protocol import REPLY_TIMEOUT as PATIENCE_HEADER
from rebaser_core.versioning import REPLY_VERSION, MessageType, Versioned

FIRST_PART_TIMEOUTS: Final = (3.0, 10.0, 60.0)
"""Seconds until the first part of an answer, each time that it is asked for: who was asked may
have died, and a large change set has to be loaded first."""
NEXT_PART_TIMEOUT: Final = 60.0
"""Seconds from one part to the next."""

_NO_RESPONDERS: Final = "503"
_DECODE_IN_THREAD: Final = 512 * 1024
"""Octets of a reply from which it is decoded in a thread."""

QueryT = TypeVar("QueryT", bound=Versioned)
ReplyT = TypeVar("ReplyT", bound=Versioned)


class RebaserBusy(RebaserError):
    """A Rebaser could not answer now: too many questions wait there, or NATS has no leader."""

    def __init__(self, message: str, seconds: float) -> None:
        """`seconds`: after which to ask again."""
        super().__init__(message)
        self.seconds: Final = seconds


@dataclass(frozen=True, slots=True)
class QuerySender(Generic[QueryT, ReplyT]):
    """Sends questions of one kind; each call may be cancelled and repeated."""

    js: JetStream
    query: MessageType[QueryT]
    reply: MessageType[ReplyT]
    content_type: str
    error_in: Callable[[ReplyT], str | None]
    """Why a reply is no answer."""
    is_followed: Callable[[ReplyT], bool] = lambda _: False
    """Whether another reply follows."""

    async def ask(self, subject: str, query: QueryT) -> list[ReplyT]:
        """Return all parts of the reply, of any Rebaser that replies in time.

        Raises:
            Unreachable: no Rebaser answered in time, or all were too busy.
            TooLarge: the question does not fit into a message.
            ReadRefused: a Rebaser answered, and said why it does not tell.
        """
        loop = asyncio.get_running_loop()
        end, busy = loop.time() + sum(FIRST_PART_TIMEOUTS), 0
        patience = iter(FIRST_PART_TIMEOUTS)
        wait = next(patience)
        while True:
            try:
                return await self._ask_once(subject, query, wait)
            except TimeoutError:
                wait = next(patience, 0.0)
                if not wait:
                    raise Unreachable("no Rebaser answered: not in time") from None
            except RebaserBusy as error:
                pause = error.seconds * 2 ** min(busy, 4) * (0.5 + random.random())
                busy += 1
                if loop.time() + pause > end:
                    raise Unreachable(f"no Rebaser answered: {error}") from error
                await self.js.connection.sleep(pause)

    async def _ask_once(self, subject: str, query: QueryT, patience: float) -> list[ReplyT]:
        headers, payload = self.query.encode(query, self.content_type)
        headers[REPLY_VERSION] = str(self.reply.current.VERSION)
        headers[ACCEPTS_PIECES], headers[PATIENCE_HEADER] = "1", str(patience)
        nc = self.js.nc
        inbox = nc.new_inbox()
        try:
            self.js.message_limits.check(subject, payload, headers, inbox)
            async with subscribed(nc, inbox) as subscription:
                await nc.publish(subject, payload, reply=inbox, headers=headers)
                return await self._receive(subscription, patience)
        except TimeoutError:  # nats-py's are errors of its own as well
            raise
        except Oversized as error:
            raise TooLarge(f"the question is too large: {error}") from error
        except (nats.errors.Error, OSError) as error:
            self.js.connection.guard()
            raise Unreachable(f"no Rebaser answered: {error}") from error

    async def _receive(self, subscription: Subscription, patience: float) -> list[ReplyT]:
        replies: list[ReplyT] = []
        assembly, waits = ReplyAssembly(), patience
        while not replies or self.is_followed(replies[-1]):
            async with deadlines.within(waits):
                message = await subscription.next_msg(timeout=None)
            waits = NEXT_PART_TIMEOUT
            headers = message.headers or {}
            if headers.get("Status") == _NO_RESPONDERS:
                raise Unreachable("no Rebaser is there to answer")
            whole = assembly.add(headers, message.data)
            if whole is None:
                continue
            reply = await self._decode(*whole)
            error = self.error_in(reply)
            if error is not None and RETRY_AFTER in headers:
                raise RebaserBusy(error, parse_seconds(headers, RETRY_AFTER, 1.0))
            if error is not None:
                raise ReadRefused(error)
            replies.append(reply)
        return replies

    async def _decode(self, headers: Mapping[str, Any], payload: bytes) -> ReplyT:
        if len(payload) < _DECODE_IN_THREAD:
            return self.reply.decode(headers, payload)
        return await asyncio.to_thread(self.reply.decode, headers, payload)

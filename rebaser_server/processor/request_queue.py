"""The requests of one change set: in order, each once, deleted by sequence when handled."""

import asyncio
import random
from collections import deque
from itertools import chain, repeat
from types import TracebackType
from typing import Any, Final, Self

from rebaser_client.request_publisher import retry
from rebaser_core.ids import ChangeSet
from rebaser_core.jetstream import (
    Delivery,
    JetStream,
    JetStreamError,
    NatsUnreachable,
    OrderedPushConsumer,
    PendingReply,
    Unavailable,
)
from rebaser_core.jetstream.consumers.inbox import Inbox
from rebaser_core.jetstream.consumers.message_reader import best_effort
from rebaser_core.subjects import Subjects
from rebaser_server.errors import HistoryInconsistent

_MAX_PENDING_DELETES: Final = 64
"""Answers to deletes that are waited for at any time."""

_CLOSE_TIMEOUT: Final = 1.0  # seconds for them when a run ends early

_DELETE_TIMEOUT: Final = 20.0  # seconds in which an unanswered delete is tried again

CONSUMER_IDLE: Final = 5.0
"""Seconds without a request after which the server need not keep a consumer for it."""

_FIRST_CHECKS: Final = (1.0, 5.0)
_CHECK_EVERY: Final = 60.0
"""Seconds between looks at the stream without a consumer. News of a request comes at once, but
as plain messages do, and at first perhaps not yet to every server of a cluster."""

_RECONNECT_SPREAD: Final = 5.0
"""Seconds over which looks are spread after a reconnect: ten thousand may be due then."""


class RequestQueue:
    """Reads through our own ordered consumer, whose consumer sequence has no gap (W3).

    So what it hands out is the lowest request present behind the one before (I4),
    and no read per request is needed to know it (W6, made cheaper).

    While nothing comes there is no consumer: a plain subscription hears of the next
    request, and costs neither memory nor heartbeats where a consumer would.
    """

    def __init__(
        self,
        js: JetStream,
        subjects: Subjects,
        change_set: ChangeSet,
        *,
        idle: float = CONSUMER_IDLE,
    ) -> None:
        self._js = js
        self._idle = float("inf") if js.is_remote else idle  # another account's is not heard here
        self._stream = subjects.requests_stream
        self._subject = subjects.requests(change_set)
        self._consumer = OrderedPushConsumer(js, self._stream, self._subject)
        self._deletes: deque[tuple[int, PendingReply[Any]]] = deque()
        """Oldest first."""

    async def __aenter__(self) -> Self:
        await self._consumer.__aenter__()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        async with best_effort(_CLOSE_TIMEOUT):  # what stays is answered once more
            await self.await_deletes()
        for _, reply in self._deletes:
            reply.cancel()
        await self._consumer.close()

    @property
    def backlog(self) -> int:
        """How many requests the server had behind the last one when it delivered that."""
        return self._consumer.pending

    async def next(self, quiet: float) -> Delivery | None:
        """The next request; None if none came for `quiet` seconds and the server has none.

        May be cancelled without losing anything.
        """
        clock = asyncio.get_running_loop().time
        end, left = clock() + quiet, quiet
        while True:
            request = await self._consumer.next(idle_timeout=min(left, self._idle))
            if request is not None or left <= self._idle:
                return request
            if not await self._wait_for_message(end):
                return None
            left = max(0.0, end - clock())

    async def _wait_for_message(self, end: float) -> bool:
        """Wait without a consumer until there may be a request; False: by `end` there is none."""
        clock, link = asyncio.get_running_loop().time, self._js.connection
        wakeup, delays = Inbox(link), chain(_FIRST_CHECKS, repeat(_CHECK_EVERY))
        try:
            await wakeup.open(self._subject)  # first, so that none comes unheard
            await self._consumer.suspend()
            while not wakeup.queue:
                epoch, has_request = link.reconnects, await self._has_request()
                if has_request or (has_request is not None and clock() >= end):
                    return has_request
                next_check = clock() + next(delays)
                until = next_check if has_request is None else min(next_check, end)
                while clock() < until and not wakeup.queue:
                    await wakeup.wait(until - clock())
                    if link.reconnects != epoch:  # what came meanwhile was not heard
                        epoch, spread = link.reconnects, random.uniform(0, _RECONNECT_SPREAD)  # noqa: S311
                        until = min(until, clock() + spread)
        finally:
            await wakeup.close()
        return True

    async def _has_request(self) -> bool | None:
        """Whether a request is left behind the last one handed out; None: nobody could say."""
        try:
            return await self.lowest_sequence(after=self._consumer.cursor) is not None
        except (NatsUnreachable, Unavailable):
            if self._js.nc.is_closed:
                raise
            return None

    async def take_buffered(self, limit: int) -> list[Delivery]:
        """The next requests, up to `most`, that are here already. Not to be cancelled."""
        return await self._consumer.take_buffered(limit)

    async def delete(self, sequence: int) -> None:
        """Ask for a handled request to be gone (W9); `deleted` says when it is.

        Waits only while too many answers are due.

        Raises:
            NatsUnreachable: of an earlier one, as `deleted`.
        """
        body = {"seq": sequence, "no_erase": True}
        verb = f"STREAM.MSG.DELETE.{self._stream}"
        self._deletes.append((sequence, await self._js.request_async(verb, body)))
        while self._deletes and (
            self._deletes[0][1].done or len(self._deletes) > _MAX_PENDING_DELETES
        ):
            await self._await_oldest_delete()

    async def await_deletes(self) -> None:
        """Return once all that was asked to be deleted is gone.

        Raises:
            NatsUnreachable: some may be there still. They will be delivered again, and skipped.
        """
        while self._deletes:
            await self._await_oldest_delete()

    async def _await_oldest_delete(self) -> None:
        sequence, reply = self._deletes.popleft()
        try:
            await reply.result(self._js.timeout)
        except JetStreamError:  # also if it is gone already: `delete_message` knows
            await retry(lambda: self._js.delete_message(self._stream, sequence), _DELETE_TIMEOUT)

    async def lowest_sequence(self, after: int = 0) -> int | None:
        """The lowest request behind sequence `after` that the stream's leader has (S-4, W12)."""
        message = await self._js.get_message(
            self._stream, sequence=after + 1, next_by_subject=self._subject
        )
        return None if message is None else message.sequence

    async def require_sequence(self, handled: int) -> None:
        """Raise `HistoryBroken` if the stream ends before what was handled already (S-5).

        New requests would then be taken for handled ones and deleted.
        """
        info = await self._js.stream_info(self._stream)
        last = info["state"]["last_seq"]
        if last < handled:
            raise HistoryInconsistent(
                f"{self._subject}: {handled} was handled, but {self._stream} ends at {last}; "
                "was the stream made anew? Recreate it with a first_seq above the former last one"
            )

"""The queue of one change set's requests: read in order, each once, deleted when settled.

`StoredRequests` are the requests as the leader of their stream has them. `HandledRequests` are
those of one run that are settled and not yet known to be deleted (W9).
"""

import asyncio
import random
from collections import deque
from collections.abc import Mapping
from itertools import chain, repeat
from types import TracebackType
from typing import Any, Final, NamedTuple, Self

from nats.aio.msg import Msg

from rebaser_core.ids import ChangeSet, RequestId
from rebaser_core.jetstream import (
    Delivery,
    JetStream,
    JetStreamError,
    NatsUnreachable,
    PendingReply,
    StoredMessage,
    Unavailable,
    ordered_reader,
)
from rebaser_core.jetstream.inbox import Inbox, best_effort
from rebaser_core.jetstream.ordered import OrderedReader
from rebaser_core.requests import retry
from rebaser_core.streams import Streams
from rebaser_core.versioning import announced_id
from rebaser_server.errors import HistoryInconsistent


class StoredRequests:
    """The requests in their stream: looks at them, and takes none."""

    def __init__(self, streams: Streams, change_set: ChangeSet) -> None:
        self._js = streams.js
        self._stream = streams.requests_stream
        self._subject = streams.requests(change_set)

    async def lowest_sequence(self, after: int = 0) -> int | None:
        """Return the lowest request's sequence after `after`, as the leader has it (S-4, W12)."""
        message = await self.lowest(after)
        return None if message is None else message.sequence

    async def lowest(self, after: int = 0) -> StoredMessage | None:
        """Return the lowest request after sequence `after`, as the leader has it."""
        return await self._js.get_message(
            self._stream, sequence=after + 1, next_by_subject=self._subject
        )

    async def require_sequence(self, handled: int) -> None:
        """Raise `HistoryInconsistent` if the stream ends before the last settled request (S-5).

        New requests would otherwise count as settled, and be deleted.
        """
        last = (await self._js.stream_info(self._stream)).state.last_seq
        if last < handled:
            raise HistoryInconsistent(
                f"{self._subject}: {handled} was handled, but {self._stream} ends at {last}; "
                "was the stream made anew? Recreate it with a first_seq above the former last one"
            )


MAX_TOGETHER: Final = 64
"""Maximum number of requests that one purge deletes."""

MAX_DELAY: Final = 0.25
"""Seconds after which a settled request is not held back for a purge together with later ones."""

_MAX_UNANSWERED: Final = 64
"""Maximum number of calls that are unanswered at any time."""

_RETRY_FOR: Final = 20.0  # seconds in which the requests of an unanswered call are deleted again


class _Call(NamedTuple):
    sequences: list[int]
    reply: PendingReply[Any]


class HandledRequests:
    """Deletes settled requests: one by its sequence; several by one purge of their subject.

    The server has as much to do for a purge as for one delete, above all if it always syncs. A
    purge takes settled requests alone, because a change set's requests are settled in the order of
    the stream.
    """

    def __init__(self, js: JetStream, stream: str, subject: str) -> None:
        self._js = js
        self._stream = stream
        self._subject = subject
        self._held_back: list[int] = []
        """Sequences for which no call was sent; in the order of the stream."""
        self._held_back_since = 0.0
        self._calls: deque[_Call] = deque()
        """Calls that may be unanswered, the oldest first."""
        self._left: deque[int] = deque()
        """Sequences whose call failed; each is then deleted by itself."""

    async def add(self, sequence: int) -> None:
        """Take a request whose commit is stored; it must follow those added before.

        The request is deleted at the next `send`, or once enough follow or enough time has passed.

        Raises:
            NatsUnreachable: an earlier delete failed, see `wait`.
        """
        now = asyncio.get_running_loop().time()
        if not self._held_back:
            self._held_back_since = now
        self._held_back.append(sequence)
        if len(self._held_back) >= MAX_TOGETHER or now >= self._held_back_since + MAX_DELAY:
            await self.send()

    async def send(self) -> None:
        """Ask the server to delete all requests that were added; `wait` awaits its answer.

        The call waits only while too many others are unanswered. A cancellation forgets none.

        Raises:
            NatsUnreachable: an earlier delete failed, see `wait`.
        """
        if not self._held_back:
            return
        last, body = self._held_back[-1], dict[str, Any]()
        if len(self._held_back) == 1:
            # `no_erase`: to overwrite the message on the disk, too, is a hundred times slower.
            verb, body = "MSG.DELETE", {"seq": last, "no_erase": True}
        else:
            # W9: a purge without `seq` would also take requests that were stored meanwhile.
            verb, body = "PURGE", {"filter": self._subject, "seq": last + 1}
        reply = await self._js.request_async(f"STREAM.{verb}.{self._stream}", body)
        # Once the call is sent: cancelled before, its requests stay held back for the next one.
        self._calls.append(_Call(self._held_back, reply))
        self._held_back = []
        while self._calls and (self._calls[0].reply.done or len(self._calls) > _MAX_UNANSWERED):
            await self._await_oldest()

    async def wait(self) -> None:
        """Return once every request that was added is gone.

        Raises:
            NatsUnreachable: some requests may be left. They will be delivered again, and skipped.
        """
        await self.send()
        while self._calls:
            await self._await_oldest()
        await self._delete_left()

    def cancel(self) -> None:
        for call in self._calls:
            call.reply.cancel()

    def __bool__(self) -> bool:
        return bool(self._held_back or self._calls or self._left)

    async def _await_oldest(self) -> None:
        # The call stays in line until it is answered, so that a cancelled wait forgets no request.
        call = self._calls[0]
        try:
            await call.reply.result(self._js.timeout)
        except JetStreamError:  # also if one is gone already, which `delete_message` handles
            self._left += call.sequences
        self._calls.popleft()
        await self._delete_left()

    async def _delete_left(self) -> None:
        while self._left:
            # By sequence, not by another purge: a stream may refuse purges and allow deletes.
            await retry(self._delete_first_left, _RETRY_FOR)
            self._left.popleft()

    async def _delete_first_left(self) -> None:
        await self._js.delete_message(self._stream, self._left[0])


_CLOSE_TIMEOUT: Final = 1.0  # seconds for them when a run ends early

_CONSUMER_IDLE: Final = 5.0
"""Seconds without a request after which the queue deletes its consumer on the server."""

_FIRST_CHECKS: Final = (1.0, 5.0)
_CHECK_EVERY: Final = 60.0
"""Seconds between checks of the stream without a consumer. A request usually wakes the queue at
once, but by a plain message, which may be lost, or not reach every server of a cluster at first."""

_RECONNECT_SPREAD: Final = 5.0
"""Seconds over which checks are spread after a reconnect: ten thousand may be due then."""


class RequestQueue(StoredRequests):
    """A reader through its own ordered consumer, whose consumer sequence has no gap (W3).

    So each request it returns is the lowest one after the request before (I4), and it
    needs no read per request to know that (W6, made cheaper).

    While no request comes there is no consumer: a plain subscription wakes the queue at the
    next request, and needs neither memory nor heartbeats on the server.
    """

    def __init__(
        self,
        streams: Streams,
        change_set: ChangeSet,
        *,
        idle: float = _CONSUMER_IDLE,
        first: StoredMessage | None = None,
    ) -> None:
        """Open the queue; after `idle` seconds it needs no consumer.

        With `first`, the lowest request as the leader has it, it needs no consumer until another
        request comes.
        """
        super().__init__(streams, change_set)
        self._idle = float("inf") if self._js.is_remote else idle  # no subscription across accounts
        self._first = None if first is None else _as_delivery(self._js, self._stream, first)
        self._start = 1 if first is None else first.sequence + 1
        self._reader: OrderedReader | None = None
        """Reader, made when it is needed: a run may have no other request than the first."""
        self._is_suspended = first is not None and not self._js.is_remote
        self.handled = HandledRequests(self._js, self._stream, self._subject)

    async def __aenter__(self) -> Self:
        if not self._is_suspended:
            await self._consumer.__aenter__()
        return self

    @property
    def _consumer(self) -> OrderedReader:
        if self._reader is None:
            self._reader = ordered_reader(
                self._js, self._stream, self._subject, opt_start_seq=self._start
            )
        return self._reader

    @property
    def _cursor(self) -> int:
        return self._start - 1 if self._reader is None else self._reader.cursor

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            if self.handled:
                async with best_effort(_CLOSE_TIMEOUT):  # leftovers are answered once more
                    await self.handled.wait()
        finally:  # also if the run is cancelled while it ends
            self.handled.cancel()
            if self._reader is not None:
                await self._reader.close()

    @property
    def backlog(self) -> int:
        """Number of requests behind the last delivered one when the server delivered it."""
        return 0 if self._reader is None else self._reader.pending

    async def next(self, quiet: float) -> Delivery | None:
        """Return the next request; None if none came for `quiet` seconds and the server has none.

        A cancellation loses no request.
        """
        clock = asyncio.get_running_loop().time
        end, left = clock() + quiet, quiet
        if self._first is not None:
            first, self._first = self._first, None
            return first
        # W9: no further request is at hand, so there is nothing to hold back settled ones for.
        await self.handled.send()
        while True:
            if not self._is_suspended:
                request = await self._consumer.next(idle_timeout=min(left, self._idle))
                # Without a request: the reader has asked the stream's leader, as W10 demands.
                if request is not None or left <= self._idle:
                    return request
            if not await self._wait_for_message(end):
                return None
            left = max(0.0, end - clock())

    async def _wait_for_message(self, end: float) -> bool:
        """Wait without a consumer until there may be a request; return False if none came by `end`.

        A cancelled wait goes on without a consumer, too.
        """
        clock, link = asyncio.get_running_loop().time, self._js.connection
        wakeup, delays = Inbox(link), chain(_FIRST_CHECKS, repeat(_CHECK_EVERY))
        try:
            await wakeup.open(self._subject)  # first, so that no request is missed
            if self._reader is not None:
                await self._reader.suspend()
            self._is_suspended = True
            while not wakeup.queue:
                epoch, has_request = link.reconnects, await self._has_request()
                # W10: only an answer of the leader shows that no request waits; no answer shows
                # nothing.
                if has_request or (has_request is not None and clock() >= end):
                    self._is_suspended = not has_request
                    return has_request
                next_check = clock() + next(delays)
                until = next_check if has_request is None else min(next_check, end)
                while clock() < until and not wakeup.queue:
                    await wakeup.wait(until - clock())
                    if link.reconnects != epoch:  # requests stored meanwhile were missed
                        epoch, spread = link.reconnects, random.uniform(0, _RECONNECT_SPREAD)
                        until = min(until, clock() + spread)
        finally:
            await wakeup.close()
        # W6: the message that woke the queue is not handed out. The consumer reads it from the
        # stream, behind the cursor and without a gap.
        self._is_suspended = False
        return True

    async def _has_request(self) -> bool | None:
        """Whether a request follows the last returned one; None if the server gives no answer."""
        try:
            return await self.lowest_sequence(after=self._cursor) is not None
        except (NatsUnreachable, Unavailable):
            if self._js.nc.is_closed:
                raise
            return None

    async def take_buffered(self, limit: int) -> list[Delivery]:
        """Return up to `limit` requests that are received already. Not to be cancelled."""
        if self._first is not None:
            first, self._first = self._first, None
            return [first]
        return [] if self._reader is None else await self._reader.take_buffered(limit)


def request_id_of(request: Delivery) -> RequestId:
    """Return the id in the headers; for a request without id, one made from its sequence."""
    return announced_request(request.headers) or RequestId.from_int(request.stream_sequence)


def announced_request(headers: Mapping[str, str]) -> RequestId | None:
    """Return the id that a request's headers name; None if they name none."""
    try:
        return RequestId.from_str(announced_id(headers) or "")
    except ValueError:
        return None


def _as_delivery(js: JetStream, stream: str, message: StoredMessage) -> Delivery:
    stored = round(message.time.timestamp() * 1e9)
    reply = f"$JS.ACK.{stream}.none.1.{message.sequence}.1.{stored}.0"
    return Delivery(
        js.connection,
        Msg(js.nc, message.subject, reply, message.payload, dict(message.headers)),
        acks=False,
    )

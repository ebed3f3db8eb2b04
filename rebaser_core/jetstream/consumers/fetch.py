"""A batch of messages, once (ADR-13, ADR-37)."""

# ruff: noqa: ASYNC109 - what has no answer needs an end that nobody can forget

import asyncio
import json
from typing import TYPE_CHECKING, Any, Final

from rebaser_core.jetstream.consumers.inbox import Inbox
from rebaser_core.jetstream.consumers.message_reader import briefly
from rebaser_core.jetstream.consumers.pull_request import ordinary, requests
from rebaser_core.jetstream.errors import (
    ConsumerGone,
    HeartbeatsMissed,
    JetStreamError,
    NotFound,
    Unreachable,
)
from rebaser_core.jetstream.messages.delivery import Delivery, delivery_of
from rebaser_core.jetstream.messages.status_message import (
    CONTROL,
    NO_RESPONDERS,
    Status,
    is_delivery,
    status_of,
)

if TYPE_CHECKING:
    from rebaser_core.jetstream.api import JetStream

MARGIN: Final = 0.1  # seconds that the server gives up before us (ADR-13)
MISSES: Final = 2  # heartbeats
_RETRY: Final = 0.1  # seconds
_GIVE_BACK_TIMEOUT: Final = 2.0  # seconds


class Fetcher:
    """One consumer's batches, one after the other.

    What is there at once is asked for over one subscription, kept for all batches.
    Waiting for more uses a subscription of its own, so that its end ends the pull.
    """

    def __init__(self, js: "JetStream", stream: str, consumer: str, *, acks: bool) -> None:
        self._js = js
        self._stream = stream
        self._consumer = consumer
        self._subject = f"{js.prefix}.CONSUMER.MSG.NEXT.{stream}.{consumer}"
        self._acks = acks
        self._standing = Inbox(js.link)
        self._turn = asyncio.Lock()

    async def fetch(
        self,
        batch: int,
        *,
        timeout: float,
        max_bytes: int | None = None,
        no_wait: bool = False,
        heartbeat: float | None = None,
    ) -> list[Delivery]:
        """Return up to `batch` messages; none if none came.

        Those that are there are returned at once. Otherwise it waits `timeout`
        seconds for the batch, unless told not to, and returns what came of it.

        If cancelled, what came is given back.

        Raises:
            ConsumerGone: there is no such consumer.
            StatusError: the server refuses such a pull.
            HeartbeatsMissed: the server was silent for two of the `heartbeat` asked for.
            Unreachable: there was no connection, or nobody answered, to the end.
        """
        pull = {"batch": batch} | ({"max_bytes": max_bytes} if max_bytes else {})
        clock = asyncio.get_running_loop().time
        deadline = clock() + timeout
        while True:
            try:
                found = await self._at_once(pull, deadline)
                return found if found or no_wait else await self._wait(pull, deadline, heartbeat)
            except Unreachable:  # after a reconnect the pull is forgotten: make it again
                if self._js.nc.is_closed or clock() + _RETRY >= deadline:
                    raise
            await asyncio.sleep(_RETRY)

    async def _at_once(self, pull: dict[str, Any], deadline: float) -> list[Delivery]:
        async with self._turn:
            if not self._standing.current:
                await self._standing.open(keep=True)
            asked = requests(self._js, pull | {"no_wait": True})
            return await _Batch(self, self._standing, asked, deadline).collected()

    async def _wait(
        self, pull: dict[str, Any], deadline: float, heartbeat: float | None
    ) -> list[Delivery]:
        left = deadline - asyncio.get_running_loop().time()
        if left <= 0:
            return []
        expires = max(left - MARGIN, left / 2)
        if self._js.single_answers:
            heartbeat = None
        elif heartbeat:
            heartbeat = min(heartbeat, expires / 2)
        asked = requests(self._js, pull, expires=expires, heartbeat=heartbeat)
        inbox = Inbox(self._js.link)
        try:
            await inbox.open()
            return await _Batch(self, inbox, asked, deadline, heartbeat).collected()
        finally:
            await inbox.close()

    async def ask(self, pull: dict[str, Any], inbox: Inbox) -> None:
        await self._js.link.publish(self._subject, json.dumps(pull).encode(), reply=inbox.subject)

    def delivery(self, inbox: Inbox) -> Delivery | None:
        """Take the next delivery from the inbox, if that is what comes next there."""
        link, acks = self._js.link, self._acks
        while inbox.queue and is_delivery(inbox.queue[0]):
            message = inbox.queue.popleft()
            if found := delivery_of(link, message, self._stream, self._consumer, acks=acks):
                return found
        return None

    async def fail(self, status: Status) -> None:
        """Raise what the status means."""
        if status.code != NO_RESPONDERS:
            raise status.error()
        try:
            await self._js.consumer_info(self._stream, self._consumer)
        except NotFound as error:
            raise ConsumerGone(error.description) from error
        raise Unreachable(f"nobody answers for {self._stream}/{self._consumer}")

    async def close(self) -> None:
        await self._standing.close()


class _Batch:
    """What one pull brings, be it made by one request or by one for each message."""

    def __init__(
        self,
        fetcher: Fetcher,
        inbox: Inbox,
        asked: list[dict[str, Any]],
        deadline: float,
        heartbeat: float | None = None,
    ) -> None:
        self._fetcher = fetcher
        self._inbox = inbox
        self._asked = asked
        self._size: int = sum(request["batch"] for request in asked)
        self._open = len(asked)
        self._deadline = deadline
        self._silence = MISSES * heartbeat if heartbeat else None
        self._found: list[Delivery] = []

    async def collected(self) -> list[Delivery]:
        """Return what came before the pull ended; its error only if nothing did."""
        try:
            self._take_late()
            if not self._found:
                for request in self._asked:
                    await self._fetcher.ask(request, self._inbox)
                await self._collect()
                await self._take_leave()
        except asyncio.CancelledError:
            await self._give_back()
            raise
        return self._found

    def _take_late(self) -> None:
        """What came after the last pull had been given up comes first."""
        while self._inbox.queue and len(self._found) < self._size:
            if delivery := self._fetcher.delivery(self._inbox):
                self._found.append(delivery)
            else:
                self._inbox.queue.popleft()

    async def _take_leave(self) -> None:
        """If we end before the server says so, take what is under way; it would be lost."""
        if self._open and len(self._found) < self._size and "expires" in self._asked[0]:
            await self._inbox.drain()
            self._take_late()

    async def _collect(self) -> None:
        clock = asyncio.get_running_loop().time
        while len(self._found) < self._size and self._open:
            if delivery := self._fetcher.delivery(self._inbox):
                self._found.append(delivery)
                self._open -= len(self._asked) > 1
            elif self._inbox.queue:
                await self._heed(status_of(self._inbox.queue.popleft()))
            elif clock() >= self._deadline:
                return
            elif (fault := self._fault(clock())) is None:
                await self._inbox.wait(self._until() - clock())
            elif self._found:
                return
            else:
                raise fault

    def _fault(self, now: float) -> JetStreamError | None:
        if not self._inbox.current:
            return Unreachable("connection lost while waiting for messages")
        if self._silence and now >= self._inbox.heard + self._silence:
            return HeartbeatsMissed(f"nothing for {self._silence} s")
        return None

    def _until(self) -> float:
        if self._silence is None:
            return self._deadline
        return min(self._deadline, self._inbox.heard + self._silence)

    async def _heed(self, status: Status | None) -> None:
        if status is None or status.code == CONTROL:
            return
        if not ordinary(status) and not self._found:
            await self._fetcher.fail(status)
        self._open -= 1

    async def _give_back(self) -> None:
        async with briefly(_GIVE_BACK_TIMEOUT):
            await self._inbox.drain()
            await self._inbox.close()
            while delivery := self._fetcher.delivery(self._inbox):
                self._found.append(delivery)
            for delivery in self._found:
                await delivery.nak()

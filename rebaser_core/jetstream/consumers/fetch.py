"""A batch of messages, once (ADR-13, ADR-37)."""

import asyncio
import json
from typing import Any, Final

from rebaser_core.jetstream.api import JetStreamApi
from rebaser_core.jetstream.consumers.inbox import Inbox
from rebaser_core.jetstream.consumers.message_reader import best_effort
from rebaser_core.jetstream.consumers.pull_request import build_pull_requests, is_benign
from rebaser_core.jetstream.errors import (
    ConsumerGone,
    HeartbeatsMissed,
    JetStreamError,
    NatsUnreachable,
    NotFound,
)
from rebaser_core.jetstream.messages.delivery import Delivery, parse_delivery
from rebaser_core.jetstream.messages.status_message import (
    CONTROL,
    NO_RESPONDERS,
    StatusMessage,
    is_delivery,
    parse_status,
)

MARGIN: Final = 0.1  # seconds that the server gives up before us (ADR-13)
MISSED_HEARTBEATS: Final = 2  # heartbeats
_RETRY_DELAY: Final = 0.1  # seconds
_NAK_TIMEOUT: Final = 2.0  # seconds


class Fetcher:
    """One consumer's batches, one after the other.

    What is there at once is asked for over one subscription, kept for all batches.
    Waiting for more uses a subscription of its own, so that its end ends the pull.
    """

    def __init__(self, js: JetStreamApi, stream: str, consumer: str, *, acks: bool) -> None:
        self._js = js
        self._stream = stream
        self._consumer = consumer
        self._subject = f"{js.prefix}.CONSUMER.MSG.NEXT.{stream}.{consumer}"
        self._acks = acks
        self._shared_inbox = Inbox(js.connection)
        self._lock = asyncio.Lock()

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
        seconds for the batch, unless `no_wait` is set, and returns what came of it.

        If cancelled, what came is given back.

        Raises:
            ConsumerGone: there is no such consumer.
            StatusError: the server refuses such a pull.
            HeartbeatsMissed: the server was silent for two of the `heartbeat` asked for.
            NatsUnreachable: there was no connection, or no answer, to the end.
        """
        pull = {"batch": batch} | ({"max_bytes": max_bytes} if max_bytes else {})
        clock = asyncio.get_running_loop().time
        deadline = clock() + timeout
        while True:
            try:
                found = await self._fetch_available(pull, deadline)
                return (
                    found
                    if found or no_wait
                    else await self._fetch_waiting(pull, deadline, heartbeat)
                )
            except NatsUnreachable:  # after a reconnect the pull is forgotten: make it again
                if self._js.nc.is_closed or clock() + _RETRY_DELAY >= deadline:
                    raise
            await asyncio.sleep(_RETRY_DELAY)

    async def _fetch_available(self, pull: dict[str, Any], deadline: float) -> list[Delivery]:
        async with self._lock:
            if not self._shared_inbox.is_valid:
                await self._shared_inbox.open(keep=True)
            asked = build_pull_requests(self._js, pull | {"no_wait": True})
            return await _FetchBatch(self, self._shared_inbox, asked, deadline).collect()

    async def _fetch_waiting(
        self, pull: dict[str, Any], deadline: float, heartbeat: float | None
    ) -> list[Delivery]:
        left = deadline - asyncio.get_running_loop().time()
        if left <= 0:
            return []
        expires = max(left - MARGIN, left / 2)
        if self._js.single_reply:
            heartbeat = None
        elif heartbeat:
            heartbeat = min(heartbeat, expires / 2)
        asked = build_pull_requests(self._js, pull, expires=expires, heartbeat=heartbeat)
        inbox = Inbox(self._js.connection)
        try:
            await inbox.open()
            return await _FetchBatch(self, inbox, asked, deadline, heartbeat).collect()
        finally:
            await inbox.close()

    async def request(self, pull: dict[str, Any], inbox: Inbox) -> None:
        await self._js.connection.publish(
            self._subject, json.dumps(pull).encode(), reply=inbox.subject
        )

    def next_delivery(self, inbox: Inbox) -> Delivery | None:
        """Take the next delivery from the inbox, if that is what comes next there."""
        link, acks = self._js.connection, self._acks
        while inbox.queue and is_delivery(inbox.queue[0]):
            message = inbox.queue.popleft()
            if found := parse_delivery(link, message, self._stream, self._consumer, acks=acks):
                return found
        return None

    async def raise_for(self, status: StatusMessage) -> None:
        """Raise what the status means."""
        if status.code != NO_RESPONDERS:
            raise status.to_error()
        try:
            await self._js.consumer_info(self._stream, self._consumer)
        except NotFound as error:
            raise ConsumerGone(error.description) from error
        raise NatsUnreachable(f"no answer for {self._stream}/{self._consumer}")

    async def close(self) -> None:
        await self._shared_inbox.close()


class _FetchBatch:
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
        self._requests = asked
        self._size: int = sum(request["batch"] for request in asked)
        self._open = len(asked)
        self._deadline = deadline
        self._heartbeat_timeout = MISSED_HEARTBEATS * heartbeat if heartbeat else None
        self._deliveries: list[Delivery] = []

    async def collect(self) -> list[Delivery]:
        """Return what came before the pull ended; its error only if nothing did."""
        try:
            self._take_leftovers()
            if not self._deliveries:
                for request in self._requests:
                    await self._fetcher.request(request, self._inbox)
                await self._receive()
                await self._drain_expired()
        except asyncio.CancelledError:
            await self._nak_all()
            raise
        return self._deliveries

    def _take_leftovers(self) -> None:
        """What came after the last pull had been given up comes first."""
        while self._inbox.queue and len(self._deliveries) < self._size:
            if delivery := self._fetcher.next_delivery(self._inbox):
                self._deliveries.append(delivery)
            else:
                self._inbox.queue.popleft()

    async def _drain_expired(self) -> None:
        """If we end before the server says so, take what is under way; it would be lost."""
        if self._open and len(self._deliveries) < self._size and "expires" in self._requests[0]:
            await self._inbox.drain()
            self._take_leftovers()

    async def _receive(self) -> None:
        clock = asyncio.get_running_loop().time
        while len(self._deliveries) < self._size and self._open:
            if delivery := self._fetcher.next_delivery(self._inbox):
                self._deliveries.append(delivery)
                self._open -= len(self._requests) > 1
            elif self._inbox.queue:
                await self._on_status(parse_status(self._inbox.queue.popleft()))
            elif clock() >= self._deadline:
                return
            elif (fault := self._error(clock())) is None:
                await self._inbox.wait(self._wake_at() - clock())
            elif self._deliveries:
                return
            else:
                raise fault

    def _error(self, now: float) -> JetStreamError | None:
        if not self._inbox.is_valid:
            return NatsUnreachable("connection lost while waiting for messages")
        if self._heartbeat_timeout and now >= self._inbox.last_message_at + self._heartbeat_timeout:
            return HeartbeatsMissed(f"nothing for {self._heartbeat_timeout} s")
        return None

    def _wake_at(self) -> float:
        if self._heartbeat_timeout is None:
            return self._deadline
        return min(self._deadline, self._inbox.last_message_at + self._heartbeat_timeout)

    async def _on_status(self, status: StatusMessage | None) -> None:
        if status is None or status.code == CONTROL:
            return
        if not is_benign(status) and not self._deliveries:
            await self._fetcher.raise_for(status)
        self._open -= 1

    async def _nak_all(self) -> None:
        async with best_effort(_NAK_TIMEOUT):
            await self._inbox.drain()
            await self._inbox.close()
            while delivery := self._fetcher.next_delivery(self._inbox):
                self._deliveries.append(delivery)
            for delivery in self._deliveries:
                await delivery.nak()

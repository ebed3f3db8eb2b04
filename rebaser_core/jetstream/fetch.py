"""A batch of messages, once (ADR-13, ADR-37).

`FetchBatch` holds what one fetch has brought, and what it may still ask for.
"""

import asyncio
import contextlib
import json
from typing import Any, Final

from nats.aio.msg import Msg

from rebaser_core.jetstream import deadlines
from rebaser_core.jetstream.api import JetStreamApi
from rebaser_core.jetstream.errors import (
    ConsumerGone,
    HeartbeatsMissed,
    JetStreamError,
    NatsUnreachable,
    NotFound,
)
from rebaser_core.jetstream.inbox import Inbox, best_effort
from rebaser_core.jetstream.messages import (
    CONTROL,
    NO_RESPONDERS,
    WRONG_PIN,
    Delivery,
    StatusMessage,
    is_delivery,
    parse_delivery,
    parse_status,
)
from rebaser_core.jetstream.pull import (
    NO_LIMITS,
    UNLIMITED,
    GroupMember,
    PullLimits,
    build_pull_requests,
    is_benign,
    message_size,
)


class FetchBatch:
    """The messages of one fetch.

    Args:
        max_messages: how many at most.
        max_bytes: bytes at most, as the server counts them; they take precedence.
        member: who pulls, of a consumer's group.
        limits: what the consumer lets one pull ask for.

    Raises:
        ValueError: neither limit is given, or one is not positive.
    """

    def __init__(
        self,
        max_messages: int | None,
        max_bytes: int | None,
        member: GroupMember | None = None,
        limits: PullLimits = NO_LIMITS,
    ) -> None:
        if max_messages is None and max_bytes is None:
            raise ValueError("max_messages or max_bytes is required")
        if any(limit is not None and limit < 1 for limit in (max_messages, max_bytes)):
            raise ValueError("max_messages and max_bytes must be positive")
        self.deliveries: list[Delivery] = []
        self.ended = False
        """Whether the server ended it before the limits were reached."""
        self.member = member
        self.limits = limits
        self._messages_left = max_messages or UNLIMITED
        self._octets_left = max_bytes

    @property
    def is_complete(self) -> bool:
        is_used_up = self._octets_left is not None and self._octets_left <= 0
        return self.ended or is_used_up or self._messages_left <= 0

    def add(self, delivery: Delivery, message: Msg) -> None:
        self.deliveries.append(delivery)
        self._messages_left -= 1
        if self._octets_left is not None:
            self._octets_left -= message_size(message)
        if self.member:
            self.member.on_message(message)

    def to_pull(self) -> dict[str, Any]:
        """Return the pull for what is missing."""
        pull = {"batch": self._messages_left}
        if self.member:
            pull |= self.member.to_pull()
        return pull if self._octets_left is None else {**pull, "max_bytes": self._octets_left}


_MARGIN: Final = 0.1  # seconds that the server gives up before us (ADR-13)
_MISSED_HEARTBEATS: Final = 2  # heartbeats
_RETRY_DELAY: Final = 0.1  # seconds
_NAK_TIMEOUT: Final = 2.0  # seconds


class Fetcher:
    """Batches of one consumer.

    Messages that are there are asked for over one subscription, which lasts as long as a fetch is
    under way, or until `close` if `keep` is set. Waiting for more uses another subscription, so
    that its end ends the pull.
    """

    def __init__(self, js: JetStreamApi, stream: str, consumer: str, *, acks: bool) -> None:
        self._js = js
        self._stream = stream
        self._consumer = consumer
        self._subject = f"{js.prefix}.CONSUMER.MSG.NEXT.{stream}.{consumer}"
        self._acks = acks
        self._shared_inbox = Inbox(js.connection)
        self._lock = asyncio.Lock()
        self._fetches = 0
        self.keep = False
        """Whether the subscription outlives the fetches under way."""

    async def fetch(
        self,
        batch: FetchBatch,
        *,
        expires: float,
        no_wait: bool = False,
        idle_heartbeat: float | None = None,
    ) -> list[Delivery]:
        """Return the batch once it is complete, or what it has by the end: see `Consumer.fetch`."""
        clock = asyncio.get_running_loop().time
        deadline = clock() + expires
        self._fetches += 1
        try:
            while True:
                try:
                    await self._fetch_available(batch, deadline)
                    if not (no_wait or batch.is_complete):
                        await self._fetch_waiting(batch, deadline, idle_heartbeat)
                except NatsUnreachable:  # after a reconnect the pull is forgotten: make it again
                    if self._js.nc.is_closed or clock() + _RETRY_DELAY >= deadline:
                        raise
                else:
                    return batch.deliveries
                with contextlib.suppress(TimeoutError):  # the next attempt says that it is over
                    async with deadlines.until(deadline):
                        await asyncio.sleep(_RETRY_DELAY)
                        await self._js.connection.wait_connected()
        except asyncio.CancelledError:
            await _nak_all(batch)
            raise
        finally:
            self._fetches -= 1
            if not (self.keep or self._fetches):
                await self._shared_inbox.close()

    async def _fetch_available(self, batch: FetchBatch, deadline: float) -> None:
        async with self._lock:
            if not self._shared_inbox.is_valid:
                await self._shared_inbox.open(keep=True)
            is_filled = True
            while is_filled and not batch.is_complete:
                asked = build_pull_requests(
                    self._js, batch.to_pull() | {"no_wait": True}, limits=batch.limits
                )
                is_filled = await _Pull(self, self._shared_inbox, batch, asked, deadline).run()

    async def _fetch_waiting(
        self, batch: FetchBatch, deadline: float, heartbeat: float | None
    ) -> None:
        clock = asyncio.get_running_loop().time
        if self._js.single_reply:
            heartbeat = None  # it would be the one answer
        if clock() >= deadline:
            return
        inbox, is_filled = Inbox(self._js.connection), True
        try:
            await inbox.open()
            while is_filled and not batch.is_complete and (left := deadline - clock()) > 0:
                expires = max(left - _MARGIN, left / 2)
                longest = batch.limits.expires or expires
                is_cut, expires = longest < expires, min(longest, expires)
                beat = min(heartbeat, expires / 2) if heartbeat else None
                pull = batch.to_pull()
                asked = build_pull_requests(
                    self._js, pull, expires=expires, heartbeat=beat, limits=batch.limits
                )
                is_filled = await _Pull(self, inbox, batch, asked, deadline, beat).run()
                is_filled = is_filled or is_cut  # the consumer lets none wait for longer
        finally:
            await inbox.close()

    async def request(self, pull: dict[str, Any], inbox: Inbox) -> None:
        await self._js.connection.publish(
            self._subject, json.dumps(pull).encode(), reply=inbox.subject
        )

    def take_delivery(self, inbox: Inbox, batch: FetchBatch) -> bool:
        """Move the next delivery from the inbox to the batch, if the inbox has one next."""
        link, acks = self._js.connection, self._acks
        while inbox.queue and is_delivery(inbox.queue[0]):
            message = inbox.queue.popleft()
            if found := parse_delivery(link, message, self._stream, self._consumer, acks=acks):
                batch.add(found, message)
                return True
        return False

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
        """End the subscription that is kept."""
        await self._shared_inbox.close()


class _Pull:
    """One pull, made by one request or by one for each message."""

    def __init__(
        self,
        fetcher: Fetcher,
        inbox: Inbox,
        batch: FetchBatch,
        asked: list[dict[str, Any]],
        deadline: float,
        heartbeat: float | None = None,
    ) -> None:
        self._fetcher = fetcher
        self._inbox = inbox
        self._batch = batch
        self._requests = asked
        self._missing: int = sum(request["batch"] for request in asked)
        self._open = len(asked)
        self._had_wrong_pin = False
        self._deadline = deadline
        self._heartbeat_timeout = _MISSED_HEARTBEATS * heartbeat if heartbeat else None

    async def run(self) -> bool:
        """Add the messages of the pull to the batch; return whether more may be there.

        Messages of an earlier pull that was given up come first.
        """
        if self._take_leftovers():
            return True
        try:
            for request in self._requests:
                # Else it would be sent after the reconnect, for an inbox that is closed by then.
                if (fault := self._lost()) is not None:
                    raise fault
                await self._fetcher.request(request, self._inbox)
            await self._receive()
        finally:
            if self._open and self._missing > 0:
                await self._give_up()
        return self._missing <= 0 or self._had_wrong_pin

    def _take_leftovers(self) -> bool:
        before = self._missing
        while self._inbox.queue and self._missing > 0:
            if not self._take():
                self._inbox.queue.popleft()
        return self._missing < before

    def _take(self) -> bool:
        is_taken = self._fetcher.take_delivery(self._inbox, self._batch)
        self._missing -= is_taken
        return is_taken

    async def _give_up(self) -> None:
        """End a pull that the server did not end; messages under way would be lost."""
        async with best_effort(_NAK_TIMEOUT):
            await self._inbox.drain()
            await self._inbox.close()
        self._take_leftovers()

    async def _receive(self) -> None:
        clock = asyncio.get_running_loop().time
        while self._missing > 0 and self._open and not self._batch.is_complete:
            if self._take():
                self._open -= len(self._requests) > 1
            elif self._inbox.queue:
                await self._on_status(parse_status(self._inbox.queue.popleft()))
            elif clock() >= self._deadline:
                return
            elif (fault := self._error(clock())) is None:
                await self._inbox.wait(self._wake_at() - clock())
            elif self._batch.deliveries:
                self._batch.ended = True
            else:
                raise fault

    def _error(self, now: float) -> JetStreamError | None:
        if (fault := self._lost()) is not None:
            return fault
        if self._heartbeat_timeout and now >= self._inbox.last_message_at + self._heartbeat_timeout:
            return HeartbeatsMissed(f"nothing for {self._heartbeat_timeout:g} s")
        return None

    def _lost(self) -> NatsUnreachable | None:
        if self._inbox.is_valid:
            return None
        return NatsUnreachable("connection lost while waiting for messages")

    def _wake_at(self) -> float:
        if self._heartbeat_timeout is None:
            return self._deadline
        return min(self._deadline, self._inbox.last_message_at + self._heartbeat_timeout)

    async def _on_status(self, status: StatusMessage | None) -> None:
        if status is None or status.code == CONTROL:
            return
        self._open -= 1
        if is_benign(status):
            return
        if status.code == WRONG_PIN and self._batch.member:
            self._batch.member.on_wrong_pin()
            self._had_wrong_pin = True
            return
        if not self._batch.deliveries:
            await self._fetcher.raise_for(status)
        self._batch.ended = True


async def _nak_all(batch: FetchBatch) -> None:
    async with best_effort(_NAK_TIMEOUT):
        for delivery in batch.deliveries:
            await delivery.nak()

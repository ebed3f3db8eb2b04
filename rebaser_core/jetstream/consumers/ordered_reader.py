"""The reading of a stream in order, also through faults and restarts (ADR-17, ADR-37)."""

import asyncio
import copy
from abc import abstractmethod
from collections.abc import Sequence
from typing import Final, Self, Unpack

from nats.aio.msg import Msg

from rebaser_core.jetstream import deadlines
from rebaser_core.jetstream.api import JetStreamApi
from rebaser_core.jetstream.consumers.message_reader import MessageReader
from rebaser_core.jetstream.consumers.options import FETCH_EXPIRES, ReaderOptions
from rebaser_core.jetstream.consumers.ordered_session import OrderedSession
from rebaser_core.jetstream.errors import MessagesMissed, NatsUnreachable, Unavailable
from rebaser_core.jetstream.infos.consumer_info import ConsumerInfo
from rebaser_core.jetstream.messages.delivery import Delivery, parse_delivery
from rebaser_core.jetstream.messages.status_message import StatusMessage, is_delivery, parse_status

UNDELIVERED_TIMEOUT: Final = 15.0  # seconds until a stored message is taken for unreadable
CONFIRM_EVERY: Final = 60.0  # seconds of waiting between two questions whether a message is due


class OrderedReader(OrderedSession, MessageReader):
    """What push and pull have in common: all but how the server is made to send.

    Args:
        js: where the stream is.
        stream: its name.
        filter_subject: one subject or several, wildcards allowed.
        options: see `ReaderOptions`.
    """

    def __init__(
        self,
        js: JetStreamApi,
        stream: str,
        filter_subject: str | Sequence[str] = ">",
        **options: Unpack[ReaderOptions],
    ) -> None:
        super().__init__(js, stream, filter_subject, options)
        self._undelivered_since: float | None = None

    @abstractmethod
    async def _on_status(self, status: StatusMessage) -> None:
        """See to a status, in its place among the messages; `_reset` if they are not complete."""

    @abstractmethod
    async def _request_more(self) -> None:
        """Have the server send, if it does not do so by itself."""

    @abstractmethod
    def _count(self, message: Msg) -> None:
        """Note that a message was handed out, if what may still come is counted."""

    async def __aenter__(self) -> Self:
        """Open it. Otherwise the first `next` does."""
        try:
            await self._open()
        except BaseException:
            await self.close()
            raise
        return self

    async def next(self, *, idle_timeout: float | None = None) -> Delivery | None:
        """Return the next message; or None when it is quiet.

        Quiet is: nothing came for `idle_timeout` seconds of this call, and the stream's
        leader confirms that nothing is left behind the cursor. With 0 that asks
        what is there now. While the server cannot be reached it is never quiet.
        None, too, at the end of what `drain` or `stop` leaves.

        Without `idle_timeout` the leader is asked once a minute of waiting, too: a consumer whose
        server lacks messages that the leader has sends heartbeats, as if there were none.

        May be cancelled at any time; the next call then returns what this one would have.

        Raises:
            NatsUnreachable: the connection or this reader is closed.
            StreamNotFound: there is no such stream.
            MessagesMissed: the leader has a message behind the cursor, and for 15 s one consumer
                after the other has not delivered it, as where its file is damaged.
            ApiError, StatusError: the server does not allow such a consumer.
        """
        clock = asyncio.get_running_loop().time
        entered, patience = clock(), CONFIRM_EVERY if idle_timeout is None else idle_timeout
        while True:
            if (delivery := await self._next_buffered()) is not None:
                return delivery
            if self._ended:
                return None
            if not (self._active and self._inbox.is_valid):
                await self._open()
                continue
            await self._request_more()
            silent = self._inbox.last_message_at + self._heartbeat_timeout - clock()
            left = min(silent, entered + patience - clock())
            if left > 0:
                await self._inbox.wait(left)
            elif silent <= 0:
                self._reset("heartbeats missed")
            elif not await self._confirm_idle():
                continue
            elif idle_timeout is None:
                entered = clock()
            else:
                return None

    async def fetch(
        self, max_messages: int, *, expires: float = FETCH_EXPIRES, no_wait: bool = False
    ) -> list[Delivery]:
        """Return as many messages, or what came of them within `expires` seconds (ADR-37).

        With `no_wait` it returns what is there now, as the stream's leader has it. If
        cancelled, or if it raises what `next` does, the next call returns what came of it.

        Raises:
            ValueError: `max_messages` is not positive.
        """
        if max_messages < 1:
            raise ValueError("max_messages must be positive")
        start, batch = copy.copy(self._position), list[Delivery]()
        try:
            async with deadlines.within(expires):
                while len(batch) < max_messages:
                    delivery = await self.next(idle_timeout=0 if no_wait else None)
                    if delivery is None:
                        break
                    batch.append(delivery)
        except TimeoutError:
            return batch
        except BaseException:
            self._position = start
            self._reset("a fetch was given up")
            raise
        return batch

    async def info(self) -> ConsumerInfo:
        """Return what the server says of the consumer that it has for this reader now.

        Raises:
            ConsumerNotFound: it is being made anew, or was not made yet.
        """
        return await self._js.consumer_info(self._stream, self._name or "-")

    async def take_buffered(self, limit: int) -> list[Delivery]:
        """Return up to `limit` of the next messages that have arrived, without waiting for any.

        Raises:
            NatsUnreachable: this reader is closed.
        """
        deliveries: list[Delivery] = []
        while len(deliveries) < limit and (delivery := await self._next_buffered()) is not None:
            deliveries.append(delivery)
        return deliveries

    async def _next_buffered(self) -> Delivery | None:
        """Work off what came, up to and including the next message."""
        queue, link = self._inbox.queue, self._js.connection
        while queue:
            message = queue.popleft()
            if not is_delivery(message):
                if (status := parse_status(message)) is not None:
                    await self._on_status(status)
            elif delivery := parse_delivery(link, message, self._stream, self._name, acks=False):
                if delivery.consumer_sequence == self._sequence + 1:
                    self._count(message)
                    return self._advance(delivery)
                self._reset("gap")
        return None

    def _advance(self, delivery: Delivery) -> Delivery:
        self._sequence += 1
        self._position.advance(delivery)
        self.pending = delivery.pending
        self._empty_attempts, self._undelivered_since = 0, None
        return delivery

    async def _confirm_idle(self) -> bool:
        """Whether the leader has nothing behind the cursor. If it has, that is due."""
        read, stream, after = self._js.get_message, self._stream, self.cursor + 1
        subjects = self._position.subjects
        try:
            found = [await read(stream, sequence=after, next_by_subject=each) for each in subjects]
        except (NatsUnreachable, Unavailable):
            return False
        if not any(found):
            self._undelivered_since = None
            return self._active and not self._inbox.queue
        await self._inbox.wait(self._heartbeat)
        if not any(map(is_delivery, self._inbox.queue)) and self._inbox.is_valid:
            now = asyncio.get_running_loop().time()
            self._undelivered_since = self._undelivered_since or now
            if now > self._undelivered_since + UNDELIVERED_TIMEOUT:
                raise MessagesMissed(
                    f"{stream} has messages behind {self.cursor}, and does not deliver them: "
                    "one of its files may be damaged"
                )
            self._reset("a stored message was not delivered")
        return False

    async def suspend(self) -> None:
        """Have no consumer at the server until `next` is called again, which loses nothing."""
        self._active, self._empty_attempts = False, 0
        await self._release()

    async def drain(self) -> None:
        """Ask for nothing more. `next` returns what has come by then, and then None."""
        self._ended = True
        await self.suspend()
        self._inbox.notify()

    async def stop(self) -> None:
        """End it now: `next` returns None. Another reader may begin behind `cursor`."""
        await self.drain()
        self._inbox.queue.clear()

    async def close(self) -> None:
        """As `suspend`, for good. Takes milliseconds, or two seconds if the server is deaf."""
        self._closed, self._active = True, False
        await self._release()

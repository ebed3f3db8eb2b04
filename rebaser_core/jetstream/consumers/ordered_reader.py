"""The place of an ordered reader in its stream, kept through whatever breaks (ADR-17)."""

import asyncio
import logging
import secrets
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, Final, Self, TypedDict, Unpack

from rebaser_core.jetstream.api import JetStreamApi
from rebaser_core.jetstream.backoff import Backoff
from rebaser_core.jetstream.consumers.ephemeral_consumer import EphemeralConsumer
from rebaser_core.jetstream.consumers.inbox import Inbox
from rebaser_core.jetstream.consumers.message_reader import MessageReader
from rebaser_core.jetstream.consumers.stream_position import StreamPosition
from rebaser_core.jetstream.errors import (
    MessagesMissed,
    NatsUnreachable,
    StreamNotFound,
    Unavailable,
)
from rebaser_core.jetstream.messages.delivery import Delivery, parse_delivery
from rebaser_core.jetstream.messages.status_message import StatusMessage, is_delivery, parse_status

log: Final = logging.getLogger(__name__)

HEARTBEAT: Final = 2.0  # seconds between signs of life
INACTIVE_THRESHOLD: Final = 5.0  # seconds that the server's consumer outlives a lost reader
MISSED_HEARTBEATS: Final = 3  # heartbeats missed until it is believed (ADR-15)
UNDELIVERED_TIMEOUT: Final = 15.0  # seconds until a stored message is taken for unreadable
_BACKOFF: Final = Backoff(0.05, 1.0)


class ReaderOptions(TypedDict, total=False):
    """What an ordered reader starts with, and how it reads."""

    start_sequence: int
    """The first stream sequence of interest (default: 1)."""
    deliver_policy: str
    """Instead of it `all`, `new`, `last`, `last_per_subject` or `by_start_time`; in force until
    the first message, or until the server has said which sequence it means."""
    start_time: str
    """For `by_start_time` (RFC 3339)."""
    headers_only: bool
    """Leave the payloads out; `Nats-Msg-Size` tells their size (default: false)."""
    heartbeat: float
    """Seconds between signs of life; three missed are an alarm (default: 2)."""


class OrderedReader(MessageReader):
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
        self._js = js
        self._stream = stream
        self._position = StreamPosition(
            filter_subject,
            options.get("start_sequence", 1),
            options.get("deliver_policy"),
            options.get("start_time"),
        )
        self._heartbeat = options.get("heartbeat", HEARTBEAT)
        self._heartbeat_timeout = MISSED_HEARTBEATS * self._heartbeat
        self._inbox = Inbox(js.connection)
        self._consumer = EphemeralConsumer(
            js,
            stream,
            headers_only=options.get("headers_only", False),
            inactive_threshold=INACTIVE_THRESHOLD,
        )
        self._active = self._closed = False
        self._empty_attempts = 0
        self._opened_at = 0.0
        self._undelivered_since: float | None = None
        self._sequence = 0
        self._name: str | None = None
        self.pending = 0
        """How many messages lay behind the last one handed out, as the server said with it."""
        self.resets = 0
        """How often the server's consumer was made anew."""

    @property
    def cursor(self) -> int:
        """The stream sequence of the last message handed out; all before it were."""
        return self._position.cursor

    @abstractmethod
    def _delivery_config(self) -> Mapping[str, Any]:
        """Return the part of the consumer's configuration that is the subclass's."""

    @abstractmethod
    async def _on_status(self, status: StatusMessage) -> None:
        """See to a status, in its place among the messages; `_reset` if they are not complete."""

    @abstractmethod
    async def _request_more(self) -> None:
        """Have the server send, if it does not do so by itself."""

    @abstractmethod
    def _on_consumer_created(self) -> None:
        """Forget what was counted: another consumer begins at its first message."""

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

        Quiet is: nothing came for `quiet` seconds of this call, and the stream's
        leader confirms that nothing is left behind the cursor. With 0 that asks
        what is there now. While the server cannot be reached it is never quiet.

        May be cancelled at any time; the next call then returns what this one would have.

        Raises:
            NatsUnreachable: the connection or this reader is closed.
            StreamNotFound: there is no such stream.
            MessagesMissed: the leader has a message behind the cursor, and for 15 s one consumer
                after the other has not delivered it, as where its file is damaged.
            ApiError, StatusError: the server does not allow such a consumer.
        """
        clock = asyncio.get_running_loop().time
        entered = clock()
        while True:
            if (delivery := await self._next_buffered()) is not None:
                return delivery
            if not (self._active and self._inbox.is_valid):
                await self._open()
                continue
            await self._request_more()
            silent = self._inbox.last_message_at + self._heartbeat_timeout - clock()
            left = silent if idle_timeout is None else min(silent, entered + idle_timeout - clock())
            if left > 0:
                await self._inbox.wait(left)
            elif silent <= 0:
                self._reset("heartbeats missed")
            elif await self._confirm_idle():
                return None

    async def take_buffered(self, limit: int) -> list[Delivery]:
        """Return up to `most` of the next messages that have arrived, without waiting for any.

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
                    return self._advance(delivery)
                self._reset("gap")
        return None

    def _advance(self, delivery: Delivery) -> Delivery:
        self._sequence += 1
        self._position.advance(delivery)
        self.pending = delivery.pending
        self._empty_attempts, self._undelivered_since = 0, None
        return delivery

    def _reset(self, why: str) -> None:
        """Give up the server's consumer: the next turn of `next` makes another one."""
        log.info("ordered consumer on %s behind %d: %s", self._stream, self.cursor, why)
        self._active = False
        self._inbox.queue.clear()

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

    async def _open(self) -> None:
        """Make a consumer behind the cursor, as soon as there is a server to make it.

        May be cancelled and rerun: what it left half done is replaced.
        """
        clock = asyncio.get_running_loop().time
        again, self._active = self._inbox.subject != "", False
        if clock() > self._opened_at + self._heartbeat_timeout:
            self._empty_attempts = 0
        give_up = clock() + self._heartbeat_timeout
        while not self._active:
            if self._closed:
                raise NatsUnreachable("this reader is closed")
            await self._js.connection.wait_connected()
            await self._release()
            await self._backoff()
            try:
                await self._create()
            except NatsUnreachable:
                continue
            except (Unavailable, StreamNotFound) as error:
                hopeless = isinstance(error, StreamNotFound) and not again
                if hopeless or clock() >= give_up:  # else perhaps the server is still starting
                    raise
        self.resets += again

    async def _backoff(self) -> None:
        """After consumers that brought nothing wait, each time longer, before the next one."""
        if self._empty_attempts:
            await asyncio.sleep(_BACKOFF.jittered(self._empty_attempts))
        self._empty_attempts += 1

    async def _create(self) -> None:
        await self._inbox.open()  # before the consumer: no delivery without a listener
        self._sequence = 0
        self._on_consumer_created()
        self._name = f"o{secrets.token_hex(8)}"  # which tells nothing of the inbox
        info = await self._consumer.create(
            self._name, {**self._position.to_config(), **self._delivery_config()}
        )
        self.pending = info["num_pending"]
        self._position.sync(info)
        self._active = True
        self._opened_at = asyncio.get_running_loop().time()

    async def _release(self) -> None:
        await self._inbox.close()
        await self._consumer.delete()

    async def suspend(self) -> None:
        """Have no consumer at the server until `next` is called again, which loses nothing."""
        self._active, self._empty_attempts = False, 0
        await self._release()

    async def close(self) -> None:
        """As `pause`, for good. Takes milliseconds, or two seconds if the server is deaf."""
        self._closed, self._active = True, False
        await self._release()

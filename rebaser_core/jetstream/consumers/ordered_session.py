"""The server's consumer of an ordered reader, made anew whenever it breaks (ADR-17)."""

import asyncio
import logging
import secrets
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Final

from rebaser_core.jetstream.api import JetStreamApi
from rebaser_core.jetstream.backoff import Backoff
from rebaser_core.jetstream.configs.consumer_config import ConsumerConfig
from rebaser_core.jetstream.consumers.ephemeral_consumer import EphemeralConsumer
from rebaser_core.jetstream.consumers.inbox import Inbox
from rebaser_core.jetstream.consumers.options import ReaderOptions
from rebaser_core.jetstream.consumers.stream_position import StreamPosition
from rebaser_core.jetstream.errors import NatsUnreachable, StreamNotFound, Unavailable

log: Final = logging.getLogger(__name__)

HEARTBEAT: Final = 2.0  # seconds between signs of life
INACTIVE_THRESHOLD: Final = 5.0  # seconds that the server's consumer outlives a lost reader
MISSED_HEARTBEATS: Final = 3  # heartbeats missed until it is believed (ADR-15)
_BACKOFF: Final = Backoff(0.05, 1.0)


class OrderedSession(ABC):
    """A place in a stream, and a consumer that delivers what is behind it."""

    def __init__(
        self,
        js: JetStreamApi,
        stream: str,
        filter_subject: str | Sequence[str],
        options: ReaderOptions,
    ) -> None:
        self._js = js
        self._stream = stream
        self._options = options
        self._position = StreamPosition(
            filter_subject,
            options.get("deliver_policy"),
            options.get("opt_start_seq"),
            options.get("opt_start_time"),
        )
        self._heartbeat = options.get("idle_heartbeat", HEARTBEAT)
        self._heartbeat_timeout = MISSED_HEARTBEATS * self._heartbeat
        self._inbox = Inbox(js.connection)
        self._consumer = EphemeralConsumer(
            js,
            stream,
            headers_only=options.get("headers_only", False),
            inactive_threshold=INACTIVE_THRESHOLD,
        )
        self._active = self._ended = self._closed = False
        self._empty_attempts = 0
        self._opened_at = 0.0
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
    def _delivery_config(self) -> ConsumerConfig:
        """Return the part of the consumer's configuration that is the subclass's."""

    @abstractmethod
    def _on_consumer_created(self) -> None:
        """Forget what was counted: another consumer begins at its first message."""

    def _reset(self, why: str) -> None:
        """Give up the server's consumer: the next turn of `next` makes another one."""
        log.info("ordered consumer on %s behind %d: %s", self._stream, self.cursor, why)
        self._active = False
        self._inbox.queue.clear()

    async def _open(self) -> None:
        """Make a consumer behind the cursor, as soon as there is a server to make it.

        May be cancelled and rerun: what it left half done is replaced.
        """
        clock = asyncio.get_running_loop().time
        again, self._active = self._inbox.subject != "", False
        if clock() > self._opened_at + self._heartbeat_timeout:
            self._empty_attempts = 0
        give_up = clock() + self._heartbeat_timeout
        while not (self._active or self._ended):
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
            self._name, self._position.to_config() | self._delivery_config()
        )
        self.pending = info.num_pending
        self._position.sync(info)
        self._active = True
        self._opened_at = asyncio.get_running_loop().time()

    async def _release(self) -> None:
        await self._inbox.close()
        await self._consumer.delete()

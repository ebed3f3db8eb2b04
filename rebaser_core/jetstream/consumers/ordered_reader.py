"""The place of an ordered reader in its stream, kept through whatever breaks (ADR-17)."""

import asyncio
import logging
import random
import secrets
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, Self

from rebaser_core.jetstream.consumers.ephemeral_consumer import Ephemeral
from rebaser_core.jetstream.consumers.inbox import Inbox
from rebaser_core.jetstream.consumers.message_reader import Reader
from rebaser_core.jetstream.consumers.stream_position import Place
from rebaser_core.jetstream.errors import StreamNotFound, Unavailable, Unreachable
from rebaser_core.jetstream.messages.delivery import Delivery, delivery_of
from rebaser_core.jetstream.messages.status_message import Status, is_delivery, status_of

if TYPE_CHECKING:
    from rebaser_core.jetstream.api import JetStream

log: Final = logging.getLogger(__name__)

INACTIVE_THRESHOLD: Final = 5.0  # seconds it lives without us
MISSES: Final = 3  # heartbeats missed until it is believed (ADR-15)
_RETRY: Final = (0.05, 2.0)  # seconds, first and longest


class OrderedReader(Reader):
    """What push and pull have in common: all but how the server is made to send.

    Args:
        js: where the stream is.
        stream: its name.
        filter_subject: one subject or several, wildcards allowed.
        start_sequence: the first stream sequence of interest.
        deliver_policy: instead of it `all`, `new`, `last`, `last_per_subject` or
            `by_start_time`, with `start_time` (RFC 3339); in force until the first
            message, or until the server has told which sequence it means.
        heartbeat: seconds between signs of life; `misses` of them missed are an alarm.
        headers_only: leave the payloads out; `Nats-Msg-Size` tells their size.
        inactive_threshold: seconds that the server's consumer outlives a lost reader.
    """

    def __init__(
        self,
        js: "JetStream",
        stream: str,
        filter_subject: str | Sequence[str] = ">",
        *,
        start_sequence: int = 1,
        deliver_policy: str | None = None,
        start_time: str | None = None,
        heartbeat: float = 2.0,
        misses: int = MISSES,
        headers_only: bool = False,
        inactive_threshold: float = INACTIVE_THRESHOLD,
    ) -> None:
        self._js = js
        self._stream = stream
        self._place = Place(filter_subject, start_sequence, deliver_policy, start_time)
        self._heartbeat = heartbeat
        self._silence = misses * heartbeat
        self._inbox = Inbox(js.link)
        self._consumer = Ephemeral(
            js, stream, headers_only=headers_only, inactive_threshold=inactive_threshold
        )
        self._live = self._closed = False
        self._fruitless = 0
        self._opened = 0.0
        self._sequence = 0
        self._name: str | None = None
        self.pending = 0
        """How many messages lay behind the last one handed out, as the server told with it."""
        self.resets = 0
        """How often the server's consumer was made anew."""

    @property
    def cursor(self) -> int:
        """The stream sequence of the last message handed out; all before it were."""
        return self._place.cursor

    @abstractmethod
    def _mode(self) -> Mapping[str, Any]:
        """Return the part of the consumer's configuration that is the subclass's."""

    @abstractmethod
    async def _heed(self, status: Status) -> None:
        """See to a status, in its place among the messages; `_reset` if they are not complete."""

    @abstractmethod
    async def _ask(self) -> None:
        """Have the server send, if it does not do so by itself."""

    @abstractmethod
    def _started(self) -> None:
        """Forget what was counted: another consumer begins at its first message."""

    async def __aenter__(self) -> Self:
        """Open it. Otherwise the first `next` does."""
        try:
            await self._open()
        except BaseException:
            await self.close()
            raise
        return self

    async def next(self, *, quiet: float | None = None) -> Delivery | None:
        """Return the next message; or None when it is quiet.

        Quiet is: nothing came for `quiet` seconds of this call, and the stream's
        leader confirms that nothing is left behind the cursor. With 0 that asks
        what is there now. While the server cannot be reached it is never quiet.

        May be cancelled at any time; the next call then returns what this one would have.

        Raises:
            Unreachable: the connection or this reader is closed.
            StreamNotFound: there is no such stream.
            ApiError, StatusError: the server does not allow such a consumer.
        """
        clock = asyncio.get_running_loop().time
        entered = clock()
        while True:
            if (delivery := await self._queued()) is not None:
                return delivery
            if not (self._live and self._inbox.current):
                await self._open()
                continue
            await self._ask()
            silent = self._inbox.heard + self._silence - clock()
            left = silent if quiet is None else min(silent, entered + quiet - clock())
            if left > 0:
                await self._inbox.wait(left)
            elif silent <= 0:
                self._reset("heartbeats missed")
            elif await self._nothing_left():
                return None

    async def ready(self, most: int) -> list[Delivery]:
        """Return up to `most` of the next messages that have arrived, without waiting for any.

        Raises:
            Unreachable: this reader is closed.
        """
        found: list[Delivery] = []
        while len(found) < most and (delivery := await self._queued()) is not None:
            found.append(delivery)
        return found

    async def _queued(self) -> Delivery | None:
        """Work off what came, up to and including the next message."""
        queue, link = self._inbox.queue, self._js.link
        while queue:
            message = queue.popleft()
            if not is_delivery(message):
                if (status := status_of(message)) is not None:
                    await self._heed(status)
            elif delivery := delivery_of(link, message, self._stream, self._name, acks=False):
                if delivery.consumer_sequence == self._sequence + 1:
                    return self._handed_out(delivery)
                self._reset("gap")
        return None

    def _handed_out(self, delivery: Delivery) -> Delivery:
        self._sequence += 1
        self._place.passed(delivery)
        self.pending = delivery.pending
        self._fruitless = 0
        return delivery

    def _reset(self, why: str) -> None:
        """Give up the server's consumer: the next turn of `next` makes another one."""
        log.info("ordered consumer on %s behind %d: %s", self._stream, self.cursor, why)
        self._live = False
        self._inbox.queue.clear()

    async def _nothing_left(self) -> bool:
        """Whether the leader has nothing behind the cursor. If it has, that is due."""
        read, stream, after = self._js.get_message, self._stream, self.cursor + 1
        subjects = self._place.subjects
        try:
            found = [await read(stream, sequence=after, next_by_subject=each) for each in subjects]
        except (Unreachable, Unavailable):
            return False
        if not any(found):
            return self._live and not self._inbox.queue
        await self._inbox.wait(self._heartbeat)
        if not self._inbox.queue and self._inbox.current:
            self._reset("a stored message was not delivered")
        return False

    async def _open(self) -> None:
        """Make a consumer behind the cursor, as soon as there is a server to make it.

        May be cancelled and rerun: what it left half done is replaced.
        """
        clock = asyncio.get_running_loop().time
        again, self._live = self._inbox.subject != "", False
        if clock() > self._opened + self._silence:
            self._fruitless = 0
        give_up = clock() + self._silence
        while not self._live:
            if self._closed:
                raise Unreachable("this reader is closed")
            await self._js.link.connected()
            await self._release()
            await self._rest()
            try:
                await self._create()
            except Unreachable:
                continue
            except (Unavailable, StreamNotFound) as error:
                hopeless = isinstance(error, StreamNotFound) and not again
                if hopeless or clock() >= give_up:  # else perhaps the server is still starting
                    raise
        self.resets += again

    async def _rest(self) -> None:
        """After consumers that brought nothing wait, each time longer, before the next one."""
        if self._fruitless:
            first, longest = _RETRY
            pause = min(longest, first * 2 ** min(self._fruitless, 10))
            await asyncio.sleep(pause * random.uniform(0.25, 0.5))  # noqa: S311 - jitter
        self._fruitless += 1

    async def _create(self) -> None:
        await self._inbox.open()  # before the consumer: no delivery without a listener
        self._sequence = 0
        self._started()
        self._name = f"o{secrets.token_hex(8)}"  # which tells nothing of the inbox
        info = await self._consumer.make(self._name, {**self._place.config(), **self._mode()})
        self.pending = info["num_pending"]
        self._place.told(info)
        self._live = True
        self._opened = asyncio.get_running_loop().time()

    async def _release(self) -> None:
        await self._inbox.close()
        await self._consumer.release()

    async def pause(self) -> None:
        """Have no consumer at the server until `next` is called again, which loses nothing."""
        self._live, self._fruitless = False, 0
        await self._release()

    async def close(self) -> None:
        """As `pause`, for good. Takes milliseconds, or two seconds if the server is deaf."""
        self._closed, self._live = True, False
        await self._release()

"""Ordered readers of a stream: every message in order, once, through faults and restarts.

The server's consumer of a reader has a new name each time, is made anew whenever it breaks, and is
deleted at the end (ADR-17, ADR-37).
"""

import asyncio
import copy
import json
import logging
import secrets
from abc import abstractmethod
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Final, Self, Unpack

from nats.aio.msg import Msg

from rebaser_core.jetstream import deadlines
from rebaser_core.jetstream.api import JetStreamApi
from rebaser_core.jetstream.configs import ConsumerConfig, ConsumerInfo, DeliverPolicy
from rebaser_core.jetstream.deadlines import Backoff
from rebaser_core.jetstream.errors import (
    MessagesMissed,
    NatsUnreachable,
    StreamNotFound,
    Unavailable,
)
from rebaser_core.jetstream.inbox import FlowControl, Inbox, MessageReader, best_effort
from rebaser_core.jetstream.messages import (
    CONTROL,
    Delivery,
    StatusMessage,
    is_delivery,
    parse_delivery,
    parse_status,
)
from rebaser_core.jetstream.pull import (
    FETCH_EXPIRES,
    MAX_SINGLE_PULLS,
    PullBudget,
    ReadBuffer,
    ReaderOptions,
    build_pull_requests,
    is_terminal,
)

_DELETE_TIMEOUT: Final = 1.0  # seconds to delete a consumer; else it dies by itself


class _EphemeralConsumer:
    """The server's consumers of a reader: one at a time, each with a new name."""

    def __init__(
        self, js: JetStreamApi, stream: str, *, headers_only: bool, inactive_threshold: float
    ) -> None:
        """`inactive_threshold`: seconds that it lives without us."""
        self._js = js
        self._stream = stream
        self._config = ConsumerConfig(
            ack_policy="none",
            max_deliver=1,
            replay_policy="instant",
            headers_only=headers_only,
            mem_storage=True,
            num_replicas=1,
            inactive_threshold=timedelta(seconds=inactive_threshold),
        )
        self._undeleted: list[str] = []
        self.name: str | None = None

    async def create(self, name: str, config: ConsumerConfig) -> ConsumerInfo:
        """Create the consumer; return what the server says of it.

        The consumer may exist even if this is cancelled or raises.
        """
        self.name = name
        wanted = self._config | config | ConsumerConfig(name=name)
        return await self._js.create_consumer(self._stream, wanted)

    async def delete(self) -> None:
        """Delete the consumers that this object created.

        What cannot be deleted now is deleted next time: the server takes a client whose
        connection went deaf for a listener, and would keep its consumer for minutes.
        """
        if self.name:
            self._undeleted.append(self.name)
            self.name = None
        if self._js.connection.is_connected:
            async with best_effort(_DELETE_TIMEOUT):
                while self._undeleted:
                    await self._js.delete_consumer(self._stream, self._undeleted[-1])
                    self._undeleted.pop()


_BY_SEQUENCE: Final = "by_start_sequence"
_BY_TIME: Final = "by_start_time"
_NOT_A_POSITION: Final = "last_per_subject"  # the one policy that is not a place in the stream


class _StreamPosition:
    """A cursor; or a deliver policy, until the server has said which position it means.

    Raises:
        ValueError: a start that the policy does not use.
    """

    def __init__(
        self,
        subjects: str | Sequence[str],
        policy: DeliverPolicy | None,
        opt_start_seq: int | None,
        opt_start_time: datetime | None,
    ) -> None:
        if opt_start_seq is not None and policy not in (None, _BY_SEQUENCE):
            raise ValueError(f"opt_start_seq is for deliver_policy {_BY_SEQUENCE}, not {policy}")
        if (opt_start_time is None) is (policy == _BY_TIME):
            raise ValueError(f"opt_start_time and deliver_policy {_BY_TIME} go together")
        self.subjects = (subjects,) if isinstance(subjects, str) else tuple(subjects)
        self.cursor = 0 if opt_start_seq is None else opt_start_seq - 1
        """The stream sequence of the last message handed out; all before it were."""
        self._policy: ConsumerConfig | None = None
        if policy and policy != _BY_SEQUENCE:
            self._policy = ConsumerConfig(deliver_policy=policy, opt_start_time=opt_start_time)

    def advance(self, delivery: Delivery) -> None:
        self.cursor = delivery.stream_sequence
        self._policy = None

    def sync(self, info: ConsumerInfo) -> None:
        """Learn from a new consumer's info: a reset must not move `new` to a later place."""
        if self._policy and self._policy.deliver_policy != _NOT_A_POSITION:
            self.cursor, self._policy = info.delivered.stream_seq, None

    def to_config(self) -> ConsumerConfig:
        """Return what a consumer needs to begin here."""
        start = self._policy or ConsumerConfig(
            deliver_policy=_BY_SEQUENCE, opt_start_seq=self.cursor + 1
        )
        if len(self.subjects) == 1:
            return start | ConsumerConfig(filter_subject=self.subjects[0])
        return start | ConsumerConfig(filter_subjects=self.subjects)


log: Final = logging.getLogger(__name__)

_HEARTBEAT: Final = 2.0  # seconds between signs of life
_INACTIVE_THRESHOLD: Final = 5.0  # seconds that the server's consumer outlives a lost reader
_MISSED_HEARTBEATS: Final = 3  # heartbeats missed until it is believed (ADR-15)
_BACKOFF: Final = Backoff(0.05, 1.0)
_UNDELIVERED_TIMEOUT: Final = 15.0  # seconds until a stored message is taken for unreadable
CONFIRM_EVERY: Final = 60.0  # seconds of waiting between two questions whether a message is due


class OrderedReader(MessageReader):
    """A place in a stream, and a consumer that delivers what is behind it.

    Subclasses say how the server is made to send.

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
        self._position = _StreamPosition(
            filter_subject,
            options.get("deliver_policy"),
            options.get("opt_start_seq"),
            options.get("opt_start_time"),
        )
        self._heartbeat = options.get("idle_heartbeat", _HEARTBEAT)
        self._heartbeat_timeout = _MISSED_HEARTBEATS * self._heartbeat
        self._inbox = Inbox(js.connection)
        self._consumer = _EphemeralConsumer(
            js,
            stream,
            headers_only=options.get("headers_only", False),
            inactive_threshold=_INACTIVE_THRESHOLD,
        )
        self._active = self._ended = self._closed = False
        self._empty_attempts = 0
        self._opened_at = 0.0
        self._undelivered_since: float | None = None
        self._sequence = 0
        self._name: str | None = None
        self.pending = 0
        """Number of messages behind the last one handed out, as the server said with it."""
        self.resets = 0
        """Number of times that the server's consumer was made anew."""

    @property
    def cursor(self) -> int:
        """The stream sequence of the last message handed out; all before it were."""
        return self._position.cursor

    @abstractmethod
    def _delivery_config(self) -> ConsumerConfig:
        """Return the subclass's part of the consumer's configuration."""

    @abstractmethod
    def _on_consumer_created(self) -> None:
        """Forget what was counted: another consumer begins at its first message."""

    @abstractmethod
    async def _on_status(self, status: StatusMessage) -> None:
        """See to a status, in its place among the messages; `_reset` if they are not complete."""

    @abstractmethod
    async def _request_more(self) -> None:
        """Ask the server to send, if it does not do so by itself."""

    @abstractmethod
    def _count(self, message: Msg) -> None:
        """Note that a message was handed out, if what may still come is counted."""

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
        """Wait, each time longer, before a new consumer if earlier ones brought nothing."""
        if self._empty_attempts:
            await asyncio.sleep(_BACKOFF.jittered(self._empty_attempts))
        self._empty_attempts += 1

    async def _create(self) -> None:
        await self._inbox.open()  # before the consumer: no delivery without a listener
        self._sequence = 0
        self._on_consumer_created()
        self._name = f"o{secrets.token_hex(8)}"  # random: the inbox cannot be guessed from it
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

    async def __aenter__(self) -> Self:
        """Open the reader. Otherwise the first `next` does."""
        try:
            await self._open()
        except BaseException:
            await self.close()
            raise
        return self

    async def next(self, *, idle_timeout: float | None = None) -> Delivery | None:
        """Return the next message; or None when the stream is quiet.

        The stream is quiet if nothing came for `idle_timeout` seconds of this call and the stream's
        leader confirms that nothing is left behind the cursor. With 0, this asks what is there now.
        While the server cannot be reached, the stream is never quiet. The result is None, too,
        after the last message that `drain` or `stop` leaves.

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
        """Return `max_messages`, or the messages that came within `expires` seconds (ADR-37).

        With `no_wait` it returns what is there now, as the stream's leader has it. If it is
        cancelled, or raises as `next` does, the next call returns the messages that came.

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
            if now > self._undelivered_since + _UNDELIVERED_TIMEOUT:
                raise MessagesMissed(
                    f"{stream} has messages behind {self.cursor}, and does not deliver them: "
                    "one of its files may be damaged"
                )
            self._reset("a stored message was not delivered")
        return False

    async def suspend(self) -> None:
        """Delete the server's consumer until `next` is called again; nothing is lost."""
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
        """Suspend for good. Takes milliseconds, or two seconds if the server is deaf."""
        self._closed, self._active = True, False
        await self._release()


_READ_AHEAD: Final = 256  # messages asked for ahead of the reader
_EXPIRES: Final = 30.0  # seconds
_BOUNDS: Final = ("max_messages", "max_bytes")


class OrderedPushConsumer(OrderedReader):
    """Messages of a stream in stream order, each once, none left out (ADR-15, ADR-17).

    The cursor is the last message *handed out*. After a gap, missed heartbeats, a
    deleted consumer or a reconnect, the server's consumer is made anew behind it.
    There is no task in the background: heartbeats, gaps and flow control are seen
    to, in the order they came, inside `next`. So the server never runs further
    ahead than its flow control window, even if the caller is slow.

    One task at a time may call `next`. Closing deletes the server's consumer.
    """

    _flow_control: FlowControl

    def _delivery_config(self) -> ConsumerConfig:
        return ConsumerConfig(
            deliver_subject=self._inbox.subject,
            flow_control=True,
            idle_heartbeat=timedelta(seconds=self._heartbeat),
        )

    def _on_consumer_created(self) -> None:
        self._flow_control = FlowControl(self._js.connection, reply_timeout=self._heartbeat)

    async def _request_more(self) -> None:
        """Do nothing: the server sends by itself."""

    def _count(self, message: Msg) -> None:
        """Flow control bounds what may come."""

    async def _on_status(self, status: StatusMessage) -> None:
        arrived = None if self._inbox.queue else self._inbox.last_message_at
        if status.code != CONTROL:
            self._reset(f"status {status.code} {status.description}")
        elif status.last_consumer_sequence not in (None, self._sequence):
            self._reset("gap before a heartbeat")
        elif not await self._flow_control.acknowledge(status, arrived):
            self._reset("flow control is not heard")


class OrderedPullConsumer(OrderedReader):
    """An ordered reader that pulls, which needs nothing but the API (ADR-37).

    It reads a JetStream under a prefix, whose account exports no flow control subjects.

    Raises:
        ValueError: buffering options that exclude each other.
    """

    _budget: PullBudget

    def __init__(
        self,
        js: JetStreamApi,
        stream: str,
        filter_subject: str | Sequence[str] = ">",
        **options: Unpack[ReaderOptions],
    ) -> None:
        super().__init__(js, stream, filter_subject, **options)
        self._buffer = _buffer(options, self._heartbeat, single_reply=js.single_reply)

    def _delivery_config(self) -> ConsumerConfig:
        return ConsumerConfig()

    def _on_consumer_created(self) -> None:
        self._budget = PullBudget()

    def _count(self, message: Msg) -> None:
        self._budget.on_message(message)

    async def _next_buffered(self) -> Delivery | None:
        if self._active and self._inbox.queue and self._inbox.is_valid:
            await self._request_more()  # while there is still something to hand out
        return await super()._next_buffered()

    async def _request_more(self) -> None:
        pull = self._buffer.refill(self._budget)
        if pull is None:
            return
        subject = f"{self._js.prefix}.CONSUMER.MSG.NEXT.{self._stream}.{self._consumer.name}"
        expires, heartbeat = self._buffer.expires, self._heartbeat
        for request in build_pull_requests(self._js, pull, expires=expires, heartbeat=heartbeat):
            self._budget.on_request(request)  # before: if cancelled, it may have been sent
            payload = json.dumps(request).encode()
            await self._js.connection.publish(subject, payload, reply=self._inbox.subject)

    async def _on_status(self, status: StatusMessage) -> None:
        if status.code == CONTROL:
            return
        if is_terminal(status) and not status.consumer_deleted:
            raise status.to_error()
        if status.pending is None:
            self._reset(f"status {status.code} {status.description}")
        else:
            self._budget.on_end(*status.pending)


def _buffer(options: ReaderOptions, heartbeat: float, *, single_reply: bool) -> ReadBuffer:
    most, octets = options.get("max_messages"), options.get("max_bytes")
    if most is None and octets is None:
        most = MAX_SINGLE_PULLS if single_reply else _READ_AHEAD
    return ReadBuffer(
        max_messages=most,
        max_bytes=octets,
        threshold_messages=options.get("threshold_messages"),
        threshold_bytes=options.get("threshold_bytes"),
        expires=options.get("expires", max(_EXPIRES, 2 * heartbeat)),
        idle_heartbeat=heartbeat,
    )


def ordered_reader(
    js: JetStreamApi,
    stream: str,
    filter_subject: str | Sequence[str] = ">",
    **options: Unpack[ReaderOptions],
) -> OrderedReader:
    """Return a reader: a push consumer where that works and nothing bounds the buffer.

    The reader pulls where `js` is another account's, and with `max_messages` or `max_bytes`. It
    makes no request before it is entered or used.

    Raises:
        ValueError: options that exclude each other.
    """
    pulls = js.is_remote or any(name in options for name in _BOUNDS)
    kind = OrderedPullConsumer if pulls else OrderedPushConsumer
    return kind(js, stream, filter_subject, **options)

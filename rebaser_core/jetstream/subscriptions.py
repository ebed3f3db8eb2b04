"""Subscriptions to push consumers: the workflow of ADR-15.

`ConsumerSpec` knows what ADR-15 lets a subscription be, and to which existing consumer it may be
bound.
"""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import TYPE_CHECKING, Final

from rebaser_core.jetstream.api import JetStreamApi
from rebaser_core.jetstream.configs import ConsumerConfig, ConsumerInfo, diff_config
from rebaser_core.jetstream.errors import (
    AlreadyExists,
    ConsumerNotFound,
    FlowControlIgnored,
    HeartbeatsMissed,
    JetStreamError,
    MessagesMissed,
    Misconfigured,
    StreamNotFound,
)
from rebaser_core.jetstream.handles import Consumer
from rebaser_core.jetstream.inbox import FlowControl, Inbox, MessageReader
from rebaser_core.jetstream.messages import (
    CONTROL,
    Delivery,
    StatusMessage,
    is_delivery,
    parse_delivery,
)

if TYPE_CHECKING:
    from nats.aio.msg import Msg

_EXPLICIT: Final = "explicit"


@dataclass(frozen=True, kw_only=True)
class ConsumerSpec:
    """The wish of a caller of `subscribe`; checked when made.

    Raises:
        Misconfigured: it contradicts itself.
    """

    subject: str | None = None
    stream: str | None = None
    consumer: str | None = None
    """Name of an existing consumer to be bound to."""
    durable: str | None = None
    """Name of a consumer to be bound to, created if it is not there."""
    queue: str | None = None
    pull: bool = False
    config: ConsumerConfig = field(default_factory=ConsumerConfig)

    def __post_init__(self) -> None:
        if self.subject is None and self.stream is None:
            raise Misconfigured("neither a subject nor a stream")
        if self.consumer and self.durable and self.consumer != self.durable:
            raise Misconfigured(f"bound to {self.consumer} and durable {self.durable}")
        self._check_filters()
        self._check_deliver_group()
        if self.pull:
            self._check_pull()
        if self.queue:
            self._check_queue()

    def _check_filters(self) -> None:
        """Check that the subject is the filter (ADR-15)."""
        filters = self._filters_of(self.config)
        if self.subject is not None and filters != [self.subject]:
            raise Misconfigured(
                f"subject {self.subject}, but filter {', '.join(filters)}: the subject is the"
                " filter; for others give the stream and no subject"
            )

    def _check_deliver_group(self) -> None:
        group = self.config.deliver_group
        if group and group != self.queue:
            raise Misconfigured(f"deliver_group {group} without queue={group!r}")

    def _check_pull(self) -> None:
        if self.config.ack_policy not in (None, _EXPLICIT):
            raise Misconfigured(f"ack policy {self.config.ack_policy} cannot be pulled")
        if self.queue:
            raise Misconfigured("a queue group is for pushes; pullers share by themselves")
        for field_ in ("deliver_subject", "idle_heartbeat", "flow_control"):
            if getattr(self.config, field_):
                raise Misconfigured(f"{field_} is for pushes")

    def _check_queue(self) -> None:
        if self.config.idle_heartbeat:
            raise Misconfigured("heartbeats would go to random members of the queue group")
        if self.config.flow_control:
            raise Misconfigured("flow control would go to random members of the queue group")

    @property
    def name(self) -> str | None:
        """The consumer's name; the queue's if there is no other, so that its members meet."""
        given = self.config.durable_name or self.config.name
        return self.consumer or self.durable or given or self.queue

    def to_config(self) -> ConsumerConfig:
        """Return the configuration of the consumer to create, but for its deliver subject."""
        config = ConsumerConfig(ack_policy=_EXPLICIT) | self.config
        return config | ConsumerConfig(
            durable_name=self.durable or (self.queue and self.name),
            filter_subject=None if config.filter_subjects else self.subject,
            deliver_group=self.queue,
        )

    def check_compatible(self, info: ConsumerInfo) -> None:
        """Check that an existing consumer is what was asked for.

        Raises:
            Misconfigured: it is not; says in which way, field by field.
        """
        name, config = info.name, info.config
        self._check_kind(name, config)
        if not self.pull:
            self._check_group(name, config, bound=info.push_bound)
        self._check_filter(name, config)
        asked = replace(self.config, deliver_subject=None)
        if differing := diff_config(f"consumer {name}", asked, config):
            raise Misconfigured("; ".join(map(str, differing)))

    def _check_kind(self, name: str, config: ConsumerConfig) -> None:
        pushes = bool(config.deliver_subject)
        if self.pull and pushes:
            raise Misconfigured(f"{name} is a push consumer: no pull subscription")
        if not self.pull and not pushes:
            raise Misconfigured(f"{name} is a pull consumer: a pull subscription is required")
        if self.pull and config.ack_policy != _EXPLICIT:
            raise Misconfigured(f"ack policy {config.ack_policy} cannot be pulled")

    def _check_group(self, name: str, config: ConsumerConfig, *, bound: bool) -> None:
        group = config.deliver_group
        if self.queue is None:
            if group:
                raise Misconfigured(f"{name} is for the queue group {group}")
            if bound:
                raise Misconfigured(f"duplicate subscription: {name} has a subscriber")
            return
        if not group:
            raise Misconfigured(f"{name} has no deliver group, and is not for a queue")
        if group != self.queue:
            raise Misconfigured(f"{name} is for the queue group {group}, not {self.queue}")
        if config.flow_control:
            raise Misconfigured(f"{name} has flow control, which a queue group cannot have")
        if config.idle_heartbeat:
            raise Misconfigured(f"{name} has heartbeats, which a queue group cannot have")

    def _check_filter(self, name: str, config: ConsumerConfig) -> None:
        filters = self._filters_of(config)
        if self.subject is not None and filters != [self.subject]:
            raise Misconfigured(f"{name} filters {', '.join(filters)}, not {self.subject}")

    def _filters_of(self, config: ConsumerConfig) -> list[str]:
        """Return the filters that `config` has; without any, the subject of this wish."""
        return list(config.filter_subjects or [config.filter_subject or self.subject or ">"])


log: Final = logging.getLogger(__name__)

_MISSED_HEARTBEATS: Final = 3  # heartbeats missed until the alarm
OnWarning = Callable[[JetStreamError], None]
"""Callback for an error that does not end the subscription: `HeartbeatsMissed`, `MessagesMissed`,
`FlowControlIgnored`. Must not raise."""


def _log_warning(warning: JetStreamError) -> None:
    log.warning("%s: %s", type(warning).__name__, warning)


class PushSubscription(MessageReader):
    """Messages that a push consumer sends; made by `subscribe`.

    Heartbeats and flow control are seen to inside `next`, in the order they came,
    so that a slow caller slows the server down. It never recreates the consumer:
    ordered and pull consumers do that. One task at a time may call `next`.
    """

    def __init__(
        self,
        js: JetStreamApi,
        inbox: Inbox,
        info: ConsumerInfo,
        *,
        created: bool,
        on_warning: OnWarning = _log_warning,
        missed_heartbeats: int = _MISSED_HEARTBEATS,
    ) -> None:
        config = info.config
        heartbeat = (config.idle_heartbeat or timedelta()).total_seconds()
        self.stream = info.stream_name
        self.consumer = info.name
        self.created = created
        """Whether the consumer was made for this subscription, and ends with it."""
        self._js = js
        self._inbox = inbox
        self._on_warning = on_warning
        self._acks = config.is_acked
        self._heartbeat_timeout = missed_heartbeats * heartbeat or None
        self._flow_control = FlowControl(js.connection, reply_timeout=missed_heartbeats * heartbeat)
        self._gapless = not config.deliver_group
        self._sequence: int | None = None if info.delivered.consumer_seq else 0
        self._quiet_since = 0.0
        self._ended = False

    async def next(self) -> Delivery | None:
        """Return the next message, or None when unsubscribed or drained and nothing is left.

        May be cancelled at any time: a message that comes meanwhile is the next one's.

        Raises:
            StatusError: the server said something that is no message; it may be called again.
            NotJetStream: another program sent a message; it may be called again.
            NatsUnreachable: the connection is closed.
        """
        clock = asyncio.get_running_loop().time
        while True:
            while self._inbox.queue:
                message = self._inbox.queue.popleft()
                if not is_delivery(message):
                    await self._on_status(StatusMessage.parse(message))
                elif (delivery := self._parse(message)) is not None:
                    self._track_delivery(delivery.consumer_sequence)
                    return delivery
            if self._ended:
                await self._finish_drain()
                return None
            if not self._js.connection.is_connected:
                await self._js.connection.wait_connected()
                self._quiet_since = clock()  # the alarm rests while there is no connection
            elif self._heartbeat_timeout is None:
                await self._inbox.wait(None)
            elif (
                left := max(self._quiet_since, self._inbox.last_message_at)
                + self._heartbeat_timeout
                - clock()
            ) > 0:
                await self._inbox.wait(left)
            else:
                self._quiet_since = clock()
                self._on_warning(
                    HeartbeatsMissed(f"{self._name} silent for {self._heartbeat_timeout:g} s")
                )

    def _parse(self, message: "Msg") -> Delivery | None:
        link, acks = self._js.connection, self._acks
        return parse_delivery(link, message, self.stream, self.consumer, acks=acks)

    @property
    def _name(self) -> str:
        return f"{self.stream}/{self.consumer}"

    def _track_delivery(self, sequence: int) -> None:
        self._check_gap(sequence - 1)
        self._sequence = sequence

    def _check_gap(self, last: int) -> None:
        if self._gapless and self._sequence is not None and last > self._sequence:
            missing = f"deliveries {self._sequence + 1} to {last} of {self._name}"
            self._on_warning(MessagesMissed(missing))
        self._sequence = last

    async def _on_status(self, status: StatusMessage) -> None:
        if status.code != CONTROL:
            raise status.to_error()
        if (last := status.last_consumer_sequence) is not None:
            self._check_gap(last)
        arrived = None if self._inbox.queue else self._inbox.last_message_at
        if not await self._flow_control.acknowledge(status, arrived):
            self._on_warning(FlowControlIgnored(f"{self._name} waits for {status.flow_control!r}"))

    async def unsubscribe(self) -> None:
        """Get nothing more; messages that have come and were not handed out are dropped.

        The consumer is deleted if it was made for this subscription, and for no
        group of them: other members may live on it.

        Raises:
            ApiError, NatsUnreachable: the consumer may still be there.
        """
        self._ended = True
        await self._inbox.close()
        self._inbox.queue.clear()
        self._inbox.notify()
        await self._delete_consumer()

    async def close(self) -> None:
        await self.unsubscribe()

    async def drain(self) -> None:
        """Get nothing more but the messages that have come by now, which `next` still returns.

        After the last of it the consumer is deleted as by `unsubscribe`; if that
        fails, it is an alarm.
        """
        self._ended = True
        await self._inbox.drain()
        await self._inbox.close()
        self._inbox.notify()

    async def _delete_consumer(self) -> None:
        if self.created and self._gapless:
            await self._js.delete_consumer(self.stream, self.consumer)
        self.created = False

    async def _finish_drain(self) -> None:
        try:
            await self._delete_consumer()
        except JetStreamError as error:
            self._on_warning(error)


async def subscribe(
    js: JetStreamApi,
    subject: str | None = None,
    *,
    stream: str | None = None,
    consumer: str | None = None,
    durable: str | None = None,
    queue: str | None = None,
    config: ConsumerConfig | None = None,
    on_warning: OnWarning = _log_warning,
    missed_heartbeats: int = _MISSED_HEARTBEATS,
) -> PushSubscription:
    """Return a subscription to a push consumer, bound to an existing one or to a new one.

    The stream is looked up by the subject unless given. `consumer` must exist;
    `durable` is created if it does not; with neither an ephemeral one is. `config`
    is for a new one, and an existing one must agree with it. It is not changed.

    If it fails or is cancelled, there is no subscription; a consumer just created
    without a name ends by itself.

    Raises:
        Misconfigured: the wish contradicts itself, or what exists.
        StreamNotFound: not exactly one stream has the subject.
        ConsumerNotFound: the consumer to be bound does not exist.
    """
    spec = ConsumerSpec(
        subject=subject,
        stream=stream,
        consumer=consumer,
        durable=durable,
        queue=queue,
        config=config or ConsumerConfig(),
    )
    stream_name = await _find_stream(js, spec)
    inbox = Inbox(js.connection)
    try:
        info, created = await _bind(js, stream_name, spec, inbox)
    except BaseException:
        await inbox.close()
        raise
    return PushSubscription(
        js, inbox, info, created=created, on_warning=on_warning, missed_heartbeats=missed_heartbeats
    )


async def pull_subscribe(
    js: JetStreamApi,
    subject: str | None = None,
    *,
    stream: str | None = None,
    consumer: str | None = None,
    durable: str | None = None,
    config: ConsumerConfig | None = None,
) -> Consumer:
    """Return a pull consumer, found or created as by `subscribe`.

    A `consumer` to be bound to is not looked up, unlike there: its absence shows when it is pulled.
    A consumer that was created here is deleted on `close`.
    """
    spec = ConsumerSpec(
        subject=subject,
        stream=stream,
        consumer=consumer,
        durable=durable,
        pull=True,
        config=config or ConsumerConfig(),
    )
    stream_name = await _find_stream(js, spec)
    info = await _look_up(js, stream_name, spec)
    if info is None and spec.consumer:
        unseen = ConsumerConfig(ack_policy="explicit", durable_name=spec.consumer)
        return Consumer(js, stream_name, spec.consumer, unseen)
    created = False
    if info is None:
        info, created = await _create(js, stream_name, spec)
    return Consumer(js, stream_name, info.name, info.config, created=created)


async def _find_stream(js: JetStreamApi, spec: ConsumerSpec) -> str:
    if spec.stream:
        return spec.stream
    names = await js.stream_names(spec.subject)
    if len(names) != 1:
        raise StreamNotFound.named(f"{len(names)} streams have the subject {spec.subject}")
    return names[0]


async def _look_up(js: JetStreamApi, stream: str, spec: ConsumerSpec) -> ConsumerInfo | None:
    if spec.name is None:
        return None
    try:
        info = await js.consumer_info(stream, spec.name)
    except ConsumerNotFound:
        if spec.consumer and not spec.pull:
            raise
        return None
    spec.check_compatible(info)
    return info


async def _create(
    js: JetStreamApi, stream: str, spec: ConsumerSpec, deliver_subject: str | None = None
) -> tuple[ConsumerInfo, bool]:
    """Create the consumer; if another client was faster, check whether its consumer fits."""
    try:
        config = spec.to_config() | ConsumerConfig(deliver_subject=deliver_subject)
        return await js.create_consumer(stream, config), True
    except AlreadyExists:
        info = await js.consumer_info(stream, spec.name or "")
        spec.check_compatible(info)
        if not spec.pull and not spec.queue:
            raise Misconfigured(f"{info.name} was created by another client") from None
        return info, False


async def _bind(
    js: JetStreamApi, stream: str, spec: ConsumerSpec, inbox: Inbox
) -> tuple[ConsumerInfo, bool]:
    """Subscribe the inbox to the consumer's deliver subject, and create the consumer if needed."""
    group = spec.queue or ""
    info = await _look_up(js, stream, spec)
    if info is not None:
        await inbox.open(info.config.deliver_subject, group=group)
        return info, False
    # first the subscription: its interest tells others that the consumer is in use
    await inbox.open(spec.config.deliver_subject, group=group)
    info, created = await _create(js, stream, spec, inbox.subject)
    if not created:
        await inbox.open(info.config.deliver_subject, group=group)
    return info, created

"""From a subject to a subscription: the workflow of ADR-15."""

from rebaser_core.jetstream.api import JetStreamApi
from rebaser_core.jetstream.configs.consumer_config import ConsumerConfig
from rebaser_core.jetstream.consumers.consumer_spec import ConsumerSpec
from rebaser_core.jetstream.consumers.handles import Consumer
from rebaser_core.jetstream.consumers.inbox import Inbox
from rebaser_core.jetstream.consumers.push_subscription import (
    MISSED_HEARTBEATS,
    OnWarning,
    PushSubscription,
    log_warning,
)
from rebaser_core.jetstream.errors import (
    AlreadyExists,
    ConsumerNotFound,
    Misconfigured,
    StreamNotFound,
)
from rebaser_core.jetstream.infos.consumer_info import ConsumerInfo


async def subscribe(
    js: JetStreamApi,
    subject: str | None = None,
    *,
    stream: str | None = None,
    consumer: str | None = None,
    durable: str | None = None,
    queue: str | None = None,
    config: ConsumerConfig | None = None,
    on_warning: OnWarning = log_warning,
    missed_heartbeats: int = MISSED_HEARTBEATS,
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

    Unlike there, a `consumer` to be bound to need not exist: that shows when it
    is pulled. What was created is deleted when the consumer is closed.
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
    """Have the inbox subscribed to the consumer's deliver subject, and the consumer there."""
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

"""From a subject to a subscription: the workflow of ADR-15."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from rebaser_core.jetstream.consumers.consumer_spec import Wish
from rebaser_core.jetstream.consumers.handles import Consumer
from rebaser_core.jetstream.consumers.inbox import Inbox
from rebaser_core.jetstream.consumers.push_subscription import (
    MISSES,
    Alarm,
    PushSubscription,
    logged,
)
from rebaser_core.jetstream.errors import (
    AlreadyExists,
    ConsumerNotFound,
    Misconfigured,
    StreamNotFound,
)

if TYPE_CHECKING:
    from rebaser_core.jetstream.api import JetStream


async def subscribe(
    js: "JetStream",
    subject: str | None = None,
    *,
    stream: str | None = None,
    consumer: str | None = None,
    durable: str | None = None,
    queue: str | None = None,
    config: Mapping[str, Any] | None = None,
    alarm: Alarm = logged,
    misses: int = MISSES,
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
    wish = Wish(
        subject=subject,
        stream=stream,
        consumer=consumer,
        durable=durable,
        queue=queue,
        config=config or {},
    )
    found = await _stream(js, wish)
    inbox = Inbox(js.link)
    try:
        info, created = await _bound(js, found, wish, inbox)
    except BaseException:
        await inbox.close()
        raise
    return PushSubscription(js, inbox, info, created=created, alarm=alarm, misses=misses)


async def pull_subscribe(
    js: "JetStream",
    subject: str | None = None,
    *,
    stream: str | None = None,
    consumer: str | None = None,
    durable: str | None = None,
    config: Mapping[str, Any] | None = None,
) -> Consumer:
    """Return a pull consumer, found or created as by `subscribe`.

    Unlike there, a `consumer` to be bound to need not exist: that shows when it
    is pulled. Deleting it is the caller's.
    """
    wish = Wish(
        subject=subject,
        stream=stream,
        consumer=consumer,
        durable=durable,
        pull=True,
        config=config or {},
    )
    found = await _stream(js, wish)
    info = await _existing(js, found, wish)
    if info is None and wish.consumer:
        unseen = {"ack_policy": "explicit", "durable_name": wish.consumer}
        return Consumer(js, {"stream_name": found, "name": wish.consumer, "config": unseen})
    if info is None:
        info, _ = await _created(js, found, wish, {})
    return Consumer(js, info)


async def _stream(js: "JetStream", wish: Wish) -> str:
    if wish.stream:
        return wish.stream
    names = await js.stream_names(wish.subject)
    if len(names) != 1:
        raise StreamNotFound.named(f"{len(names)} streams have the subject {wish.subject}")
    return names[0]


async def _existing(js: "JetStream", stream: str, wish: Wish) -> Mapping[str, Any] | None:
    if wish.name is None:
        return None
    try:
        info = await js.consumer_info(stream, wish.name)
    except ConsumerNotFound:
        if wish.consumer and not wish.pull:
            raise
        return None
    wish.check(info)
    return info


async def _created(
    js: "JetStream", stream: str, wish: Wish, where: Mapping[str, Any]
) -> tuple[Mapping[str, Any], bool]:
    """Create the consumer; or, if somebody was faster, see whether theirs will do."""
    try:
        return await js.create_consumer(stream, {**wish.creation(), **where}), True
    except AlreadyExists:
        info = await js.consumer_info(stream, wish.name or "")
        wish.check(info)
        if not wish.pull and not wish.queue:
            raise Misconfigured(f"{info['name']} was created by somebody else") from None
        return info, False


async def _bound(
    js: "JetStream", stream: str, wish: Wish, inbox: Inbox
) -> tuple[Mapping[str, Any], bool]:
    """Have the inbox subscribed to the consumer's deliver subject, and the consumer there."""
    group = wish.queue or ""
    info = await _existing(js, stream, wish)
    if info is not None:
        await inbox.open(info["config"]["deliver_subject"], group=group)
        return info, False
    # first the subscription: its interest tells others that the consumer is in use
    await inbox.open(wish.config.get("deliver_subject"), group=group)
    info, created = await _created(js, stream, wish, {"deliver_subject": inbox.subject})
    if not created:
        await inbox.open(info["config"]["deliver_subject"], group=group)
    return info, created

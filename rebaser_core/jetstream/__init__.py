"""A JetStream client layer that follows ADR-13, ADR-15, ADR-19, ADR-37 and ADR-42.

It stands on nats-py's connection and uses nothing of its JetStream code. `docs/jetstream.md` says
where the documents leave a choice, and has the reference. A name's module is imported when the name
is first used: a program that publishes does not load the readers.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rebaser_core.jetstream.api import JetStream
    from rebaser_core.jetstream.configs import (
        ClusterInfo,
        ConsumerConfig,
        ConsumerInfo,
        ConsumerLimits,
        Drift,
        ExternalStream,
        LostMessages,
        PeerInfo,
        Placement,
        PriorityGroupState,
        Republish,
        SequencePair,
        SourceInfo,
        StreamAlternate,
        StreamConfig,
        StreamInfo,
        StreamSource,
        StreamState,
        SubjectTransform,
    )
    from rebaser_core.jetstream.connect import ConnectOptions, connected
    from rebaser_core.jetstream.connection import PendingReply
    from rebaser_core.jetstream.errors import (
        AlreadyExists,
        ApiError,
        BatchNotAtomic,
        ConsumerGone,
        ConsumerNotFound,
        FlowControlIgnored,
        Full,
        HeartbeatsMissed,
        JetStreamError,
        KeyNotFound,
        MessageNotFound,
        MessagesMissed,
        Misconfigured,
        NatsUnreachable,
        NoResponders,
        NotFound,
        NotJetStream,
        NotListed,
        ObjectDamaged,
        ObjectNotFound,
        ObjectTooLarge,
        Oversized,
        StatusError,
        StreamFull,
        StreamNotFound,
        SubjectFull,
        TlsFailed,
        Unavailable,
        Unsendable,
        WrongLastSequence,
    )
    from rebaser_core.jetstream.fast_client import MessageLimits, is_sendable
    from rebaser_core.jetstream.handles import Consumer, Stream
    from rebaser_core.jetstream.key_value import KeyValue, KeyValueEntry, KeyValueWatch
    from rebaser_core.jetstream.messages import (
        AckSubject,
        BatchMessage,
        Delivery,
        PubAck,
        StoredMessage,
    )
    from rebaser_core.jetstream.object_store import ObjectInfo, ObjectStore
    from rebaser_core.jetstream.ordered import (
        OrderedPullConsumer,
        OrderedPushConsumer,
        OrderedReader,
        ordered_reader,
    )
    from rebaser_core.jetstream.pull import (
        ConsumeOptions,
        Messages,
        PriorityGroup,
        PullConsumer,
        ReaderOptions,
    )
    from rebaser_core.jetstream.subscriptions import PushSubscription, pull_subscribe, subscribe

_NAMES_OF = {
    "api": ("JetStream",),
    "configs": (
        "ClusterInfo",
        "ConsumerConfig",
        "ConsumerInfo",
        "ConsumerLimits",
        "Drift",
        "ExternalStream",
        "LostMessages",
        "PeerInfo",
        "Placement",
        "PriorityGroupState",
        "Republish",
        "SequencePair",
        "SourceInfo",
        "StreamAlternate",
        "StreamConfig",
        "StreamInfo",
        "StreamSource",
        "StreamState",
        "SubjectTransform",
    ),
    "connect": (
        "ConnectOptions",
        "connected",
    ),
    "connection": ("PendingReply",),
    "errors": (
        "AlreadyExists",
        "ApiError",
        "BatchNotAtomic",
        "ConsumerGone",
        "ConsumerNotFound",
        "FlowControlIgnored",
        "Full",
        "HeartbeatsMissed",
        "JetStreamError",
        "KeyNotFound",
        "MessageNotFound",
        "MessagesMissed",
        "Misconfigured",
        "NatsUnreachable",
        "NoResponders",
        "NotFound",
        "NotJetStream",
        "NotListed",
        "ObjectDamaged",
        "ObjectNotFound",
        "ObjectTooLarge",
        "Oversized",
        "StatusError",
        "StreamFull",
        "StreamNotFound",
        "SubjectFull",
        "TlsFailed",
        "Unavailable",
        "Unsendable",
        "WrongLastSequence",
    ),
    "fast_client": (
        "MessageLimits",
        "is_sendable",
    ),
    "handles": (
        "Consumer",
        "Stream",
    ),
    "key_value": (
        "KeyValue",
        "KeyValueEntry",
        "KeyValueWatch",
    ),
    "messages": (
        "AckSubject",
        "BatchMessage",
        "Delivery",
        "PubAck",
        "StoredMessage",
    ),
    "object_store": (
        "ObjectInfo",
        "ObjectStore",
    ),
    "ordered": (
        "OrderedPullConsumer",
        "OrderedPushConsumer",
        "OrderedReader",
        "ordered_reader",
    ),
    "pull": (
        "ConsumeOptions",
        "Messages",
        "PriorityGroup",
        "PullConsumer",
        "ReaderOptions",
    ),
    "subscriptions": (
        "PushSubscription",
        "pull_subscribe",
        "subscribe",
    ),
}
"""The names of `__all__` that each module of this package has."""

_MODULE_OF = {name: module for module, names in _NAMES_OF.items() for name in names}

__all__ = [
    "AckSubject",
    "AlreadyExists",
    "ApiError",
    "BatchMessage",
    "BatchNotAtomic",
    "ClusterInfo",
    "ConnectOptions",
    "ConsumeOptions",
    "Consumer",
    "ConsumerConfig",
    "ConsumerGone",
    "ConsumerInfo",
    "ConsumerLimits",
    "ConsumerNotFound",
    "Delivery",
    "Drift",
    "ExternalStream",
    "FlowControlIgnored",
    "Full",
    "HeartbeatsMissed",
    "JetStream",
    "JetStreamError",
    "KeyNotFound",
    "KeyValue",
    "KeyValueEntry",
    "KeyValueWatch",
    "LostMessages",
    "MessageLimits",
    "MessageNotFound",
    "Messages",
    "MessagesMissed",
    "Misconfigured",
    "NatsUnreachable",
    "NoResponders",
    "NotFound",
    "NotJetStream",
    "NotListed",
    "ObjectDamaged",
    "ObjectInfo",
    "ObjectNotFound",
    "ObjectStore",
    "ObjectTooLarge",
    "OrderedPullConsumer",
    "OrderedPushConsumer",
    "OrderedReader",
    "Oversized",
    "PeerInfo",
    "PendingReply",
    "Placement",
    "PriorityGroup",
    "PriorityGroupState",
    "PubAck",
    "PullConsumer",
    "PushSubscription",
    "ReaderOptions",
    "Republish",
    "SequencePair",
    "SourceInfo",
    "StatusError",
    "StoredMessage",
    "Stream",
    "StreamAlternate",
    "StreamConfig",
    "StreamFull",
    "StreamInfo",
    "StreamNotFound",
    "StreamSource",
    "StreamState",
    "SubjectFull",
    "SubjectTransform",
    "TlsFailed",
    "Unavailable",
    "Unsendable",
    "WrongLastSequence",
    "connected",
    "is_sendable",
    "ordered_reader",
    "pull_subscribe",
    "subscribe",
]

if not TYPE_CHECKING:  # a type checker would take every name for one of this module

    def __getattr__(name: str) -> Any:
        module = _MODULE_OF.get(name)
        if module is None:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = globals()[name] = getattr(import_module(f"{__name__}.{module}"), name)
        return value

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})

"""A JetStream client layer that follows ADR-13, ADR-15, ADR-19, ADR-37 and ADR-42.

It stands on nats-py's connection and uses nothing of its JetStream code.
`docs/jetstream.md` says, statement by statement, what is followed and which test shows it.
A name's module is imported when the name is first used: who publishes waits for no reader's code.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rebaser_core.jetstream.configs.config_diff import Drift
    from rebaser_core.jetstream.configs.consumer_config import ConsumerConfig
    from rebaser_core.jetstream.configs.stream_config import (
        ConsumerLimits,
        ExternalStream,
        Placement,
        Republish,
        StreamConfig,
        StreamSource,
        SubjectTransform,
    )
    from rebaser_core.jetstream.connection.connect import ConnectOptions, connected
    from rebaser_core.jetstream.connection.headers import is_sendable
    from rebaser_core.jetstream.connection.message_limits import MessageLimits
    from rebaser_core.jetstream.connection.pending_reply import PendingReply
    from rebaser_core.jetstream.consumers.consume import Messages
    from rebaser_core.jetstream.consumers.handles import Consumer, Stream
    from rebaser_core.jetstream.consumers.options import ConsumeOptions, ReaderOptions
    from rebaser_core.jetstream.consumers.ordered_consumers import (
        OrderedPullConsumer,
        OrderedPushConsumer,
        ordered_reader,
    )
    from rebaser_core.jetstream.consumers.ordered_reader import OrderedReader
    from rebaser_core.jetstream.consumers.priority_group import PriorityGroup
    from rebaser_core.jetstream.consumers.pull_consumer import PullConsumer
    from rebaser_core.jetstream.consumers.push_subscription import PushSubscription
    from rebaser_core.jetstream.consumers.subscribe import pull_subscribe, subscribe
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
    from rebaser_core.jetstream.infos.cluster_info import ClusterInfo, PeerInfo
    from rebaser_core.jetstream.infos.consumer_info import (
        ConsumerInfo,
        PriorityGroupState,
        SequencePair,
    )
    from rebaser_core.jetstream.infos.stream_info import (
        LostMessages,
        SourceInfo,
        StreamAlternate,
        StreamInfo,
        StreamState,
    )
    from rebaser_core.jetstream.jetstream import JetStream
    from rebaser_core.jetstream.messages.ack_subject import AckSubject
    from rebaser_core.jetstream.messages.batch_message import BatchMessage
    from rebaser_core.jetstream.messages.delivery import Delivery
    from rebaser_core.jetstream.messages.stored_message import PubAck, StoredMessage
    from rebaser_core.jetstream.stores.key_value import KeyValue, KeyValueWatch
    from rebaser_core.jetstream.stores.key_value_entry import KeyValueEntry
    from rebaser_core.jetstream.stores.object_info import ObjectInfo
    from rebaser_core.jetstream.stores.object_store import ObjectStore

_NAMES_OF = {
    "configs.config_diff": ("Drift",),
    "configs.consumer_config": ("ConsumerConfig",),
    "configs.stream_config": (
        *("ConsumerLimits", "ExternalStream", "Placement", "Republish", "StreamConfig"),
        *("StreamSource", "SubjectTransform"),
    ),
    "connection.connect": ("ConnectOptions", "connected"),
    "connection.headers": ("is_sendable",),
    "connection.message_limits": ("MessageLimits",),
    "connection.pending_reply": ("PendingReply",),
    "consumers.consume": ("Messages",),
    "consumers.handles": ("Consumer", "Stream"),
    "consumers.options": ("ConsumeOptions", "ReaderOptions"),
    "consumers.ordered_consumers": ("OrderedPullConsumer", "OrderedPushConsumer", "ordered_reader"),
    "consumers.ordered_reader": ("OrderedReader",),
    "consumers.priority_group": ("PriorityGroup",),
    "consumers.pull_consumer": ("PullConsumer",),
    "consumers.push_subscription": ("PushSubscription",),
    "consumers.subscribe": ("pull_subscribe", "subscribe"),
    "errors": (
        *("AlreadyExists", "ApiError", "BatchNotAtomic", "ConsumerGone", "ConsumerNotFound"),
        *("FlowControlIgnored", "Full", "HeartbeatsMissed", "JetStreamError", "KeyNotFound"),
        *("MessageNotFound", "MessagesMissed", "Misconfigured", "NatsUnreachable"),
        *(
            "NoResponders",
            "NotFound",
            "NotJetStream",
            "NotListed",
            "ObjectDamaged",
            "ObjectNotFound",
        ),
        *("ObjectTooLarge", "Oversized", "StatusError", "StreamFull", "StreamNotFound"),
        *("SubjectFull", "TlsFailed", "Unavailable", "Unsendable", "WrongLastSequence"),
    ),
    "infos.cluster_info": ("ClusterInfo", "PeerInfo"),
    "infos.consumer_info": ("ConsumerInfo", "PriorityGroupState", "SequencePair"),
    "infos.stream_info": (
        *("LostMessages", "SourceInfo", "StreamAlternate", "StreamInfo", "StreamState"),
    ),
    "jetstream": ("JetStream",),
    "messages.ack_subject": ("AckSubject",),
    "messages.batch_message": ("BatchMessage",),
    "messages.delivery": ("Delivery",),
    "messages.stored_message": ("PubAck", "StoredMessage"),
    "stores.key_value": ("KeyValue", "KeyValueWatch"),
    "stores.key_value_entry": ("KeyValueEntry",),
    "stores.object_info": ("ObjectInfo",),
    "stores.object_store": ("ObjectStore",),
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

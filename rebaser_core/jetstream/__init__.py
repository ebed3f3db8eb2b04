"""A JetStream client layer that follows ADR-13, ADR-15, ADR-19 and ADR-37.

It stands on nats-py's connection and uses nothing of its JetStream code.
`docs/jetstream.md` says, statement by statement, what is followed and which test shows it.
"""

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
    ObjectDamaged,
    ObjectNotFound,
    ObjectTooLarge,
    Oversized,
    StatusError,
    StreamFull,
    StreamNotFound,
    SubjectFull,
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
    "Unavailable",
    "Unsendable",
    "WrongLastSequence",
    "connected",
    "is_sendable",
    "ordered_reader",
    "pull_subscribe",
    "subscribe",
]

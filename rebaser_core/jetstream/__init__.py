"""A JetStream client layer that follows ADR-13, ADR-15, ADR-19 and ADR-37.

It stands on nats-py's connection and uses nothing of its JetStream code.
`docs/jetstream.md` says, statement by statement, what is followed and which test shows it.
"""

from rebaser_core.jetstream.api import JetStream
from rebaser_core.jetstream.config_diff import Drift
from rebaser_core.jetstream.connection.connect import ConnectOptions, connected
from rebaser_core.jetstream.connection.headers import is_sendable
from rebaser_core.jetstream.connection.message_limits import Room
from rebaser_core.jetstream.connection.pending_reply import Asked
from rebaser_core.jetstream.consumers.consume import Buffering, Messages
from rebaser_core.jetstream.consumers.handles import Consumer, Stream
from rebaser_core.jetstream.consumers.ordered_consumers import OrderedConsumer, OrderedPullConsumer
from rebaser_core.jetstream.consumers.ordered_reader import OrderedReader
from rebaser_core.jetstream.consumers.pull_consumer import PullConsumer
from rebaser_core.jetstream.consumers.push_subscription import PushSubscription
from rebaser_core.jetstream.consumers.subscribe import pull_subscribe, subscribe
from rebaser_core.jetstream.errors import (
    AlreadyExists,
    AnswersMissed,
    ApiError,
    ConsumerGone,
    ConsumerNotFound,
    Full,
    HeartbeatsMissed,
    JetStreamError,
    KeyNotFound,
    MessageNotFound,
    MessagesMissed,
    Misconfigured,
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
    Unreachable,
    Unsendable,
    WrongLastSequence,
)
from rebaser_core.jetstream.messages.ack_subject import AckSubject
from rebaser_core.jetstream.messages.delivery import Delivery
from rebaser_core.jetstream.messages.stored_message import PubAck, StoredMessage
from rebaser_core.jetstream.stores.key_value import KeyValue, Watch
from rebaser_core.jetstream.stores.key_value_entry import Entry
from rebaser_core.jetstream.stores.object_info import ObjectInfo
from rebaser_core.jetstream.stores.object_store import ObjectStore

__all__ = [
    "AckSubject",
    "AlreadyExists",
    "AnswersMissed",
    "ApiError",
    "Asked",
    "Buffering",
    "ConnectOptions",
    "Consumer",
    "ConsumerGone",
    "ConsumerNotFound",
    "Delivery",
    "Drift",
    "Entry",
    "Full",
    "HeartbeatsMissed",
    "JetStream",
    "JetStreamError",
    "KeyNotFound",
    "KeyValue",
    "MessageNotFound",
    "Messages",
    "MessagesMissed",
    "Misconfigured",
    "NotFound",
    "NotJetStream",
    "ObjectDamaged",
    "ObjectInfo",
    "ObjectNotFound",
    "ObjectStore",
    "ObjectTooLarge",
    "OrderedConsumer",
    "OrderedPullConsumer",
    "OrderedReader",
    "Oversized",
    "PubAck",
    "PullConsumer",
    "PushSubscription",
    "Room",
    "StatusError",
    "StoredMessage",
    "Stream",
    "StreamFull",
    "StreamNotFound",
    "SubjectFull",
    "Unavailable",
    "Unreachable",
    "Unsendable",
    "Watch",
    "WrongLastSequence",
    "connected",
    "is_sendable",
    "pull_subscribe",
    "subscribe",
]

"""A JetStream client layer that follows ADR-13, ADR-15, ADR-19 and ADR-37.

It stands on nats-py's connection and uses nothing of its JetStream code.
`docs/jetstream.md` says, statement by statement, what is followed and which test shows it.
"""

from rebaser_core.jetstream.ack_subject import AckSubject
from rebaser_core.jetstream.api import JetStream
from rebaser_core.jetstream.asked import Asked
from rebaser_core.jetstream.connection import ConnectOptions, connected
from rebaser_core.jetstream.consume import Buffering, Messages
from rebaser_core.jetstream.consumers import Consumer, Stream
from rebaser_core.jetstream.cursor import OrderedReader
from rebaser_core.jetstream.deliveries import Delivery
from rebaser_core.jetstream.drift import Drift
from rebaser_core.jetstream.entries import Entry
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
from rebaser_core.jetstream.headers import is_sendable
from rebaser_core.jetstream.key_value import KeyValue, Watch
from rebaser_core.jetstream.object_info import ObjectInfo
from rebaser_core.jetstream.object_store import ObjectStore
from rebaser_core.jetstream.ordered import OrderedConsumer, OrderedPullConsumer
from rebaser_core.jetstream.pull import PullConsumer
from rebaser_core.jetstream.push import PushSubscription
from rebaser_core.jetstream.room import Room
from rebaser_core.jetstream.stored import PubAck, StoredMessage
from rebaser_core.jetstream.subscribing import pull_subscribe, subscribe

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

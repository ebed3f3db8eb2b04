"""A JetStream client layer that follows ADR-13, ADR-15, ADR-19, ADR-37 and ADR-42.

It stands on nats-py's connection and uses nothing of its JetStream code. `docs/jetstream.md` says
where the documents leave a choice, and has the reference. A name's module is imported when the name
is first used: a program that publishes does not load the readers.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rebaser_core.jetstream.api import JetStream as JetStream
    from rebaser_core.jetstream.configs import ClusterInfo as ClusterInfo
    from rebaser_core.jetstream.configs import ConsumerConfig as ConsumerConfig
    from rebaser_core.jetstream.configs import ConsumerInfo as ConsumerInfo
    from rebaser_core.jetstream.configs import ConsumerLimits as ConsumerLimits
    from rebaser_core.jetstream.configs import Drift as Drift
    from rebaser_core.jetstream.configs import ExternalStream as ExternalStream
    from rebaser_core.jetstream.configs import LostMessages as LostMessages
    from rebaser_core.jetstream.configs import PeerInfo as PeerInfo
    from rebaser_core.jetstream.configs import Placement as Placement
    from rebaser_core.jetstream.configs import PriorityGroupState as PriorityGroupState
    from rebaser_core.jetstream.configs import Republish as Republish
    from rebaser_core.jetstream.configs import SequencePair as SequencePair
    from rebaser_core.jetstream.configs import SourceInfo as SourceInfo
    from rebaser_core.jetstream.configs import StreamAlternate as StreamAlternate
    from rebaser_core.jetstream.configs import StreamConfig as StreamConfig
    from rebaser_core.jetstream.configs import StreamInfo as StreamInfo
    from rebaser_core.jetstream.configs import StreamSource as StreamSource
    from rebaser_core.jetstream.configs import StreamState as StreamState
    from rebaser_core.jetstream.configs import SubjectTransform as SubjectTransform
    from rebaser_core.jetstream.connect import ConnectOptions as ConnectOptions
    from rebaser_core.jetstream.connect import connected as connected
    from rebaser_core.jetstream.connection import PendingReply as PendingReply
    from rebaser_core.jetstream.errors import AlreadyExists as AlreadyExists
    from rebaser_core.jetstream.errors import ApiError as ApiError
    from rebaser_core.jetstream.errors import BatchNotAtomic as BatchNotAtomic
    from rebaser_core.jetstream.errors import ConsumerGone as ConsumerGone
    from rebaser_core.jetstream.errors import ConsumerNotFound as ConsumerNotFound
    from rebaser_core.jetstream.errors import FlowControlIgnored as FlowControlIgnored
    from rebaser_core.jetstream.errors import Full as Full
    from rebaser_core.jetstream.errors import HeartbeatsMissed as HeartbeatsMissed
    from rebaser_core.jetstream.errors import JetStreamError as JetStreamError
    from rebaser_core.jetstream.errors import KeyNotFound as KeyNotFound
    from rebaser_core.jetstream.errors import MessageNotFound as MessageNotFound
    from rebaser_core.jetstream.errors import MessagesMissed as MessagesMissed
    from rebaser_core.jetstream.errors import Misconfigured as Misconfigured
    from rebaser_core.jetstream.errors import NatsUnreachable as NatsUnreachable
    from rebaser_core.jetstream.errors import NoResponders as NoResponders
    from rebaser_core.jetstream.errors import NotFound as NotFound
    from rebaser_core.jetstream.errors import NotJetStream as NotJetStream
    from rebaser_core.jetstream.errors import NotListed as NotListed
    from rebaser_core.jetstream.errors import ObjectDamaged as ObjectDamaged
    from rebaser_core.jetstream.errors import ObjectNotFound as ObjectNotFound
    from rebaser_core.jetstream.errors import ObjectTooLarge as ObjectTooLarge
    from rebaser_core.jetstream.errors import Oversized as Oversized
    from rebaser_core.jetstream.errors import StatusError as StatusError
    from rebaser_core.jetstream.errors import StreamFull as StreamFull
    from rebaser_core.jetstream.errors import StreamNotFound as StreamNotFound
    from rebaser_core.jetstream.errors import SubjectFull as SubjectFull
    from rebaser_core.jetstream.errors import TlsFailed as TlsFailed
    from rebaser_core.jetstream.errors import Unavailable as Unavailable
    from rebaser_core.jetstream.errors import Unsendable as Unsendable
    from rebaser_core.jetstream.errors import WrongLastSequence as WrongLastSequence
    from rebaser_core.jetstream.fast_client import MessageLimits as MessageLimits
    from rebaser_core.jetstream.fast_client import is_sendable as is_sendable
    from rebaser_core.jetstream.handles import Consumer as Consumer
    from rebaser_core.jetstream.handles import Stream as Stream
    from rebaser_core.jetstream.key_value import KeyValue as KeyValue
    from rebaser_core.jetstream.key_value import KeyValueEntry as KeyValueEntry
    from rebaser_core.jetstream.key_value import KeyValueWatch as KeyValueWatch
    from rebaser_core.jetstream.messages import AckSubject as AckSubject
    from rebaser_core.jetstream.messages import BatchMessage as BatchMessage
    from rebaser_core.jetstream.messages import Delivery as Delivery
    from rebaser_core.jetstream.messages import PubAck as PubAck
    from rebaser_core.jetstream.messages import StoredMessage as StoredMessage
    from rebaser_core.jetstream.object_store import ObjectInfo as ObjectInfo
    from rebaser_core.jetstream.object_store import ObjectStore as ObjectStore
    from rebaser_core.jetstream.ordered import OrderedPullConsumer as OrderedPullConsumer
    from rebaser_core.jetstream.ordered import OrderedPushConsumer as OrderedPushConsumer
    from rebaser_core.jetstream.ordered import OrderedReader as OrderedReader
    from rebaser_core.jetstream.ordered import ordered_reader as ordered_reader
    from rebaser_core.jetstream.pull import ConsumeOptions as ConsumeOptions
    from rebaser_core.jetstream.pull import Messages as Messages
    from rebaser_core.jetstream.pull import PriorityGroup as PriorityGroup
    from rebaser_core.jetstream.pull import PullConsumer as PullConsumer
    from rebaser_core.jetstream.pull import ReaderOptions as ReaderOptions
    from rebaser_core.jetstream.subscriptions import PushSubscription as PushSubscription
    from rebaser_core.jetstream.subscriptions import pull_subscribe as pull_subscribe
    from rebaser_core.jetstream.subscriptions import subscribe as subscribe

_NAMES_OF = {
    "api": ("JetStream",),
    "configs": (
        *("ClusterInfo", "ConsumerConfig", "ConsumerInfo", "ConsumerLimits", "Drift"),
        *("ExternalStream", "LostMessages", "PeerInfo", "Placement", "PriorityGroupState"),
        *("Republish", "SequencePair", "SourceInfo", "StreamAlternate", "StreamConfig"),
        *("StreamInfo", "StreamSource", "StreamState", "SubjectTransform"),
    ),
    "connect": ("ConnectOptions", "connected"),
    "connection": ("PendingReply",),
    "errors": (
        *("AlreadyExists", "ApiError", "BatchNotAtomic", "ConsumerGone", "ConsumerNotFound"),
        *("FlowControlIgnored", "Full", "HeartbeatsMissed", "JetStreamError", "KeyNotFound"),
        *("MessageNotFound", "MessagesMissed", "Misconfigured", "NatsUnreachable"),
        *("NoResponders", "NotFound", "NotJetStream", "NotListed", "ObjectDamaged"),
        *("ObjectNotFound", "ObjectTooLarge", "Oversized", "StatusError", "StreamFull"),
        *("StreamNotFound", "SubjectFull", "TlsFailed", "Unavailable", "Unsendable"),
        *("WrongLastSequence",),
    ),
    "fast_client": ("MessageLimits", "is_sendable"),
    "handles": ("Consumer", "Stream"),
    "key_value": ("KeyValue", "KeyValueEntry", "KeyValueWatch"),
    "messages": ("AckSubject", "BatchMessage", "Delivery", "PubAck", "StoredMessage"),
    "object_store": ("ObjectInfo", "ObjectStore"),
    "ordered": ("OrderedPullConsumer", "OrderedPushConsumer", "OrderedReader", "ordered_reader"),
    "pull": ("ConsumeOptions", "Messages", "PriorityGroup", "PullConsumer", "ReaderOptions"),
    "subscriptions": ("PushSubscription", "pull_subscribe", "subscribe"),
}
"""The names of `__all__` that each module of this package has."""

_MODULE_OF = {name: module for module, names in _NAMES_OF.items() for name in names}

__all__ = sorted(_MODULE_OF)  # noqa: PLE0605 - the names above are exported as themselves

if not TYPE_CHECKING:  # a type checker would take every name for one of this module

    def __getattr__(name: str) -> Any:
        module = _MODULE_OF.get(name)
        if module is None:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = globals()[name] = getattr(import_module(f"{__name__}.{module}"), name)
        return value

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})

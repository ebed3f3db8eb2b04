"""What a key-value bucket says of a key at one revision."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from rebaser_core.jetstream.messages.delivery import Delivery
from rebaser_core.jetstream.messages.stored_message import StoredMessage

OPERATION: Final = "KV-Operation"
PUT: Final = "PUT"
DELETE: Final = "DEL"
PURGE: Final = "PURGE"
_REASON: Final = "Nats-Marker-Reason"
_MARKERS: Final = {"MaxAge": PURGE, "Purge": PURGE, "Remove": DELETE}  # left by the server itself


@dataclass(frozen=True, slots=True)
class KeyValueEntry:
    """One revision of one key. `operation` is PUT, DEL or PURGE; `value` counts for PUT only."""

    bucket: str
    key: str
    value: bytes
    revision: int
    created: datetime
    operation: str = PUT

    @classmethod
    def of_stored(cls, bucket: str, message: StoredMessage) -> "KeyValueEntry":
        return cls(
            bucket,
            _key(bucket, message.subject),
            message.payload,
            message.sequence,
            message.time,
            _operation(message.headers),
        )

    @classmethod
    def of_delivery(cls, bucket: str, delivery: Delivery) -> "KeyValueEntry":
        return cls(
            bucket,
            _key(bucket, delivery.subject),
            delivery.payload,
            delivery.stream_sequence,
            delivery.timestamp,
            _operation(delivery.headers),
        )

    @property
    def is_deleted(self) -> bool:
        """Whether the key has no value any more."""
        return self.operation != PUT


def _key(bucket: str, subject: str) -> str:
    return subject.partition(f"$KV.{bucket}.")[2]


def _operation(headers: Mapping[str, str]) -> str:
    return _MARKERS.get(headers.get(_REASON, "")) or headers.get(OPERATION, PUT)

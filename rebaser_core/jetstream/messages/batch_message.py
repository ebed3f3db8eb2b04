"""The messages of an atomic batch, and the headers that make them one (ADR-50)."""

import secrets
from collections.abc import Iterator, Mapping, Sequence
from typing import Final, NamedTuple

MESSAGE_ID: Final = "Nats-Msg-Id"
BATCH_ID: Final = "Nats-Batch-Id"
BATCH_SEQUENCE: Final = "Nats-Batch-Sequence"
"""Number of a message in its batch, from 1; the stored message keeps it."""
BATCH_COMMIT: Final = "Nats-Batch-Commit"


class BatchMessage(NamedTuple):
    """What `publish` takes, apart from expectations, which only the batch's first one may have."""

    subject: str
    payload: bytes = b""
    headers: Mapping[str, str] | None = None
    message_id: str | None = None


def batch_headers(
    messages: Sequence[BatchMessage], expected: Mapping[str, object]
) -> Iterator[Mapping[str, object]]:
    """Yield the headers of each, by which the server knows the batch, its order and its end."""
    batch = secrets.token_hex(8)  # 64 octets at most
    for number, message in enumerate(messages, 1):
        yield {
            MESSAGE_ID: message.message_id,
            BATCH_ID: batch,
            BATCH_SEQUENCE: number,
            BATCH_COMMIT: 1 if number == len(messages) else None,
            **(expected if number == 1 else {}),
        }

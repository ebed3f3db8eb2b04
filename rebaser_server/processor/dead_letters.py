"""Where a request goes that can never take effect: copied, and that confirmed, first (L2)."""

import base64
import json
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Final

from rebaser_client.request_publisher import retry
from rebaser_core.jetstream import Delivery, JetStream
from rebaser_core.subjects import Subjects
from rebaser_core.versioning import MESSAGE_ID
from rebaser_server.commit_log.batch_store import BatchStore
from rebaser_server.commit_log.state_loader import StateLoader
from rebaser_server.processor.rejection import REASON_LENGTH

REASON: Final = "X-DEAD-REASON"
SEQUENCE: Final = "X-DEAD-SEQUENCE"
ATTEMPTS: Final = "X-DEAD-ATTEMPTS"
DIED_AT: Final = "X-DEAD-AT"
STORED_AT: Final = "X-DEAD-STORED-AT"
HEADERS: Final = "X-DEAD-HEADERS"
"""The headers of the request that its letter cannot have: an object of JSON, in base64."""
KEPT: Final = "X-DEAD-KEPT"
"""Of a letter too small for its request: the payload is `{"store": key}`, where that is kept."""

_MAX_HEADERS: Final = 32 * 1024
"""Octets of headers: a stream refuses a message with more than 64 KiB of them."""

_RETRY_FOR: Final = 20.0  # seconds
_NAME: Final = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]{1,200}")
_VALUE: Final = re.compile(r"[ -~]{0,1000}")
_RESERVED: Final = ("nats-", "x-dead-")
"""What NATS reads as instructions to itself, and what only we say of a letter."""


async def store_dead_letter(
    js: JetStream,
    subjects: Subjects,
    loader: StateLoader,
    request: Delivery,
    *,
    reason: str,
    attempts: int,
) -> None:
    """Copy `request` to the dead letters, once however often it is called; return when stored.

    Headers and payload are the original's; why, when and from where is added. What a letter
    has no room for is kept in the store; `whole` gives back all of the request.

    Raises:
        JetStreamError, OSError: not confirmed; the request must stay where it is.
    """
    change_set, batches = loader.change_set, loader.batches
    subject = subjects.dead_letters(change_set)
    letter_id = f"{change_set.change_set_id}-{request.stream_sequence}"
    details = {
        REASON: _plain(reason),
        SEQUENCE: str(request.stream_sequence),
        ATTEMPTS: str(attempts),
        DIED_AT: datetime.now(UTC).isoformat(),
        STORED_AT: request.timestamp.isoformat(),
    }
    headers, payload = sendable_headers(request.headers) | details, request.payload
    room = js.message_limits.max_payload_for(subject, {**headers, MESSAGE_ID: letter_id})
    if len(payload) > room or js.message_limits.max_payload - room > _MAX_HEADERS:
        key = await batches.put_bytes(json.dumps(dict(request.headers)).encode() + b"\n" + payload)
        headers, payload = {**details, KEPT: "1"}, json.dumps({"store": key}).encode()
    await retry(
        lambda: js.publish(subject, payload, headers=headers, message_id=letter_id), _RETRY_FOR
    )


async def original_request(
    batches: BatchStore, headers: Mapping[str, str], payload: bytes
) -> tuple[dict[str, str], bytes]:
    """Headers and payload of the request that a letter is of, with what the letter adds.

    Raises:
        MissingBatch: a part of it was kept in the store, and is not there.
    """
    original: dict[str, str] = {}
    details = dict(headers)
    if details.pop(KEPT, None):
        stored = await batches.get_bytes(str(json.loads(payload)["store"]))
        block, _, payload = stored.partition(b"\n")
        original = json.loads(block)
    others = json.loads(base64.b64decode(details.pop(HEADERS, "")) or b"{}")
    return {**original, **others, **details}, payload


def _plain(reason: str) -> str:
    return " ".join(reason.split())[:REASON_LENGTH].encode("ascii", "backslashreplace").decode()


def sendable_headers(headers: Mapping[str, str]) -> dict[str, str]:
    """As a letter carries them: as they are, or all others in one."""
    sendable = {name: value for name, value in headers.items() if _is_sendable(name, value)}
    others = {name: value for name, value in headers.items() if name not in sendable}
    if others:
        sendable[HEADERS] = base64.b64encode(json.dumps(others).encode()).decode()
    return sendable


def _is_sendable(name: str, value: str) -> bool:
    return bool(
        _NAME.fullmatch(name) and _VALUE.fullmatch(value) and not name.lower().startswith(_RESERVED)
    )

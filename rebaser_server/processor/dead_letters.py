"""Dead letters: a request that can never take effect is copied there before it is settled (L2)."""

import base64
import json
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

from rebaser_client.requests import retry
from rebaser_core.jetstream import Delivery, JetStream
from rebaser_core.subjects import Subjects
from rebaser_core.versioning import MESSAGE_ID
from rebaser_server.processor.rejection import REASON_LENGTH

if TYPE_CHECKING:
    from rebaser_server.commit_log.batch_store import BatchStore
    from rebaser_server.commit_log.state_loader import StateLoader

REASON: Final = "X-DEAD-REASON"
SEQUENCE: Final = "X-DEAD-SEQUENCE"
ATTEMPTS: Final = "X-DEAD-ATTEMPTS"
DIED_AT: Final = "X-DEAD-AT"
STORED_AT: Final = "X-DEAD-STORED-AT"
HEADERS: Final = "X-DEAD-HEADERS"
"""Header with those headers of the request that a letter cannot carry: base64 of a JSON object."""
KEPT: Final = "X-DEAD-KEPT"
"""Header of a letter too small for its request: the payload is `{"store": key}`, its place."""

_MAX_HEADERS: Final = 32 * 1024
"""Octets of headers: a stream refuses a message with more than 64 KiB of them."""

_RETRY_FOR: Final = 20.0  # seconds
_NAME: Final = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]{1,200}")
_VALUE: Final = re.compile(r"[ -~]{0,1000}")
_RESERVED: Final = ("nats-", "x-dead-")
"""Headers that are instructions to NATS, and headers that only we add to a letter."""


async def store_dead_letter(
    js: JetStream,
    subjects: Subjects,
    loader: "StateLoader",
    request: Delivery,
    *,
    reason: str,
    attempts: int,
) -> None:
    """Copy `request` to the dead letters, once however often it is called; return when stored.

    Headers and payload are the original's; headers with reason, time and origin are added. A
    payload that a letter has no room for is kept in the store; `original_request` returns it.

    Raises:
        JetStreamError, OSError: not confirmed; the request must stay where it is.
    """
    change_set, batches = loader.change_set, loader.batches
    subject = subjects.dead_letters(change_set)
    stored = round(request.stored * 1000)  # a stream made anew gives a sequence twice
    letter_id = f"{change_set.change_set_id}-{request.stream_sequence}-{stored}"
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
    batches: "BatchStore", headers: Mapping[str, str], payload: bytes
) -> tuple[dict[str, str], bytes]:
    """Return the headers and payload of a letter's request, with the headers the letter adds.

    Raises:
        MissingBatch: a part of the request was kept in the store, and is missing there.
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
    """Return the headers as a letter carries them: those it cannot carry are encoded in one."""
    sendable = {name: value for name, value in headers.items() if _is_sendable(name, value)}
    others = {name: value for name, value in headers.items() if name not in sendable}
    if others:
        sendable[HEADERS] = base64.b64encode(json.dumps(others).encode()).decode()
    return sendable


def _is_sendable(name: str, value: str) -> bool:
    return bool(
        _NAME.fullmatch(name) and _VALUE.fullmatch(value) and not name.lower().startswith(_RESERVED)
    )

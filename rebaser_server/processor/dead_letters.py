"""Dead letters: a request that can never take effect is copied there before it is settled (L2).

A well-formed request may be rejected, too: the change set is closed, or a limit is exceeded.
"""

import base64
import json
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

from rebaser_core.commits import ClosedState, RequestOutcome, SettledRequest
from rebaser_core.jetstream import Delivery
from rebaser_core.messages import ID_USED
from rebaser_core.records import ChangeSetRequestV1, ChangeSetStatus
from rebaser_core.requests import retry
from rebaser_core.streams import Streams
from rebaser_core.versioning import MESSAGE_ID

if TYPE_CHECKING:
    from rebaser_server.commit_log.batch_store import BatchStore
    from rebaser_server.commit_log.state import State
    from rebaser_server.commit_log.state_loader import StateLoader

REASON_LENGTH: Final = 1_000
"""Maximum number of characters of the reason that the log holds for a rejected or dead request."""


def closed_reason(state: "State") -> str | None:
    """Return why the change set takes no requests; None if it does."""
    closing = state.control.closing
    return None if closing is None else _closed_reason(closing)


def command_rejection(state: "State", message: ChangeSetRequestV1) -> str | None:
    """Return the reason to reject a command; None if there is none, or only the application's."""
    closing = state.control.closing
    if closing is not None:
        over = closing.status in (ChangeSetStatus.APPLIED, ChangeSetStatus.ABANDONED)
        again = message.action == "delete" and over
        return None if again else _closed_reason(closing)
    if state.control.branch is None and message.action in ("apply", "abandon"):
        return f"only a branch can be told to {message.action}"
    return state.content.why_kept() if message.action in ("abandon", "delete") else None


def reject(settled: SettledRequest, reason: str) -> SettledRequest:
    message = f"refused: {reason}"[:REASON_LENGTH].encode(errors="replace").decode()
    return settled.model_copy(update={"outcome": RequestOutcome.REFUSED, "message": message})


def is_other_request(settled: str, digest: str) -> bool:
    """Whether the digests show another request than the one settled under its id.

    An empty digest is unknown, and may be the other one's.
    """
    return bool(settled and digest) and settled != digest


def used_id(commit: int) -> str:
    """Return the reason to refuse a request whose id was another one's, settled by that commit."""
    return (
        f"{ID_USED}: commit {commit} settled that one. Nothing of this one was applied: send it "
        "under an id of its own, and only the very same request again under the same id"
    )


def _closed_reason(closing: ClosedState) -> str:
    because = f", {closing.reason}" if closing.reason else ""
    return f"change set is {closing.status}{because}"


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
"""Maximum bytes of headers: a stream refuses a message with more than 64 KiB of them."""

_RETRY_FOR: Final = 20.0  # seconds
_NAME: Final = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]{1,200}")
_VALUE: Final = re.compile(r"[ -~]{0,1000}")
_RESERVED: Final = ("nats-", "x-dead-")
"""Headers that are instructions to NATS, and headers that only we add to a letter."""


async def store_dead_letter(
    streams: Streams,
    loader: "StateLoader",
    request: Delivery,
    *,
    reason: str,
    attempts: int,
) -> None:
    """Copy `request` to the dead letters, once even if it is called again; return when stored.

    Headers and payload are the original's; headers with reason, time and origin are added. A
    payload that a letter has no room for is kept in the store; `original_request` returns it.

    Raises:
        JetStreamError, OSError: the copy is not confirmed; the request must stay where it is.
    """
    change_set, batches = loader.change_set, loader.batches
    subject = streams.dead_letters(change_set)
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
    room = streams.js.message_limits.max_payload_for(subject, {**headers, MESSAGE_ID: letter_id})
    if len(payload) > room or streams.js.message_limits.max_payload - room > _MAX_HEADERS:
        # L2: stored before the letter, which would otherwise name bytes that are not there.
        key = await batches.put_bytes(json.dumps(dict(request.headers)).encode() + b"\n" + payload)
        headers, payload = {**details, KEPT: "1"}, json.dumps({"store": key}).encode()
    await retry(
        lambda: streams.js.publish(subject, payload, headers=headers, message_id=letter_id),
        _RETRY_FOR,
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

"""Where a request goes that can never take effect: copied, and that confirmed, first (L2)."""

import base64
import json
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Final

from rebaser_client.publishing import persistently
from rebaser_core.ids import ChangeSet
from rebaser_core.jetstream import Delivery, JetStream
from rebaser_core.subjects import Subjects

REASON: Final = "X-DEAD-REASON"
SEQUENCE: Final = "X-DEAD-SEQUENCE"
ATTEMPTS: Final = "X-DEAD-ATTEMPTS"
DIED_AT: Final = "X-DEAD-AT"
STORED_AT: Final = "X-DEAD-STORED-AT"
HEADERS: Final = "X-DEAD-HEADERS"
"""The headers of the request that its letter cannot have: an object of JSON, in base64."""

REASON_LENGTH: Final = 1_000
"""Characters of a reason that are kept."""

_RETRY_FOR: Final = 20.0  # seconds
_NAME: Final = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]{1,200}")
_VALUE: Final = re.compile(r"[ -~]{0,1000}")
_OURS: Final = ("nats-", "x-dead-")
"""What NATS reads as instructions to itself, and what only we say of a letter."""


async def bury(
    js: JetStream,
    subjects: Subjects,
    change_set: ChangeSet,
    request: Delivery,
    *,
    reason: str,
    attempts: int,
) -> None:
    """Copy `request` to the dead letters, once however often it is called; return when stored.

    Headers and payload are the original's; why, when and from where is added. `restored`
    gives back the headers that a letter cannot have.

    Raises:
        Unreachable, ApiError: not confirmed; the request must stay where it is.
    """
    said = {
        REASON: _plain(reason),
        SEQUENCE: str(request.stream_sequence),
        ATTEMPTS: str(attempts),
        DIED_AT: datetime.now(UTC).isoformat(),
        STORED_AT: request.timestamp.isoformat(),
    }
    headers = _carried(request.headers) | said
    await persistently(
        lambda: js.publish(
            subjects.dead_letters(change_set),
            request.payload,
            headers=headers,
            message_id=f"{change_set.change_set_id}-{request.stream_sequence}",
        ),
        _RETRY_FOR,
    )


def restored(headers: Mapping[str, str]) -> dict[str, str]:
    """The headers of a letter, and those of the request that it carries in `HEADERS`."""
    try:
        others = json.loads(base64.b64decode(headers.get(HEADERS, "")) or b"{}")
    except ValueError:
        others = {}
    return {**others, **{name: value for name, value in headers.items() if name != HEADERS}}


def _plain(reason: str) -> str:
    return " ".join(reason.split())[:REASON_LENGTH].encode("ascii", "backslashreplace").decode()


def _carried(headers: Mapping[str, str]) -> dict[str, str]:
    """As a letter carries them: as they are, or all others in one."""
    asis = {name: value for name, value in headers.items() if _may_be_sent(name, value)}
    others = {name: value for name, value in headers.items() if name not in asis}
    if others:
        asis[HEADERS] = base64.b64encode(json.dumps(others).encode()).decode()
    return asis


def _may_be_sent(name: str, value: str) -> bool:
    return bool(
        _NAME.fullmatch(name) and _VALUE.fullmatch(value) and not name.lower().startswith(_OURS)
    )

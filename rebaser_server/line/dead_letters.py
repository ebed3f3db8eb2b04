"""Where a request goes that can never take effect: copied, and that confirmed, first (L2)."""

from datetime import UTC, datetime
from typing import Final

from rebaser_client.publishing import persistently
from rebaser_core.ids import ChangeSet
from rebaser_core.jetstream import Delivery, JetStream
from rebaser_core.subjects import Subjects
from rebaser_core.versioned import MESSAGE_ID

REASON: Final = "X-DEAD-REASON"
SEQUENCE: Final = "X-DEAD-SEQUENCE"
ATTEMPTS: Final = "X-DEAD-ATTEMPTS"
DIED_AT: Final = "X-DEAD-AT"
STORED_AT: Final = "X-DEAD-STORED-AT"

_RETRY_FOR: Final = 20.0  # seconds


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

    Headers and payload are the original's; why, when and from where is added.

    Raises:
        Unreachable, ApiError: not confirmed; the request must stay where it is.
    """
    headers = {k: v for k, v in request.headers.items() if k.lower() != MESSAGE_ID.lower()}
    headers |= {
        REASON: " ".join(reason.split())[:1000].encode("ascii", "backslashreplace").decode(),
        SEQUENCE: str(request.stream_sequence),
        ATTEMPTS: str(attempts),
        DIED_AT: datetime.now(UTC).isoformat(),
        STORED_AT: request.timestamp.isoformat(),
    }
    await persistently(
        lambda: js.publish(
            subjects.dead_letters(change_set),
            request.payload,
            headers=headers,
            message_id=f"{change_set.change_set_id}-{request.stream_sequence}",
        ),
        _RETRY_FOR,
    )

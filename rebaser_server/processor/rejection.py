"""Why a change set rejects a well-formed request: it is closed, or a limit is exceeded."""

from typing import TYPE_CHECKING, Final

from rebaser_core.commits import ClosedState, RequestOutcome, SettledRequest
from rebaser_core.messages import ID_USED
from rebaser_core.records import ChangeSetRequestV2, ChangeSetStatus
from rebaser_core.updates import BatchLimits

if TYPE_CHECKING:
    from rebaser_server.commit_log.state import Batch, State

REASON_LENGTH: Final = 1_000
"""Most characters of the reason that the log holds of a rejected or dead request."""


def batch_rejection(state: "State", batch: "Batch", limits: BatchLimits) -> str | None:
    """Return why a client's batch is rejected; None if it is not."""
    if state.control.closing is not None:
        return _closed_reason(state.control.closing)
    return limits.violation(batch.updates, len(batch.updates))


def command_rejection(state: "State", message: ChangeSetRequestV2) -> str | None:
    """Return why a command is rejected; None if it is not, or only the application rejects it."""
    closing = state.control.closing
    if closing is not None:
        over = closing.standing in (ChangeSetStatus.APPLIED, ChangeSetStatus.ABANDONED)
        again = message.action == "delete" and over
        return None if again else _closed_reason(closing)
    if state.control.branch is None and message.action in ("apply", "abandon"):
        return f"only a branch can be told to {message.action}"
    return None


def reject(handled: SettledRequest, reason: str) -> SettledRequest:
    message = f"refused: {reason}"[:REASON_LENGTH]
    return handled.model_copy(update={"outcome": RequestOutcome.REFUSED, "message": message})


def is_other_request(settled: str, digest: str) -> bool:
    """Whether a request is another one than was settled under its id, by their digests.

    One that is unknown, and empty, may be the other.
    """
    return bool(settled and digest) and settled != digest


def used_id(commit: int) -> str:
    """Return why a request is refused whose id was another one's, which that commit settled."""
    return (
        f"{ID_USED}: commit {commit} settled that one. Nothing of this one was applied: send it "
        "under an id of its own, and only the very same request again under the same id"
    )


def _closed_reason(closing: ClosedState) -> str:
    because = f", {closing.reason}" if closing.reason else ""
    return f"change set is {closing.standing}{because}"

"""The outcome that a reply shows, and the two ways in which it is an error."""

import pytest

from rebaser_client import RequestDead, RequestIdUsed, RequestRefused
from rebaser_client.outcomes import BatchOutcome, committed
from rebaser_core.ids import ChangeSetId, RequestId, WorkspaceId
from rebaser_core.messages import (
    ID_USED,
    EnqueueUpdatesResponseV3,
    ErrorDetail,
    ErrorStatus,
    Inline,
    InlineBatch,
    SuccessStatusV3,
    SuccessV3,
)


def response(status: ErrorStatus | SuccessStatusV3) -> EnqueueUpdatesResponseV3:
    return EnqueueUpdatesResponseV3(
        id=RequestId(), workspace_id=WorkspaceId(), change_set_id=ChangeSetId(), status=status
    )


def test_a_success_has_its_commit() -> None:
    """A server of version 1 does not name it."""
    batch = Inline(inline=InlineBatch(updates=[]))
    new = response(SuccessStatusV3(success=SuccessV3(updates_performed=batch, commit=7)))
    old = response(SuccessStatusV3(success=SuccessV3(updates_performed=batch)))

    assert committed(new) == BatchOutcome(new.id, 7)
    assert committed(old).commit == 0


@pytest.mark.parametrize(
    ("message", "error", "shown"),
    [
        ("refused: it is applied", RequestRefused, "^it is applied$"),
        (f"{ID_USED}: commit 7", RequestIdUsed, "^the id was another request's: commit 7$"),
        ("missing batch", RequestDead, "^request [0-9A-Z]{26}: missing batch$"),
    ],
)
def test_an_error_is_raised(message: str, error: type[Exception], shown: str) -> None:
    """What the change set does not take is refused; all else is in the dead letters."""
    failed = response(ErrorStatus(error=ErrorDetail(message=message)))

    with pytest.raises(error, match=shown):
        committed(failed)

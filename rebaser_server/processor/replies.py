"""What a caller is told of a request, from the line of the log that settles it."""

from typing import Final, NamedTuple

from rebaser_core.commits import RequestOutcome, SettledRequest
from rebaser_core.corrections import CUT
from rebaser_core.ids import ChangeSet, RequestId
from rebaser_core.messages import (
    Correction,
    EnqueueUpdatesResponseV2,
    ErrorDetail,
    ErrorStatus,
    Inline,
    InlineBatch,
    SuccessStatusV2,
    SuccessV2,
)
from rebaser_server.processor.ownership import Ownership

_SHORT: Final = {RequestOutcome.DEAD: "in the dead letters", RequestOutcome.REFUSED: "refused"}
"""Where the line that says why is not there any more."""


class Settled(NamedTuple):
    """What becomes of a request, and the line that says so."""

    handled: SettledRequest
    commit: int = 0
    """0 until it is written."""


async def settled(own: Ownership, request_id: RequestId) -> Settled | None:
    """What became of a recent request; None if it is not, or no longer, known."""
    known = own.state.recent.get(request_id)
    if known is None:
        return None
    line = await own.archive.log.line(known.commit)
    if line is not None and line.handled is not None:
        return Settled(line.handled, known.commit)
    return Settled(SettledRequest(id=request_id, sequence=0, outcome=known.outcome), known.commit)


def cut(response: EnqueueUpdatesResponseV2) -> EnqueueUpdatesResponseV2:
    """The same answer where a message has no room for all of it, and it says so."""
    if isinstance(response.status, ErrorStatus):
        return response
    said = Correction(index=0, code=CUT, detail="too large for a message; the log has all of it")
    short = SuccessV2(
        updates_performed=Inline(inline=InlineBatch(updates=[])),
        commit=response.status.success.commit,
        corrections=(said,),
    )
    return response.model_copy(update={"status": SuccessStatusV2(success=short)})


def response_to(change_set: ChangeSet, what: Settled) -> EnqueueUpdatesResponseV2:
    """The final answer; the same whenever it is asked for, as long as the line is there."""
    handled, commit = what
    status: SuccessStatusV2 | ErrorStatus
    if handled.outcome in (RequestOutcome.DEAD, RequestOutcome.REFUSED):
        status = ErrorStatus(error=ErrorDetail(message=handled.message or _SHORT[handled.outcome]))
    else:
        status = SuccessStatusV2(
            success=SuccessV2(
                updates_performed=handled.updates or Inline(inline=InlineBatch(updates=[])),
                commit=commit,
                corrections=handled.corrections,
            )
        )
    return EnqueueUpdatesResponseV2(
        id=handled.id,
        workspace_id=change_set.workspace_id,
        change_set_id=change_set.change_set_id,
        status=status,
    )

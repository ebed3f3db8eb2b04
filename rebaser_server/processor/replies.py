"""The reply to a request, built from the commit that settles it."""

from typing import Final, NamedTuple

from rebaser_core.commits import RequestOutcome, SettledRequest
from rebaser_core.ids import ChangeSet, RequestId
from rebaser_core.messages import (
    CUT,
    Correction,
    EnqueueUpdatesResponseV2,
    ErrorDetail,
    ErrorStatus,
    Inline,
    InlineBatch,
    SuccessStatusV2,
    SuccessV2,
)
from rebaser_server.processor.ownership.ownership import Ownership
from rebaser_server.processor.rejection import is_other_request, used_id

_FALLBACK_MESSAGES: Final = {
    RequestOutcome.DEAD: "in the dead letters",
    RequestOutcome.REFUSED: "refused",
}
"""The reason in a reply if the commit that holds it was purged."""


class CommittedRequest(NamedTuple):
    """A settled request and the sequence of its commit."""

    handled: SettledRequest
    commit: int


async def final_result(
    ownership: Ownership, committed: CommittedRequest, digest: str
) -> CommittedRequest:
    """Return the result of a request that was settled just now: of a duplicate the first one's.

    The ownership has written everything staged. `digest`: the request's.
    """
    if committed.handled.outcome is RequestOutcome.DUPLICATE:
        return await recent_result(ownership, committed.handled.id, digest) or committed
    return committed


async def recent_result(
    ownership: Ownership, request_id: RequestId, digest: str
) -> CommittedRequest | None:
    """Return the result of a request that was settled before; None if the log lost it.

    If its id was another request's, by the `digest`, it was refused. The ownership has written
    everything staged.
    """
    recent = ownership.state.recent.get(request_id)
    if recent is None:
        return None
    if is_other_request(recent.digest, digest):
        return refused_as_other(request_id, recent.commit)
    entry = await ownership.loader.log.entry(recent.commit)
    if entry is not None and entry.handled is not None:
        return CommittedRequest(entry.handled, recent.commit)
    return CommittedRequest(
        SettledRequest(id=request_id, sequence=0, outcome=recent.outcome), recent.commit
    )


def refused_as_other(request_id: RequestId, commit: int) -> CommittedRequest:
    """Return the result of a request whose id was another one's, settled by `commit`."""
    handled = SettledRequest(
        id=request_id, sequence=0, outcome=RequestOutcome.REFUSED, message=used_id(commit)
    )
    return CommittedRequest(handled, commit)


def shorten(response: EnqueueUpdatesResponseV2) -> EnqueueUpdatesResponseV2:
    """Return the response without details that a message has no room for; it says so."""
    if isinstance(response.status, ErrorStatus):
        return response
    notice = Correction(index=0, code=CUT, detail="too large for a message; the log has all of it")
    success = SuccessV2(
        updates_performed=Inline(inline=InlineBatch(updates=[])),
        commit=response.status.success.commit,
        corrections=(notice,),
    )
    return response.model_copy(update={"status": SuccessStatusV2(success=success)})


def build_response(change_set: ChangeSet, result: CommittedRequest) -> EnqueueUpdatesResponseV2:
    """Build the final response; it is always the same, as long as the commit is not purged."""
    handled, commit = result
    status: SuccessStatusV2 | ErrorStatus
    if handled.outcome in (RequestOutcome.DEAD, RequestOutcome.REFUSED):
        status = ErrorStatus(
            error=ErrorDetail(message=handled.message or _FALLBACK_MESSAGES[handled.outcome])
        )
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

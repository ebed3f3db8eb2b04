"""What head does with a branch's difference: it applies it once, however often it is sent (B1)."""

from rebaser_core.commits import ControlState, RequestOutcome
from rebaser_core.jetstream import Delivery
from rebaser_core.messages import EnqueueUpdatesRequestV1
from rebaser_core.records import ChangeSetStatus
from rebaser_core.versioning import APPLY_REQUEST, header
from rebaser_server.errors import HistoryInconsistent
from rebaser_server.graph_application.commands import head_request_id
from rebaser_server.graph_application.content import require
from rebaser_server.processor.ownership import Ownership


async def admit_difference(
    ownership: Ownership, request: Delivery, message: EnqueueUpdatesRequestV1
) -> RequestOutcome | str:
    """See `Application.admit`. A batch that a client took from a change set is always applied.

    A branch sends its difference again as long as it knows no outcome. A run of it that slept
    sends it at any time, when head may have forgotten its id. So the branch's control record says
    whether it is being applied, and head's own log, from the branch's cursor on, whether the
    difference took effect. Where that log is purged, the branch is opened again, with the reason.
    """
    origin = message.from_change_set_id
    if origin is None or header(request.headers, APPLY_REQUEST) is None:
        return RequestOutcome.APPLIED
    log = ownership.loader.log
    try:
        _, last = await ownership.loader.sibling(origin).log.last()
        branch = ControlState() if last is None else last.control
        closing = branch.closing
        if closing is None or head_request_id(closing.request) != message.id:
            return f"branch {origin} is not being applied by this request"
        if closing.standing == ChangeSetStatus.APPLYING:
            cursor = require(branch.branch, "a base").cursor or 0
            async for _, commit in log.entries(cursor, ownership.state.commit):
                handled = commit.handled
                if handled is not None and handled.id == message.id:
                    return RequestOutcome.DUPLICATE
            return RequestOutcome.APPLIED
    except HistoryInconsistent as error:
        return (
            f"head's log does not go back to what the branch was compared with ({error}); "
            "refresh the branch, look at its difference, and apply it again"
        )
    return RequestOutcome.DUPLICATE

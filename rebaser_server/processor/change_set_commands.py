"""Actions on a change set as a whole, such as checkpoint and delete, in line with its requests.

Every batch stored before such a request is applied before it, and every batch after it meets the
change set as the command left it: there is no race.
"""

from typing import Any, Final

from rebaser_core.commits import AUTHOR_LENGTH, ClosedState, RequestOutcome, SettledRequest
from rebaser_core.ids import RequestId
from rebaser_core.records import ChangeSetRequestV2, ChangeSetStatus
from rebaser_server.commit_log.state import State
from rebaser_server.processor.application import Changes
from rebaser_server.processor.context import RunContext
from rebaser_server.processor.rejection import command_rejection, reject

_CLOSES: Final = {"abandon": ChangeSetStatus.ABANDONED, "delete": ChangeSetStatus.DELETED}


async def execute(
    run: RunContext, message: ChangeSetRequestV2, sequence: int
) -> tuple[SettledRequest, Changes]:
    """Execute or reject the command; return the settled request and the new control fields."""
    ownership = run.ownership
    author = (message.by or "")[:AUTHOR_LENGTH] or None
    handled = SettledRequest(
        id=message.id, sequence=sequence, outcome=RequestOutcome.APPLIED, author=author
    )
    rejection = command_rejection(ownership.state, message)
    if rejection is not None:
        return reject(handled, rejection), {}
    match message.action:
        case "checkpoint":
            return handled, {}
        case "abandon" | "delete":
            return handled, close(ownership.state, message.id, _CLOSES[message.action])
        case _:
            return await run.services.application.execute(ownership, message, handled)


def close(state: State, request: RequestId, standing: ChangeSetStatus) -> Changes:
    """Return the control fields that close the change set and drop its due DVU."""
    return {"closing": ClosedState(standing=standing, request=request), **without_dvu(state)}


def without_dvu(state: State) -> dict[str, Any]:
    """Return the control fields after which no DVU is due."""
    return {"claim": None, "clean_sequence": state.control.dirty_sequence, "dvu_failures": 0}

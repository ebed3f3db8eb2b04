"""What keeps a value back: failed inputs, and the update of dependent values that it waits for."""

from datetime import UTC, datetime
from heapq import nsmallest
from typing import Final

from rebaser_core.commits import ControlState
from rebaser_core.ids import RequestId
from rebaser_core.queries import DueUpdate, FailedInput
from rebaser_core.records import utc_text
from rebaser_server.queries.provenance.definition_history import DefinitionHistory
from rebaser_server.queries.provenance.lineage import Lineage

MAX_FAILED: Final = 20
"""Failed values that are listed."""


def failed_inputs(lineage: Lineage) -> list[FailedInput]:
    """The failed values because of which the value has no result, the nearest first."""
    return [
        FailedInput(id=value_id, path=[*lineage.path(value_id)], message=lineage.failures[value_id])
        for value_id in nsmallest(MAX_FAILED, lineage.failures, key=lineage.steps)
    ]


def due_update(
    control: ControlState, lineage: Lineage, history: DefinitionHistory
) -> DueUpdate | None:
    """The update that is to recompute the value; None if none of its lineage changed since."""
    uncovered = [root for root in lineage.roots.values() if root > control.clean_sequence]
    if not uncovered:
        return None
    first, claim = min(uncovered), control.claim
    commit, commit_id = history.requests.get(first, (None, None))
    return DueUpdate(
        commit=commit,
        since=None if commit_id is None else time_of(commit_id),
        update=claim.id if claim is not None and claim.covers >= first else None,
        failures=control.dvu_failures,
    )


def time_of(commit_id: RequestId) -> str:
    """When NATS stored the request that a commit of this id settles."""
    return utc_text(datetime.fromtimestamp(commit_id.milliseconds / 1000, UTC))

"""What operators do: the work of `rebaser pause`, `resume`, `dvu cancel` and others."""

from typing import Any, Final

from rebaser_core.ids import ChangeSetId, WorkspaceId
from rebaser_core.records import PauseScope
from rebaser_core.versioning import WireModel
from rebaser_server.cluster.pauses import PauseStore
from rebaser_server.ops.actions.action import Action, ActionContext, ActionInvalid, OfChangeSet
from rebaser_server.ops.actions.answers import cancel_update
from rebaser_server.ops.actions.dead_letters import replay
from rebaser_server.settings.settings import Role

MAX_REASON: Final = 500  # characters


class OfLetter(WireModel):
    """A dead letter."""

    number: int


class OfScope(WireModel):
    """What is paused: a change set, without it a workspace, without both everything."""

    workspace: WorkspaceId | None = None
    change_set: ChangeSetId | None = None
    reason: str | None = None

    @property
    def scope(self) -> PauseScope:
        """As the store of pauses has it."""
        if self.workspace is None and self.change_set is not None:
            raise ActionInvalid("a change set is named by its workspace and itself")
        return PauseScope(self.workspace, self.change_set)


async def replay_letter(context: ActionContext, body: OfLetter) -> str:
    """As `rebaser dead-letters replay`."""
    request = await replay(
        context.js, context.subjects, context.batches, context.client, body.number
    )
    return f"dead letter {body.number} is enqueued again as request {request}"


async def pause(context: ActionContext, body: OfScope) -> str:
    """As `rebaser pause`."""
    reason = (body.reason or "").strip()[:MAX_REASON] or None
    store = PauseStore(context.js, context.subjects)
    await store.pause(body.scope, by=context.author, reason=reason)
    return f"{_scope_text(body.scope)} is paused; Rebasers finish the requests in hand"


async def resume(context: ActionContext, body: OfScope) -> str:
    """As `rebaser resume`."""
    store = PauseStore(context.js, context.subjects)
    before = await store.of(body.scope)
    poked = await store.resume(body.scope)
    outcome = "is resumed" if before else "was not paused"
    return f"{_scope_text(body.scope)} {outcome}; change sets with work: {poked}"


def _scope_text(scope: PauseScope) -> str:
    if scope.change_set_id is not None:
        return "the change set"
    return "everything" if scope.workspace_id is None else "the workspace"


async def cancel(context: ActionContext, body: OfChangeSet) -> str:
    """As `rebaser dvu cancel`."""
    cancelled = await cancel_update(context.js.nc, context.subjects, body.target)
    if cancelled is None:
        return "no Rebaser works on this change set"
    if not cancelled:
        return "no update of this change set runs"
    return "cancelled; the update stays due, and Rebaser tries it again a minute later"


async def checkpoint(context: ActionContext, body: OfChangeSet) -> str:
    """As `rebaser checkpoint`, without waiting for the store."""
    commit = await context.client.operations.checkpoint(*body.target)
    return f"the checkpoint of commit {commit} is being written"


async def recompute(context: ActionContext, body: OfChangeSet) -> str:
    """As `rebaser dvu run --failed`."""
    commit = await context.client.operations.recompute(*body.target)
    return f"commit {commit}; the update follows"


OPERATOR_ACTIONS: Final[dict[str, Action[Any]]] = {
    "replay": Action(Role.OPERATOR, OfLetter, replay_letter),
    "pause": Action(Role.OPERATOR, OfScope, pause),
    "resume": Action(Role.OPERATOR, OfScope, resume),
    "cancel": Action(Role.OPERATOR, OfChangeSet, cancel),
    "checkpoint": Action(Role.OPERATOR, OfChangeSet, checkpoint),
    "recompute": Action(Role.OPERATOR, OfChangeSet, recompute),
}
"""By the last part of their paths, `/actions/…`."""

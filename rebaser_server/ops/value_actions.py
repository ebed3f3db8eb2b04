"""Actions of the page on values: what people and operators may do to change sets over HTTP.

People change branches and the commits of any change set by ordinary requests in the change set's
queue: the rules of `docs/rebase.md` hold.
"""

from collections.abc import Mapping
from typing import Annotated, Any, Final

from pydantic import Field

from rebaser_client.documents import parse_json
from rebaser_client.errors import InvalidDraft
from rebaser_core import codecs
from rebaser_core.errors import MalformedMessage
from rebaser_core.ids import ChangeSet, ValueId
from rebaser_core.messages import total_count
from rebaser_core.records import ChangeSetKind
from rebaser_core.updates import AnyUpdate, SetValue
from rebaser_server.commit_log.state import State
from rebaser_server.graph_application.content import graph_of
from rebaser_server.ops.actions import Action, ActionContext, ActionInvalid, OfChangeSet
from rebaser_server.queries.reverts import plan_revert
from rebaser_server.settings.settings import Role
from rebaser_server.values.edits import DefinitionView, difference


class OfValue(OfChangeSet):
    """A source of a branch, and its new content."""

    id: ValueId
    text: str
    """JSON, as text: a browser would change numbers that it reads."""


class OfDefinition(OfChangeSet):
    """A value or a function of a branch."""

    id: str


class OfDifference(OfChangeSet):
    """A branch's difference, as it was reviewed."""

    digest: str


class OfCommit(OfChangeSet):
    commit: Annotated[int, Field(ge=0)]


async def _set_value(context: ActionContext, body: OfValue) -> str:
    """Set a value of a branch, as `rebaser values set` does."""
    await _head_of_branch(context, body.target)
    try:
        value = parse_json(body.text)
        codecs.validate_json(value)
    except (InvalidDraft, MalformedMessage) as error:
        raise ActionInvalid(f"{body.text[:80]!r}: {error}; put text in quotes") from None
    return await _send(context, body.target, [SetValue(value_id=body.id, value=value)])


async def _take_theirs(context: ActionContext, body: OfDefinition) -> str:
    """Replace the branch's version of a value or function by head's, if both changed it.

    The branch merges head's changes first, so that the values that head's definition needs exist.
    """
    head = await _head_of_branch(context, body.target)
    await context.client.change_set(*body.target).refresh()

    def definition_at_head(state: State) -> DefinitionView:
        view = DefinitionView.of(graph_of(state))
        value, func = view.value(body.id), view.func(body.id)
        return DefinitionView(lambda _: value, lambda _: func)

    theirs = await context.open_loader(head).read(definition_at_head, "a moment")
    updates = await context.open_loader(body.target).read(
        lambda state: difference(DefinitionView.of(graph_of(state)), theirs, [body.id], [body.id]),
        "a moment",
    )
    if not updates:
        return "the branch has what head has"
    return await _send(context, body.target, updates)


async def apply(context: ActionContext, body: OfDifference) -> str:
    """Apply the branch, as `rebaser change-sets apply --reviewed` does."""
    record = await context.client.change_set(*body.target).apply(reviewed=body.digest)
    commit = None if record.application is None else record.application.commit
    return "applied; head had it all" if commit is None else f"applied as commit {commit} of head"


async def revert(context: ActionContext, body: OfCommit) -> str:
    """Revert a commit, as `rebaser revert` does."""
    record = await context.registry.change_set(body.target)
    if record.kind is ChangeSetKind.HEAD:
        context.require(Role.APPROVER, "revert in a head")
    plan = await plan_revert(context.open_loader(body.target), body.commit)
    left = f"; {len(plan.skipped)} stay, as later commits need them" if plan.skipped else ""
    if not plan.updates:
        return f"nothing to undo{left}"
    return await _send(context, body.target, plan.updates) + left


async def _head_of_branch(context: ActionContext, change_set: ChangeSet) -> ChangeSet:
    record = await context.registry.change_set(change_set)
    if record.kind is ChangeSetKind.HEAD:
        raise ActionInvalid("a head is changed by applying a branch: fork one, and edit that")
    return ChangeSet(change_set.workspace_id, record.head)


async def _send(context: ActionContext, change_set: ChangeSet, updates: list[AnyUpdate]) -> str:
    outcome = await context.client.change_set(*change_set).enqueue(updates)
    corrected = total_count(outcome.corrections)
    more = f"; {corrected} of its updates were changed or left out to fit" if corrected else ""
    return f"done by commit {outcome.commit}{more}"


class OfComputedValue(OfChangeSet):
    """A computed value, or without an id all that failed."""

    id: ValueId | None = None


async def recompute(context: ActionContext, body: OfComputedValue) -> str:
    """Recompute a value or all failed ones, as `rebaser dvu run` does."""
    values = None if body.id is None else [str(body.id)]
    commit = await context.client.change_set(*body.target).recompute(values)
    return f"commit {commit}; the update follows"


VALUE_ACTIONS: Final[Mapping[str, Action[Any]]] = {
    "set-value": Action(Role.EDITOR, OfValue, _set_value),
    "take-theirs": Action(Role.EDITOR, OfDefinition, _take_theirs),
    "apply": Action(Role.APPROVER, OfDifference, apply),
    "revert": Action(Role.EDITOR, OfCommit, revert),
    "recompute": Action(Role.OPERATOR, OfComputedValue, recompute),
}
"""Actions by the last part of their paths, `/actions/…`."""

"""What people do with a branch, and with the commits of any change set.

Each is an ordinary request in the change set's queue: the rules of `docs/rebase.md` hold.
"""

from typing import Annotated, Any, Final

from pydantic import Field

from rebaser_core import codecs
from rebaser_core.errors import MalformedMessage
from rebaser_core.ids import ChangeSet, ValueId
from rebaser_core.messages import total_count
from rebaser_core.records import ChangeSetKind
from rebaser_core.updates import AnyUpdate, SetValue
from rebaser_server.graph_application.content import graph_of
from rebaser_server.ops.actions.action import Action, ActionContext, ActionInvalid, OfChangeSet
from rebaser_server.queries.comparisons import plan_revert
from rebaser_server.settings.settings import Role
from rebaser_server.values.edits import DefinitionView, difference


class OfValue(OfChangeSet):
    """A source of a branch, and what it shall be."""

    id: ValueId
    text: str
    """JSON, as text: a browser would change numbers that it reads."""


class OfDefinition(OfChangeSet):
    """A value or a function of a branch."""

    id: str


class OfDifference(OfChangeSet):
    """A branch's difference, as it was reviewed."""

    digest: str


class OfComment(OfChangeSet):
    """What is said about a change set."""

    text: str


class OfCommit(OfChangeSet):
    """A commit of a change set."""

    commit: Annotated[int, Field(ge=0)]


async def set_value(context: ActionContext, body: OfValue) -> str:
    """As `rebaser values set`, of a branch."""
    await _head_of_branch(context, body.target)
    try:
        value = codecs.loads(codecs.JSON, body.text.encode())
        codecs.validate_json(value)
    except MalformedMessage as error:
        raise ActionInvalid(
            f"{body.text[:80]!r} is not JSON, {error}: put text in quotes"
        ) from None
    return await _send(context, body.target, [SetValue(value_id=body.id, value=value)])


async def take_theirs(context: ActionContext, body: OfDefinition) -> str:
    """Have the branch take what head has of a value or a function that both changed.

    The branch merges head's changes first, so that what head's definition needs is there.
    """
    head = await _head_of_branch(context, body.target)
    await context.client.workspaces.refresh(*body.target)
    async with context.states.state_of(head) as state:
        theirs = DefinitionView.of(graph_of(state))
        definition = theirs.value(body.id), theirs.func(body.id)
    async with context.states.state_of(body.target) as state:
        ours = DefinitionView.of(graph_of(state))
        updates = difference(
            ours,
            DefinitionView(lambda _: definition[0], lambda _: definition[1]),
            [body.id],
            [body.id],
        )
    if not updates:
        return "the branch has what head has"
    return await _send(context, body.target, updates)


async def apply(context: ActionContext, body: OfDifference) -> str:
    """As `rebaser change-sets apply --reviewed`."""
    record = await context.client.workspaces.apply(*body.target, reviewed=body.digest)
    commit = None if record.application is None else record.application.commit
    return "applied; head had it all" if commit is None else f"applied as commit {commit} of head"


async def revert(context: ActionContext, body: OfCommit) -> str:
    """As `rebaser revert`."""
    record = await context.registry.change_set(body.target)
    if record.kind is ChangeSetKind.HEAD:
        context.require(Role.APPROVER, "revert in a head")
    plan = await plan_revert(context.open_loader(body.target), body.commit)
    left = f"; {len(plan.skipped)} stay, as a later commit changed them" if plan.skipped else ""
    if not plan.updates:
        return f"nothing to undo{left}"
    return await _send(context, body.target, plan.updates) + left


async def comment(context: ActionContext, body: OfComment) -> str:
    """As `rebaser change-sets comments --add`."""
    try:
        await context.client.workspaces.comment(*body.target, body.text)
    except MalformedMessage as error:
        raise ActionInvalid(str(error)) from None
    return "the comment is stored"


async def _head_of_branch(context: ActionContext, change_set: ChangeSet) -> ChangeSet:
    record = await context.registry.change_set(change_set)
    if record.kind is ChangeSetKind.HEAD:
        raise ActionInvalid("a head is changed by applying a branch: fork one, and edit that")
    return ChangeSet(change_set.workspace_id, record.head)


async def _send(context: ActionContext, change_set: ChangeSet, updates: list[AnyUpdate]) -> str:
    outcome = await context.client.enqueue(*change_set, updates)
    corrected = total_count(outcome.corrections)
    more = f"; {corrected} of its updates were changed or left out to fit" if corrected else ""
    return f"done by commit {outcome.commit}{more}"


BRANCH_ACTIONS: Final[dict[str, Action[Any]]] = {
    "set-value": Action(Role.EDITOR, OfValue, set_value),
    "take-theirs": Action(Role.EDITOR, OfDefinition, take_theirs),
    "apply": Action(Role.APPROVER, OfDifference, apply),
    "comment": Action(Role.EDITOR, OfComment, comment),
    "revert": Action(Role.EDITOR, OfCommit, revert),
}
"""By the last part of their paths, `/actions/…`."""

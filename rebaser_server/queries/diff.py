"""The difference of a branch to head: what applying the branch would change."""

import asyncio
from dataclasses import dataclass
from typing import Any

from rebaser_client.queries.branch_difference import BranchDifference
from rebaser_core.errors import RebaserError
from rebaser_core.plain_json import json_equal
from rebaser_core.queries.difference_query import ChangedDefinition, ComputedDifference
from rebaser_core.updates import PutFunc, PutValue
from rebaser_server.commit_log.content import Batch
from rebaser_server.commit_log.state_loader import StateLoader
from rebaser_server.graph_application.commands import digest, head_changes_since
from rebaser_server.graph_application.content import content_of, graph_of
from rebaser_server.values.graph import Graph
from rebaser_server.values.rebase.definitions import func_definition, same_value, value_definition
from rebaser_server.values.rebase.edits import Edits
from rebaser_server.values.rebase.merge import merge


class NotABranch(RebaserError):
    """The change set has no head to differ from."""


@dataclass(frozen=True, slots=True)
class Diff(BranchDifference):
    """What applying the branch would do."""

    graph: Graph
    """The branch's, after the merge: results that follow from it are not computed yet."""


async def diff(loader: StateLoader, *, computed: bool = False) -> Diff:
    """Compare the branch, after a merge of all of head's changes, with head. Changes neither.

    With `computed`, also compare the results that the two have so far: that reads both whole.

    Raises:
        NotABranch: it is no branch, or no Rebaser has taken it up yet.
        NotRetained, HistoryInconsistent: as `StateLoader.load`.
    """
    loaded = await loader.load()
    state = loaded.state
    branch, content = state.control.branch, content_of(state)
    graph, edits = content.graph, content.edits
    if branch is None or edits is None:
        raise NotABranch(f"{loader.change_set} is no branch, or not taken up yet")
    before = {v.id: v.value for v in graph.values.values() if v.func_id} if computed else {}
    placed_branch = branch.model_copy(update={"cursor": content.cursor(state.control)})
    changes = (await head_changes_since(loader, state, placed_branch)).changes
    merge_result = await asyncio.to_thread(merge, graph, edits, changes)
    merged = Batch(merge_result.updates, head_side=merge_result.theirs)
    await asyncio.to_thread(content.apply_now, 0, merged)
    difference = await asyncio.to_thread(edits.difference, graph)
    results = None
    if computed:
        head = graph_of((await loader.sibling(branch.head).load()).state)
        results = _computed(before, head)
    changed = await asyncio.to_thread(changes_in, graph, edits)
    its_digest = await asyncio.to_thread(digest, difference)
    return Diff(state.commit, its_digest, difference, changed, results, graph)


def changes_in(graph: Graph, edits: Edits) -> list[ChangedDefinition]:
    """List the values and functions that the branch edited and that differ from head."""
    changes = []
    for func_id, func_edit in edits.funcs.items():
        branch_func, head_func = func_definition(graph, func_id), edits.their_funcs[func_id]
        if branch_func != head_func:
            name = next(f.name for f in (branch_func, head_func, func_edit.base) if f)
            both = func_edit.base != head_func
            changes.append(
                ChangedDefinition.model_construct(
                    id=func_id,
                    name=name,
                    what="function",
                    head=_func(head_func),
                    branch=_func(branch_func),
                    base=_func(func_edit.base),
                    both=both,
                )
            )
    for value_id, edit in edits.values.items():
        branch_value, head_value = value_definition(graph, value_id), edits.theirs[value_id]
        both = not same_value(edit.base, head_value)
        if same_value(branch_value, head_value):
            continue
        what = _what(head_value, branch_value)
        known = branch_value or head_value
        changes.append(
            ChangedDefinition.model_construct(
                id=value_id,
                name=known.name if known else None,
                what=what,
                head=_side(head_value, what),
                branch=_side(branch_value, what),
                base=_side(edit.base, what),
                both=both,
            )
        )
    return changes


def _what(head: PutValue | None, branch: PutValue | None) -> str:
    if head is None or branch is None:
        return "added" if head is None else "removed"
    if head.func_id != branch.func_id:
        return "definition"
    if (head.inputs or {}) != (branch.inputs or {}):
        return "inputs" if head.name == branch.name else "definition"
    if head.name != branch.name:
        return "name" if json_equal(head.value, branch.value) else "definition"
    return "value"


def _side(put: PutValue | None, what: str) -> Any:
    """As much of a definition as tells the difference."""
    if put is None:
        return None
    if what == "value" or (what in ("added", "removed") and put.func_id is None):
        return put.value
    if what == "inputs":
        return put.inputs or {}
    return put.name if what == "name" else put.to_wire()["putValue"]


def _func(put: PutFunc | None) -> Any:
    return None if put is None else {"runtime": put.runtime, "code": put.code}


def _computed(branch: dict[str, Any], head: Graph) -> list[ComputedDifference]:
    differences = []
    for value_id, value in branch.items():
        head_value = head.values.get(value_id)
        if (
            head_value is not None
            and head_value.func_id is not None
            and not json_equal(head_value.value, value)
        ):
            differences.append(
                ComputedDifference.model_construct(
                    id=value_id, name=head_value.name, head=head_value.value, branch=value
                )
            )
    return differences

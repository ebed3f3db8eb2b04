"""Comparisons: what applying a branch would change, and what a commit changed."""

import asyncio
import json
from collections.abc import AsyncGenerator, Iterable, Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rebaser_client.reader import BranchDifference
from rebaser_core.codecs import json_equal
from rebaser_core.ids import ChangeSet
from rebaser_core.queries import (
    ChangedDefinition,
    ComputedDifference,
    DifferenceQueryV1,
    DifferenceReplyV1,
    RevertQueryV1,
    RevertReplyV1,
)
from rebaser_core.updates import AnyUpdate, PutFunc, PutValue, RemoveFunc, RemoveValue
from rebaser_core.versioning import WireModel
from rebaser_server.commit_log.state import Batch
from rebaser_server.commit_log.state_loader import OpenLoader, StateLoader
from rebaser_server.compute.affected import closure
from rebaser_server.errors import NotABranch
from rebaser_server.graph_application.commands import digest, head_changes_since
from rebaser_server.graph_application.content import content_of, graph_of
from rebaser_server.queries.reverts import around, plan_revert
from rebaser_server.queries.values import TooManyValues
from rebaser_server.runtime.tasks import compute_in_turn
from rebaser_server.values.edits import (
    Edits,
    func_definition,
    same_value,
    value_definition,
)
from rebaser_server.values.graph import Graph, Value
from rebaser_server.values.merge import merge


@dataclass(frozen=True, slots=True)
class Diff(BranchDifference):
    graph: Graph
    """Graph of the branch, after the merge: results that follow from it are not computed yet."""


class Effects(NamedTuple):
    differing: list[ComputedDifference]
    """Values whose results differ from those in head."""
    unknown: list[str]
    """Ids of values for which that is not known yet."""


async def diff(loader: StateLoader, *, computed: bool = False) -> Diff:
    """Compare the branch, after a merge of all of head's changes, with head. Changes neither.

    With `computed`, also compare the results, as of one commit of each: that reads both whole.

    Raises:
        NotABranch: it is no branch, or no Rebaser has taken it up yet.
        NotRetained, HistoryInconsistent: as `StateLoader.load`.
    """
    workspace = str(loader.change_set.workspace_id)
    state = await loader.load()
    branch, content = state.control.branch, content_of(state)
    graph, edits = content.graph, content.edits
    if branch is None or edits is None:
        raise NotABranch(f"{loader.change_set} is no branch, or not taken up yet")
    head = await loader.sibling(branch.head).load() if computed else None
    placed_branch = branch.model_copy(update={"cursor": content.cursor(state.control)})
    changes, _, behind = await head_changes_since(loader, state, placed_branch, head)
    merge_result = await compute_in_turn(workspace, merge, graph, edits, changes)
    merged = Batch(merge_result.updates, head_side=merge_result.theirs)
    await compute_in_turn(workspace, content.apply_now, state.control.last_sequence + 1, merged)
    difference = await compute_in_turn(workspace, edits.difference, graph)
    changed = await compute_in_turn(workspace, changes_in, graph, edits)
    its_digest = await compute_in_turn(workspace, digest, difference, edits.head_view(graph))
    found = None
    if head is not None:
        found = await compute_in_turn(workspace, effects, graph, graph_of(head), difference)
    return Diff(
        commit=state.commit,
        digest=its_digest,
        updates=difference,
        changes=changed,
        computed=found and found.differing,
        behind=behind,
        uncomputed=None if found is None else len(found.unknown),
        graph=graph,
    )


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
    if put is None:
        return None
    if what == "value" or (what in ("added", "removed") and put.func_id is None):
        return put.value
    if what == "inputs":
        return put.inputs or {}
    return put.name if what == "name" else put.to_wire()["putValue"]


def _func(put: PutFunc | None) -> Any:
    return None if put is None else {"runtime": put.runtime, "code": put.code}


def effects(branch: Graph, head: Graph, difference: Iterable[AnyUpdate]) -> Effects:
    """Compare the results of a branch, which has merged all of head, with those of head.

    Only values that the difference reaches can differ once both are computed; values that head
    alone has changed are equal in both. Nothing is known about a value that either has still to
    compute. This changes the roots of the branch's graph.
    """
    branch_waits, head_waits = _to_compute(branch), _to_compute(head)
    found = Effects([], [])
    for value_id in _reached(branch, head, difference):
        before, after = head.values.get(value_id), branch.values.get(value_id)
        waiting, known = False, []
        for value, waits in ((before, head_waits), (after, branch_waits)):
            if value is not None and value.func_id is not None:
                waiting |= bool(waits[value.index])
                known.append(value)
        if not known:
            continue
        if waiting:
            found.unknown.append(value_id)
        elif _result(before) != _result(after):
            found.differing.append(
                ComputedDifference.model_construct(
                    id=value_id,
                    name=known[-1].name,
                    head=None if before is None else before.value,
                    branch=None if after is None else after.value,
                    head_status=None if before is None else before.status.value,
                    branch_status=None if after is None else after.status.value,
                )
            )
    return found


def _result(value: Value | None) -> tuple[str, str] | None:
    return None if value is None else (value.status.value, value.text)


def _to_compute(graph: Graph) -> NDArray[np.bool_]:
    """Flags by index: whether the next update may compute the value."""
    waiting = np.zeros(len(graph.columns), np.bool_)
    waiting[_affected(graph)] = True
    return waiting


def _affected(graph: Graph) -> NDArray[np.int32]:
    affected = closure(graph)
    affected.release(graph)
    return affected.indices


def _reached(branch: Graph, head: Graph, difference: Iterable[AnyUpdate]) -> Iterable[str]:
    """Ids of values that the updates name, and of their dependents in the branch."""
    named: dict[str, None] = {}
    for update in difference:
        if isinstance(update, PutFunc | RemoveFunc):
            named.update(dict.fromkeys(sorted(branch.users_of(update.func_id))))
            continue
        named[update.value_id] = None
        if isinstance(update, RemoveValue) and update.value_id in head.values:
            named.update(dict.fromkeys(sorted(head.values[update.value_id].dependents)))
    last = max(branch.roots.values(), default=0)
    branch.clear_roots(last)
    for value_id in named:
        if value_id in branch.values:
            branch.mark_root(branch.values[value_id], last + 1)
    reached = [branch.id_at(index) for index in np.sort(_affected(branch)).tolist()]
    return dict.fromkeys([*reached, *named])


class CommittedChange(NamedTuple):
    """A definition that a commit changed: the parts that differ, before it and after it."""

    id: str
    name: str | None
    what: str
    before: Any
    after: Any


async def changes_of(loader: StateLoader, commit: int) -> list[CommittedChange]:
    """Return what `commit` changed of definitions, values before functions.

    Raises as `plan_revert`.
    """
    _, before, after = await around(loader, commit)
    found = []
    for value_id, old in before.values.items():
        new = after.values[value_id]
        if not same_value(old, new):
            what = _what(old, new)
            name = new.name if new is not None else old.name if old is not None else None
            sides = _side(old, what), _side(new, what)
            found.append(CommittedChange(value_id, name, what, *sides))
    for func_id, function in before.funcs.items():
        changed = after.funcs[func_id]
        if function != changed:
            name = next(each.name for each in (changed, function) if each)
            sides = _func(function), _func(changed)
            found.append(CommittedChange(func_id, name, "function", *sides))
    return found


class ComparisonService:
    """Loads whole change sets to compare them: for one query at a time."""

    def __init__(self, open_loader: OpenLoader, max_bytes: int) -> None:
        """Compare change sets; answers have about `max_bytes` bytes at most."""
        self._open_loader = open_loader
        self._max_bytes = max_bytes
        self._comparing = asyncio.Lock()

    async def diff(self, change_set: ChangeSet, *, computed: bool) -> Diff:
        async with self._comparing:
            return await diff(self._open_loader(change_set), computed=computed)

    async def difference(
        self, query: DifferenceQueryV1, _: Mapping[str, str]
    ) -> AsyncGenerator[DifferenceReplyV1, None]:
        """Return the one reply. Raises as `diff`, and `TooManyValues` for a large difference."""
        change_set = ChangeSet(query.workspace_id, query.change_set_id)
        found = await self.diff(change_set, computed=query.computed)
        parts = chain(found.updates, found.changes, found.computed or ())
        await compute_in_turn(str(query.workspace_id), self._require_few_octets, parts)
        yield DifferenceReplyV1.model_construct(
            id=query.id,
            commit=found.commit,
            digest=found.digest,
            updates=found.updates,
            changes=found.changes,
            computed=found.computed,
            error=None,
            behind=found.behind,
            uncomputed=found.uncomputed,
        )

    async def revert(
        self, query: RevertQueryV1, _: Mapping[str, str]
    ) -> AsyncGenerator[RevertReplyV1, None]:
        """Return the one reply. Raises as `plan_revert`, and `TooManyValues` for a large batch."""
        change_set = ChangeSet(query.workspace_id, query.change_set_id)
        async with self._comparing:
            loader = self._open_loader(change_set)
            plan = await plan_revert(loader, query.commit, force=query.force)
        await compute_in_turn(str(query.workspace_id), self._require_few_octets, plan.updates)
        yield RevertReplyV1.model_construct(
            id=query.id, now=plan.now, updates=plan.updates, skipped=plan.skipped, error=None
        )

    def _require_few_octets(self, parts: Iterable[WireModel]) -> None:
        octets = 0
        for part in parts:
            octets += len(json.dumps(part.to_wire()))
            if octets > self._max_bytes:
                raise TooManyValues(
                    f"more than {self._max_bytes:,} bytes, too many for one answer: read the "
                    "change set where its store is seen"
                )

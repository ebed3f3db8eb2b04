"""The batch that undoes a commit, except what a later commit changed again."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import NamedTuple

from rebaser_client.reader import RevertPlan
from rebaser_core.codecs import json_equal
from rebaser_core.commits import CommitV2, RequestOutcome
from rebaser_core.updates import AnyUpdate, PutFunc, PutValue, RemoveFunc, RemoveValue
from rebaser_server.commit_log.state import State
from rebaser_server.commit_log.state_loader import StateLoader
from rebaser_server.errors import NotRevertible
from rebaser_server.graph_application.content import graph_of
from rebaser_server.runtime.tasks import compute_in_turn
from rebaser_server.values.edits import (
    Definition,
    DefinitionView,
    difference,
    func_definition,
    same_value,
    value_definition,
)
from rebaser_server.values.graph import Graph


class DefinitionSnapshot(NamedTuple):
    values: dict[str, Definition]
    funcs: dict[str, PutFunc | None]
    users: dict[str, int]
    """Function → number of values that it computes, also of others than `values`."""
    holders: Mapping[str, str] = MappingProxyType({})
    """Name → the value that has it, also another than those in `values`."""

    @classmethod
    def of(
        cls, graph: Graph, values: set[str], funcs: set[str], names: Iterable[str] = ()
    ) -> "DefinitionSnapshot":
        return cls(
            {value_id: value_definition(graph, value_id) for value_id in values},
            {func_id: func_definition(graph, func_id) for func_id in funcs},
            {func_id: graph.user_count(func_id) for func_id in funcs},
            {name: holder for name in names if (holder := graph.names.get(name)) is not None},
        )

    def view(self) -> DefinitionView:
        return DefinitionView(self.values.get, self.funcs.get)

    def names(self) -> set[str]:
        return {put.name for put in self.values.values() if put is not None and put.name}


_Around = tuple[State, DefinitionSnapshot, DefinitionSnapshot]


async def plan_revert(loader: StateLoader, commit: int, *, force: bool = False) -> RevertPlan:
    """Return the inverse of `commit`, from the states before and after it.

    A field that a later commit changed again stays: a value that was renamed since gets its old
    inputs, not its old name. So does a function of values that later commits brought. With `force`
    these are reverted, too. A name that another value has by now does not go back. This call
    changes nothing: enqueue the batch like any other one.

    Raises:
        NotRetained: the log does not go back so far.
        NotRevertible: there is no such commit, or it changed no definition.
    """
    workspace = str(loader.change_set.workspace_id)
    state, before, after = await around(loader, commit)
    state = await loader.follow(state, await loader.log.end()) or await loader.load()
    ids = set(before.values), set(before.funcs)
    now = await compute_in_turn(
        workspace, DefinitionSnapshot.of, graph_of(state), *ids, before.names()
    )
    updates, skipped = await compute_in_turn(workspace, invert, before, after, now, force=force)
    return RevertPlan(commit, state.commit, updates, skipped)


async def around(loader: StateLoader, commit: int) -> _Around:
    """Return the state as of the commit, and what it touched before it and after it."""
    return await loader.from_earliest(max(commit, 1) - 1, partial(_look_around, loader, commit))


async def _look_around(loader: StateLoader, commit: int, _: int) -> _Around:
    entry = await loader.log.entry(commit)
    if entry is None:
        for each in (commit, max(commit, 1) - 1):
            await loader.load(each)  # raises if the log has not come, or does not go back, so far
        raise NotRevertible(f"{loader.change_set}: {commit} is no commit of this change set")
    state = await loader.load(entry.previous)
    performed = await _updates_of(loader, entry, commit)
    graph, workspace = graph_of(state), str(loader.change_set.workspace_id)
    ids = await compute_in_turn(workspace, touched_ids, graph, performed)
    before = await compute_in_turn(workspace, DefinitionSnapshot.of, graph, *ids)
    await loader.catch_up(state, commit)
    after = await compute_in_turn(workspace, DefinitionSnapshot.of, graph, *ids)
    return state, before, after


def invert(
    before: DefinitionSnapshot,
    after: DefinitionSnapshot,
    now: DefinitionSnapshot,
    *,
    force: bool = False,
) -> tuple[list[AnyUpdate], list[str]]:
    """Return the batch that turns `now` into `before`; `skipped` has the ids that stay."""
    skipped: list[str] = []
    values = {
        i: _revert_value(i, before, after, now, skipped, force=force) for i in sorted(now.values)
    }
    while _leave_taken_names(values, now, skipped):
        pass  # a name that a value keeps may be what another was to get back
    users = Counter(now.users)
    users.subtract(put.func_id for put in now.values.values() if put and put.func_id)
    users.update(put.func_id for put in values.values() if put and put.func_id)
    funcs = {
        i: _revert_function(
            i, before, after, now, skipped, used=users[i] > before.users[i], force=force
        )
        for i in sorted(now.funcs)
    }
    wanted = DefinitionSnapshot(values, funcs, users)
    return difference(now.view(), wanted.view(), now.values.keys(), now.funcs.keys()), skipped


def _leave_taken_names(
    wanted: dict[str, Definition], now: DefinitionSnapshot, skipped: list[str]
) -> bool:
    """Let values keep the names that they have where others have their former ones, and keep them.

    Returns whether there are such values.
    """
    found = False
    for value_id, put in wanted.items():
        is_now = now.values[value_id]
        name = None if is_now is None else is_now.name
        holder = None if put is None or put.name in (None, name) else now.holders.get(put.name)
        if put is None or holder is None:
            continue
        kept = wanted.get(holder)
        if holder not in wanted or (kept is not None and kept.name == put.name):
            wanted[value_id] = put.model_copy(update={"name": name})
            skipped += [] if value_id in skipped else [value_id]
            found = True
    return found


async def _updates_of(loader: StateLoader, entry: CommitV2, commit: int) -> Sequence[AnyUpdate]:
    settled = entry.settled
    if settled is None or settled.outcome is not RequestOutcome.APPLIED or settled.updates is None:
        raise NotRevertible(f"{loader.change_set}: commit {commit} applied no batch")
    if settled.covers is not None:
        raise NotRevertible(
            f"{loader.change_set}: commit {commit} holds what was computed; "
            "revert what it was computed from"
        )
    return (await loader.batches.fetch(settled.updates, settled.id)).updates


def touched_ids(graph: Graph, updates: Sequence[AnyUpdate]) -> tuple[set[str], set[str]]:
    """The values and functions that the batch may have changed in `graph`."""
    values, funcs = set(), set()
    for update in updates:
        if isinstance(update, PutFunc | RemoveFunc):
            funcs.add(update.func_id)
            continue
        values.add(update.value_id)
        if isinstance(update, RemoveValue) and update.value_id in graph.values:
            values |= graph.values[update.value_id].dependents
    return values, funcs


def _revert_value(
    value_id: str,
    before: DefinitionSnapshot,
    after: DefinitionSnapshot,
    now: DefinitionSnapshot,
    skipped: list[str],
    *,
    force: bool,
) -> Definition:
    """Definition that the value shall have."""
    old, new, is_now = (known.values[value_id] for known in (before, after, now))
    if same_value(old, new) or same_value(old, is_now):
        return is_now
    if force or same_value(new, is_now):
        return old
    if old is not None and new is not None and is_now is not None:
        fields = _FIELDS if old.func_id == new.func_id == is_now.func_id else ("name",)
        changed = [
            name
            for name in fields
            if not _same_field(name, old, new) and not _same_field(name, old, is_now)
        ]
        reverted = {n: getattr(old, n) for n in changed if _same_field(n, new, is_now)}
        if len(reverted) < len(changed) or fields is not _FIELDS:
            skipped.append(value_id)
        return is_now.model_copy(update=reverted)
    skipped.append(value_id)
    return is_now


_FIELDS = ("name", "value", "inputs")


def _same_field(name: str, one: PutValue, other: PutValue) -> bool:
    if name == "inputs":
        return (one.inputs or {}) == (other.inputs or {})
    return json_equal(getattr(one, name), getattr(other, name))


def _revert_function(
    func_id: str,
    before: DefinitionSnapshot,
    after: DefinitionSnapshot,
    now: DefinitionSnapshot,
    skipped: list[str],
    *,
    used: bool,
    force: bool,
) -> PutFunc | None:
    """Definition that the function shall have; `used`: later values would lose it by a removal."""
    old, new, is_now = (known.funcs[func_id] for known in (before, after, now))
    if old in (new, is_now):
        return is_now
    if force or (new == is_now and not (old is None and used)):
        return old
    skipped.append(func_id)
    return is_now

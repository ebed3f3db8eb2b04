"""Head reaches a branch: what its batches change in a branch that has edits of its own.

What comes of it depends on what head is by then and on the branch's edits, not on the
order or the number of steps in which it is taken over: the branch is head with the edits
rebased onto it. That is done on a small graph that holds only what may matter, so the
cost is that of the edits and of what head changed, not that of the branch.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from rebaser_core.updates import (
    AnyUpdate,
    PutFunc,
    PutValue,
    RemoveFunc,
    RemoveValue,
    SetInputs,
    SetValue,
)
from rebaser_server.values.graph import Graph, ids_in
from rebaser_server.values.rebase.definitions import (
    Definition,
    View,
    difference,
    func_in,
    same_value,
    value_in,
)
from rebaser_server.values.rebase.edits import Edits, wanted_inputs
from rebaser_server.values.rebase.rebase import rebase


class Merged(NamedTuple):
    """What a branch does when head reaches it."""

    updates: list[AnyUpdate]
    """What changes in its graph."""
    under: list[AnyUpdate]
    """What head has now where the branch differs from it."""


def merged(graph: Graph, edits: Edits, head_changes: Sequence[AnyUpdate]) -> Merged:
    """What becomes of a branch by `head_changes`, as performed on head since it last came."""
    if (not edits.values and not edits.funcs) or Reach.of(graph, edits).spares(head_changes):
        return Merged(list(head_changes), [])
    scope = _Scope(graph, edits, head_changes)
    small = scope.graph()
    rebase(small, 0, head_changes)
    head_values = {value_id: value_in(small, value_id) for value_id in scope.values}
    head_funcs = {func_id: func_in(small, func_id) for func_id in scope.funcs}
    moved = Edits(
        edits.values, edits.funcs, edits.under | head_values, edits.under_funcs | head_funcs
    )
    rebase(small, 0, moved.batch())
    after = View.of(small)
    updates = difference(View.of(graph), after, scope.values, scope.funcs)
    under = [
        put or RemoveValue(value_id=value_id)
        for value_id, put in sorted(head_values.items())
        if _tracked(edits, value_id, put, after) and not _known(edits, value_id, put)
    ]
    under_funcs = [
        put or RemoveFunc(func_id=func_id)
        for func_id, put in sorted(head_funcs.items())
        if func_id in edits.funcs and edits.under_funcs[func_id] != put
    ]
    return Merged(updates, [*under, *under_funcs])


def _tracked(edits: Edits, value_id: str, put: Definition, after: View) -> bool:
    return value_id in edits.under or not same_value(put, after.value(value_id))


def _known(edits: Edits, value_id: str, put: Definition) -> bool:
    return value_id in edits.under and same_value(edits.under[value_id], put)


def changes_between(
    before: View, after: Graph, value_ids: set[str], func_ids: set[str]
) -> list[AnyUpdate]:
    """What head did, from what it was and what it is, where its log no longer tells."""
    there = View.of(after)
    return difference(before, there, value_ids | after.values.keys(), func_ids | after.funcs.keys())


class Reach(NamedTuple):
    """What the edits have to do with: a change of head's beside it changes nothing about them."""

    values: set[str]
    funcs: set[str]
    names: set[str]
    wired: bool
    """Whether there are wires among them, with which others could close a cycle."""
    granted: bool
    """Whether the branch has all that they want: else what is taken away elsewhere counts, too."""

    @classmethod
    def of(cls, graph: Graph, edits: Edits) -> "Reach":
        reach = cls({*edits.values, *edits.under}, {*edits.funcs}, set(), *_granted(graph, edits))
        for edit in edits.values.values():
            reach.values.update(wanted_inputs(edit.want))
            if isinstance(edit.want, PutValue) and edit.want.name is not None:
                reach.names.add(edit.want.name)
        return reach

    def spares(self, changes: Iterable[AnyUpdate]) -> bool:
        """Whether the branch may take these over as they are."""
        return self.granted and not any(map(self._meets, changes))

    def _meets(self, update: AnyUpdate) -> bool:
        if isinstance(update, PutFunc | RemoveFunc):
            return update.func_id in self.funcs
        if update.value_id in self.values:
            return True
        if isinstance(update, PutValue) and update.name in self.names:
            return True
        if isinstance(update, PutValue | SetInputs) and update.inputs:
            return self.wired or not self.values.isdisjoint(ids_in(update.inputs))
        return False


def _granted(graph: Graph, edits: Edits) -> tuple[bool, bool]:
    """`wired` and `granted`."""
    wired, granted = False, True
    for value_id, edit in edits.values.items():
        want, is_there = edit.want, value_in(graph, value_id)
        match want:
            case RemoveValue():
                continue
            case PutValue():
                granted &= same_value(is_there, want)
            case SetInputs():
                granted &= is_there is not None and (is_there.inputs or {}) == want.inputs
            case SetValue():
                granted &= is_there is not None and is_there.func_id is None
        wired |= bool(wanted_inputs(want))
    return wired, granted


class _Scope:
    """The values and functions that a merge may change, and around them what may forbid it."""

    def __init__(self, graph: Graph, edits: Edits, changes: Sequence[AnyUpdate]) -> None:
        self._graph = graph
        self._edits = edits
        self._head = edits.head_view(graph)
        self.values: set[str] = {*edits.values, *edits.under}
        self.funcs: set[str] = set(edits.funcs)
        self._inputs: set[str] = set()
        self._names: set[str] = set()
        for update in changes:
            self._take(update)
        for edit in edits.values.values():
            self._mention(edit.want)
        for value_id in self.values:
            self._mention(self._head.value(value_id))

    def _take(self, update: AnyUpdate) -> None:
        if isinstance(update, PutFunc | RemoveFunc):
            self.funcs.add(update.func_id)
            return
        self.values.add(update.value_id)
        self._mention(update)
        if isinstance(update, RemoveValue) and update.value_id in self._graph.values:
            self.values |= self._graph.values[update.value_id].dependents

    def _mention(self, update: AnyUpdate | None) -> None:
        if isinstance(update, PutValue) and update.name is not None:
            self._names.add(update.name)
        if isinstance(update, PutValue | SetInputs):
            self._inputs.update(ids_in(update.inputs or {}))

    def graph(self) -> Graph:
        """Head as it was, as far as it matters here."""
        small, known = Graph(), self._head
        funcs = [func for func in map(known.func, sorted(self.funcs)) if func is not None]
        whole = self.values | self._between()
        puts = [put for put in map(known.value, sorted(whole)) if put is not None]
        there = {put.value_id for put in puts}
        bare = {i for put in puts for i in ids_in(put.inputs or {})} | self._inputs
        bare |= {i for i in map(self._graph.names.get, self._names) if i is not None}
        bare -= self.values
        placeholders = [
            PutValue.model_construct(value_id=value_id, name=self._graph.values[value_id].name)
            for value_id in sorted(bare - there)
            if value_id in self._graph.values
        ]
        rebase(small, 0, [*funcs, *placeholders, *puts])
        return small

    def _between(self) -> set[str]:
        """Values on the ways from one in scope to another, which could close a cycle."""
        if not any(wanted_inputs(edit.want) for edit in self._edits.values.values()):
            return set()  # the edits add no wire, and head alone has no cycle
        values = self._graph.values
        lowest = min((values[i].rank for i in self.values if i in values), default=0)
        seen: set[str] = set()
        stack = self._outside(self._inputs, seen)
        while stack:
            value = values[stack.pop()]
            if value.rank > lowest:
                stack += self._outside(value.input_ids(), seen)
        return seen

    def _outside(self, value_ids: Iterable[str], seen: set[str]) -> list[str]:
        found = [
            i
            for i in dict.fromkeys(value_ids)
            if i not in seen and i not in self.values and i in self._graph.values
        ]
        seen.update(found)
        return found

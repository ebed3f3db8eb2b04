"""The three-way merge of head into an edited branch: base, ours, theirs.

The result depends on head and on the branch's edits, not on the order or the number of
merges: the branch is head with the edits rebased onto it. The merge works on a scratch graph
that holds only the values that may matter. So its cost grows with the edits and with what
head changed, not with the branch.
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
from rebaser_server.values.columns import ids_in
from rebaser_server.values.edits import (
    Definition,
    DefinitionView,
    Edits,
    difference,
    func_definition,
    same_value,
    value_definition,
    wanted_inputs,
)
from rebaser_server.values.graph import Graph
from rebaser_server.values.rebase import rebase


class MergeResult(NamedTuple):
    updates: list[AnyUpdate]
    """Updates of the branch's graph."""
    theirs: list[AnyUpdate]
    """Updates of what head has where the branch differs from it."""


def merge(graph: Graph, edits: Edits, head_changes: Sequence[AnyUpdate]) -> MergeResult:
    """Merge `head_changes`, as performed on head since the last merge, into a branch."""
    if (not edits.values and not edits.funcs) or EditFootprint.of(graph, edits).is_disjoint_from(
        head_changes
    ):
        return MergeResult(list(head_changes), [])
    scope = _MergeScope(graph, edits, head_changes)
    scratch = scope.build_graph()
    rebase(scratch, 0, head_changes)
    head_values = {value_id: value_definition(scratch, value_id) for value_id in scope.values}
    head_funcs = {func_id: func_definition(scratch, func_id) for func_id in scope.funcs}
    edits_on_head = Edits(
        edits.values, edits.funcs, edits.theirs | head_values, edits.their_funcs | head_funcs
    )
    rebase(scratch, 0, edits_on_head.to_batch())
    after = DefinitionView.of(scratch)
    updates = difference(DefinitionView.of(graph), after, scope.values, scope.funcs)
    theirs = [
        put or RemoveValue(value_id=value_id)
        for value_id, put in sorted(head_values.items())
        if _is_tracked(edits, value_id, put, after) and not _is_known(edits, value_id, put)
    ]
    their_funcs = [
        put or RemoveFunc(func_id=func_id)
        for func_id, put in sorted(head_funcs.items())
        if func_id in edits.funcs and edits.their_funcs[func_id] != put
    ]
    return MergeResult(updates, [*theirs, *their_funcs])


def _is_tracked(edits: Edits, value_id: str, put: Definition, after: DefinitionView) -> bool:
    return value_id in edits.theirs or not same_value(put, after.value(value_id))


def _is_known(edits: Edits, value_id: str, put: Definition) -> bool:
    return value_id in edits.theirs and same_value(edits.theirs[value_id], put)


def changes_between(
    before: DefinitionView, after: Graph, value_ids: set[str], func_ids: set[str]
) -> list[AnyUpdate]:
    """Head's changes, from its states before and after, for a time before its log begins."""
    view_after = DefinitionView.of(after)
    return difference(
        before, view_after, value_ids | after.values.keys(), func_ids | after.funcs.keys()
    )


class EditFootprint(NamedTuple):
    """All that the edits depend on: head's changes elsewhere do not affect them."""

    values: set[str]
    funcs: set[str]
    names: set[str]
    their_inputs: set[str]
    """Inputs in `theirs` that would be lost if head removed them."""
    has_inputs: bool
    """Whether the edits set inputs, with which others could close a cycle."""
    is_satisfied: bool
    """Whether the branch has all that the edits set: if not, removals elsewhere matter, too."""

    @classmethod
    def of(cls, graph: Graph, edits: Edits) -> "EditFootprint":
        footprint = cls(
            {*edits.values, *edits.theirs},
            {*edits.funcs},
            set(),
            {i for put in edits.theirs.values() if put for i in ids_in(put.inputs or {})},
            *_compare_with_graph(graph, edits),
        )
        for edit in edits.values.values():
            footprint.values.update(wanted_inputs(edit.ours))
            if isinstance(edit.ours, PutValue) and edit.ours.name is not None:
                footprint.names.add(edit.ours.name)
        return footprint

    def is_disjoint_from(self, changes: Iterable[AnyUpdate]) -> bool:
        """Whether the branch may apply these changes as they are."""
        return self.is_satisfied and not any(map(self._overlaps, changes))

    def _overlaps(self, update: AnyUpdate) -> bool:
        if isinstance(update, PutFunc | RemoveFunc):
            return update.func_id in self.funcs
        if update.value_id in self.values:
            return True
        if isinstance(update, RemoveValue):
            return update.value_id in self.their_inputs
        if isinstance(update, PutValue) and update.name in self.names:
            return True
        if isinstance(update, PutValue | SetInputs) and update.inputs:
            return self.has_inputs or not self.values.isdisjoint(ids_in(update.inputs))
        return False


def _compare_with_graph(graph: Graph, edits: Edits) -> tuple[bool, bool]:
    """Find `has_inputs` and `is_satisfied`."""
    has_inputs, is_satisfied = False, True
    for value_id, edit in edits.values.items():
        ours, present = edit.ours, value_definition(graph, value_id)
        match ours:
            case RemoveValue():
                continue
            case PutValue():
                is_satisfied &= same_value(present, ours)
            case SetInputs():
                is_satisfied &= present is not None and (present.inputs or {}) == ours.inputs
            case SetValue():
                is_satisfied &= present is not None and present.func_id is None
        has_inputs |= bool(wanted_inputs(ours))
    return has_inputs, is_satisfied


class _MergeScope:
    """The values and functions that a merge may change, and the values around that constrain it."""

    def __init__(self, graph: Graph, edits: Edits, changes: Sequence[AnyUpdate]) -> None:
        self._graph = graph
        self._edits = edits
        self._head = edits.head_view(graph)
        self.values: set[str] = {*edits.values, *edits.theirs}
        self.funcs: set[str] = set(edits.funcs)
        self._inputs: set[str] = set()
        self._names: set[str] = set()
        for update in changes:
            self._add(update)
        for edit in edits.values.values():
            self._add_references(edit.ours)
        for value_id in self.values:
            self._add_references(self._head.value(value_id))

    def _add(self, update: AnyUpdate) -> None:
        if isinstance(update, PutFunc | RemoveFunc):
            self.funcs.add(update.func_id)
            return
        self.values.add(update.value_id)
        self._add_references(update)
        if isinstance(update, RemoveValue) and update.value_id in self._graph.values:
            self.values |= self._graph.values[update.value_id].dependents

    def _add_references(self, update: AnyUpdate | None) -> None:
        if isinstance(update, PutValue) and update.name is not None:
            self._names.add(update.name)
        if isinstance(update, PutValue | SetInputs):
            self._inputs.update(ids_in(update.inputs or {}))

    def build_graph(self) -> Graph:
        """Head before the changes, as far as it matters here."""
        scratch, head = Graph(), self._head
        funcs = [func for func in map(head.func, sorted(self.funcs)) if func is not None]
        value_ids = self.values | self._values_between()
        puts = [put for put in map(head.value, sorted(value_ids)) if put is not None]
        defined = {put.value_id for put in puts}
        undefined = {i for put in puts for i in ids_in(put.inputs or {})} | self._inputs
        undefined |= {i for i in map(self._graph.names.get, self._names) if i is not None}
        undefined -= self.values
        placeholders = [
            PutValue.model_construct(value_id=value_id, name=self._graph.values[value_id].name)
            for value_id in sorted(undefined - defined)
            if value_id in self._graph.values
        ]
        rebase(scratch, 0, [*funcs, *placeholders, *puts])
        return scratch

    def _values_between(self) -> set[str]:
        """Values on the paths from one in scope to another, which could close a cycle."""
        if not any(wanted_inputs(edit.ours) for edit in self._edits.values.values()):
            return set()  # the edits set no inputs, and head alone has no cycle
        values = self._graph.values
        lowest = min((values[i].rank for i in self.values if i in values), default=0)
        seen: set[str] = set()
        stack = self._unseen_outside(self._inputs, seen)
        while stack:
            value = values[stack.pop()]
            if value.rank > lowest:
                stack += self._unseen_outside(value.input_ids(), seen)
        return seen

    def _unseen_outside(self, value_ids: Iterable[str], seen: set[str]) -> list[str]:
        new_ids = [
            i
            for i in dict.fromkeys(value_ids)
            if i not in seen and i not in self.values and i in self._graph.values
        ]
        seen.update(new_ids)
        return new_ids

"""A branch's own edits (ours), and what head has in their place (theirs): input of each merge.

A branch is head with the branch's own edits rebased onto it (`docs/rebase.md`). So beside
its graph it keeps, for each value and function that it edited, its own update, and for each
one that differs from head's the definition that head has (`theirs`). Its graph with `theirs`
laid over it is head, as far as the branch has merged it.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from rebaser_core.updates import (
    AnyUpdate,
    PutFunc,
    PutValue,
    RemoveFunc,
    RemoveValue,
    SetInputs,
    SetValue,
)
from rebaser_server.values.graph import Graph, ids_in, without
from rebaser_server.values.rebase.definitions import (
    Definition,
    DefinitionView,
    Preimage,
    difference,
    func_definition,
    value_definition,
)


@dataclass(slots=True)
class Edit:
    """The branch's edit of one value."""

    ours: PutValue | SetValue | SetInputs | RemoveValue
    """Its whole definition, only its value, only its inputs, or its removal."""
    base: Definition
    """Head's definition when the branch first edited it."""
    was_removed: bool = False
    """The branch removed it at some time, and so head's dependents of it lost that input."""


@dataclass(slots=True)
class FuncEdit:
    """The branch's edit of one function."""

    ours: PutFunc | RemoveFunc
    base: PutFunc | None


@dataclass(slots=True)
class Edits:
    """In the order of the first edit. Changed by the branch's own batches and as head moves."""

    values: dict[str, Edit] = field(default_factory=dict)
    funcs: dict[str, FuncEdit] = field(default_factory=dict)
    theirs: dict[str, Definition] = field(default_factory=dict)
    """Head's definition of each value edited, and of each that lost a removed input."""
    their_funcs: dict[str, PutFunc | None] = field(default_factory=dict)
    _dependents: dict[str, set[str]] = field(default_factory=dict)
    """Value → edited values that take it as an input, or once did."""

    def head_view(self, graph: Graph) -> DefinitionView:
        """Head as far as the branch, whose graph this is, has merged it."""
        return DefinitionView(
            lambda i: self.theirs[i] if i in self.theirs else value_definition(graph, i),
            lambda i: self.their_funcs[i] if i in self.their_funcs else func_definition(graph, i),
        )

    def has(self, put: PutValue) -> bool:
        """Whether the branch has made exactly this edit already."""
        edit = self.values.get(put.value_id)
        return edit is not None and edit.ours == put

    def add(self, performed: Sequence[AnyUpdate], preimage: Preimage) -> None:
        """Add a batch of the branch's own, as performed; `preimage` is from just before it."""
        for update in performed:
            match update:
                case PutFunc() | RemoveFunc():
                    self._add_func_edit(update, preimage)
                case RemoveValue():
                    self._add_removal(update, preimage)
                case PutValue() | SetValue() | SetInputs():
                    self._add_value_edit(update, preimage)

    def update_theirs(self, changes: Iterable[AnyUpdate]) -> None:
        """Update `theirs` after a merge of head, by changes of head where the branch differs."""
        for update in changes:
            match update:
                case PutValue():
                    self.theirs[update.value_id] = update
                case RemoveValue():
                    self.theirs[update.value_id] = None
                case PutFunc():
                    self.their_funcs[update.func_id] = update
                case RemoveFunc():
                    self.their_funcs[update.func_id] = None

    def _add_func_edit(self, update: PutFunc | RemoveFunc, preimage: Preimage) -> None:
        func_id = update.func_id
        base = self.their_funcs.setdefault(func_id, preimage.funcs.get(func_id))
        self.funcs.setdefault(func_id, FuncEdit(update, base)).ours = update

    def restore(self, value_id: str, edit: Edit) -> None:
        """Add an edit as it was stored."""
        self.values[value_id], self.theirs[value_id] = edit, edit.base
        self._index_inputs(value_id, edit)

    def _index_inputs(self, value_id: str, edit: Edit) -> None:
        for input_id in wanted_inputs(edit.ours):
            self._dependents.setdefault(input_id, set()).add(value_id)

    def _find_or_add(self, value_id: str, ours: Any, preimage: Preimage) -> Edit:
        base = self.theirs.setdefault(value_id, preimage.values.get(value_id))
        return self.values.setdefault(value_id, Edit(ours, base))

    def _add_value_edit(self, update: PutValue | SetValue | SetInputs, preimage: Preimage) -> None:
        edit = self._find_or_add(update.value_id, update, preimage)
        match edit.ours, update:
            case PutValue(func_id=None), SetValue():
                edit.ours = edit.ours.model_copy(update={"value": update.value})
            case PutValue(func_id=str()), SetInputs():
                edit.ours = edit.ours.model_copy(update={"inputs": update.inputs})
            case _:
                edit.ours = update
        self._index_inputs(update.value_id, edit)

    def _add_removal(self, update: RemoveValue, preimage: Preimage) -> None:
        value_id = update.value_id
        for dependent in preimage.dependents.get(value_id, ()):
            self.theirs.setdefault(dependent, preimage.values[dependent])
        edit = self._find_or_add(value_id, update, preimage)
        edit.ours, edit.was_removed = update, True
        for dependent in self._dependents.pop(value_id, ()):
            other = self.values.get(dependent)
            if other is not None and isinstance(other.ours, PutValue | SetInputs):
                kept = without(other.ours.inputs or {}, {value_id})
                other.ours = other.ours.model_copy(update={"inputs": kept})

    def to_batch(self) -> list[AnyUpdate]:
        """The edits as a batch: rebased onto head, it gives the branch.

        Removals come first, so that only head can be a reason for a correction.
        """
        updates: list[AnyUpdate] = [
            edit.ours
            for func_id, edit in self.funcs.items()
            if isinstance(edit.ours, PutFunc) or self.their_funcs[func_id] is not None
        ]
        updates += [
            RemoveValue(value_id=value_id)
            for value_id, edit in self.values.items()
            if edit.was_removed and self.theirs[value_id] is not None
        ]
        updates += self._release_conflicts()
        updates += [e.ours for e in self.values.values() if not isinstance(e.ours, RemoveValue)]
        return updates

    def _release_conflicts(self) -> Iterable[AnyUpdate]:
        """Updates that first release head's names and inputs that other edits may need."""
        ours = [edit.ours for edit in self.values.values()]
        names = {want.name for want in ours if isinstance(want, PutValue)}
        rewired_ids = [want.value_id for want in ours if wanted_inputs(want)]
        for value_id, edit in self.values.items():
            head, our_update = self.theirs[value_id], edit.ours
            if head is None or edit.was_removed or not isinstance(our_update, PutValue | SetInputs):
                continue
            name = our_update.name if isinstance(our_update, PutValue) else head.name
            rewired = bool(head.inputs) and head.inputs != (our_update.inputs or {})
            if rewired and rewired_ids not in ([], [value_id]):
                yield SetInputs(value_id=value_id, inputs={})
            if head.name is not None and head.name != name and head.name in names:
                yield PutValue(value_id=value_id)

    def difference(self, graph: Graph) -> list[AnyUpdate]:
        """The smallest batch that turns head, as far as the branch has merged it, into the branch.

        It leaves out what follows from other updates in it.
        """
        head, branch = self.head_view(graph), DefinitionView.of(graph)
        removed = set()
        for dependent, put in self.theirs.items():
            if (
                put is None
                or not put.inputs
                or dependent in self.values
                or dependent not in graph.values
            ):
                continue
            removed |= {*ids_in(put.inputs)}.difference(graph.values[dependent].input_ids())
        return difference(head, branch, self.values, self.funcs, removed)


def wanted_inputs(update: AnyUpdate) -> list[str]:
    """The inputs that an update gives to its value."""
    if isinstance(update, SetInputs) or (
        isinstance(update, PutValue) and update.func_id is not None
    ):
        return ids_in(update.inputs or {})
    return []

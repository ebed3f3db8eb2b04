"""Definitions, and the edits of a branch: what it has in place of what head has.

A definition is the update that makes a value or function, `PutValue` or `PutFunc`, without computed
results.

A branch is head with the branch's own edits (ours) rebased onto it (`docs/rebase.md`). So beside
its graph it keeps its own update of each edited value and function and, where it differs from head,
head's definition (`theirs`). Its graph with `theirs` laid over it is head, as far as the branch has
merged it. Its checkpoints hold the edits as JSON data beside the graph.
"""

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from pydantic import TypeAdapter

from rebaser_core.codecs import json_equal
from rebaser_core.updates import (
    AnyUpdate,
    PutFunc,
    PutValue,
    RemoveFunc,
    RemoveValue,
    SetInputs,
    SetValue,
    UpdateList,
)
from rebaser_server.values.columns import ids_in, without
from rebaser_server.values.graph import Graph

Definition = PutValue | None
"""Definition of a value; None if there is none."""


@dataclass(frozen=True, slots=True)
class DefinitionView:
    """Lookup of definitions by id, in a graph or in definitions laid over one."""

    value: Callable[[str], Definition]
    func: Callable[[str], PutFunc | None]

    @classmethod
    def of(cls, graph: Graph) -> "DefinitionView":
        return cls(lambda i: value_definition(graph, i), lambda i: func_definition(graph, i))


def value_definition(graph: Graph, value_id: str) -> Definition:
    value = graph.values.get(value_id)
    if value is None:
        return None
    if value.func_id is None:
        return PutValue.model_construct(value_id=value_id, name=value.name, value=value.value)
    return PutValue.model_construct(
        value_id=value_id, name=value.name, func_id=value.func_id, inputs=value.inputs
    )


def func_definition(graph: Graph, func_id: str) -> PutFunc | None:
    func = graph.funcs.get(func_id)
    if func is None:
        return None
    runtime: Any = func.runtime  # read as one of those that there are
    return PutFunc.model_construct(func_id=func_id, name=func.name, runtime=runtime, code=func.code)


class Preimage(NamedTuple):
    """The definitions before a batch that it may change."""

    values: dict[str, Definition]
    funcs: dict[str, PutFunc | None]
    dependents: dict[str, list[str]]
    """Value that the batch may remove → its dependents."""

    @classmethod
    def of(cls, graph: Graph, updates: Iterable[AnyUpdate]) -> "Preimage":
        preimage = cls({}, {}, {})
        for update in updates:
            if isinstance(update, PutFunc | RemoveFunc):
                preimage.funcs.setdefault(update.func_id, func_definition(graph, update.func_id))
                continue
            value_id = update.value_id
            preimage.values.setdefault(value_id, value_definition(graph, value_id))
            if isinstance(update, RemoveValue) and value_id in graph.values:
                dependents = preimage.dependents[value_id] = sorted(
                    graph.values[value_id].dependents
                )
                for dependent in dependents:
                    preimage.values.setdefault(dependent, value_definition(graph, dependent))
        return preimage


def same_value(one: Definition, other: Definition) -> bool:
    if one is None or other is None:
        return one is other
    return (
        (one.name, one.func_id, one.inputs or {}) == (other.name, other.func_id, other.inputs or {})
        and list(one.inputs or ()) == list(other.inputs or ())
        and json_equal(one.value, other.value)
    )


def difference(
    before: DefinitionView,
    after: DefinitionView,
    value_ids: Collection[str],
    func_ids: Collection[str],
    removed: Collection[str] = (),
) -> list[AnyUpdate]:
    """The smallest batch that turns `before` into `after`, as far as these ids go.

    Applied to `before` it needs no correction, and it changes only what differs: a value set
    on one side and renamed on the other has both. Ids in `removed` lose their dependents,
    even if they are in both.
    """
    batch: list[AnyUpdate] = [*_func_changes(before, after, func_ids)]
    changed = [
        (value_id, old, new)
        for value_id in sorted(value_ids)
        for old, new in [(before.value(value_id), after.value(value_id))]
        if value_id in removed or not same_value(old, new)
    ]
    gone = {i for i, old, new in changed if old is not None and (new is None or i in removed)}
    batch += [RemoveValue(value_id=value_id) for value_id in sorted(gone)]
    staying = [
        (None if value_id in gone else _without(old, gone), new)
        for value_id, old, new in changed
        if new is not None
    ]
    batch += _release_conflicts(staying)
    for old, new in staying:
        batch += _minimal_update(old, new)
    return batch


def _func_changes(
    before: DefinitionView, after: DefinitionView, func_ids: Iterable[str]
) -> Iterable[AnyUpdate]:
    for func_id in sorted(func_ids):
        new = after.func(func_id)
        if new == before.func(func_id):
            continue
        yield RemoveFunc(func_id=func_id) if new is None else new


def _without(old: Definition, gone: set[str]) -> Definition:
    if old is None or not old.inputs or gone.isdisjoint(ids_in(old.inputs)):
        return old
    return old.model_copy(update={"inputs": without(old.inputs, gone)})


def _release_conflicts(changes: list[tuple[Definition, PutValue]]) -> Iterable[AnyUpdate]:
    """Updates that release names and inputs first, which other values of the batch may need."""
    wanted = {new.name for old, new in changes if old is None or new.name != old.name}
    rewired = [n.value_id for o, n in changes if n.inputs and (o is None or n.inputs != o.inputs)]
    for old, new in changes:
        if old is None:
            continue
        if old.name is not None and old.name != new.name and old.name in wanted:
            yield old.model_copy(update={"name": None})
        if old.inputs and old.inputs != new.inputs and rewired not in ([], [new.value_id]):
            yield SetInputs(value_id=new.value_id, inputs={})


def _minimal_update(old: Definition, new: PutValue) -> Iterable[AnyUpdate]:
    """The update that changes only what differs."""
    if same_value(old, new):
        return
    if old is not None and (old.name, old.func_id) == (new.name, new.func_id):
        if new.func_id is None:
            yield SetValue(value_id=new.value_id, value=new.value)
        else:
            yield SetInputs(value_id=new.value_id, inputs=new.inputs or {})
    else:
        yield new


@dataclass(slots=True)
class Edit:
    ours: PutValue | SetValue | SetInputs | RemoveValue
    """The branch's update: the value's whole definition, only its value, only its inputs, or its
    removal."""
    base: Definition
    """Head's definition when the branch first edited it."""
    was_removed: bool = False
    """Whether the branch ever removed it, so that head's dependents of it lost that input."""


@dataclass(slots=True)
class FuncEdit:
    ours: PutFunc | RemoveFunc
    base: PutFunc | None


@dataclass(slots=True)
class Edits:
    """All edits, in the order of the first one of each.

    The branch's own batches and merges of head change them.
    """

    values: dict[str, Edit] = field(default_factory=dict)
    funcs: dict[str, FuncEdit] = field(default_factory=dict)
    theirs: dict[str, Definition] = field(default_factory=dict)
    """Definition in head of each value edited, and of each that lost a removed input."""
    their_funcs: dict[str, PutFunc | None] = field(default_factory=dict)
    _dependents: dict[str, set[str]] = field(default_factory=dict)
    """Value → edited values that take it as an input, or once did."""

    def head_view(self, graph: Graph) -> DefinitionView:
        return DefinitionView(
            lambda i: self.theirs[i] if i in self.theirs else value_definition(graph, i),
            lambda i: self.their_funcs[i] if i in self.their_funcs else func_definition(graph, i),
        )

    def has(self, put: PutValue) -> bool:
        """Whether the branch has made exactly this edit already."""
        edit = self.values.get(put.value_id)
        return edit is not None and edit.ours == put

    def add(self, performed: Sequence[AnyUpdate], preimage: Preimage) -> None:
        """Add a batch of the branch, as performed; `preimage` is from just before it."""
        for update in performed:
            match update:
                case PutFunc() | RemoveFunc():
                    self._add_func_edit(update, preimage)
                case RemoveValue():
                    self._add_removal(update, preimage)
                case PutValue() | SetValue() | SetInputs():
                    self._add_value_edit(update, preimage)

    def update_theirs(self, changes: Iterable[AnyUpdate]) -> None:
        """Update `theirs` after a merge of head, by head's changes where the branch differs."""
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
        """Updates that release head's names and inputs first, which other edits may need."""
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

        Updates that follow from others in it are left out.
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


_LIST: Final = TypeAdapter(UpdateList)


def edits_to_json(edits: Edits, graph: Graph) -> dict[str, Any]:
    """The edits of a branch with this graph, as JSON data; without what the graph holds as well."""
    return {
        "values": [_edit_to_json(graph, *item) for item in edits.values.items()],
        "funcs": [[e.ours.to_wire(), e.base and e.base.to_wire()] for e in edits.funcs.values()],
        "under": [
            [value_id, put and put.to_wire()]
            for value_id, put in sorted(edits.theirs.items())
            if value_id not in edits.values or put is not edits.values[value_id].base
        ],
        "underFuncs": [[i, put and put.to_wire()] for i, put in edits.their_funcs.items()],
    }


def edits_from_json(stored: dict[str, Any], graph: Graph) -> Edits:
    """The edits that `edits_to_json` made beside this graph."""
    edits = Edits()
    for value_id, item in stored["values"]:
        ours: Any = (
            _update_from_json(item["want"]) if "want" in item else value_definition(graph, value_id)
        )
        base = _update_from_json(item.get("base"))
        edits.restore(value_id, Edit(ours, base, item.get("cut", False)))
    for ours, base in stored["funcs"]:
        func = FuncEdit(_update_from_json(ours), _update_from_json(base))
        edits.funcs[func.ours.func_id] = func
    edits.theirs |= {value_id: _update_from_json(put) for value_id, put in stored["under"]}
    edits.their_funcs = {i: _update_from_json(put) for i, put in stored["underFuncs"]}
    return edits


def _edit_to_json(graph: Graph, value_id: str, edit: Edit) -> list[Any]:
    """The parts of an edit that the graph does not hold.

    There are none if the value is as the branch defined it.
    """
    stored: dict[str, Any] = {}
    if not isinstance(edit.ours, PutValue) or not same_value(
        edit.ours, value_definition(graph, value_id)
    ):
        stored["want"] = edit.ours.to_wire()
    if edit.base is not None:
        stored["base"] = edit.base.to_wire()
    if edit.was_removed:
        stored["cut"] = True
    return [value_id, stored]


def _update_from_json(stored: dict[str, Any] | None) -> Any:
    return None if stored is None else _LIST.validate_python([stored])[0]

"""What a branch itself edited, and what head has there: enough to say it anew on any later head.

A branch is head with the branch's own edits rebased onto it (`docs/rebase.md`). So beside
its graph it keeps, for each value and function that it edited, what it wants of it, and for
each that differs from head's what head has (`under`). Its graph with `under` laid over it
is head, as far as head has reached it.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from pydantic import TypeAdapter

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
from rebaser_server.values.graph import Graph, ids_in, without
from rebaser_server.values.rebase.definitions import (
    Before,
    Definition,
    View,
    difference,
    func_in,
    same_value,
    value_in,
)

_LIST = TypeAdapter(UpdateList)


@dataclass(slots=True)
class Edit:
    """What the branch wants of one value."""

    want: PutValue | SetValue | SetInputs | RemoveValue
    """The whole of it, only what it is, only its inputs, or that it be gone."""
    base: Definition
    """As head had it when the branch first edited it."""
    cut: bool = False
    """It was gone at some time, and whatever head has wired to it then lost that input."""


@dataclass(slots=True)
class FuncEdit:
    """What the branch wants of one function."""

    want: PutFunc | RemoveFunc
    base: PutFunc | None


@dataclass(slots=True)
class Edits:
    """In the order of the first edit. Changed by the branch's own batches and as head moves."""

    values: dict[str, Edit] = field(default_factory=dict)
    funcs: dict[str, FuncEdit] = field(default_factory=dict)
    under: dict[str, Definition] = field(default_factory=dict)
    """Each value edited, and each that differs from head's for lack of what was removed."""
    under_funcs: dict[str, PutFunc | None] = field(default_factory=dict)
    _takers: dict[str, set[str]] = field(default_factory=dict)
    """Value → edited values that want it as an input, perhaps no more."""

    def head_view(self, graph: Graph) -> View:
        """Head as far as it has reached the branch, whose graph this is."""
        return View(
            lambda i: self.under[i] if i in self.under else value_in(graph, i),
            lambda i: self.under_funcs[i] if i in self.under_funcs else func_in(graph, i),
        )

    def add(self, performed: Sequence[AnyUpdate], before: Before) -> None:
        """Fold in a batch of the branch's own, as performed; `before` is of the same moment."""
        for update in performed:
            match update:
                case PutFunc() | RemoveFunc():
                    self._add_func(update, before)
                case RemoveValue():
                    self._remove(update, before)
                case PutValue() | SetValue() | SetInputs():
                    self._want(update, before)

    def moved(self, under: Iterable[AnyUpdate]) -> None:
        """Head has reached the branch: take over what it now has where the branch differs."""
        for update in under:
            match update:
                case PutValue():
                    self.under[update.value_id] = update
                case RemoveValue():
                    self.under[update.value_id] = None
                case PutFunc():
                    self.under_funcs[update.func_id] = update
                case RemoveFunc():
                    self.under_funcs[update.func_id] = None

    def _add_func(self, update: PutFunc | RemoveFunc, before: Before) -> None:
        func_id = update.func_id
        base = self.under_funcs.setdefault(func_id, before.funcs.get(func_id))
        self.funcs.setdefault(func_id, FuncEdit(update, base)).want = update

    def _edit(self, value_id: str, want: Any, before: Before) -> Edit:
        base = self.under.setdefault(value_id, before.values.get(value_id))
        return self.values.setdefault(value_id, Edit(want, base))

    def _want(self, update: PutValue | SetValue | SetInputs, before: Before) -> None:
        edit = self._edit(update.value_id, update, before)
        match edit.want, update:
            case PutValue(func_id=None), SetValue():
                edit.want = edit.want.model_copy(update={"value": update.value})
            case PutValue(func_id=str()), SetInputs():
                edit.want = edit.want.model_copy(update={"inputs": update.inputs})
            case _:
                edit.want = update
        for input_id in wanted_inputs(edit.want):
            self._takers.setdefault(input_id, set()).add(update.value_id)

    def _remove(self, update: RemoveValue, before: Before) -> None:
        value_id = update.value_id
        for taker in before.takers.get(value_id, ()):
            self.under.setdefault(taker, before.values[taker])
        edit = self._edit(value_id, update, before)
        edit.want, edit.cut = update, True
        for taker in self._takers.pop(value_id, ()):
            other = self.values.get(taker)
            if other is not None and isinstance(other.want, PutValue | SetInputs):
                kept = without(other.want.inputs or {}, {value_id})
                other.want = other.want.model_copy(update={"inputs": kept})

    def batch(self) -> list[AnyUpdate]:
        """The edits as a batch for head: rebased onto it, it gives what the branch is.

        What must be gone first comes first, so that only head is a reason for a correction.
        """
        done: list[AnyUpdate] = [
            edit.want
            for func_id, edit in self.funcs.items()
            if isinstance(edit.want, PutFunc) or self.under_funcs[func_id] is not None
        ]
        done += [
            RemoveValue(value_id=value_id)
            for value_id, edit in self.values.items()
            if edit.cut and self.under[value_id] is not None
        ]
        done += self._releases()
        done += [e.want for e in self.values.values() if not isinstance(e.want, RemoveValue)]
        return done

    def _releases(self) -> Iterable[AnyUpdate]:
        """Names and inputs of head's given up first where another edit may need that."""
        wants = [edit.want for edit in self.values.values()]
        names = {want.name for want in wants if isinstance(want, PutValue)}
        wiring = [want.value_id for want in wants if wanted_inputs(want)]
        for value_id, edit in self.values.items():
            head, want = self.under[value_id], edit.want
            if head is None or edit.cut or not isinstance(want, PutValue | SetInputs):
                continue
            name = want.name if isinstance(want, PutValue) else head.name
            rewired = bool(head.inputs) and head.inputs != (want.inputs or {})
            if rewired and wiring not in ([], [value_id]):
                yield SetInputs(value_id=value_id, inputs={})
            if head.name is not None and head.name != name and head.name in names:
                yield PutValue(value_id=value_id)

    def difference(self, graph: Graph) -> list[AnyUpdate]:
        """The batch that makes of head, as far as it has reached the branch, what the branch is.

        It says no more than what differs, and what follows from that it leaves out.
        """
        head, branch = self.head_view(graph), View.of(graph)
        cut = set()
        for taker, put in self.under.items():
            if put is None or not put.inputs or taker in self.values or taker not in graph.values:
                continue
            cut |= {*ids_in(put.inputs)}.difference(graph.values[taker].input_ids())
        return difference(head, branch, self.values, self.funcs, cut)

    def changed_on_both_sides(self) -> set[str]:
        """Values that the branch edited and head changed since."""
        return {i for i, e in self.values.items() if not same_value(e.base, self.under[i])}

    def plain(self, graph: Graph) -> dict[str, Any]:
        """As plain data, for a checkpoint of the branch's `graph`, which says most of it."""
        return {
            "values": [_plain(graph, *item) for item in self.values.items()],
            "funcs": [[e.want.wire(), e.base and e.base.wire()] for e in self.funcs.values()],
            "under": [
                [value_id, put and put.wire()]
                for value_id, put in sorted(self.under.items())
                if value_id not in self.values or put is not self.values[value_id].base
            ],
            "underFuncs": [[i, put and put.wire()] for i, put in self.under_funcs.items()],
        }

    @classmethod
    def restored(cls, plain: dict[str, Any], graph: Graph) -> "Edits":
        """The edits that `plain` made of this graph."""
        edits = cls()
        for value_id, known in plain["values"]:
            want: Any = _update(known["want"]) if "want" in known else value_in(graph, value_id)
            edit = Edit(want, _update(known.get("base")), known.get("cut", False))
            edits.values[value_id], edits.under[value_id] = edit, edit.base
            for input_id in wanted_inputs(edit.want):
                edits._takers.setdefault(input_id, set()).add(value_id)
        for want, base in plain["funcs"]:
            func = FuncEdit(_update(want), _update(base))
            edits.funcs[func.want.func_id] = func
        edits.under |= {value_id: _update(put) for value_id, put in plain["under"]}
        edits.under_funcs = {func_id: _update(put) for func_id, put in plain["underFuncs"]}
        return edits


def _plain(graph: Graph, value_id: str, edit: Edit) -> list[Any]:
    """What the graph does not say: nothing of a value that is just what the branch wants."""
    known: dict[str, Any] = {}
    if not isinstance(edit.want, PutValue) or not same_value(edit.want, value_in(graph, value_id)):
        known["want"] = edit.want.wire()
    if edit.base is not None:
        known["base"] = edit.base.wire()
    if edit.cut:
        known["cut"] = True
    return [value_id, known]


def wanted_inputs(want: AnyUpdate) -> list[str]:
    """The values that an edit wants another to be computed from."""
    if isinstance(want, SetInputs) or (isinstance(want, PutValue) and want.func_id is not None):
        return ids_in(want.inputs or {})
    return []


def _update(plain: dict[str, Any] | None) -> Any:
    return None if plain is None else _LIST.validate_python([plain])[0]

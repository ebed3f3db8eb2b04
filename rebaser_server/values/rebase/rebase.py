"""Apply a batch to a graph, changing the batch where it does not fit.

Deterministic: the same graph and the same batch always give the same graph, the
same batch as performed and the same corrections. A batch as performed needs no
correction when it is applied again to the same graph, which is how the commit log
is replayed. Nothing raises on account of what a batch says.

Values that the batch defines may be taken as inputs anywhere in it, also before, and also
between their removal and their return. So batches as performed one after another may be
performed as one.
"""

from collections.abc import Callable, Sequence
from typing import Any, Final

from rebaser_core.corrections import shortened
from rebaser_core.messages import Correction
from rebaser_core.updates import (
    AnyUpdate,
    PutFunc,
    PutValue,
    RemoveFunc,
    RemoveValue,
    SetComputed,
    SetInputs,
    SetValue,
)
from rebaser_server.values.canonical_json import text_of
from rebaser_server.values.graph import Func, Graph, Inputs, Value, ids_in, without
from rebaser_server.values.rebase.apply_results import folded
from rebaser_server.values.rebase.result import Rebased


def rebase(
    graph: Graph, sequence: int, updates: Sequence[AnyUpdate], covers: int | None = None
) -> Rebased:
    """Apply `updates` to `graph`; whatever changed becomes a root of `sequence`.

    With `covers` they are a DVU's results for the roots up to that sequence, and leave none.
    """
    if covers is None:
        return _Batch(graph, sequence).apply(updates)
    return folded(graph, updates, covers)


class _Batch:
    """One batch on its way into the graph."""

    def __init__(self, graph: Graph, sequence: int) -> None:
        self._graph = graph
        self._sequence = sequence
        self._done = Rebased()
        self._index = 0
        self._defined: dict[str, int] = {}
        """Value → index of the last update that defines it."""

    def apply(self, updates: Sequence[AnyUpdate]) -> Rebased:
        values = self._graph.values
        for index, update in enumerate(updates):
            if isinstance(update, PutValue):
                self._defined[update.value_id] = index
                if update.value_id not in values:
                    self._graph.add(update.value_id)
        for self._index, update in enumerate(updates):
            performed = _APPLY[type(update)](self, update)
            if performed is not None:
                self._done.updates.append(performed)
        return self._done

    def _correct(self, code: str, detail: str) -> None:
        corrected = Correction(index=self._index, code=code, detail=shortened(detail))
        self._done.corrections.append(corrected)

    def _root(self, value: Value) -> None:
        """Have `value` and what depends on it recomputed; nothing to do for a lone source."""
        if value.func_id is not None:
            self._graph.pend(value)
        elif not value.has_dependents:
            return
        self._graph.root(value, self._sequence)
        self._done.dirty = True

    def _put_func(self, update: PutFunc) -> AnyUpdate:
        self._graph.put_func(Func(update.func_id, update.name, update.runtime, update.code))
        self._recompute_all_of(update.func_id)
        return update

    def _remove_func(self, update: RemoveFunc) -> AnyUpdate | None:
        if update.func_id not in self._graph.funcs:
            self._correct("missing-function", f"function {update.func_id} is not there to remove")
            return None
        self._graph.remove_func(update.func_id)
        self._recompute_all_of(update.func_id)
        return update

    def _recompute_all_of(self, func_id: str) -> None:
        if self._graph.pend_users(func_id, self._sequence):
            self._done.dirty = True

    def _put_value(self, update: PutValue) -> AnyUpdate:
        graph = self._graph
        value = graph.values[update.value_id]
        update = self._fitting_kind(self._fitting_name(value, update))
        if update.name != value.name:
            graph.rename(value, update.name)
        if update.func_id is not None:
            sent = update.inputs or {}
            inputs = self._fitting_inputs(value, sent)
            if inputs is not sent:
                update = update.model_copy(update={"inputs": inputs})
            graph.wire(value, inputs)
            graph.compute_by(value, update.func_id)
            self._root(value)
        elif value.func_id is not None or value.text != text_of(update.value):
            graph.unwire(value)
            graph.compute_by(value, None)
            graph.assign(value, update.value)
            self._root(value)
        return update

    def _fitting_name(self, value: Value, update: PutValue) -> PutValue:
        if update.name is None or update.name == value.name:
            return update
        holder = self._graph.names.get(update.name)
        if holder is None:
            return update
        self._correct("name-taken", f"name {update.name!r} belongs to {holder}; left unnamed")
        return update.model_copy(update={"name": None})

    def _fitting_kind(self, update: PutValue) -> PutValue:
        if update.func_id is None and update.inputs:
            self._correct("inputs-of-source", f"{update.value_id} has no function; inputs dropped")
            return update.model_copy(update={"inputs": None})
        if update.func_id is not None and update.value is not None:
            self._correct("controlled-value", f"{update.value_id} is computed; its value dropped")
            return update.model_copy(update={"value": None})
        return update

    def _fitting_inputs(self, value: Value, inputs: Inputs) -> Inputs:
        """`inputs` less what is missing or would close a cycle; makes room in the order."""
        wanted = ids_in(inputs)
        values = self._graph.values
        missing = {value_id for value_id in wanted if value_id not in values}
        # Its old inputs are no reason to refuse the new ones.
        self._graph.unwire(value)
        there = [v for v in wanted if v not in missing] if missing else wanted
        cyclic = self._graph.order_after(value, there)
        gone = missing | cyclic
        if not gone:
            return inputs
        for value_id in dict.fromkeys(wanted):
            if value_id in cyclic:
                self._correct("cycle", f"{value.id}: input {value_id} depends on it; dropped")
            elif value_id in missing:
                self._correct(
                    "missing-input", f"{value.id}: input {value_id} does not exist; dropped"
                )
        return without(inputs, gone)

    def _set_value(self, update: SetValue) -> AnyUpdate | None:
        value = self._existing(update.value_id)
        if value is None:
            return None
        if value.func_id is not None:
            self._correct("controlled-value", f"{value.id} is computed by {value.func_id}; not set")
            return None
        text = text_of(update.value)
        if value.text != text:
            self._graph.assign_text(value, text)
            self._root(value)
        return update

    def _set_inputs(self, update: SetInputs) -> AnyUpdate | None:
        value = self._existing(update.value_id)
        if value is None:
            return None
        if value.func_id is None:
            self._correct("inputs-of-source", f"{value.id} has no function; inputs dropped")
            return None
        inputs = self._fitting_inputs(value, update.inputs)
        self._graph.wire(value, inputs)
        self._root(value)
        return update if inputs is update.inputs else update.model_copy(update={"inputs": inputs})

    def _remove_value(self, update: RemoveValue) -> AnyUpdate | None:
        value = self._existing(update.value_id)
        if value is None:
            return None
        for dependent in self._graph.remove(value):
            self._root(dependent)
        if self._defined.get(value.id, -1) > self._index:
            self._graph.add(value.id)
        return update

    def _set_computed(self, update: SetComputed) -> None:
        self._correct("not-a-result", f"{update.value_id}: only a DVU may set what is computed")

    def _existing(self, value_id: str) -> Value | None:
        value = self._graph.values.get(value_id)
        if value is None:
            self._correct("missing-value", f"value {value_id} does not exist")
        return value


_APPLY: Final[dict[type, Callable[[_Batch, Any], AnyUpdate | None]]] = {
    PutFunc: _Batch._put_func,  # noqa: SLF001 - the table is part of the class
    RemoveFunc: _Batch._remove_func,  # noqa: SLF001
    PutValue: _Batch._put_value,  # noqa: SLF001
    SetValue: _Batch._set_value,  # noqa: SLF001
    SetInputs: _Batch._set_inputs,  # noqa: SLF001
    RemoveValue: _Batch._remove_value,  # noqa: SLF001
    SetComputed: _Batch._set_computed,  # noqa: SLF001
}

"""Apply a batch to a graph, changing the batch where it does not fit.

This is deterministic: equal graphs and equal batches always give equal graphs, equal batches as
performed and equal corrections. A batch as performed needs no correction when it is applied again
to such a graph, which is how the commit log is replayed. No batch, valid or not, raises an error.

Any update of the batch may take the values that the batch defines as inputs, also an earlier one,
and also between a value's removal and its return. So several batches, as performed one after
another, may be applied as one.

Results of a dependent values update (DVU) are applied here, too.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from rebaser_core.errors import many
from rebaser_core.messages import Correction, truncate_detail
from rebaser_core.references import REFERENCE, has_reference
from rebaser_core.table_updates import TableUpdates
from rebaser_core.table_values import reference_key
from rebaser_core.updates import (
    AnyUpdate,
    LazyUpdates,
    PlainUpdates,
    PutFunc,
    PutValue,
    RemoveFunc,
    RemoveValue,
    SetComputed,
    SetInputs,
    SetValue,
)
from rebaser_server.values.bulk_rebase import RebaseResult, rebase_in_bulk
from rebaser_server.values.canonical_json import dumps, loads
from rebaser_server.values.columns import FAILED, Func, Inputs, ValueStatus, ids_in, without
from rebaser_server.values.graph import Graph, Value


def _apply_result_updates(graph: Graph, updates: Sequence[AnyUpdate], covers: int) -> RebaseResult:
    """Apply results one by one. A value defined anew since the claim keeps its root instead.

    A value takes its result if only an *input* has changed since: the result is right for its
    commit, and the input's root brings the next DVU.
    """
    performed: list[AnyUpdate] = []
    result = RebaseResult(performed)
    for index, update in enumerate(updates):
        value = graph.values.get(update.value_id) if isinstance(update, SetComputed) else None
        if not isinstance(update, SetComputed) or value is None or value.func_id is None:
            detail = "not the result of a value that is computed here"
        elif graph.roots.get(value.id, 0) > covers:
            detail = f"{value.id} was defined anew since it was computed"
        else:
            _assign_result(graph, value, update)
            graph.mark_root(value, covers)  # as `assign_many` does
            performed.append(update)
            result.failed += update.failed is not None
            continue
        result.corrections.append(Correction(index=index, code="stale-result", detail=detail))
    result.failing = _failing(graph)
    return result


def _failing(graph: Graph) -> int:
    return int(np.count_nonzero(graph.columns.status.all == FAILED))


def apply_result_table(graph: Graph, results: pa.Table, covers: int) -> RebaseResult:
    """Apply many results column by column, by the rule of `_apply_result_updates`.

    `results` has the columns `id`, `status` and `text` of a unit's result, no id twice. One
    correction names all dropped results. A replay drops them, too.
    """
    statuses = results.column("status").to_numpy()
    taken = graph.assign_many(results.column("id"), statuses, results.column("text"), covers)
    failed = int(np.count_nonzero(statuses[taken] == FAILED))
    result = RebaseResult(failed=failed, failing=_failing(graph))
    dropped = np.flatnonzero(~taken)
    if len(dropped):
        detail = f"{many(len(dropped), 'value')} defined anew, or removed, after being computed"
        result.corrections.append(
            Correction(index=int(dropped[0]), code="stale-result", detail=detail)
        )
    return result


def _assign_result(graph: Graph, value: Value, update: SetComputed) -> None:
    if update.failed is not None:
        graph.assign(value, None, ValueStatus.FAILED, update.failed)
    elif update.blocked_by is not None:
        graph.assign(value, None, ValueStatus.BLOCKED, update.blocked_by)
    else:
        graph.assign(value, update.value)


IsRepeated = Callable[[PutValue], bool]
"""Test of a put that defines a computed value as it is: whether it may be left out."""


def rebase(
    graph: Graph,
    sequence: int,
    updates: Sequence[AnyUpdate],
    covers: int | None = None,
    *,
    repeated: IsRepeated | None = None,
) -> RebaseResult:
    """Apply `updates` to `graph`; each changed value becomes a root of `sequence`.

    With `covers` they are a DVU's results for the roots up to that sequence, and roots of it until
    the whole result is there.
    With `repeated`, a put that changes nothing is left out if `repeated` returns true.
    """
    if covers is None:
        if isinstance(updates, LazyUpdates) and not any(map(_is_forged, references_in(updates))):
            done = rebase_in_bulk(graph, sequence, updates)
            if done is not None:
                return done
        return _Rebaser(graph, sequence, repeated).apply(updates)
    return _apply_result_updates(graph, updates, covers)


class _Rebaser:
    def __init__(self, graph: Graph, sequence: int, repeated: IsRepeated | None) -> None:
        self._graph = graph
        self._repeated = repeated
        self._sequence = sequence
        self._performed: list[AnyUpdate] = []
        self._result = RebaseResult(self._performed)
        self._index = 0
        self._defined: dict[str, int] = {}
        """Index of the last update that defines each value."""

    def apply(self, updates: Sequence[AnyUpdate]) -> RebaseResult:
        values = self._graph.values
        appliers: dict[type, Callable[[Any], AnyUpdate | None]] = {
            PutFunc: self._put_func,
            RemoveFunc: self._remove_func,
            PutValue: self._put_value,
            SetValue: self._set_value,
            SetInputs: self._set_inputs,
            RemoveValue: self._remove_value,
            SetComputed: self._set_computed,
        }
        for index, update in enumerate(updates):
            if isinstance(update, PutValue):
                self._defined[update.value_id] = index
                if update.value_id not in values:
                    self._graph.add(update.value_id)
        for self._index, update in enumerate(updates):
            performed = appliers[type(update)](update)
            if performed is not None:
                self._performed.append(performed)
        return self._result

    def _correct(self, code: str, detail: str) -> None:
        corrected = Correction(index=self._index, code=code, detail=truncate_detail(detail))
        self._result.corrections.append(corrected)

    def _mark_root(self, value: Value) -> None:
        """Mark `value` and its dependents for recomputation; not a source without dependents."""
        if value.func_id is not None:
            self._graph.mark_pending(value)
        elif not value.has_dependents:
            return
        self._graph.mark_root(value, self._sequence)
        self._result.dirty = True

    def _put_func(self, update: PutFunc) -> AnyUpdate:
        func = Func(update.func_id, update.name, update.runtime, update.code)
        if self._graph.put_func(func, self._sequence):
            self._result.dirty = True
        return update

    def _remove_func(self, update: RemoveFunc) -> AnyUpdate | None:
        if update.func_id not in self._graph.funcs:
            self._correct("missing-function", f"function {update.func_id} does not exist")
            return None
        self._graph.remove_func(update.func_id)
        if self._graph.mark_users_pending(update.func_id, self._sequence):
            self._result.dirty = True
        return update

    def _put_value(self, update: PutValue) -> AnyUpdate | None:
        graph = self._graph
        value = graph.values[update.value_id]
        if _is_forged(update.value):
            self._correct("not-a-table", f"{update.value_id}: {_FORGED}; its value dropped")
            update = update.model_copy(update={"value": None})
        if self._repeated is not None and _is_same(value, update) and self._repeated(update):
            return None
        update = self._corrected_kind(self._corrected_name(value, update))
        if update.name != value.name:
            graph.rename(value, update.name)
        if update.func_id is not None:
            sent = update.inputs or {}
            inputs = self._corrected_inputs(value, sent)
            if inputs is not sent:
                update = update.model_copy(update={"inputs": inputs})
            graph.set_inputs(value, inputs)
            graph.set_function(value, update.func_id)
            self._mark_root(value)
        elif value.func_id is not None or value.text != dumps(update.value):
            graph.clear_inputs(value)
            graph.set_function(value, None)
            graph.assign(value, update.value)
            self._mark_root(value)
        return update

    def _corrected_name(self, value: Value, update: PutValue) -> PutValue:
        if update.name is None or update.name == value.name:
            return update
        holder = self._graph.names.get(update.name)
        if holder is None:
            return update
        self._correct("name-taken", f"name {update.name!r} belongs to {holder}; left unnamed")
        return update.model_copy(update={"name": None})

    def _corrected_kind(self, update: PutValue) -> PutValue:
        if update.func_id is None and update.inputs:
            self._correct("inputs-of-source", f"{update.value_id} has no function; inputs dropped")
            return update.model_copy(update={"inputs": None})
        if update.func_id is not None and update.value is not None:
            self._correct("controlled-value", f"{update.value_id} is computed; its value dropped")
            return update.model_copy(update={"value": None})
        return update

    def _corrected_inputs(self, value: Value, inputs: Inputs) -> Inputs:
        """`inputs` without missing ones and without cycles; `value` is ranked above them."""
        wanted = ids_in(inputs)
        values = self._graph.values
        missing = {value_id for value_id in wanted if value_id not in values}
        # The old inputs are no reason to refuse the new ones.
        self._graph.clear_inputs(value)
        present = [v for v in wanted if v not in missing] if missing else wanted
        cyclic = self._graph.order_inputs_before(value, present)
        dropped = missing | cyclic
        if not dropped:
            return inputs
        for value_id in dict.fromkeys(wanted):
            if value_id in cyclic:
                self._correct("cycle", f"{value.id}: input {value_id} depends on it; dropped")
            elif value_id in missing:
                self._correct(
                    "missing-input", f"{value.id}: input {value_id} does not exist; dropped"
                )
        return without(inputs, dropped)

    def _set_value(self, update: SetValue) -> AnyUpdate | None:
        value = self._existing(update.value_id)
        if value is None:
            return None
        if _is_forged(update.value):
            self._correct("not-a-table", f"{update.value_id}: {_FORGED}; not set")
            return None
        if value.func_id is not None:
            self._correct("controlled-value", f"{value.id} is computed by {value.func_id}; not set")
            return None
        text = dumps(update.value)
        if value.text != text:
            self._graph.assign_text(value, text)
            self._mark_root(value)
        return update

    def _set_inputs(self, update: SetInputs) -> AnyUpdate | None:
        value = self._existing(update.value_id)
        if value is None:
            return None
        if value.func_id is None:
            self._correct("inputs-of-source", f"{value.id} has no function; inputs dropped")
            return None
        had, has_result = value.inputs, _has_result(value)
        inputs = self._corrected_inputs(value, update.inputs)
        self._graph.set_inputs(value, inputs)
        if not (has_result and _same_inputs(inputs, had)):
            self._mark_root(value)
        return update if inputs is update.inputs else update.model_copy(update={"inputs": inputs})

    def _remove_value(self, update: RemoveValue) -> AnyUpdate | None:
        value = self._existing(update.value_id)
        if value is None:
            return None
        for dependent in self._graph.remove(value):
            self._mark_root(dependent)
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


def references_in(updates: Iterable[AnyUpdate]) -> Iterator[Any]:
    """Yield the values in puts and sets that are references or have some, or claim to."""
    if isinstance(updates, PlainUpdates):
        yield from filter(has_reference, updates.columns.values)
    elif isinstance(updates, TableUpdates):
        if updates.is_json:  # canonical texts, in which the key is as it is here
            found = updates.values.filter(pc.match_substring(updates.values, f'"{REFERENCE}"'))
            yield from filter(has_reference, map(loads, found.to_pylist()))
    else:
        for update in updates:
            if isinstance(update, PutValue | SetValue) and has_reference(update.value):
                yield update.value


def functions_in(updates: Sequence[AnyUpdate]) -> Iterator[PutFunc]:
    if isinstance(updates, PlainUpdates):
        updates = updates.columns.funcs
    elif isinstance(updates, TableUpdates):
        updates = updates.before
    return (update for update in updates if isinstance(update, PutFunc))


_FORGED: Final = (
    "a value with the key $table is a table that was uploaded, or one version of another table, "
    "with nothing around it, and this one is neither; tables that are computed cannot be sent"
)


def _is_forged(value: object) -> bool:
    """Whether a value is or has, at any depth, what claims to be a table that Rebasers make."""
    return has_reference(value) and reference_key(value) is None


def _is_same(value: Value, update: PutValue) -> bool:
    """Whether a computed value is defined so already, and has a result or is to get one."""
    return (
        update.func_id is not None
        and (update.func_id, update.name, update.value) == (value.func_id, value.name, None)
        and _has_result(value)
        and _same_inputs(value.inputs, update.inputs or {})
    )


def _has_result(value: Value) -> bool:
    """Whether a computed value has a result, or is to get one."""
    return value.status in (ValueStatus.OK, ValueStatus.PENDING)


def _same_inputs(one: Inputs, other: Inputs) -> bool:
    return one == other and list(one) == list(other)

"""The evaluation of one unit in the process that it is called in: pure, step by step."""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa

from rebaser_server.compute.errors import FunctionMissing
from rebaser_server.compute.evaluate.call_watchdog import CallWatchdog
from rebaser_server.compute.evaluate.process_guard import (
    ProcessGuard,
    Spoilt,
)
from rebaser_server.compute.evaluate.result_writer import EvaluationState
from rebaser_server.compute.evaluate.scalar import ScalarEvaluator
from rebaser_server.compute.evaluate.vector import VectorEvaluator
from rebaser_server.compute.functions.runtimes import resolve, resolve_vectorised
from rebaser_server.compute.units.buffers import STRING_TYPE
from rebaser_server.compute.units.culprits import FAILED_RUNTIME
from rebaser_server.compute.units.segments import highest_inputs, segments
from rebaser_server.compute.units.unit_result import SCHEMA, CallCosts, UnitResult
from rebaser_server.compute.units.value_buffers import NONE
from rebaser_server.compute.units.work_unit import OK, WorkUnit


def evaluate_unit(unit: WorkUnit, watchdog: CallWatchdog, *, vectorised: bool = True) -> UnitResult:
    """What becomes of a unit in this process.

    `vectorised`: whether functions may be called for many values at once, which changes
    nothing but how long it takes.
    """
    evaluation = Evaluation(unit, watchdog, vectorised=vectorised)
    evaluation.advance(len(unit))
    return evaluation.result()


class Evaluation:
    """A unit's values, computed from the first on as far as is asked for."""

    def __init__(
        self,
        unit: WorkUnit,
        watchdog: CallWatchdog,
        *,
        vectorised: bool = True,
        is_strict: bool = False,
    ) -> None:
        """`is_strict`: see `ProcessGuard`; then values are computed one by one, in their order."""
        self._unit = unit
        self._watchdog = watchdog
        self._guard = guard = None
        if any(runtime == "python" for runtime, _ in unit.functions):
            self._guard = guard = ProcessGuard(watchdog.keep_ticking, is_strict=is_strict)
        functions = [_resolve_or_fail(runtime, code) for runtime, code in unit.functions]
        vector_functions = [
            resolve_vectorised(runtime, code) if runtime and vectorised else None
            for runtime, code in unit.functions
        ]
        if guard is not None and not guard.is_clean():
            names = ", ".join(code for runtime, code in unit.functions if runtime == "python")
            changed = guard.put_back()
            if not is_strict:  # else it was said where this process was forked
                guard.report(names, "when its module was imported", changed)
        state = EvaluationState.of(unit, watchdog, guard)
        self._highest = highest_inputs(unit.refs, np.diff(state.starts))
        self._buffers = state.buffers
        self._changed = state.is_changed
        self._scalar = ScalarEvaluator(state, functions)
        self._vector = VectorEvaluator(state, vector_functions, self._scalar)
        self.done = 0
        """Values computed, or found not to be due."""
        self._step = 0, 0
        """Values of the call of `advance` that goes on, and calls of functions before it."""
        self._recomputed = 0
        self.is_over = False
        """Whether this process can compute no more of the unit; another one can."""

    @property
    def ahead(self) -> int:
        """Values computed beyond `done`, at least, while `advance` goes on on another thread."""
        count, before = self._step
        return max(0, min(self._called() - before, count) - 1)

    def _called(self) -> int:
        return self._vector.recomputed + sum(self._scalar.calls) + len(self._scalar.returned)

    def advance(self, count: int) -> None:
        """Compute the next `count` values, or as many as there are."""
        stop = min(self.done + count, len(self._unit))
        self._step = stop - self.done, self._called()
        if self._guard is not None and not self.done:
            self._guard.watch_threads()  # not later: there may be some of functions
        try:
            with self._watchdog.watching():
                self.done = self._compute(self.done, stop)
        except Spoilt:
            self.is_over = True
        else:
            self._recomputed = self._total_recomputed()
            self.is_over = self._guard is not None and self._guard.is_over
        self._step = 0, 0

    def _compute(self, start: int, stop: int) -> int:
        """Position before which all values are computed.

        Raises:
            Spoilt: it does not stand what those from `start` on have come to.
        """
        if self._guard is not None and self._guard.is_strict:
            return self._scalar.evaluate_in_order(start, stop)
        for first, last, is_wide in segments(self._highest, start, stop):
            if is_wide:
                self._vector.evaluate(first, last)
            else:
                self._scalar.evaluate_in_order(first, last)
        return stop

    def end(self) -> None:
        """See what the functions have left in this process."""
        if self._guard is not None:
            self._guard.end(self._watchdog.memory)

    def _total_recomputed(self) -> int:
        return self._vector.recomputed + self._scalar.writer.blocked + sum(self._scalar.calls)

    def result(self) -> UnitResult:
        """What became of the values so far."""
        return UnitResult(self._recomputed, self._table(), self._costs())

    def _table(self) -> pa.Table:
        results, buffers, ids = self._scalar.writer, self._buffers, self._unit.ids
        positions = np.flatnonzero(
            self._changed[: self.done] & (buffers.kinds[: self.done] != NONE)
        )
        statuses = np.full(len(positions), OK, np.uint8)
        texts = buffers.canonical_texts_at(positions)
        if results.positions:
            positions = np.concatenate([positions, np.array(results.positions, np.int64)])
            statuses = np.concatenate([statuses, np.array(results.statuses, np.uint8)])
            order = np.argsort(positions)
            texts = pa.concat_arrays([texts, pa.array(results.texts, STRING_TYPE)]).take(order)
            positions, statuses = positions[order], statuses[order]
            count = int(np.searchsorted(positions, self.done))  # others do not stand
            positions, statuses, texts = positions[:count], statuses[:count], texts[:count]
        columns = [ids if len(positions) == len(ids) else ids.take(positions), statuses, texts]
        return pa.table([*columns, positions.astype(np.int32)], schema=SCHEMA)

    def _costs(self) -> CallCosts:
        rows, wide, costs = self._scalar, self._vector, CallCosts()
        for index, (runtime, code) in enumerate(self._unit.functions):
            calls, seconds = wide.calls[index], wide.seconds[index]
            if rows.timed_calls[index]:
                seconds += rows.timed_seconds[index] / rows.timed_calls[index] * rows.calls[index]
            if runtime is not None and calls + rows.calls[index]:
                costs[runtime, code] = calls + rows.calls[index], seconds
        return costs


def _resolve_or_fail(runtime: str | None, code: str) -> Callable[..., Any]:
    try:
        if runtime is None:
            raise FunctionMissing(f"function {code} does not exist")
        if runtime == FAILED_RUNTIME:
            raise FunctionMissing(code)
        return resolve(runtime, code)
    except FunctionMissing as error:
        return partial(_raise_missing, str(error))


def _raise_missing(message: str, /, **_arguments: Any) -> Any:
    raise FunctionMissing(message)

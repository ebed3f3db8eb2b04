"""The evaluation of one unit: in the process that it is called in, or in children of that.

Builtin functions and CEL change nothing, and are called here. Functions that others wrote are
called in a child, see `isolation`, which computes as much as it may in its time and sends what
changed; decoding and encoding are left to the parent, since memory that a child uses first costs
more than a small unit. If a value ends its child, or takes longer than it may, that value fails,
and another child goes on.
"""

import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from math import inf
from typing import Any, Final

import cbor2
import numpy as np
import pyarrow as pa

from rebaser_server.compute import isolation
from rebaser_server.compute.call_watchdog import CallWatchdog
from rebaser_server.compute.errors import EvaluationFailed, FunctionMissing
from rebaser_server.compute.evaluators import EvaluationState, ScalarEvaluator, VectorEvaluator
from rebaser_server.compute.functions.runtimes import (
    INSTALLED,
    is_loaded,
    require_code,
    resolve,
    resolve_vectorised,
)
from rebaser_server.compute.isolation import IDLE, LOADING, VECTORISED, ChildEnded
from rebaser_server.compute.results import SCHEMA, CallCosts, UnitResult, encode_result
from rebaser_server.compute.value_buffers import NONE
from rebaser_server.compute.work_unit import (
    FAILED_RUNTIME,
    MAX_CULPRITS,
    OK,
    STRING_TYPE,
    TOO_MANY_CULPRITS,
    WorkUnit,
    highest_inputs,
    segments,
)


class Evaluation:
    """Evaluation of a unit, from the first value on, as far as is asked for."""

    def __init__(self, unit: WorkUnit, watchdog: CallWatchdog) -> None:
        self._unit = unit
        self._watchdog = watchdog
        self._vectorised = True
        self._is_ready = False
        self.missing: dict[int, str] = {}
        """Messages of functions that cannot be loaded, by their place."""
        self.imported: list[tuple[str, bool]] = []
        """Functions that were imported here, and whether that left the process as it was."""
        state = EvaluationState.of(unit, watchdog)
        self._highest = highest_inputs(unit.refs, np.diff(state.starts))
        self._buffers = state.buffers
        self._changed = state.is_changed
        self._scalar = ScalarEvaluator(state)
        self._vector = VectorEvaluator(state, self._scalar)
        self.done = 0
        """Number of values computed, or found not to be due."""
        self._step = 0, 0
        """Number of values of the call of `advance` that goes on, and of calls of functions before
        it."""

    def load(self) -> None:
        """Find the functions, which an import may do, unless that was done."""
        if self._is_ready:
            return
        self._is_ready = True
        self._scalar.use(list(map(self._load, range(len(self._unit.functions)))))
        self._vector.use(
            [
                resolve_vectorised(runtime, code)
                if runtime and self._vectorised and index not in self.missing
                else None
                for index, (runtime, code) in enumerate(self._unit.functions)
            ]
        )

    def call_one_by_one(self) -> None:
        self._vectorised = self._is_ready = False

    def _load(self, index: int) -> Callable[..., Any]:
        runtime, code = self._unit.functions[index]
        if index in self.missing:
            return partial(_raise_missing, self.missing[index])
        if runtime not in INSTALLED or is_loaded(code):
            return _resolve_or_fail(runtime, code)
        self._watchdog.position[0] = LOADING - index
        is_same = isolation.state_of_process()
        with self._watchdog.limiting_memory():
            function = _resolve_or_fail(runtime, code)
        if is_loaded(code):
            self.imported.append((code, is_same()))
        self._watchdog.position[0] = IDLE
        return function

    @property
    def ahead(self) -> int:
        """Minimum number of values beyond `done`, while `advance` runs in another thread."""
        count, before = self._step
        return max(0, min(self._called() - before, count) - 1)

    def _called(self) -> int:
        return self._vector.recomputed + sum(self._scalar.calls) + len(self._scalar.returned)

    def advance(self, count: int, until: float = inf) -> None:
        """Compute the next `count` values, or as many as there are, at any time."""
        del until
        self.load()
        stop = min(self.done + count, len(self._unit))
        self._step = stop - self.done, self._called()
        with self._watchdog.watching():
            for first, last, is_wide in segments(self._highest, self.done, stop):
                if is_wide:
                    self._vector.evaluate(first, last)
                else:
                    self._scalar.evaluate_in_order(first, last)
        self.done = stop
        self._step = 0, 0

    def compute_apart(self, until: float, stop: int, least: int) -> bytes:
        """Compute values in a child, up to `stop` or that time; return what changed, for `take`."""
        began, before = time.monotonic(), (self.done, self._scalar.writer.mark)
        self.load()
        # A load may outlast `until`. Without a later end, each child would load and compute little.
        advance_until(self, stop, max(until, end_of_turn(began, 0)), least)
        return cbor2.dumps([self.done, self.imported, self._changes(*before)])

    def _changes(self, start: int, mark: int) -> list[Any]:
        return [
            self._changed[start : self.done].tobytes(),
            self._buffers.changes(start, self.done),
            self._scalar.changes(start, mark),
            self._vector.changes(),
        ]

    def take(self, answer: bytes) -> list[tuple[str, bool]]:
        """Take over what a child computed; return the functions that it imported."""
        done, imported, (changed, buffers, scalar, vector) = cbor2.loads(answer)
        imported = [(code, is_same) for code, is_same in imported]
        self._changed[self.done : done] = np.frombuffer(changed, np.bool_)
        self._buffers.take(self.done, done, buffers)
        self._vector.take(vector)
        self._scalar.take(scalar)  # the last one, since it adds: an error before changes nothing
        self.done = done
        return imported

    def fail(self, message: str) -> None:
        self._scalar.fail(self.done, message)
        self.done += 1

    def result(self) -> UnitResult:
        recall = self._scalar.recall
        recomputed = self._vector.recomputed + self._scalar.writer.blocked + sum(self._scalar.calls)
        result = UnitResult(recomputed, self._table(), self._costs())
        return (
            result if recall is None else replace(result, remembered=recall.remembered(self.done))
        )

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
        recalled = set() if rows.recall is None else rows.recall.used
        for index, (runtime, code) in enumerate(self._unit.functions):
            calls, seconds = wide.calls[index], wide.seconds[index]
            if rows.timed_calls[index]:
                seconds += rows.timed_seconds[index] / rows.timed_calls[index] * rows.calls[index]
            if runtime is not None and (calls + rows.calls[index] or index in recalled):
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


FIRST_STEP: Final = 16
"""Number of values of the first step; each further one has up to `_GROWTH` times as many."""
_GROWTH: Final = 16
STEP_SECONDS: Final = 1.0
"""Seconds of a step, after each of which progress is reported."""
TIME_SLICE: Final = 2.0
"""Seconds of work after which a worker keeps its results and gives way: small runs wait only
briefly for a large one, and a crash costs little."""
_MIN_START_RATIO: Final = 10
"""Multiple of the time that beginning took; a turn is not shorter."""


def end_of_turn(began: float, time_slice: float) -> float:
    """Return when a turn ends whose preparations, which are over now, began then."""
    now = time.monotonic()
    return now + max(time_slice, _MIN_START_RATIO * (now - began))


def advance_until(
    evaluation: "Evaluation | ForkedEvaluation",
    size: int,
    until: float,
    least: int = 1,
    usual: float = STEP_SECONDS,
    stepped: Callable[[float], None] = lambda _: None,
) -> None:
    """Compute up to `size` values, step by step, until that time is over.

    `least`: number of values that are computed in any case; `stepped` is called after each step.
    """
    now, count = time.monotonic(), FIRST_STEP
    while evaluation.done < size and (now < until or evaluation.done < least):
        before = now
        evaluation.advance(min(count, size - evaluation.done), until)
        now = time.monotonic()
        count = max(1, int(count * min(usual / max(now - before, 1e-6), _GROWTH)))
        stepped(now)


class ForkedEvaluation:
    """An `Evaluation` in children: one for each call of `advance`, and for each that ended early.

    A child that ends where no value is to blame makes the next one compute half as many values,
    until it is a single one.
    """

    def __init__(self, unit: WorkUnit) -> None:
        self._unit = unit
        self._position = isolation.shared_position()
        self._evaluation = Evaluation(unit, CallWatchdog(unit.limits, self._position))
        # An import happens in a child first, so only functions that need none are found here.
        if all(runtime not in INSTALLED or is_loaded(code) for runtime, code in unit.functions):
            self._evaluation.load()
        self._most = len(unit)
        """Number of values that a child computes at most."""
        self._failures: dict[int, str] = {}
        """Messages of values to come that ended a child or took too long, by position."""
        self._ends: dict[int, int] = {}
        """Number of times that a value ended a child."""
        self.ahead = 0
        """Number of values computed beyond `done`, at least, by the running call of `advance`."""
        self.on_progress: Callable[[], None] = lambda: None
        """Callback that is called from time to time while `advance` runs."""

    @property
    def done(self) -> int:
        return self._evaluation.done

    def result(self) -> UnitResult:
        return self._evaluation.result()

    def advance(self, count: int, until: float = inf) -> None:
        """Compute the next values, at least one, until that time is over.

        `count` is left to the child, which makes steps of its own.

        Raises:
            EvaluationFailed: too many values end their children.
        """
        del count
        while not self._fail_next():
            # A value that is to blame is done in this call: later ones would not know of it.
            known = min(self._failures, default=len(self._unit))
            stop = min(known, self.done + self._most)
            least = stop if self._failures else self.done + 1
            work = partial(self._evaluation.compute_apart, until, stop, least)
            observe = partial(self._observe, stop - self.done)
            try:
                answer = isolation.ask_child(
                    work, self._position, self._unit.limits.seconds, observe
                )
                imported = self._evaluation.take(answer)
            except ChildEnded as end:
                self._blame(end, stop)
                continue
            except Exception:  # a function has broken what answers are made with
                self._blame(ChildEnded(IDLE, isolation.UNABLE), stop)
                continue
            _import_clean(imported)
            self._most = min(2 * self._most, len(self._unit))
            self._fail_next()
            break
        self.ahead = 0

    def _fail_next(self) -> bool:
        message = self._failures.pop(self.done, None)
        if message is not None:
            self._evaluation.fail(message)
        return message is not None

    def _observe(self, most: int, met: int) -> None:
        self.ahead = max(self.ahead, min(met, most) - 1)
        self.on_progress()

    def _blame(self, end: ChildEnded, stop: int) -> None:
        """Make the next child do without what ended the last one."""
        if end.position <= LOADING:
            place = LOADING - end.position
            name = self._unit.functions[place][1]
            self._evaluation.missing[place] = (
                f"Python function {name!r} does not load: {end.reason}"
            )
        elif end.position == VECTORISED:
            # One of many values is to blame: called one by one, the next child shows which.
            self._evaluation.call_one_by_one()
        elif end.position == IDLE and stop - self.done > 1:
            self._most = (stop - self.done) // 2
        elif end.is_limit and end.position != IDLE:
            self._failures[end.position] = end.reason
        else:
            position = self.done if end.position == IDLE else end.position
            self._ends[position] = self._ends.get(position, 0) + 1
            if len(self._ends) > MAX_CULPRITS:
                raise EvaluationFailed(f"{TOO_MANY_CULPRITS}: {end.reason}")
            if end.reason not in _FROM_OUTSIDE or self._ends[position] > 1:
                self._failures[position] = f"computing it ended the evaluator: {end.reason}"


_FROM_OUTSIDE: Final = ("killed by SIGKILL", "killed by SIGTERM")
"""Ends of a child that another process may have caused, as the kernel does without memory."""


def _import_clean(imported: list[tuple[str, bool]]) -> None:
    """Import here, for the children to come, what a child has found clean."""
    for code, is_clean in imported:
        if is_clean and not is_loaded(code):
            isolation.import_for_children(partial(resolve, "python", code))


def evaluate(unit: bytes | memoryview) -> pa.Buffer:
    """Evaluate an encoded `WorkUnit`; return the encoded `UnitResult`.

    A function that raises, or exceeds the unit's limits, fails its value and blocks the value's
    dependents, and nothing else. A value is computed if it must be, or if an input comes out
    changed: with another value, or with a value where it had none, or without one.
    """
    decoded = decode_sound(unit)
    evaluation, count = start_evaluation(decoded), len(decoded)
    while evaluation.done < count:
        evaluation.advance(count, time.monotonic() + TIME_SLICE)
    return encode_result(evaluation.result())


def decode_sound(unit: bytes | memoryview) -> WorkUnit:
    """The unit, whose functions have the same code here and where it was made.

    Raises:
        CodeDiffers: they have not.
    """
    decoded = WorkUnit.decode(unit)
    require_code(decoded.functions, decoded.code)
    return decoded


def start_evaluation(unit: WorkUnit) -> Evaluation | ForkedEvaluation:
    if unit.limits.is_forked or any(runtime in INSTALLED for runtime, _ in unit.functions):
        return ForkedEvaluation(unit)
    return Evaluation(unit, CallWatchdog(unit.limits))

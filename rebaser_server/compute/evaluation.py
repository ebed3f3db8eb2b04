"""The evaluation of one unit in the process that it is called in: pure, step by step.

A unit is evaluated here or, if it asks for that, in forked child processes that may crash or hang:
the value at fault then fails. A child notes in shared memory which value it computes. If it ends,
or goes on with one value for longer than it may, that value fails and another child begins anew,
without it.
"""

import mmap
import os
import select
import signal
import time
import warnings
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any, Final

import numpy as np
import pyarrow as pa

from rebaser_server.compute import process_guard
from rebaser_server.compute.call_watchdog import IDLE, KILL_FACTOR, CallWatchdog
from rebaser_server.compute.errors import FunctionMissing, describe
from rebaser_server.compute.evaluators import EvaluationState, ScalarEvaluator, VectorEvaluator
from rebaser_server.compute.functions.runtimes import (
    INSTALLED,
    require_code,
    resolve,
    resolve_vectorised,
)
from rebaser_server.compute.process_guard import ProcessGuard, Spoilt
from rebaser_server.compute.results import (
    SCHEMA,
    CallCosts,
    UnitResult,
    decode_result,
    encode_result,
    join_results,
)
from rebaser_server.compute.value_buffers import NONE
from rebaser_server.compute.work_unit import (
    FAILED_RUNTIME,
    MAX_CULPRITS,
    OK,
    STRING_TYPE,
    TOO_MANY_CULPRITS,
    IncrementalSplit,
    WorkUnit,
    count_values,
    highest_inputs,
    offset_positions,
    segments,
    with_failures,
)


def evaluate_unit(unit: WorkUnit, watchdog: CallWatchdog, *, vectorised: bool = True) -> UnitResult:
    """Evaluate a unit in this process; return its result.

    `vectorised`: whether functions may be called for many values at once, which changes only the
    time.
    """
    evaluation = Evaluation(unit, watchdog, vectorised=vectorised)
    evaluation.advance(len(unit))
    return evaluation.result()


class Evaluation:
    """Evaluation of a unit, from the first value on, as far as is asked for."""

    def __init__(
        self,
        unit: WorkUnit,
        watchdog: CallWatchdog,
        *,
        vectorised: bool = True,
        is_strict: bool = False,
    ) -> None:
        """Begin; with `is_strict`, values are computed one by one, in their order.

        See `ProcessGuard`.
        """
        self._unit = unit
        self._watchdog = watchdog
        self._guard = guard = None
        if any(runtime in INSTALLED for runtime, _ in unit.functions):
            self._guard = guard = ProcessGuard(watchdog.keep_ticking, is_strict=is_strict)
        functions = [_resolve_or_fail(runtime, code) for runtime, code in unit.functions]
        vector_functions = [
            resolve_vectorised(runtime, code) if runtime and vectorised else None
            for runtime, code in unit.functions
        ]
        if guard is not None and not guard.is_clean():
            names = ", ".join(code for runtime, code in unit.functions if runtime in INSTALLED)
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
        """Number of values computed, or found not to be due."""
        self._step = 0, 0
        """Number of values of the call of `advance` that goes on, and of calls of functions before
        it."""
        self._recomputed = 0
        self.is_over = False
        """Whether this process can compute no more of the unit, although another one can."""

    @property
    def ahead(self) -> int:
        """Minimum number of values beyond `done`, while `advance` runs in another thread."""
        count, before = self._step
        return max(0, min(self._called() - before, count) - 1)

    def _called(self) -> int:
        return self._vector.recomputed + sum(self._scalar.calls) + len(self._scalar.returned)

    def advance(self, count: int) -> None:
        """Compute the next `count` values, or as many as there are."""
        stop = min(self.done + count, len(self._unit))
        self._step = stop - self.done, self._called()
        if self._guard is not None and not self.done:
            self._guard.watch_threads()  # later there may be threads of functions
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
        """Compute values; return the position before which all are computed.

        Raises:
            Spoilt: the results from `start` on do not count.
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
        """Check the traces that the functions have left in this process."""
        if self._guard is not None:
            self._guard.end(self._watchdog.memory)

    def _total_recomputed(self) -> int:
        return self._vector.recomputed + self._scalar.writer.blocked + sum(self._scalar.calls)

    def result(self) -> UnitResult:
        """Return the result of the values so far."""
        recall = self._scalar.recall
        result = UnitResult(self._recomputed, self._table(), self._costs())
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


_POLL_SECONDS: Final = 0.1
"""Seconds between two looks at a child."""
_GRACE: Final = 1.0
"""Seconds for which a child may go on that has closed its pipe."""
_DONE: Final = b"\0"
_BROKEN: Final = b"\1"
_COUNT_BYTES: Final = 8
_COUNT_END: Final = 1 + _COUNT_BYTES


class ForkedEvaluation:
    """An `Evaluation` in child processes: one for each call of `advance`."""

    def __init__(self, unit: WorkUnit, begun: Evaluation | None = None) -> None:
        """Begin, or go on behind the evaluation `begun`, whose process cannot go on."""
        self._split = IncrementalSplit(unit)
        self._results: list[UnitResult] = []
        if begun is not None and begun.done:
            self._results.append(begun.result())
            table = self._results[0].table.replace_schema_metadata()
            self._results[0] = replace(self._results[0], table=table)
            self._split.record(begun.done, table)
        self.ahead = 0
        """Number of values computed beyond `done`, at least, by the running call of `advance`."""
        self.on_progress: Callable[[], None] = lambda: None
        """Callback that is called from time to time while `advance` runs."""

    def _observe(self, most: int, ahead: int) -> None:
        self.ahead = min(max(ahead, self.ahead), most - 1)
        self.on_progress()

    @property
    def done(self) -> int:
        return self._split.done

    is_over: Final = False
    """Whether it can compute no more: never so, since only a child of this process is replaced."""

    def end(self) -> None:
        """Do nothing: the functions left nothing in this process."""

    def advance(self, count: int) -> None:
        """Compute the next `count` values; fewer, but at least one, if the child is unfit for more.

        Raises:
            RuntimeError: either no single value is at fault, or too many are.
        """
        start = self.done
        piece = self._split.next(count)
        done, result = _evaluate_without_culprits(piece, partial(self._observe, len(piece)))
        self.ahead = 0
        table = offset_positions(result.table.replace_schema_metadata(), start)
        self._split.record(start + done, table)
        self._results.append(replace(result, table=table))

    def result(self) -> UnitResult:
        tables = [SCHEMA.empty_table(), *(result.table for result in self._results)]
        return join_results(self._results, pa.concat_tables(tables))


def _evaluate_without_culprits(
    unit: WorkUnit, looked: Callable[[int], None]
) -> tuple[int, UnitResult]:
    """Return the number of values that are computed, and their results.

    `looked` is called from time to time with the number of values computed, at least.
    """
    culprits: dict[int, str] = {}
    while True:
        result = _evaluate_in_child(with_failures(unit, culprits), looked)
        position, reason = result
        if isinstance(reason, UnitResult):
            return position, reason
        if position == IDLE:
            raise RuntimeError(f"the evaluator ended: {reason}")
        if len(culprits) == MAX_CULPRITS:
            raise RuntimeError(f"{TOO_MANY_CULPRITS}: {reason}")
        culprits[position] = f"computing it ended the evaluator: {reason}"


def _evaluate_in_child(
    unit: WorkUnit, looked: Callable[[int], None]
) -> tuple[int, UnitResult | str]:
    """Return the number of values that were computed, and their results.

    If the child ended early, return the position of the value that it was computing, and how it
    ended.
    """
    with mmap.mmap(-1, mmap.PAGESIZE) as shared:
        position = memoryview(shared)[:8].cast("q")
        try:
            watchdog = CallWatchdog(unit.limits, position)
            ours, theirs = os.pipe()
            with warnings.catch_warnings():
                # This process has threads, but the child uses no lock of theirs.
                warnings.simplefilter("ignore", DeprecationWarning)
                child = os.fork()
            if child == 0:
                _run_child(unit, watchdog, theirs)
            os.close(theirs)
            with os.fdopen(ours, "rb", buffering=0) as pipe:
                data, hangs = _read_result(
                    pipe.fileno(), child, position, unit.limits.seconds, looked
                )
            _, status = os.waitpid(child, 0)
            process_guard.end_orphans()
            if data[:1] == _DONE:
                return int.from_bytes(data[1:_COUNT_END]), decode_result(data[_COUNT_END:])
            if data[:1] == _BROKEN:
                return IDLE, data[1:].decode()
            if data:
                return IDLE, process_guard.STRAY
            return position[0], "it did not return" if hangs else describe_exit(
                os.waitstatus_to_exitcode(status)
            )
        finally:
            position.release()


def _run_child(unit: WorkUnit, watchdog: CallWatchdog, pipe: int) -> None:
    """Write the result and end, in the child, without Python's own clean-up."""
    own = os.getpid()
    try:
        try:
            process_guard.claim_again()
            evaluation = Evaluation(unit, watchdog, vectorised=False, is_strict=True)
            evaluation.advance(len(unit))
            result = encode_result(evaluation.result()).to_pybytes()
            answer = _DONE + evaluation.done.to_bytes(_COUNT_BYTES) + result
        except BaseException as error:  # for the parent to raise
            answer = _BROKEN + describe(error).encode(errors="replace")
        while answer and os.getpid() == own:  # a child that a function forked may return here, too
            answer = answer[os.write(pipe, answer) :]
    finally:
        os._exit(0)


def _read_result(
    pipe: int, child: int, position: memoryview, seconds: float, looked: Callable[[int], None]
) -> tuple[bytes, bool]:
    """Return the child's output, and whether it had to be ended: a value took `seconds` twice.

    Processes that the child's functions forked may hold the pipe open: it is read until the child
    ended.
    """
    parts: list[bytes] = []
    seen, since, hangs, met = IDLE, time.monotonic(), False, 0
    while True:
        has_ended = os.waitid(os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
        if select.select([pipe], [], [], 0 if has_ended else _POLL_SECONDS)[0]:
            part = os.read(pipe, 1 << 20)
            if part and position[0] != IDLE:  # a child answers once it computes no value
                os.kill(child, signal.SIGKILL)
                return _BROKEN + process_guard.STRAY.encode(), hangs
            parts.append(part)
            has_ended = not part  # while there is more, that comes first
            if has_ended:
                _wait_for(child)
        if has_ended:
            with suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)  # a function may have closed the pipe and go on
            return b"".join(parts), hangs
        now = time.monotonic()
        if position[0] != seen or position[0] == IDLE:
            seen, since, met = position[0], now, met + (position[0] != IDLE)
            looked(max(0, met - 1))
        elif seconds and now - since > KILL_FACTOR * seconds:
            hangs = True
            os.kill(child, signal.SIGKILL)


def _wait_for(child: int) -> None:
    """Let a child end that has closed its pipe: then the value that it was computing is known."""
    until = time.monotonic() + _GRACE
    while os.waitid(os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
        if time.monotonic() > until:
            return
        time.sleep(_GRACE / 100)


def describe_exit(code: int) -> str:
    """Return how a process ended, by its exit code as `Popen.returncode`."""
    if code >= 0:
        return f"exit code {code}"
    return f"killed by {signal.Signals(-code).name}"


def evaluate(unit: bytes | memoryview) -> pa.Buffer:
    """Evaluate an encoded `WorkUnit`; return the encoded `UnitResult`.

    A function that raises, or exceeds the unit's limits, fails its value and blocks the value's
    dependents, and nothing else. A value is computed if it must be, or if an input comes out
    changed: with another value, or with a value where it had none, or without one.
    """
    decoded, count = decode_sound(unit), count_values(unit)
    evaluation = start_evaluation(decoded)
    evaluation.advance(count)
    if isinstance(evaluation, Evaluation) and evaluation.done < count:
        # In children, which at least do not have the threads that this process has.
        evaluation.end()
        evaluation = ForkedEvaluation(decoded, evaluation)
    while evaluation.done < count:
        evaluation.advance(count)
    evaluation.end()
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
    """Begin the evaluation of this unit."""
    if unit.limits.is_forked:
        return ForkedEvaluation(unit)
    return Evaluation(unit, CallWatchdog(unit.limits))

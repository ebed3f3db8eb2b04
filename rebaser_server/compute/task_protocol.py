"""The tasks of workers: encode one, execute it step by step, decode the answer.

The progress of an evaluation is reported from a thread, also between two slow values.
"""

import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import astuple, dataclass, replace
from threading import Lock, Thread
from typing import Final

import cbor2
import pyarrow as pa

from rebaser_server.compute.evaluation import (
    STEP_SECONDS,
    TIME_SLICE,
    ForkedEvaluation,
    advance_until,
    decode_sound,
    end_of_turn,
    evaluate,
    start_evaluation,
)
from rebaser_server.compute.results import (
    PartFile,
    RunStore,
    StoredResult,
    UnitResult,
    contiguous_parts,
    decode_result,
    encode_result,
    total_costs,
)
from rebaser_server.compute.work_unit import (
    CallLimits,
    IncrementalSplit,
    WorkUnit,
    offset_positions,
)

_REPORT_SECONDS: Final = 1.0
"""Seconds between two reports."""


class _ProgressReporter:
    """A thread of each process that reports: one for each unit would cost more than small units."""

    def __init__(self) -> None:
        self._process = 0
        self._tell: Callable[[], None] | None = None
        self._lock = Lock()

    @contextmanager
    def reporting(self, tell: Callable[[], None]) -> Iterator[None]:
        """Call `tell` each second, on another thread, until the body has ended.

        Its errors are dropped: progress is a hint.
        """
        if self._process != os.getpid():  # threads are not forked, locks are as they were
            self._process, self._lock = os.getpid(), Lock()
            Thread(target=self._run, args=(self._lock,), name="teller", daemon=True).start()
        self._tell = tell
        try:
            yield
        finally:
            # The lock is held during a report, so none goes on for a unit that is over.
            with self._lock:
                self._tell = None

    def _run(self, lock: Lock) -> None:
        while True:
            time.sleep(_REPORT_SECONDS)
            with lock, suppress(Exception):
                if self._tell is not None:
                    self._tell()


_REPORTER: Final = _ProgressReporter()


INLINE_BYTES: Final = 64 * 1024
"""Maximum bytes of a result that travels back with the job; a larger one lies in the run store."""


def encode_task(
    digest: str,
    unit: bytes | memoryview | None,
    names: Sequence[str],
    *,
    time_slice: float = TIME_SLICE,
    limits: CallLimits | None = None,
) -> bytes:
    """Encode a worker's task for a unit.

    Args:
        digest: of the unit.
        unit: None if it lies in the run store.
        names: of the files in the run store with results of it.
        time_slice: seconds; see `TIME_SLICE`.
        limits: of this attempt; a unit in the run store may have another's. None: the unit's.
    """
    inline = None if unit is None else bytes(unit)
    limit_fields = None if limits is None else astuple(limits)
    return cbor2.dumps([digest, inline, list(names), time_slice, limit_fields])


@dataclass(frozen=True, slots=True)
class GaveWay:
    """A worker left the rest of its unit to others."""


def execute(task: bytes, store: RunStore | None, run: str) -> bytes:
    began = time.monotonic()
    digest, unit, names, time_slice, limits = cbor2.loads(task)
    if store is None:
        return _encode_inline(evaluate(unit))
    if unit is None:
        unit = store.get_unit(digest)
    whole = decode_sound(unit)
    if limits is not None:
        whole = replace(whole, limits=CallLimits(*limits))
    return _TaskExecution(store, run, digest, whole, contiguous_parts(names, digest)).run(
        began, time_slice
    )


def decode_answer(data: bytes) -> UnitResult | StoredResult | GaveWay:
    """Return the result of the unit, or that its worker gave way, with results in the run store."""
    result, stored = cbor2.loads(data)
    if result is not None:
        return decode_result(result)
    if stored is None:
        return GaveWay()
    recomputed, files, costs = stored
    by_function = {(runtime, code): (calls, spent) for runtime, code, calls, spent in costs}
    return StoredResult(recomputed, [(name, count) for name, count in files], by_function)


def read_stored_result(store: RunStore, found: Sequence[PartFile]) -> StoredResult:
    """Return the result of a whole unit from its files."""
    results = [store.get_part(saved.name) for saved in found]
    return _total([saved.name for saved in found], results)


def _total(names: list[str], results: Sequence[UnitResult]) -> StoredResult:
    recomputed = sum(result.recomputed for result in results)
    files = list(zip(names, map(len, results), strict=True))
    return StoredResult(recomputed, files, total_costs(results))


def _encode_inline(encoded: pa.Buffer) -> bytes:
    return cbor2.dumps([encoded.to_pybytes(), None])


def _encode_stored(stored: StoredResult) -> bytes:
    costs = [[*function, *cost] for function, cost in stored.costs.items()]
    return cbor2.dumps([None, [stored.recomputed, stored.files, costs]])


class _TaskExecution:
    """A unit in execution, of which parts may have been found already."""

    def __init__(
        self, store: RunStore, run: str, digest: str, rest: WorkUnit, found: Sequence[PartFile]
    ) -> None:
        self._store = store
        self._run = run
        self._digest = digest
        self._names = [saved.name for saved in found]
        self._results = list(map(store.get_part, self._names))
        self._size = len(rest)
        self._start = found[-1].stop if found else 0
        if found:
            split = IncrementalSplit(rest)
            for saved, result in zip(found, self._results, strict=True):
                split.record(saved.stop, result.table)
            rest = split.next(self._size)
        self._evaluation = start_evaluation(rest)
        self._reported_at = time.monotonic()
        self._has_reported = False

    @property
    def _done(self) -> int:
        return self._start + self._evaluation.done

    def run(self, began: float, time_slice: float) -> bytes:
        """Go on behind the found parts, until all is done or the time slice is over."""
        if isinstance(self._evaluation, ForkedEvaluation):
            self._evaluation.on_progress = self._report_ahead
            self._advance(began, time_slice)
        else:
            with _REPORTER.reporting(self._report_ahead):
                self._advance(began, time_slice)
        result = self._evaluation.result()
        is_done = self._done == self._size
        size = result.table.nbytes + result.remembered.nbytes
        if not self._names and is_done and size <= INLINE_BYTES:
            return _encode_inline(encode_result(result))
        names, results = self._names, self._results
        if self._evaluation.done:
            if self._start:
                table = offset_positions(result.table, self._start)
                result = replace(result, table=table)
            name = self._store.put_part(self._digest, self._start, self._done, result)
            names, results = [*names, name], [*results, result]
        if not is_done:
            return cbor2.dumps([None, None])
        return _encode_stored(_total(names, results))

    def _advance(self, began: float, time_slice: float) -> None:
        until, rest = end_of_turn(began, time_slice), self._size - self._start
        usual = min(STEP_SECONDS, time_slice)
        advance_until(self._evaluation, rest, until, usual=usual, stepped=self._report)

    def _report(self, now: float) -> None:
        """Report the progress from time to time, and the end of a unit that took long."""
        is_last = self._done == self._size
        if now - self._reported_at >= STEP_SECONDS or (is_last and self._has_reported):
            self._store.put_progress(self._run, self._digest, self._done)
            self._reported_at, self._has_reported = now, True

    def _report_ahead(self) -> None:
        """Report the progress in the midst of a step."""
        now, ahead = time.monotonic(), self._evaluation.ahead
        if ahead and now - self._reported_at >= STEP_SECONDS:
            self._store.put_progress(self._run, self._digest, self._done + ahead)
            self._reported_at, self._has_reported = now, True

"""Evaluates a unit in a child process that may crash or hang, and fails the value that makes it.

The child notes in shared memory which value it computes. If it ends, or goes on with one value
for longer than it may, that value fails and another child begins anew, without it.
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
from typing import Final

import pyarrow as pa

from rebaser_server.compute.evaluate import process_guard
from rebaser_server.compute.evaluate.call_watchdog import IDLE, KILL_FACTOR, CallWatchdog
from rebaser_server.compute.evaluate.evaluation import Evaluation
from rebaser_server.compute.failure_text import describe
from rebaser_server.compute.units.culprits import MAX_CULPRITS, TOO_MANY_CULPRITS, with_failures
from rebaser_server.compute.units.incremental_split import IncrementalSplit, offset_positions
from rebaser_server.compute.units.unit_result import (
    SCHEMA,
    UnitResult,
    decode_result,
    encode_result,
    total_costs,
)
from rebaser_server.compute.units.work_unit import WorkUnit

POLL_SECONDS: Final = 0.1
"""Seconds."""
_GRACE: Final = 1.0
"""Seconds for which a child may go on that has closed its pipe."""
_DONE: Final = b"\0"
_BROKEN: Final = b"\1"
_COUNT_BYTES: Final = 8
_COUNT_END: Final = 1 + _COUNT_BYTES


class ForkedEvaluation:
    """Like `Evaluation`, but each time that it advances in a child of its own."""

    def __init__(self, unit: WorkUnit, begun: Evaluation | None = None) -> None:
        """`begun`: an evaluation of the unit to go on behind, whose process cannot."""
        self._split = IncrementalSplit(unit)
        self._results: list[UnitResult] = []
        if begun is not None and begun.done:
            self._results.append(begun.result())
            table = self._results[0].table.replace_schema_metadata()
            self._results[0] = replace(self._results[0], table=table)
            self._split.record(begun.done, table)
        self.ahead = 0
        """Values computed beyond `done`, at least, by the call of `advance` that goes on."""
        self.on_progress: Callable[[], None] = lambda: None
        """Called now and then while `advance` goes on."""

    def _observe(self, most: int, ahead: int) -> None:
        self.ahead = min(max(ahead, self.ahead), most - 1)
        self.on_progress()

    @property
    def done(self) -> int:
        return self._split.done

    is_over: Final = False
    """See `Evaluation.is_over`: only a child of this process is replaced."""

    def end(self) -> None:
        """See `Evaluation.end`: the functions left nothing in this process."""

    def advance(self, count: int) -> None:
        """Compute the next `count` values. Fewer, but at least one, if the child is unfit for more.

        Raises:
            RuntimeError: no single value is at fault, or too many are.
        """
        start = self.done
        piece = self._split.next(count)
        done, result = _evaluate_without_culprits(piece, partial(self._observe, len(piece)))
        self.ahead = 0
        table = offset_positions(result.table.replace_schema_metadata(), start)
        self._split.record(start + done, table)
        self._results.append(UnitResult(result.recomputed, table, result.costs))

    def result(self) -> UnitResult:
        tables = [SCHEMA.empty_table(), *(result.table for result in self._results)]
        recomputed = sum(result.recomputed for result in self._results)
        return UnitResult(recomputed, pa.concat_tables(tables), total_costs(self._results))


def _evaluate_without_culprits(
    unit: WorkUnit, looked: Callable[[int], None]
) -> tuple[int, UnitResult]:
    """Number of values that are computed, and their results.

    `looked`: called now and then with the number of values computed, at least.
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
    """Number of values that were computed, and their results.

    If the child ended early: the position of the value that it was computing, and how it ended.
    """
    with mmap.mmap(-1, mmap.PAGESIZE) as shared:
        position = memoryview(shared)[:8].cast("q")
        try:
            watchdog = CallWatchdog(unit.limits, position)
            ours, theirs = os.pipe()
            with warnings.catch_warnings():
                # Of threads: this process has some, but no lock of theirs is used in the child.
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
            return position[0], "it did not return" if hangs else _describe_exit(status)
        finally:
            position.release()


def _run_child(unit: WorkUnit, watchdog: CallWatchdog, pipe: int) -> None:
    """In the child: write the result and end, without Python's own clean-up."""
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
        while answer and os.getpid() == own:  # not what a function has forked and let return
            answer = answer[os.write(pipe, answer) :]
    finally:
        os._exit(0)


def _read_result(
    pipe: int, child: int, position: memoryview, seconds: float, looked: Callable[[int], None]
) -> tuple[bytes, bool]:
    """All that the child says, and whether it had to be ended: one value took `seconds` twice.

    What the child's functions forked may hold the pipe open: it is read until the child ended.
    """
    parts: list[bytes] = []
    seen, since, hangs, met = IDLE, time.monotonic(), False, 0
    while True:
        has_ended = os.waitid(os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
        if select.select([pipe], [], [], 0 if has_ended else POLL_SECONDS)[0]:
            part = os.read(pipe, 1 << 20)
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
    """Let a child end that has closed its pipe: then it is known which value it was at."""
    until = time.monotonic() + _GRACE
    while os.waitid(os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
        if time.monotonic() > until:
            return
        time.sleep(_GRACE / 100)


def _describe_exit(status: int) -> str:
    code = os.waitstatus_to_exitcode(status)
    if code >= 0:
        return f"exit code {code}"
    return f"killed by {signal.Signals(-code).name}"

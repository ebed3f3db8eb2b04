"""Evaluates a blob in a child process that may crash or hang, and fails the value that makes it.

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
from functools import partial
from typing import Final

import pyarrow as pa

from rebaser_server.compute.evaluate.call_watchdog import IDLE, PATIENCE, Watch
from rebaser_server.compute.evaluate.evaluator import evaluated
from rebaser_server.compute.failure_text import described
from rebaser_server.compute.units.culprits import MOST_CULPRITS, TOO_MANY, failing
from rebaser_server.compute.units.incremental_split import Pieces, shifted
from rebaser_server.compute.units.unit_result import (
    SCHEMA,
    Outcome,
    costs_of,
    decode_outcome,
    encode_outcome,
)
from rebaser_server.compute.units.work_unit import Blob

LOOK_EVERY: Final = 0.1
"""Seconds."""
_DONE: Final = b"\0"
_BROKEN: Final = b"\1"


class GuardedEvaluation:
    """Like `Evaluation`, but each time that it advances in a child of its own."""

    def __init__(self, blob: Blob) -> None:
        self._pieces = Pieces(blob)
        self._outcomes: list[Outcome] = []
        self.ahead = 0
        """Values computed beyond `done`, at least, by the call of `advance` that goes on."""
        self.on_look: Callable[[], None] = lambda: None
        """Called now and then while `advance` goes on."""

    def _looked(self, most: int, ahead: int) -> None:
        self.ahead = min(max(ahead, self.ahead), most - 1)
        self.on_look()

    @property
    def done(self) -> int:
        return self._pieces.done

    def advance(self, count: int) -> None:
        """As `Evaluation.advance`.

        Raises:
            RuntimeError: it cannot be told of any value that it is its fault, or of too many.
        """
        start = self.done
        piece = self._pieces.next(count)
        outcome = _evaluated(piece, partial(self._looked, len(piece)))
        self.ahead = 0
        table = shifted(outcome.table.replace_schema_metadata(), start)
        self._pieces.settle(start + len(piece), table)
        self._outcomes.append(Outcome(outcome.recomputed, table, outcome.costs))

    def found(self) -> Outcome:
        tables = [SCHEMA.empty_table(), *(outcome.table for outcome in self._outcomes)]
        recomputed = sum(outcome.recomputed for outcome in self._outcomes)
        return Outcome(recomputed, pa.concat_tables(tables), costs_of(self._outcomes))


def _evaluated(blob: Blob, looked: Callable[[int], None]) -> Outcome:
    """`looked`: is told now and then how many values were computed, at least."""
    culprits: dict[int, str] = {}
    while True:
        found = _in_child(failing(blob, culprits), looked)
        if isinstance(found, Outcome):
            return found
        place, reason = found
        if place == IDLE:
            raise RuntimeError(f"the evaluator ended: {reason}")
        if len(culprits) == MOST_CULPRITS:
            raise RuntimeError(f"{TOO_MANY}: {reason}")
        culprits[place] = f"computing it ended the evaluator: {reason}"


def _in_child(blob: Blob, looked: Callable[[int], None]) -> Outcome | tuple[int, str]:
    """The outcome, or which value was being computed when the child ended, and how it did."""
    with mmap.mmap(-1, mmap.PAGESIZE) as shared:
        place = memoryview(shared)[:8].cast("q")
        try:
            watch = Watch(blob.limits, place)
            ours, theirs = os.pipe()
            with warnings.catch_warnings():
                # Of threads: this process has some, but no lock of theirs is used in the child.
                warnings.simplefilter("ignore", DeprecationWarning)
                child = os.fork()
            if child == 0:
                _evaluate(blob, watch, theirs)
            os.close(theirs)
            with open(ours, "rb", buffering=0) as pipe:  # noqa: PTH123 - a descriptor
                data, hangs = _read(pipe.fileno(), child, place, blob.limits.seconds, looked)
            _, status = os.waitpid(child, 0)
            if data[:1] == _DONE:
                return decode_outcome(data[1:])
            if data[:1] == _BROKEN:
                return IDLE, data[1:].decode()
            return place[0], "it did not return" if hangs else _ending(status)
        finally:
            place.release()


def _evaluate(blob: Blob, watch: Watch, pipe: int) -> None:
    """In the child: write what was found and end, without what a Python program does at its end."""
    own = os.getpid()
    try:
        try:
            found = encode_outcome(evaluated(blob, watch, vectorised=False))
            answer = _DONE + found.to_pybytes()
        except BaseException as error:  # noqa: BLE001 - for the parent to raise
            answer = _BROKEN + described(error).encode(errors="replace")
        while answer and os.getpid() == own:  # not what a function has forked and let return
            answer = answer[os.write(pipe, answer) :]
    finally:
        os._exit(0)


def _read(
    pipe: int, child: int, place: memoryview, seconds: float, looked: Callable[[int], None]
) -> tuple[bytes, bool]:
    """All that the child says, and whether it had to be ended: one value took `seconds` twice.

    What the child's functions forked may hold the pipe open: it is read until the child ended.
    """
    parts: list[bytes] = []
    seen, since, hangs, met = IDLE, time.monotonic(), False, 0
    while True:
        has_ended = os.waitid(os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
        if select.select([pipe], [], [], 0 if has_ended else LOOK_EVERY)[0]:
            part = os.read(pipe, 1 << 20)
            parts.append(part)
            has_ended = not part  # while there is more, that comes first
        if has_ended:
            with suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)  # a function may have closed the pipe and go on
            return b"".join(parts), hangs
        now = time.monotonic()
        if place[0] != seen or place[0] == IDLE:
            seen, since, met = place[0], now, met + (place[0] != IDLE)
            looked(max(0, met - 1))
        elif seconds and now - since > PATIENCE * seconds:
            hangs = True
            os.kill(child, signal.SIGKILL)


def _ending(status: int) -> str:
    code = os.waitstatus_to_exitcode(status)
    if code >= 0:
        return f"exit code {code}"
    return f"killed by {signal.Signals(-code).name}"

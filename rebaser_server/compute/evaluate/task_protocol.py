"""What a Spark worker does with a blob: evaluate it step by step, and keep what it has."""

import os
import time
from collections.abc import Sequence
from dataclasses import astuple, replace
from typing import Final

import cbor2
import pyarrow as pa

from rebaser_server.compute.evaluate.evaluator import Evaluation, evaluate, evaluation_of
from rebaser_server.compute.evaluate.progress import EVERY, TELLER
from rebaser_server.compute.units.incremental_split import Pieces, shifted
from rebaser_server.compute.units.run_store import Saved, Shelf, Stored, chain
from rebaser_server.compute.units.unit_result import (
    Outcome,
    costs_of,
    decode_outcome,
    encode_outcome,
)
from rebaser_server.compute.units.work_unit import Blob, Limits

FIRST: Final = 16
"""Values of the first step; each further one has up to `GROWTH` times as many."""
GROWTH: Final = 16
STEP_SECONDS: Final = EVERY
"""What a step is meant to take: so often progress is told."""
TURN: Final = 2.0
"""Seconds of work after which a worker keeps what it has and gives way, so that small runs need
not wait for a large one to end, and a crash costs no more than that."""
_WORTH: Final = 10
"""Times what it took to begin; a turn is not shorter."""
INLINE: Final = 64 * 1024
"""Octets of an outcome that travels back with the job; a larger one lies on the shelf."""


def order(
    digest: str,
    blob: bytes | memoryview | None,
    names: Sequence[str],
    *,
    turn: float = TURN,
    limits: Limits | None = None,
) -> bytes:
    """What a worker is told of a blob.

    Args:
        digest: of the blob.
        blob: None if it lies on the shelf.
        names: of the files on the shelf that tell of it already.
        turn: seconds; see `TURN`.
        limits: of this attempt; what lies on the shelf may have another's. None: the blob's.
    """
    inline = None if blob is None else bytes(blob)
    told = None if limits is None else astuple(limits)
    return cbor2.dumps([digest, inline, list(names), turn, told])


def done(ordered: bytes, shelf: Shelf | None, run: str) -> bytes:
    """Do as ordered; what `read_done` reads."""
    began, own = time.monotonic(), os.getpid()
    digest, blob, names, turn, limits = cbor2.loads(ordered)
    if shelf is None:
        found = evaluate(blob)
        _end_unless(own)
        return _inline(found)
    if blob is None:
        blob = shelf.get_blob(digest)
    whole = Blob.decode(blob)
    if limits is not None:
        whole = replace(whole, limits=Limits(*limits))
    return _Work(shelf, run, digest, whole, chain(names, digest)).done(began, turn)


def _end_unless(process: int) -> None:
    """End this process if it is another one: a child that a function forked and returned in.

    What it would write goes to whoever waits for its parent's answer.
    """
    if os.getpid() != process:
        os._exit(0)


def read_done(data: bytes) -> Outcome | Stored | None:
    """What became of the blob; None: its worker gave way, and what it did lies on the shelf."""
    outcome, stored = cbor2.loads(data)
    if outcome is not None:
        return decode_outcome(outcome)
    if stored is None:
        return None
    recomputed, files, costs = stored
    by_function = {(runtime, code): (calls, spent) for runtime, code, calls, spent in costs}
    return Stored(recomputed, [(name, count) for name, count in files], by_function)


def stored_in(shelf: Shelf, found: Sequence[Saved]) -> Stored:
    """What files that tell of a whole blob come to."""
    outcomes = [shelf.read(saved.name) for saved in found]
    return _sum([saved.name for saved in found], outcomes)


def _sum(names: list[str], outcomes: Sequence[Outcome]) -> Stored:
    recomputed = sum(outcome.recomputed for outcome in outcomes)
    files = list(zip(names, map(len, outcomes), strict=True))
    return Stored(recomputed, files, costs_of(outcomes))


def _inline(encoded: pa.Buffer) -> bytes:
    return cbor2.dumps([encoded.to_pybytes(), None])


def _stored(stored: Stored) -> bytes:
    costs = [[*function, *cost] for function, cost in stored.costs.items()]
    return cbor2.dumps([None, [stored.recomputed, stored.files, costs]])


class _Work:
    """One blob on its way, of which something may have been found already."""

    def __init__(
        self, shelf: Shelf, run: str, digest: str, rest: Blob, found: Sequence[Saved]
    ) -> None:
        self._shelf = shelf
        self._run = run
        self._digest = digest
        self._names = [saved.name for saved in found]
        self._outcomes = list(map(shelf.read, self._names))
        self._size = len(rest)
        self._start = found[-1].stop if found else 0
        if found:
            pieces = Pieces(rest)
            for saved, outcome in zip(found, self._outcomes, strict=True):
                pieces.settle(saved.stop, outcome.table)
            rest = pieces.next(self._size)
        self._evaluation = evaluation_of(rest)
        self._told_at = time.monotonic()
        self._has_told = False
        self._process = os.getpid()

    @property
    def _done(self) -> int:
        return self._start + self._evaluation.done

    def done(self, began: float, turn: float) -> bytes:
        """Go on behind what was found, until all is done or the turn is over."""
        if isinstance(self._evaluation, Evaluation):
            with TELLER.telling(self._tell_ahead):
                self._take_turn(began, turn)
        else:
            self._evaluation.on_look = self._tell_ahead
            self._take_turn(began, turn)
        outcome = self._evaluation.found()
        if not self._names and self._done == self._size and outcome.table.nbytes <= INLINE:
            return _inline(encode_outcome(outcome))
        if self._start:
            table = shifted(outcome.table, self._start)
            outcome = Outcome(outcome.recomputed, table, outcome.costs)
        name = self._shelf.save(self._digest, self._start, self._done, outcome)
        if self._done < self._size:
            return cbor2.dumps([None, None])
        return _stored(_sum([*self._names, name], [*self._outcomes, outcome]))

    def _take_turn(self, began: float, turn: float) -> None:
        now = time.monotonic()
        until = now + max(turn, _WORTH * (now - began))
        count, usual = FIRST, min(STEP_SECONDS, turn)
        while self._done < self._size and (now < until or not self._evaluation.done):
            before = now
            self._evaluation.advance(count)
            _end_unless(self._process)
            now = time.monotonic()
            count = max(1, int(count * min(usual / max(now - before, 1e-6), GROWTH)))
            self._tell(now)

    def _tell(self, now: float) -> None:
        """How far it is, now and then, and of what took long when it is done."""
        is_last = self._done == self._size
        if now - self._told_at >= STEP_SECONDS or (is_last and self._has_told):
            self._shelf.tell_progress(self._run, self._digest, self._done)
            self._told_at, self._has_told = now, True

    def _tell_ahead(self) -> None:
        """How far it is in the midst of a step."""
        now, ahead = time.monotonic(), self._evaluation.ahead
        if ahead and now - self._told_at >= STEP_SECONDS:
            self._shelf.tell_progress(self._run, self._digest, self._done + ahead)
            self._told_at, self._has_told = now, True

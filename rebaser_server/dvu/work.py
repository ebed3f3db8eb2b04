"""What a Spark worker does with a blob: evaluate it piece by piece, and keep what it has."""

import time
from collections.abc import Sequence
from typing import Final

import cbor2
import pyarrow as pa

from rebaser_server.dvu.blob import Blob, size
from rebaser_server.dvu.evaluate import evaluate, outcome_of
from rebaser_server.dvu.outcome import (
    SCHEMA,
    Outcome,
    costs_of,
    decode_outcome,
    encode_outcome,
)
from rebaser_server.dvu.pieces import Pieces, shifted
from rebaser_server.dvu.shelf import Saved, Shelf, Stored, chain

FIRST: Final = 16
"""Values of the first piece; each further one has up to `GROWTH` times as many."""
GROWTH: Final = 16
PIECE_SECONDS: Final = 1.0
"""What a piece is meant to take: so often progress is told."""
TURN: Final = 2.0
"""Seconds of work after which a worker keeps what it has and gives way, so that small runs need
not wait for a large one to end, and a crash costs no more than that."""
_WORTH: Final = 10
"""Times what it took to begin; a turn is not shorter."""
INLINE: Final = 64 * 1024
"""Octets of an outcome that travels back with the job; a larger one lies on the shelf."""


def order(digest: str, blob: bytes | None, names: Sequence[str], *, turn: float = TURN) -> bytes:
    """What a worker is told of a blob.

    Args:
        digest: of the blob.
        blob: None if it lies on the shelf.
        names: of the files on the shelf that tell of it already.
        turn: seconds; see `TURN`.
    """
    return cbor2.dumps([digest, blob, list(names), turn])


def done(ordered: bytes, shelf: Shelf | None, run: str) -> bytes:
    """Do as ordered; what `read_done` reads."""
    began = time.monotonic()
    digest, blob, names, turn = cbor2.loads(ordered)
    if shelf is None:
        return cbor2.dumps([evaluate(blob).to_pybytes(), None])
    if blob is None:
        blob = shelf.get_blob(digest)
    if not names and size(blob) <= FIRST:
        outcome = evaluate(blob)
        if time.monotonic() - began >= PIECE_SECONDS:
            shelf.tell_progress(run, digest, size(blob))
        if len(outcome) <= INLINE:
            return cbor2.dumps([outcome.to_pybytes(), None])
        whole = decode_outcome(outcome)
        name = shelf.save(digest, 0, size(blob), whole)
        return _stored(Stored(whole.recomputed, [(name, len(whole))], whole.costs))
    return _Work(shelf, run, digest, blob).done(chain(names, digest), began, turn)


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


def _stored(stored: Stored) -> bytes:
    costs = [[*function, *cost] for function, cost in stored.costs.items()]
    return cbor2.dumps([None, [stored.recomputed, stored.files, costs]])


class _Work:
    """One blob on its way."""

    def __init__(self, shelf: Shelf, run: str, digest: str, blob: bytes | memoryview) -> None:
        self._shelf = shelf
        self._run = run
        self._digest = digest
        self._blob = Blob.decode(blob)
        self._pieces = Pieces(self._blob)
        self._told_at = time.monotonic()
        self._has_told = False

    def done(self, found: Sequence[Saved], began: float, turn: float) -> bytes:
        """Go on behind what was found, until all is done or the turn is over."""
        names = [saved.name for saved in found]
        outcomes = list(map(self._shelf.read, names))
        for saved, outcome in zip(found, outcomes, strict=True):
            self._pieces.settle(saved.stop, outcome.table)
        start = self._pieces.done
        outcome = _merged(self._turn(began, turn))
        stop = self._pieces.done
        if start == 0 and stop == len(self._blob):
            encoded = encode_outcome(outcome)
            if len(encoded) <= INLINE:
                return cbor2.dumps([encoded.to_pybytes(), None])
        names.append(self._shelf.save(self._digest, start, stop, outcome))
        if stop < len(self._blob):
            return cbor2.dumps([None, None])
        return _stored(_sum(names, [*outcomes, outcome]))

    def _turn(self, began: float, turn: float) -> list[Outcome]:
        now = time.monotonic()
        until = now + max(turn, _WORTH * (now - began))
        outcomes: list[Outcome] = []
        count, usual = FIRST, min(PIECE_SECONDS, turn)
        while self._pieces.done < len(self._blob) and (now < until or not outcomes):
            before = now
            outcomes.append(self._step(count))
            now = time.monotonic()
            count = max(1, int(count * min(usual / max(now - before, 1e-6), GROWTH)))
            self._tell(now)
        return outcomes

    def _step(self, count: int) -> Outcome:
        start = self._pieces.done
        piece = self._pieces.next(count)
        outcome = outcome_of(piece)
        table = shifted(outcome.table, start)
        self._pieces.settle(start + len(piece), table)
        return Outcome(outcome.recomputed, table, outcome.costs)

    def _tell(self, now: float) -> None:
        """How far it is, now and then, and of what took long when it is done."""
        is_last = self._pieces.done == len(self._blob)
        if now - self._told_at >= PIECE_SECONDS or (is_last and self._has_told):
            self._shelf.tell_progress(self._run, self._digest, self._pieces.done)
            self._told_at, self._has_told = now, True


def _merged(outcomes: Sequence[Outcome]) -> Outcome:
    if len(outcomes) == 1:
        return outcomes[0]
    tables = [SCHEMA.empty_table(), *(outcome.table for outcome in outcomes)]
    table = pa.concat_tables([table.replace_schema_metadata() for table in tables])
    return Outcome(sum(outcome.recomputed for outcome in outcomes), table, costs_of(outcomes))

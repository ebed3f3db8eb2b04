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
SAVE_EVERY: Final = 2.0
"""Seconds of work that a crash may cost."""
INLINE: Final = 64 * 1024
"""Octets of an outcome that travels back with the job; a larger one lies on the shelf."""


def order(digest: str, blob: bytes | None, names: Sequence[str]) -> bytes:
    """What a worker is told of a blob.

    Args:
        digest: of the blob.
        blob: None if it lies on the shelf.
        names: of the files on the shelf that tell of it already.
    """
    return cbor2.dumps([digest, blob, list(names)])


def done(ordered: bytes, shelf: Shelf | None, run: str) -> bytes:
    """Do as ordered; what `read_done` reads."""
    digest, blob, names = cbor2.loads(ordered)
    if shelf is None:
        return cbor2.dumps([evaluate(blob).to_pybytes(), None])
    if blob is None:
        blob = shelf.get_blob(digest)
    if not names and size(blob) <= FIRST:
        outcome = evaluate(blob)
        if len(outcome) <= INLINE:
            return cbor2.dumps([outcome.to_pybytes(), None])
        whole = decode_outcome(outcome)
        name = shelf.save(digest, 0, size(blob), whole)
        return _stored(Stored(whole.recomputed, [(name, len(whole))], whole.costs))
    return _Work(shelf, run, digest, blob).done(chain(names, digest))


def read_done(data: bytes) -> Outcome | Stored:
    outcome, stored = cbor2.loads(data)
    if outcome is not None:
        return decode_outcome(outcome)
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
        self._names: list[str] = []
        self._all: list[Outcome] = []
        self._unsaved: list[Outcome] = []
        self._unsaved_from = 0
        self._saved_at = self._told_at = time.monotonic()
        self._has_told = False

    def done(self, found: Sequence[Saved]) -> bytes:
        for saved in found:
            outcome = self._shelf.read(saved.name)
            self._pieces.settle(saved.stop, outcome.table)
            self._names.append(saved.name)
            self._all.append(outcome)
        self._unsaved_from = self._pieces.done
        count = FIRST
        while self._pieces.done < len(self._blob):
            began = time.monotonic()
            self._step(count)
            now = time.monotonic()
            speed = PIECE_SECONDS / max(now - began, 1e-6)
            count = max(1, int(count * min(speed, GROWTH)))
            self._keep(now)
        whole = _merged(self._unsaved)
        if not self._names:
            encoded = encode_outcome(whole)
            if len(encoded) <= INLINE:
                return cbor2.dumps([encoded.to_pybytes(), None])
        self._save(whole)
        return _stored(_sum(self._names, self._all))

    def _step(self, count: int) -> None:
        start = self._pieces.done
        piece = self._pieces.next(count)
        outcome = outcome_of(piece)
        table = shifted(outcome.table, start)
        self._pieces.settle(start + len(piece), table)
        self._unsaved.append(Outcome(outcome.recomputed, table, outcome.costs))

    def _keep(self, now: float) -> None:
        """Save, and tell, what it is time to."""
        if now - self._saved_at >= SAVE_EVERY:
            self._save(_merged(self._unsaved))
            self._saved_at = now
        is_last = self._pieces.done == len(self._blob)
        if now - self._told_at >= PIECE_SECONDS or (is_last and self._has_told):
            self._shelf.tell_progress(self._run, self._digest, self._pieces.done)
            self._told_at, self._has_told = now, True

    def _save(self, outcome: Outcome) -> None:
        start, stop = self._unsaved_from, self._pieces.done
        if start < stop:
            self._names.append(self._shelf.save(self._digest, start, stop, outcome))
            self._all.append(outcome)
            self._unsaved, self._unsaved_from = [], stop


def _merged(outcomes: Sequence[Outcome]) -> Outcome:
    if len(outcomes) == 1:
        return outcomes[0]
    tables = [SCHEMA.empty_table(), *(outcome.table for outcome in outcomes)]
    table = pa.concat_tables([table.replace_schema_metadata() for table in tables])
    return Outcome(sum(outcome.recomputed for outcome in outcomes), table, costs_of(outcomes))

"""Splits a blob that one slot would be busy with for too long into sweeps over its levels.

Values of one level do not depend on each other. So a level whose functions are dear can be
computed by all slots at once, in a run of its own; what came out changed is told to the next.
"""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from rebaser_server.compute.plan.cost_model import WORTH, Band, CostBook, bands
from rebaser_server.compute.runs.executor import Executor, OnProgress
from rebaser_server.compute.units.incremental_split import Pieces
from rebaser_server.compute.units.run_store import Shelf, Stored
from rebaser_server.compute.units.subunits import by_level, independent
from rebaser_server.compute.units.unit_result import SCHEMA, Outcome, costs_of
from rebaser_server.compute.units.work_unit import Blob, Limits, limited, limits_of, size

PARTS: Final = 2
"""Into how many blobs for each slot a level is split, so that a slot that is done early helps."""
_HOPELESS: Final = 2
"""Times what a run takes besides: what takes no longer cannot win by splitting."""

GUESSES: Final = "sweeps"
"""On the shelf: what functions were taken to cost when blobs were cut."""


class SweepingExecutor:
    """An `Executor` that owns another, learns what functions cost, and tells each call's limits."""

    def __init__(
        self,
        inner: Executor,
        slots: int,
        *,
        limits: Limits = Limits(),  # noqa: B008 - frozen
        book: CostBook | None = None,
    ) -> None:
        self._inner = inner
        self._slots = slots
        self._limits = limits
        self.book = book if book is not None else CostBook()

    async def start(self) -> None:
        await self._inner.start()

    async def close(self) -> None:
        await self._inner.close()

    async def run(
        self,
        blobs: Sequence[bytes | memoryview],
        *,
        shelf: Shelf | None = None,
        on_progress: OnProgress | None = None,
    ) -> list[Outcome | Stored]:
        progress = _Progress(sum(map(size, blobs)), on_progress)
        limits_set, sweeps = await asyncio.to_thread(self._planned, blobs, shelf)
        rest = [blob for blob, sweep in zip(limits_set, sweeps, strict=True) if sweep is None]
        try:
            async with asyncio.TaskGroup() as group:
                together = group.create_task(self._run(rest, shelf, progress))
                swept = [
                    group.create_task(self._sweep(sweep, shelf, progress))
                    for sweep in sweeps
                    if sweep is not None
                ]
        except ExceptionGroup as errors:
            raise errors.exceptions[0] from None  # in a group it would not be known for what it is
        whole, split = iter(together.result()), iter([task.result() for task in swept])
        return [next(whole) if sweep is None else next(split) for sweep in sweeps]

    def _planned(
        self, blobs: Sequence[bytes | memoryview], shelf: Shelf | None
    ) -> tuple[list[bytes | memoryview], list["_Sweep | None"]]:
        encoded = [limited(blob, self._limited(limits_of(blob))) for blob in blobs]
        return encoded, self._sweeps([Blob.decode(blob) for blob in encoded], shelf)

    def _sweeps(self, blobs: Sequence[Blob], shelf: Shelf | None) -> list["_Sweep | None"]:
        """How to sweep those that it is worth it: as an earlier attempt at the update did."""
        if self._slots <= 1:
            return [None] * len(blobs)
        book, is_known = self.book, False
        dear = self._dear(blobs, book)
        if shelf is not None and (any(dear) or not all(map(book.knows, blobs))):
            before = shelf.costs(GUESSES)
            is_known = bool(before)
            if is_known:
                book = CostBook(before)
                dear = self._dear(blobs, book)
        sweeps = [
            self._worthwhile(blob, book) if is_dear else None
            for blob, is_dear in zip(blobs, dear, strict=True)
        ]
        if shelf is not None and any(sweeps) and not is_known:
            shelf.put_costs(book.seconds, GUESSES)
        return sweeps

    def _dear(self, blobs: Sequence[Blob], book: CostBook) -> list[bool]:
        """Which keep one slot busy while others are idle."""
        seconds = [float(book.of_values(blob).sum()) for blob in blobs]
        fair = max(sum(seconds) / self._slots, _HOPELESS * book.stage)
        return [each > fair for each in seconds]

    def _limited(self, own: Limits) -> Limits:
        return replace(
            own,
            seconds=self._limits.seconds or own.seconds,
            memory=self._limits.memory or own.memory,
            value_bytes=self._limits.value_bytes or own.value_bytes,
        )

    def _worthwhile(self, blob: Blob, book: CostBook) -> "_Sweep | None":
        moved, order, ends = by_level(blob)
        costs = book.of_values(moved)
        found, promised = bands(costs, ends, self._slots, stage=book.stage)
        return _Sweep(moved, order, costs, found) if promised * WORTH < costs.sum() else None

    async def _run(
        self, blobs: Sequence[bytes | memoryview], shelf: Shelf | None, progress: "_Progress"
    ) -> list[Outcome | Stored]:
        if not blobs:
            return []
        started = time.monotonic()
        found = await self._inner.run(blobs, shelf=shelf, on_progress=progress.part())
        self.book.learn_run(time.monotonic() - started, found, self._slots)
        return found

    async def _sweep(self, sweep: "_Sweep", shelf: Shelf | None, progress: "_Progress") -> Outcome:
        pieces = Pieces(sweep.blob)
        done: list[Outcome] = []
        for band in sweep.bands:
            piece = pieces.next(band.stop - band.start)
            parts = await asyncio.to_thread(self._parts, sweep, piece, band)
            outcomes = await self._run([blob.encode() for _, blob in parts], shelf, progress)
            found = [
                await asyncio.to_thread(_read, outcome, places + band.start, shelf)
                for outcome, (places, _) in zip(outcomes, parts, strict=True)
            ]
            pieces.settle(
                band.stop, pa.concat_tables([SCHEMA.empty_table(), *(o.table for o in found)])
            )
            done += found
        return await asyncio.to_thread(sweep.merged, done)

    def _parts(
        self, sweep: "_Sweep", piece: Blob, band: Band
    ) -> list[tuple[NDArray[np.int64], Blob]]:
        """What to run, and each value's place in the piece.

        By what was guessed at first, whatever was learnt since: so another attempt that begins
        with the same guesses has the same parts, and finds on the shelf what became of them.
        """
        if not band.is_split:
            return [(np.arange(len(piece)), piece)]
        due = np.flatnonzero(piece.forced)
        if not len(due):
            return []
        until = sweep.costs[band.start : band.stop][due].cumsum()
        count = min(self._slots * PARTS, len(due))
        cuts = np.searchsorted(until, until[-1] * np.arange(1, count) / count, side="left")
        chosen = [part for part in np.split(due, cuts) if len(part)]
        return [(part, independent(piece, part)) for part in chosen]


class _Sweep:
    """A blob in the order of its levels, and how to go through them."""

    def __init__(
        self,
        blob: Blob,
        order: NDArray[np.int64],
        costs: NDArray[np.float64],
        bands_: list[Band],
    ) -> None:
        self.blob = blob
        self.costs = costs
        self.bands = bands_
        self._order = order

    def merged(self, outcomes: Sequence[Outcome]) -> Outcome:
        """What became of the blob, in its own order."""
        table = pa.concat_tables([SCHEMA.empty_table(), *(o.table for o in outcomes)])
        places = self._order[table.column("place").to_numpy()]
        table = table.set_column(3, SCHEMA.field(3), pa.array(places, pa.int32()))
        recomputed = sum(outcome.recomputed for outcome in outcomes)
        return Outcome(recomputed, table.take(np.argsort(places)), costs_of(outcomes))


class _Progress:
    """Values done in all runs of one run."""

    def __init__(self, in_all: int, tell: OnProgress | None) -> None:
        self._in_all = in_all
        self._tell = tell
        self._done: list[int] = []

    def part(self) -> OnProgress | None:
        """What one of the runs is to tell."""
        if self._tell is None:
            return None
        tell, mine = self._tell, len(self._done)
        self._done.append(0)

        def told(done: int, _in_all: int) -> None:
            self._done[mine] = done
            tell(min(sum(self._done), self._in_all), self._in_all)

        return told


def _read(outcome: Outcome | Stored, places: NDArray[Any], shelf: Shelf | None) -> Outcome:
    """An outcome of a part, with the places of the whole."""
    if isinstance(outcome, Stored):
        assert shelf is not None, "nothing is stored without one"  # noqa: S101
        read = [shelf.read(name) for name, _ in outcome.files]
        tables = [SCHEMA.empty_table(), *(part.table.replace_schema_metadata() for part in read)]
        outcome = Outcome(outcome.recomputed, pa.concat_tables(tables), outcome.costs)
    table = outcome.table.replace_schema_metadata()
    moved = places[table.column("place").to_numpy()]
    table = table.set_column(3, SCHEMA.field(3), pa.array(moved, pa.int32()))
    return Outcome(outcome.recomputed, table, outcome.costs)

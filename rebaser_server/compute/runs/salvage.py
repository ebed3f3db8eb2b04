"""Of an update that is given up: what was computed, from the shelf, and failures for the rest."""

import asyncio
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from rebaser_server.compute.evaluate.task_protocol import stored_in
from rebaser_server.compute.plan.cost_model import CostBook
from rebaser_server.compute.runs.executor import OnProgress
from rebaser_server.compute.runs.level_parallel_executor import GUESSES, SweepingExecutor
from rebaser_server.compute.units.run_store import Shelf, Stored, chain
from rebaser_server.compute.units.unit_result import SCHEMA, Outcome, costs_of
from rebaser_server.compute.units.work_unit import FAILED, Blob, digest_of


async def salvaged(
    blobs: Sequence[bytes | memoryview], message: str, shelf: Shelf, slots: int
) -> list[Outcome | Stored]:
    """What became of each blob; values that were not computed fail with the message.

    Args:
        blobs: as the attempts had them.
        message: of values that fail.
        shelf: of the update.
        slots: as the attempts had it.
    """
    guesses = await asyncio.to_thread(shelf.costs, GUESSES)
    keeper = _Keeper(message)
    if not guesses:
        return await keeper.run(blobs, shelf=shelf)
    # Cut into the same sweeps as before, whose parts have files of their own.
    return await SweepingExecutor(keeper, slots, book=CostBook(guesses)).run(blobs, shelf=shelf)


def failed(ids: pa.Array, message: str, first: int = 0) -> Outcome:
    """As if each of these values had failed, the first of which is at place `first`."""
    count = len(ids)
    columns = [
        ids,
        np.full(count, FAILED, np.uint8),
        pa.array([message]).take(pa.array(np.zeros(count, np.int32))),
        np.arange(first, first + count, dtype=np.int32),
    ]
    return Outcome(0, pa.table(columns, names=SCHEMA.names).cast(SCHEMA))


class _Keeper:
    """An `Executor` that computes nothing."""

    def __init__(self, message: str) -> None:
        self._message = message

    async def start(self) -> None:
        pass

    async def close(self) -> None:
        pass

    async def run(
        self,
        blobs: Sequence[bytes | memoryview],
        *,
        shelf: Shelf | None = None,
        on_progress: OnProgress | None = None,  # noqa: ARG002 - a protocol's
    ) -> list[Outcome | Stored]:
        names = await asyncio.to_thread(shelf.names) if shelf else []
        return [await asyncio.to_thread(self._kept, blob, shelf, names) for blob in blobs]

    def _kept(self, blob: Any, shelf: Shelf | None, names: list[str]) -> Outcome | Stored:
        decoded, found = Blob.decode(blob), chain(names, digest_of(blob))
        stop = found[-1].stop if found else 0
        if shelf is not None and found and stop == len(decoded):
            return stored_in(shelf, found)
        before = [shelf.read(saved.name) for saved in found] if shelf else []
        parts = [*before, failed(decoded.ids[stop:], self._message, stop)]
        tables = [part.table.replace_schema_metadata() for part in parts]
        recomputed = sum(part.recomputed for part in parts)
        return Outcome(recomputed, pa.concat_tables(tables), costs_of(parts))

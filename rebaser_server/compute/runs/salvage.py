"""Results of an update that is given up: from the run store, and failures for the rest."""

import asyncio
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from rebaser_server.compute.evaluate.task_protocol import read_stored_result
from rebaser_server.compute.plan.cost_model import CostModel
from rebaser_server.compute.runs.executor import OnProgress
from rebaser_server.compute.runs.level_parallel_executor import SPLIT_COSTS, LevelParallelExecutor
from rebaser_server.compute.units.run_store import RunStore, StoredResult, contiguous_parts
from rebaser_server.compute.units.unit_result import SCHEMA, UnitResult, total_costs
from rebaser_server.compute.units.work_unit import FAILED, WorkUnit, digest_of


async def salvage(
    units: Sequence[bytes | memoryview], message: str, store: RunStore, slots: int
) -> list[UnitResult | StoredResult]:
    """What became of each unit; values that were not computed fail with the message.

    Args:
        units: as the attempts had them.
        message: of values that fail.
        store: of the update.
        slots: as the attempts had it.
    """
    guesses = await asyncio.to_thread(store.costs, SPLIT_COSTS)
    keeper = _StoredOnlyExecutor(message)
    if not guesses:
        return await keeper.run(units, store=store)
    # Split by the same levels as before: parts of units have files of their own.
    executor = LevelParallelExecutor(keeper, slots, CostModel(guesses))
    return await executor.run(units, store=store)


def failed_result(ids: pa.Array, message: str, first: int = 0) -> UnitResult:
    """As if each of these values had failed, the first of which is at position `first`."""
    count = len(ids)
    columns = [
        ids,
        np.full(count, FAILED, np.uint8),
        pa.array([message]).take(pa.array(np.zeros(count, np.int32))),
        np.arange(first, first + count, dtype=np.int32),
    ]
    return UnitResult(0, pa.table(columns, names=SCHEMA.names).cast(SCHEMA))


class _StoredOnlyExecutor:
    """An `Executor` that computes nothing."""

    def __init__(self, message: str) -> None:
        self._message = message

    async def start(self) -> None:
        pass

    async def close(self) -> None:
        pass

    async def run(
        self,
        units: Sequence[bytes | memoryview],
        *,
        owner: str = "",
        store: RunStore | None = None,
        on_progress: OnProgress | None = None,
    ) -> list[UnitResult | StoredResult]:
        del owner, on_progress  # it computes nothing
        names = await asyncio.to_thread(store.names) if store else []
        return [await asyncio.to_thread(self._kept, unit, store, names) for unit in units]

    def _kept(
        self, unit: Any, store: RunStore | None, names: list[str]
    ) -> UnitResult | StoredResult:
        decoded, parts = WorkUnit.decode(unit), contiguous_parts(names, digest_of(unit))
        stop = parts[-1].stop if parts else 0
        if store is not None and parts and stop == len(decoded):
            return read_stored_result(store, parts)
        before = [store.get_part(part.name) for part in parts] if store else []
        results = [*before, failed_result(decoded.ids[stop:], self._message, stop)]
        tables = [result.table.replace_schema_metadata() for result in results]
        recomputed = sum(result.recomputed for result in results)
        return UnitResult(recomputed, pa.concat_tables(tables), total_costs(results))

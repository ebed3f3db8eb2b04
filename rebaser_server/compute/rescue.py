"""Runs that are repeated with care, and what is left of updates that are given up.

A value that ends its child fails by itself, see `evaluation`. An evaluator may nevertheless end
with its run, as by a builtin function, CEL or a query that crashes: then the run is repeated with
every unit in children, and a query is tried some times before it is blamed.

`salvage` returns the results of an update that is given up: from the run store, and failures for
the rest.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pyarrow as pa

from rebaser_server.compute.cost_model import CostModel
from rebaser_server.compute.level_parallel import LeveledRun, split_costs_of
from rebaser_server.compute.results import (
    SCHEMA,
    RunStore,
    StoredResult,
    UnitResult,
    contiguous_parts,
    join_results,
)
from rebaser_server.compute.run import Run
from rebaser_server.compute.task_protocol import read_stored_result
from rebaser_server.compute.work_unit import FAILED, CallLimits, WorkUnit, digest_of


def isolated(units: Sequence[WorkUnit], limit: float) -> list[WorkUnit]:
    """Return the units for a repeated run: each value fails that ends what computes it.

    `limit`: seconds for a call of a function without another limit.
    """

    def forked(limits: CallLimits) -> CallLimits:
        return replace(limits, seconds=limits.seconds or limit, is_forked=True)

    return [replace(unit, limits=forked(unit.limits)) for unit in units]


async def salvage(
    units: Sequence[WorkUnit], message: str, store: RunStore, slots: int
) -> list[UnitResult | StoredResult]:
    """Return the result of each unit; values that were not computed fail with the message.

    `units` and `slots` are as the attempts had them.
    """
    guesses = await asyncio.to_thread(store.costs, split_costs_of(units)) if units else {}
    place, run = _StoredResults(message, slots), Run(store=store)
    if not guesses:
        return await place.run(units, run)
    # Split by the earlier levels, since parts of units have their own files.
    return await LeveledRun(place, CostModel(guesses), run).results(units)


def failed_result(ids: pa.Array, message: str, first: int = 0) -> UnitResult:
    count = len(ids)
    columns = [
        ids,
        np.full(count, FAILED, np.uint8),
        pa.array([message]).take(pa.array(np.zeros(count, np.int32))),
        np.arange(first, first + count, dtype=np.int32),
    ]
    return UnitResult(0, pa.table(columns, names=SCHEMA.names).cast(SCHEMA))


class _StoredResults:
    def __init__(self, message: str, slots: int) -> None:
        self._message = message
        self.slots = slots

    async def start(self) -> None:
        pass

    async def close(self) -> None:
        pass

    async def run(
        self, units: Sequence[WorkUnit], run: Run = Run()
    ) -> list[UnitResult | StoredResult]:
        names = await asyncio.to_thread(run.store.names) if run.store else []
        return [await asyncio.to_thread(self._kept, unit, run.store, names) for unit in units]

    def _kept(
        self, unit: WorkUnit, store: RunStore | None, names: list[str]
    ) -> UnitResult | StoredResult:
        parts = contiguous_parts(names, digest_of(unit.encode()))
        stop = parts[-1].stop if parts else 0
        if store is not None and parts and stop == len(unit):
            return read_stored_result(store, parts)
        before = [store.get_part(part.name) for part in parts] if store else []
        results = [*before, failed_result(unit.ids[stop:], self._message, stop)]
        tables = [result.table.replace_schema_metadata() for result in results]
        return join_results(results, pa.concat_tables(tables))

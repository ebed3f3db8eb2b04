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
from typing import Any

import numpy as np
import pyarrow as pa

from rebaser_server.compute.cost_model import CostModel
from rebaser_server.compute.executors import Executor
from rebaser_server.compute.level_parallel import LevelParallelExecutor, split_costs_of
from rebaser_server.compute.results import (
    SCHEMA,
    RunStore,
    StoredResult,
    UnitResult,
    contiguous_parts,
    join_results,
)
from rebaser_server.compute.task_protocol import read_stored_result
from rebaser_server.compute.work_unit import (
    FAILED,
    CallLimits,
    WorkUnit,
    digest_of,
    read_limits,
    with_limits,
)
from rebaser_server.runtime.progress import JobProgress


async def run_isolated(
    executor: Executor,
    units: Sequence[bytes | memoryview],
    *,
    limit: float,
    owner: str = "",
    store: RunStore | None = None,
    progress: JobProgress | None = None,
) -> list[UnitResult | StoredResult]:
    """Return the result of each unit, with the values failed that end what computes them.

    Args:
        executor: one that may break down and is sound for the next run.
        units: as `Executor.run` takes them.
        limit: seconds for a call of a function without another limit.
        owner: as `Executor.run` takes it.
        store: as `Executor.run` takes it.
        progress: as `Executor.run` takes it.

    Raises:
        EvaluationFailed: too many values are at fault, or the evaluator is and not a value.
        RunFailed: the evaluator breaks down, and no value is at fault.
        SessionFailed: Spark has no session to run on.
    """
    guarded = [with_limits(unit, _forked(read_limits(unit), limit)) for unit in units]
    return await executor.run(guarded, owner=owner, store=store, progress=progress)


def _forked(limits: CallLimits, limit: float) -> CallLimits:
    return replace(limits, seconds=limits.seconds or limit, is_forked=True)


async def salvage(
    units: Sequence[bytes | memoryview], message: str, store: RunStore, slots: int
) -> list[UnitResult | StoredResult]:
    """Return the result of each unit; values that were not computed fail with the message.

    Args:
        units: as the attempts had them.
        message: of values that fail.
        store: of the update.
        slots: as the attempts had it.
    """
    guesses = await asyncio.to_thread(store.costs, split_costs_of(units)) if units else {}
    keeper = _StoredOnlyExecutor(message)
    if not guesses:
        return await keeper.run(units, store=store)
    # Split by the earlier levels, since parts of units have their own files.
    executor = LevelParallelExecutor(keeper, lambda: slots, CostModel(guesses))
    return await executor.run(units, store=store)


def failed_result(ids: pa.Array, message: str, first: int = 0) -> UnitResult:
    """Return a result in which each of these values failed, the first at position `first`."""
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
        progress: JobProgress | None = None,
    ) -> list[UnitResult | StoredResult]:
        del owner, progress  # it computes nothing
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
        return join_results(results, pa.concat_tables(tables))

"""Finds the values that end their evaluator, or never return, and fails them alone.

This serves a run that broke down: a crash tells the run that failed, not the value. The run is
repeated with each unit evaluated in forked processes, which finds the value where it is computed.
If that breaks down, too, each unit is run by itself; one that fails is bisected by prefixes, which
are units themselves, since a value's inputs come before it. An evaluator may also end for other
reasons, as when its machine is lost: a value is blamed only if each time that it is computed by
itself ends the evaluator, and the values before it do not.

`salvage` returns the results of an update that is given up: from the run store, and failures for
the rest.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
import pyarrow as pa
import structlog

from rebaser_server.compute.cost_model import CostModel
from rebaser_server.compute.errors import EvaluationFailed, RunFailed
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
    MAX_CULPRITS,
    TOO_MANY_CULPRITS,
    CallLimits,
    IncrementalSplit,
    WorkUnit,
    count_values,
    digest_of,
    prefix,
    read_limits,
    with_failures,
    with_limits,
)
from rebaser_server.runtime.failures import Stalled
from rebaser_server.runtime.progress import JobProgress

log: Final = structlog.get_logger()

_TRIALS: Final = 3
"""Number of times that a value by itself must end its evaluator to be blamed."""
_BROKEN: Final = (RunFailed, EvaluationFailed, Stalled)


async def run_isolated(
    executor: Executor,
    units: Sequence[bytes | memoryview],
    *,
    limit: float,
    owner: str = "",
    store: RunStore | None = None,
    progress: JobProgress | None = None,
) -> list[UnitResult | StoredResult]:
    """Return the result of each unit, with the values failed that cannot be computed.

    It costs one run in most cases; else about log₂ of a unit's values in runs for each of those
    values. A cancellation ends the run in hand.

    Args:
        executor: one that may break down and is sound for the next run.
        units: as `Executor.run` takes them.
        limit: seconds in which a run of one unit gets on, if it is sound, and for a call of a
            function without another limit.
        owner: as `Executor.run` takes it.
        store: as `Executor.run` takes it.
        progress: as `Executor.run` takes it; extended when a value that ends its evaluator is
            found, or nearly.

    Raises:
        EvaluationFailed: too many values are at fault, or the evaluator is and not a value.
        RunFailed: the evaluator breaks down, and no value is at fault.
        SessionFailed: Spark has no session to run on.
    """
    progress = progress or JobProgress(sum(map(count_values, units)))
    try:
        guarded = [with_limits(unit, _forked(read_limits(unit), limit)) for unit in units]
        return await executor.run(guarded, owner=owner, store=store, progress=progress)
    except (RunFailed, EvaluationFailed) as error:
        if TOO_MANY_CULPRITS in str(error):
            raise EvaluationFailed(str(error)) from error
        log.error("guarded run failed", reason=str(error))
    search = _Bisection(executor, owner, limit, progress)
    return [await search.isolate(WorkUnit.decode(unit), store) for unit in units]


def _forked(limits: CallLimits, limit: float) -> CallLimits:
    return replace(limits, seconds=limits.seconds or limit, is_forked=True)


@dataclass(slots=True)
class _Bisection:
    """Searches for the values that end their evaluator, unit by unit."""

    executor: Executor
    owner: str
    limit: float
    progress: JobProgress
    before: int = 0
    """Number of values of the units that were run."""

    async def isolate(self, unit: WorkUnit, store: RunStore | None) -> UnitResult | StoredResult:
        culprits: dict[int, str] = {}
        while True:
            try:
                result = await self._run(with_failures(unit, culprits), store)
            except _BROKEN as error:
                if len(culprits) == MAX_CULPRITS:
                    raise EvaluationFailed(f"{TOO_MANY_CULPRITS}: {error}") from error
                index = await self._first_culprit(with_failures(unit, culprits))
                if not await self._is_culprit(with_failures(unit, culprits), index):
                    if isinstance(error, Stalled):
                        raise RunFailed(f"{error}, and no value is why") from error
                    raise
                reason = "it did not return" if isinstance(error, Stalled) else str(error)
                log.error(
                    "value crashed its evaluator", value=unit.ids[index].as_py(), reason=reason
                )
                culprits[index] = f"computing it ended the evaluator: {reason}"
            else:
                self.before += len(unit)
                return result

    async def _first_culprit(self, unit: WorkUnit) -> int:
        """Return the first value with which the unit's prefix fails, and without which it runs."""
        sound, broken = 0, len(unit)
        while broken - sound > 1:
            middle = (sound + broken) // 2
            try:
                await self._run(prefix(unit, middle))
            except _BROKEN:
                broken = middle
            else:
                sound = middle
            self.progress.extend()
        return broken - 1

    async def _is_culprit(self, unit: WorkUnit, index: int) -> bool:
        """Whether that value, and none before it, ends the evaluator whenever it is computed."""
        split = IncrementalSplit(unit)
        for _ in range(_TRIALS):
            try:
                before = await self._run(prefix(unit, index))  # maybe no value: that must run, too
            except _BROKEN:
                return False
            if index and not split.done and isinstance(before, UnitResult):
                split.record(index, before.table.replace_schema_metadata())
            try:
                await self._run(split.next(1))
            except _BROKEN:
                self.progress.extend()
            else:
                return False
        return True

    async def _run(
        self, unit: WorkUnit, store: RunStore | None = None
    ) -> UnitResult | StoredResult:
        self.progress.record(self.before)  # and not what was done in runs that came to nothing
        part = self.progress.part(len(unit))
        async with part.limiting(self.limit):
            [result] = await self.executor.run(
                [unit.encode()], owner=self.owner, store=store, progress=part
            )
        self.progress.extend()
        return result


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

"""Routes a run to one of two executors, by the number of its values, and units to several."""

import asyncio
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from typing import Final

from rebaser_core.jetstream import deadlines
from rebaser_server.compute.runs.executor import Executor, OnProgress, TotalProgress
from rebaser_server.compute.units.run_store import RunStore, StoredResult
from rebaser_server.compute.units.unit_result import UnitResult
from rebaser_server.compute.units.work_unit import count_values

HEAD_START: Final = 0.1
"""Seconds that a run goes on with what has been started, before it starts another child process:
cheap units are done by then."""


class SideBySideExecutor:
    """An `Executor` that owns several, each of which computes one unit at a time.

    A run gives its next unit to the one that is free first. Runs share them as if each was alone.
    """

    def __init__(self, executors: Sequence[Executor]) -> None:
        """The first is started with this one, others by a run that takes long."""
        self._executors = executors
        self._started = {0}

    async def start(self) -> None:
        await self._executors[0].start()

    async def close(self) -> None:
        await asyncio.gather(*(executor.close() for executor in self._executors))

    async def run(
        self,
        units: Sequence[bytes | memoryview],
        *,
        store: RunStore | None = None,
        on_progress: OnProgress | None = None,
    ) -> list[UnitResult | StoredResult]:
        progress = TotalProgress(sum(map(count_values, units)), on_progress)
        rest, results = deque(enumerate(units)), dict[int, UnitResult | StoredResult]()
        ended = asyncio.Event()

        async def compute(number: int, executor: Executor) -> None:
            if number not in self._started:
                with suppress(TimeoutError):
                    async with deadlines.within(HEAD_START * number):
                        await ended.wait()
            while rest:
                self._started.add(number)
                index, unit = rest.popleft()
                [results[index]] = await executor.run(
                    [unit], store=store, on_progress=progress.part()
                )
                if len(results) == len(units):
                    ended.set()

        try:
            async with asyncio.TaskGroup() as group:
                for number, executor in enumerate(self._executors[: len(units)]):
                    group.create_task(compute(number, executor))
        except ExceptionGroup as errors:
            raise errors.exceptions[0] from None  # in a group it would not be known for what it is
        return [results[index] for index in range(len(units))]


class RoutingExecutor:
    """An `Executor` that owns two others."""

    def __init__(self, small: Executor, large: Executor, *, large_from: int) -> None:
        """`large_from`: affected values from which a run is `large`'s; 0: all are."""
        self._small = small
        self._large = large
        self._large_from = large_from

    async def start(self) -> None:
        if self._large_from:
            await self._small.start()
        await self._large.start()

    async def run(
        self,
        units: Sequence[bytes | memoryview],
        *,
        store: RunStore | None = None,
        on_progress: OnProgress | None = None,
    ) -> list[UnitResult | StoredResult]:
        is_large = sum(map(count_values, units)) >= self._large_from
        chosen = self._large if is_large else self._small
        return await chosen.run(units, store=store, on_progress=on_progress)

    async def close(self) -> None:
        try:
            await self._small.close()
        finally:
            await self._large.close()

"""Routes a run to one of two executors, by the number of its values."""

from collections.abc import Sequence

from rebaser_server.compute.runs.executor import Executor, OnProgress
from rebaser_server.compute.units.run_store import RunStore, StoredResult
from rebaser_server.compute.units.unit_result import UnitResult
from rebaser_server.compute.units.work_unit import count_values


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
        owner: str = "",
        store: RunStore | None = None,
        on_progress: OnProgress | None = None,
    ) -> list[UnitResult | StoredResult]:
        is_large = sum(map(count_values, units)) >= self._large_from
        chosen = self._large if is_large else self._small
        return await chosen.run(units, owner=owner, store=store, on_progress=on_progress)

    async def close(self) -> None:
        try:
            await self._small.close()
        finally:
            await self._large.close()

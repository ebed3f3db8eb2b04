"""Runs small runs in one place and large ones in another."""

from collections.abc import Sequence

from rebaser_server.compute.runs.executor import Executor, OnProgress
from rebaser_server.compute.units.run_store import Shelf, Stored
from rebaser_server.compute.units.unit_result import Outcome
from rebaser_server.compute.units.work_unit import size


class BySizeExecutor:
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
        blobs: Sequence[bytes | memoryview],
        *,
        shelf: Shelf | None = None,
        on_progress: OnProgress | None = None,
    ) -> list[Outcome | Stored]:
        is_large = sum(map(size, blobs)) >= self._large_from
        chosen = self._large if is_large else self._small
        return await chosen.run(blobs, shelf=shelf, on_progress=on_progress)

    async def close(self) -> None:
        try:
            await self._small.close()
        finally:
            await self._large.close()

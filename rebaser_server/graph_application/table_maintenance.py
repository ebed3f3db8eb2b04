"""Compact the tables of change sets in the background, one at a time in each process."""

import asyncio
from typing import Final, Never

import structlog

from rebaser_core.ids import ChangeSet
from rebaser_server.runtime.containment import contained
from rebaser_server.store.checkpoints import Checkpoints
from rebaser_server.store.compaction import compact

log: Final = structlog.get_logger()


class TableMaintenance:
    """The queue of change sets whose table may need compaction. It needs no ownership of them.

    A table that is still queued when the process ends is scheduled again by the next checkpoint.
    """

    def __init__(self, checkpoints: Checkpoints, keep_replaced: float) -> None:
        """`keep_replaced`: seconds for which replaced files stay, for readers that use them."""
        self.checkpoints = checkpoints
        self._keep_replaced = keep_replaced
        self._scheduled: dict[ChangeSet, int] = {}
        self._wakeup = asyncio.Event()

    def schedule(self, change_set: ChangeSet, start: int) -> None:
        """Queue the table for compaction, which may drop states before commit `start`."""
        self._scheduled[change_set] = start
        self._wakeup.set()

    async def run(self) -> Never:
        """Compact the queued tables until cancelled; log each failure of the store."""
        while True:
            await self._wakeup.wait()
            self._wakeup.clear()
            while self._scheduled:
                change_set = next(iter(self._scheduled))
                start = self._scheduled.pop(change_set)
                with contained("table", change_set=change_set):
                    await self._compact(change_set, start)

    async def _compact(self, change_set: ChangeSet, start: int) -> None:
        try:
            done = await asyncio.to_thread(
                compact, self.checkpoints, change_set, start, self._keep_replaced
            )
        except OSError as error:
            log.warning("table compaction failed", change_set=str(change_set), error=str(error))
        else:
            if done:
                log.info("table compacted", change_set=str(change_set), what=done)

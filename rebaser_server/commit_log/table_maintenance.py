"""Tables are tidied beside everything else: one at a time in a process, in nobody's way."""

import asyncio
from typing import Final, Never

import structlog

from rebaser_core.ids import ChangeSet
from rebaser_server.runtime.containment import contained
from rebaser_server.store.checkpoints import Checkpoints
from rebaser_server.store.compaction import compact

log: Final = structlog.get_logger()


class Upkeep:
    """Change sets whose table may have become long. Owning one is not needed to tidy it.

    What is not done when the process ends is asked for again with the next checkpoint.
    """

    def __init__(self, checkpoints: Checkpoints, keep_replaced: float) -> None:
        """`keep_replaced`: seconds for which files that were replaced stay for their readers."""
        self._checkpoints = checkpoints
        self._keep_replaced = keep_replaced
        self._wanted: dict[ChangeSet, int] = {}
        self._asked = asyncio.Event()

    def look_after(self, change_set: ChangeSet, start: int) -> None:
        """Have the table looked at; states before commit `start` need not be kept in it."""
        self._wanted[change_set] = start
        self._asked.set()

    async def run(self) -> Never:
        """Tidy what was asked for, until cancelled. A store that fails is logged."""
        while True:
            await self._asked.wait()
            self._asked.clear()
            while self._wanted:
                change_set = next(iter(self._wanted))
                start = self._wanted.pop(change_set)
                with contained("table", change_set=change_set):
                    await self._tidy(change_set, start)

    async def _tidy(self, change_set: ChangeSet, start: int) -> None:
        try:
            done = await asyncio.to_thread(
                compact, self._checkpoints, change_set, start, self._keep_replaced
            )
        except OSError as error:
            log.warning("table compaction failed", change_set=str(change_set), error=str(error))
        else:
            if done:
                log.info("table compacted", change_set=str(change_set), what=done)

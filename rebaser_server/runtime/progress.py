"""Progress of a job: one object, from the scheduler, which reads it, down to what computes.

Parts of it sum up. A body that it limits ends, as stalled, if no more values are done for a while.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from rebaser_core.jetstream import deadlines
from rebaser_server.runtime.failures import Stalled


class JobProgress:
    """Number of values that are done, at least. Belongs to one event loop."""

    def __init__(self, total: int, whole: "JobProgress | None" = None) -> None:
        self.total = total
        """Values in all, so far: a job may find more on its way."""
        self.done = 0
        self.records = 0
        """Number of records, by which a reader sees whether one is new."""
        self._whole = whole
        self._highest = 0
        self._limit = 0.0
        self._deadline: deadlines.Deadline | None = None

    def part(self, total: int) -> "JobProgress":
        """Return a share of `total` values; records of it count here, too."""
        return JobProgress(total, self)

    def record(self, done: int) -> None:
        """Note that `done` values are done: fewer than before where some are computed again."""
        before, self.done = self.done, min(done, self.total)
        self.records += 1
        if self.done > self._highest:
            self._highest = self.done
            self._restart()
        if self._whole is not None:
            self._whole.record(self._whole.done + self.done - before)

    def extend(self) -> None:
        """Begin the deadlines anew, also of the whole: there was progress of another kind."""
        self._restart()
        if self._whole is not None:
            self._whole.extend()

    def _restart(self) -> None:
        if self._deadline is not None:
            self._deadline.reschedule(asyncio.get_running_loop().time() + self._limit)

    @asynccontextmanager
    async def limiting(self, seconds: float) -> AsyncIterator[None]:
        """Cancel the body once no more values were done for `seconds`. Raises `Stalled`."""
        self._limit = seconds
        try:
            async with deadlines.within(seconds) as self._deadline:
                yield
        except TimeoutError:
            raise Stalled(f"deadline exceeded: no value was computed for {seconds:g} s") from None
        finally:
            self._deadline = None

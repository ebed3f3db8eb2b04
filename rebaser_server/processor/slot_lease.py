"""A change set's stay in a slot: for how long, since when idle, and what is asked of it."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from rebaser_core.ids import WorkspaceId
from rebaser_server.errors import DvuCancelled, Preempted, Resumed
from rebaser_server.runtime.concurrency import Interrupt


class SlotLease(Interrupt):
    """A change set's stay in a slot."""

    def __init__(self, workspace: WorkspaceId) -> None:
        super().__init__(Preempted)
        self.workspace = workspace
        self.expired = False
        """It had its time and others wait: to go after the request in hand, if more are in line."""
        self.paused = False
        """To go after what is in hand, whatever is in line (P4)."""
        self.resume = Interrupt(Resumed)
        self.cancel_dvu = Interrupt(DvuCancelled)
        """Of the update in hand."""
        self._clock = asyncio.get_running_loop().time
        self._since = self._clock()
        self._last_request = 0.0
        self._has_work: Callable[[], bool] = _always

    def pause(self, *, paused: bool) -> None:
        """Say whether the change set is paused, as often as one likes."""
        self.paused = paused
        if paused:
            self.resume.clear()
            self.set()
        else:
            self.resume.set()

    def on_request(self) -> None:
        """Requests were handled. Until then it is the first to go: it was idle elsewhere, too."""
        self._last_request = self._clock()

    @property
    def idle(self) -> float:
        """Seconds since its last request, if it has nothing to do."""
        return self._clock() - self._last_request if not self._has_work() else 0.0

    @property
    def age(self) -> float:
        """Seconds."""
        return self._clock() - self._since

    @asynccontextmanager
    async def wait_for_work(self, has_work: Callable[[], bool]) -> AsyncIterator[None]:
        """Wait for a request in the body; ended by `SlotWanted`, and idle without other work."""
        if not self.paused:
            self.clear()
        self._has_work = has_work
        try:
            async with self.interrupts():
                yield
        finally:
            self._has_work = _always


def _always() -> bool:
    return True

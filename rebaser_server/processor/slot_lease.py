"""A change set's stay in a slot: its age, its idle time, and the interrupts sent to it."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from rebaser_core.ids import WorkspaceId
from rebaser_server.errors import DvuCancelled, Preempted, Resumed
from rebaser_server.runtime.tasks import Interrupt


class SlotLease(Interrupt):
    def __init__(self, workspace: WorkspaceId) -> None:
        super().__init__(Preempted)
        self.workspace = workspace
        self.expired = False
        """Whether its time is over and others wait: it leaves after this request if more are
        queued."""
        self.paused = False
        """Whether it leaves after the work under way, with requests queued or not (P4)."""
        self.resume = Interrupt(Resumed)
        self.cancel_dvu = Interrupt(DvuCancelled)
        """Interrupt of the update under way."""
        self._clock = asyncio.get_running_loop().time
        self._since = self._clock()
        self._last_request = 0.0
        self._has_work: Callable[[], bool] = _always

    @property
    def is_wanted(self) -> bool:
        return (self.is_set and not self.paused) or self.expired

    def pause(self, *, paused: bool) -> None:
        """Set whether the change set is paused; a repetition is harmless."""
        self.paused = paused
        if paused:
            # Else the end of an earlier pause would end this one's drain at once (P4).
            self.resume.clear()
            self.set()
        else:
            self.resume.set()

    def on_request(self) -> None:
        """Note that a request was settled. A stay without requests is the first to be preempted."""
        self._last_request = self._clock()

    @property
    def idle(self) -> float:
        """Seconds since its last request; 0 while it has work."""
        return self._clock() - self._last_request if not self._has_work() else 0.0

    @property
    def age(self) -> float:
        return self._clock() - self._since

    @asynccontextmanager
    async def wait_for_work(self, has_work: Callable[[], bool]) -> AsyncIterator[None]:
        """Let the body wait for a request, idle without other work; `Preempted` ends it."""
        # The run has worked since another change set asked for the slot: it is not idle for long
        # any more. A pause stays.
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

"""A change set's stay in a slot: its age, its idle time, and the interrupts sent to it.

What the observers of a run's log are given of each commit.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import NamedTuple, Self

from rebaser_core.commits import NO_REQUEST, CommitV1, SettledRequest
from rebaser_core.ids import WorkspaceId
from rebaser_server.errors import DvuCancelled, Preempted, Resumed
from rebaser_server.runtime.tasks import Interrupt


class CommittedEntry(NamedTuple):
    """A commit of this run, once the log holds it and the state includes it."""

    sequence: int
    entry: CommitV1
    action: str | None
    """The action on the change set as a whole that it carries out, if any."""
    request: SettledRequest | None
    """The request that it settles, if any."""

    @classmethod
    def of(cls, entry: CommitV1, sequence: int, action: str | None) -> Self:
        """Return it of a commit that the log holds as `sequence`."""
        settled = entry.settled
        is_of_request = settled is not None and settled.sequence != NO_REQUEST
        return cls(sequence, entry, action, settled if is_of_request else None)


CommitObserver = Callable[[CommittedEntry], None]
"""Called under the lock, so it notes what was committed, and acts on it later."""


class SlotLease(Interrupt):
    """A change set's stay in a slot."""

    def __init__(self, workspace: WorkspaceId) -> None:
        super().__init__(Preempted)
        self.workspace = workspace
        self.expired = False
        """Its time is over and others wait: it leaves after this request if more are queued."""
        self.paused = False
        """It leaves after the work under way, whatever is queued (P4)."""
        self.resume = Interrupt(Resumed)
        self.cancel_dvu = Interrupt(DvuCancelled)
        """Cancels the update under way."""
        self._clock = asyncio.get_running_loop().time
        self._since = self._clock()
        self._last_request = 0.0
        self._has_work: Callable[[], bool] = _always

    @property
    def is_wanted(self) -> bool:
        """Whether another change set needs the slot."""
        return (self.is_set and not self.paused) or self.expired

    def pause(self, *, paused: bool) -> None:
        """Set whether the change set is paused; a repetition is harmless."""
        self.paused = paused
        if paused:
            self.resume.clear()
            self.set()
        else:
            self.resume.set()

    def on_commit(self, committed: CommittedEntry) -> None:
        """Note when a request was handled. A stay without requests is the first to be preempted."""
        if committed.request is not None:
            self._last_request = self._clock()

    @property
    def idle(self) -> float:
        """Seconds since its last request; 0 while it has work."""
        return self._clock() - self._last_request if not self._has_work() else 0.0

    @property
    def age(self) -> float:
        """Seconds since the stay began."""
        return self._clock() - self._since

    @asynccontextmanager
    async def wait_for_work(self, has_work: Callable[[], bool]) -> AsyncIterator[None]:
        """Let the body wait for a request: `Preempted` ends it; idle if there is no other work."""
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

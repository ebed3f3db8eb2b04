"""The services that the runs of a process share, and the belongings of one run.

`FormerOwners` tells whether the owner before a run died or lost its lease: only deaths are counted
(L1, D6).
"""

from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Final

import structlog

from rebaser_core.ids import ChangeSet
from rebaser_core.jetstream import StoredMessage
from rebaser_core.streams import Streams
from rebaser_core.updates import BatchLimits
from rebaser_server.commit_log.batch_store import BatchStore
from rebaser_server.commit_log.log import CommitLog, GroupCommit
from rebaser_server.commit_log.state import Retention
from rebaser_server.commit_log.state_loader import StateCache, StateLoader
from rebaser_server.processor.application import Application
from rebaser_server.processor.outcomes import Notifier
from rebaser_server.processor.ownership import Ownership
from rebaser_server.processor.slot_lease import SlotLease
from rebaser_server.runtime.tasks import Permits, Shutdown

log: Final = structlog.get_logger()

LOST_LEASES_PER_DEATH: Final = 10
"""Number of lost leases of a change set, without a release between them, of which the last one
counts as a death: a fault that stops a process's reports for a whole lease each time is as bad as
one that kills it, but a busy machine, too, costs a lease now and then."""


class FormerOwners:
    """Owners that had not released what this process took over, and their lost leases."""

    def __init__(self, is_gone: Callable[[str], Awaitable[bool]]) -> None:
        """Begin without owners; `is_gone` returns whether the process of an instance has ended."""
        self._is_gone = is_gone
        self._lost_leases: Counter[ChangeSet] = Counter()

    async def counts_as_death(self, change_set: ChangeSet, owner: str) -> bool:
        """Whether the unreleased `owner` counts as one that died at its work.

        The owner counts if its process is gone, or if too many leases were lost in a row.
        """
        if await self._is_gone(owner.rpartition("/")[0]):
            return True
        self._lost_leases[change_set] += 1
        lost_leases = self._lost_leases[change_set]
        log.warning("owner lost its lease", former=owner, lost_leases=lost_leases)
        if lost_leases < LOST_LEASES_PER_DEATH:
            return False
        self.forget(change_set)
        return True

    def forget(self, change_set: ChangeSet) -> None:
        self._lost_leases.pop(change_set, None)


MAX_STARTUPS: Final = 64
"""Number of runs that a process starts at once: if thousands start together, as after a restart,
each call waits for all the others', until none is answered in time."""
STARTUP_SHARE: Final = 0.25
"""Share of a lease within which a change set should be loaded. If it takes longer, fewer are loaded
at once: else all would lose their leases, again and again, before any has settled a request."""


@dataclass(frozen=True, slots=True)
class ProcessorSettings:
    quiet_period: float
    """Seconds."""
    confirm_every: float
    """Seconds between two checks that this run still owns the change set."""
    attempts: int
    checkpoint_every: int
    retention: Retention
    dvu_attempts: int
    batch_limits: BatchLimits = field(default_factory=BatchLimits)


async def never_stopped() -> str | None:
    """Return None: nothing holds up the work."""
    return None


@dataclass(frozen=True, slots=True)
class Services:
    instance: str
    streams: Streams
    group_commit: GroupCommit
    batches: BatchStore
    application: Application
    notifier: Notifier
    former_owners: FormerOwners
    settings: ProcessorSettings
    states: StateCache = field(default_factory=StateCache)
    """States that this process holds, of its runs and for the next ones, and for readers."""
    failed_to_load: set[ChangeSet] = field(default_factory=set)
    """Change sets whose state could not be loaded when a run last started."""
    why_stopped: Callable[[], Awaitable[str | None]] = never_stopped
    """Function that returns why NATS would lose or refuse commits now; None if it would not."""
    startup_permits: Permits = field(default_factory=lambda: Permits(MAX_STARTUPS))
    """Permits of runs until their change sets are loaded."""

    def loader(self, change_set: ChangeSet) -> StateLoader:
        log_of = CommitLog(self.streams, change_set, self.group_commit)
        return StateLoader(change_set, log_of, self.batches, self.application, self.states)


@dataclass(frozen=True, slots=True)
class RunContext:
    """The belongings of one run: the services, a change set that it owns, and its slot."""

    services: Services
    ownership: Ownership
    shutdown: Shutdown
    slot: SlotLease
    first: StoredMessage | None = None
    """Request at the head of the queue, as it was before the run took over."""

    @property
    def change_set(self) -> ChangeSet:
        return self.ownership.loader.change_set

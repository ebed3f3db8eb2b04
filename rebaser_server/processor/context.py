"""The services that the runs of a process share, and the belongings of one run."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Final

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
from rebaser_server.processor.ownership import FormerOwners, Ownership
from rebaser_server.processor.slot_lease import SlotLease
from rebaser_server.runtime.tasks import Permits, Shutdown

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

"""What all change sets of a process are worked on with, and by which rules."""

import asyncio
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Final

from rebaser_core.batch_limits import BatchLimits
from rebaser_core.ids import ChangeSet
from rebaser_core.jetstream import JetStream
from rebaser_core.subjects import Subjects
from rebaser_server.commit_log.batch_store import Batches
from rebaser_server.commit_log.log import CommitLog
from rebaser_server.commit_log.retention import Retention
from rebaser_server.commit_log.state_loader import Archive
from rebaser_server.commit_log.table_maintenance import Upkeep
from rebaser_server.compute.plan.admission import MAX_UNIT_BYTES
from rebaser_server.compute.runs.executor import Executor
from rebaser_server.compute.units.work_unit import CallLimits
from rebaser_server.processor.notifier import Announcer
from rebaser_server.store.checkpoints import Checkpoints

TAKE_UPS: Final = 64
"""Change sets that a process takes up at once: of thousands that come together, as after a
restart, each call would wait for all the others', until none is answered in time."""


@dataclass(frozen=True, slots=True)
class Rules:
    """The settings that rule the work on one change set."""

    quiet_period: float
    """Seconds."""
    confirm_every: float
    """Seconds between two looks whether the change set is still ours."""
    attempts: int
    checkpoint_every: int
    retention: Retention
    dvu_deadline: timedelta
    dvu_attempts: int
    slots: int
    limits: BatchLimits = field(default_factory=BatchLimits)
    call_limits: CallLimits = CallLimits()  # noqa: RUF009 - it is frozen
    """Of each call of a function."""
    blob_bytes: int = MAX_UNIT_BYTES
    """Of text that one evaluator is given at a time."""


@dataclass(frozen=True, slots=True)
class Workshop:
    """What all change sets of a process are worked on with."""

    instance: str
    js: JetStream
    subjects: Subjects
    batches: Batches
    checkpoints: Checkpoints
    executor: Executor
    announcer: Announcer
    upkeep: Upkeep
    rules: Rules
    doubtful: set[ChangeSet] = field(default_factory=set)
    """What could not be restored when it was last taken up."""
    taking_up: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(TAKE_UPS))

    def archive(self, change_set: ChangeSet) -> Archive:
        log_of = CommitLog(self.js, self.subjects, change_set)
        return Archive(change_set, log_of, self.batches, self.checkpoints)

"""The times at which a change set's state is written to the store, and its log purged behind it."""

import asyncio
import time
from typing import Final, Never

import structlog

from rebaser_core.jetstream import JetStreamError
from rebaser_server.commit_log.state import SMALL_BATCH, CheckpointAttempt, Retention
from rebaser_server.errors import RetryLater
from rebaser_server.processor.ownership import CommittedEntry, Ownership
from rebaser_server.runtime.failures import StoreDamaged
from rebaser_server.runtime.tasks import Wakeup
from rebaser_server.telemetry import metrics

log: Final = structlog.get_logger()

STORE_DELAY: Final = 5.0  # seconds until a checkpoint that the run needs is tried again


class Checkpointer:
    """The checkpoints of one run, written beside its requests, one at a time (S-7).

    A store that fails is logged: the log still has everything.
    """

    def __init__(self, ownership: Ownership, every: int, retention: Retention) -> None:
        """Write a checkpoint after `every` commits while requests come."""
        self._ownership = ownership
        self._every = every
        self._retention = retention
        self.requested = Wakeup()
        """Set while a checkpoint is requested: `run` writes it, or `on_end` if that comes first."""
        self._lock = asyncio.Lock()
        self._attempted = 0
        """Number of unsaved commits that the last attempt should save, if it failed or is under
        way."""

    async def run(self) -> Never:
        """Write a checkpoint whenever the log has become long enough, until cancelled.

        Requests wait only while a snapshot of the changes since the last one is taken.
        """
        while True:
            await self.requested.wait()
            self.requested.clear()
            await self.write()

    def on_commit(self, committed: CommittedEntry) -> None:
        """Request a checkpoint if the commit asks for one, or if one is due.

        One is due if enough commits, or enough changes, came after the last one. So the time to
        replay the log at a load is bounded.
        """
        ownership = self._ownership
        if (
            committed.action == "checkpoint"
            or ownership.state.unsaved.commits - self._attempted >= self._every
            or ownership.loader.machine.is_checkpoint_due(ownership.state)
        ):
            self.requested.set()

    async def on_end(self, *, is_preempted: bool) -> None:
        """Write a checkpoint if enough was settled since the last one, see `is_worth_saving`.

        A run that makes room for another leaves that to a later run, unless one is
        due (W10d).
        """
        async with self._lock:
            # Under the lock: a checkpoint that was under way may have saved everything by now.
            state, machine = self._ownership.state, self._ownership.loader.machine
            if self.requested.is_set() if is_preempted else machine.is_worth_saving(state):
                await self._write()

    async def write(self) -> None:
        """Write a checkpoint, then purge the part of the log that retention does not keep."""
        async with self._lock:
            await self._write()

    async def require(self) -> None:
        """Write a checkpoint of a state that the log lacks; raise `RetryLater` if that fails."""
        await self.write()
        if self._ownership.state.checkpoint_commit != self._ownership.state.commit:
            raise RetryLater("the store did not take a branch's first checkpoint", STORE_DELAY)

    async def _write(self) -> None:
        ownership, state = self._ownership, self._ownership.state
        machine, change_set = ownership.loader.machine, ownership.loader.change_set
        async with ownership.lock:
            if state.commit == state.checkpoint_commit:
                return  # already written; counted twice it would be the one before itself
            # W15: under the lock, since the run may be fenced off while this waits for it. The
            # checkpoint would hold what the log lacks.
            if ownership.spoiled:
                return
            attempt = await asyncio.to_thread(state.begin_checkpoint, machine, time.time())
            self._attempted = attempt.covered.commits
        try:
            with metrics.CHECKPOINT_SECONDS.time():
                await asyncio.to_thread(machine.save, change_set, attempt.snapshot)
        except asyncio.CancelledError:  # the changes in `attempt` would be in no later one
            ownership.spoil()
            raise
        except OSError as error:
            metrics.CHECKPOINTS.labels("failed").inc()
            log.warning("checkpoint failed", change_set=str(change_set), error=str(error))
            await self._abandon(attempt)
            if isinstance(error, StoreDamaged):
                state.forget_checkpoints()
            return
        metrics.CHECKPOINTS.labels("written").inc()
        metrics.CHECKPOINT_ROWS.inc(len(attempt.snapshot))
        state.finish_checkpoint(attempt)
        self._attempted = 0
        # S-7: the checkpoint counts by now. Purged before it, the log could lack commits that no
        # checkpoint has.
        try:
            await self._purge_log()
        except (OSError, JetStreamError) as error:
            log.warning("log purge failed", change_set=str(change_set), error=str(error))

    async def _abandon(self, attempt: CheckpointAttempt) -> None:
        """Leave the changes to the next checkpoint, which is due `every` commits later."""
        ownership, state = self._ownership, self._ownership.state
        async with ownership.lock:
            if len(attempt.snapshot) < SMALL_BATCH:
                state.abandon_checkpoint(ownership.loader.machine, attempt)
            else:
                machine = ownership.loader.machine
                await asyncio.to_thread(state.abandon_checkpoint, machine, attempt)

    async def _purge_log(self) -> None:
        """Purge the log up to the past to keep, and delete the purged commits' batches."""
        loader, external = self._ownership.loader, self._ownership.state.external_batches
        purge_point = self._ownership.state.cut_past(self._retention, time.time())
        if purge_point:
            # Commits before their batches: a commit whose batch is gone cannot be replayed, but a
            # batch without a commit is only garbage.
            await loader.log.purge(purge_point)
            # Over a copy: commits add to the list while a batch is deleted.
            for commit, address in list(external):
                if commit <= purge_point:
                    await loader.batches.delete_with_results(address)
                    external.remove((commit, address))
        await loader.machine.on_purge(loader.change_set, purge_point)

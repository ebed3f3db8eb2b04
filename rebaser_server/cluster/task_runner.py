"""Run tasks: lease each, process its change set, settle it, and recheck for work afterwards."""

from collections.abc import Coroutine
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

import structlog
from structlog.contextvars import bound_contextvars

from rebaser_client.errors import ClientError
from rebaser_core.errors import UnknownSubject
from rebaser_core.ids import ChangeSet
from rebaser_core.jetstream import Delivery, JetStreamError
from rebaser_server.cluster.nats_writes import WriteWatch
from rebaser_server.cluster.pauses import PauseMonitor
from rebaser_server.cluster.slots.slot_pool import SlotPool
from rebaser_server.cluster.task_lease import LeaseTerms, ack_and_delete, lease
from rebaser_server.errors import (
    AppendRefused,
    Fenced,
    HistoryInconsistent,
    Interrupted,
    LeaseLost,
    RetryLater,
    WorkStopped,
)
from rebaser_server.processor.context import Services
from rebaser_server.processor.run import process, recheck_after_ack
from rebaser_server.processor.slot_lease import SlotLease
from rebaser_server.runtime.containment import contained, is_transient, printable
from rebaser_server.runtime.failures import is_panic
from rebaser_server.runtime.tasks import Shutdown
from rebaser_server.telemetry import metrics

log: Final = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class TaskRunner:
    """Runs tasks, one in each slot."""

    services: Services
    lease_terms: LeaseTerms
    shutdown: Shutdown
    slots: SlotPool
    pauses: PauseMonitor
    writes: WriteWatch

    def dispatch(self, task: Delivery) -> Coroutine[Any, Any, None]:
        """Return the coroutine that handles `task`, settles it and never raises; takes its slot."""
        try:
            change_set = self.services.subjects.parse_change_set(task.subject)
        except UnknownSubject as error:
            return self._terminate(task, error)
        if self.pauses.is_paused(change_set):
            return self._drop_paused(task, change_set)
        slot = self.slots.acquire(change_set)
        return (
            self._run_vacated(task, change_set)
            if slot is None
            else self._run(task, change_set, slot)
        )

    async def _terminate(self, task: Delivery, error: UnknownSubject) -> None:
        log.error("stray task", subject=printable(task.subject), error=printable(error))
        with contained("task", subject=task.subject):  # else it is redelivered
            await task.term(printable(error))

    async def _run_vacated(self, task: Delivery, change_set: ChangeSet) -> None:
        """Wait until an idle change set of the workspace has left, or give the task back."""
        slot = await self.slots.acquire_vacated(change_set)
        if slot is not None:
            await self._run(task, change_set, slot)
            return
        with contained("task", subject=task.subject):  # else it is redelivered later
            await task.nak(self.slots.deferrals.defer(change_set))

    async def _drop_paused(self, task: Delivery, change_set: ChangeSet) -> None:
        """Remove the task of a paused change set, and touch nothing else (P2)."""
        with contained("task", subject=task.subject):
            await ack_and_delete(self.services.js, task)
            await self._recheck(change_set)

    async def _recheck(self, change_set: ChangeSet) -> None:
        """Recheck for work (W12), unless paused: a resume makes tasks, but may find one (P2)."""
        if self.pauses.is_paused(change_set):
            with suppress(JetStreamError):  # then recheck: a needless task costs an empty run
                if await self.pauses.is_still_paused(change_set):
                    return
        await recheck_after_ack(self.services, change_set)

    async def _run(self, task: Delivery, change_set: ChangeSet, slot: SlotLease) -> None:
        """Process the change set, then release the slot."""
        try:
            with bound_contextvars(
                workspace=str(change_set.workspace_id),
                change_set=str(change_set.change_set_id),
                task=task.stream_sequence,
                delivery=task.consumer_sequence,
            ):
                await self._process(task, change_set, slot)
        finally:
            self.slots.release(slot)  # this process keeps nothing of the task (W13)

    async def _process(self, task: Delivery, change_set: ChangeSet, slot: SlotLease) -> None:
        """Process the change set. Each error ends here: it is logged, `lease` settles the task."""
        log.info("taken", delivered=task.delivered)
        metrics.TASKS.labels("first" if task.delivered == 1 else "again").inc()
        end, stats = "failed", self.services.notifier.stats
        try:
            with stats.hold(change_set), self.pauses.registered(change_set, slot):
                async with lease(self.services.js, task, self.lease_terms):
                    self.writes.stop.check()
                    quiet = await process(self.services, change_set, self.shutdown, slot)
            await self._recheck(change_set)
            end = "quiet" if quiet else "paused" if slot.paused else "turn over"
            log.info(end)
        except (Interrupted, WorkStopped):
            end = "interrupted"
            log.info(end)
        except (LeaseLost, Fenced) as error:
            end = "lost"
            if isinstance(error, LeaseLost):
                metrics.LEASE_LOSSES.inc()
            else:
                metrics.COMMIT_CONFLICTS.inc()
            log.warning("ownership lost", reason=str(error))
        except RetryLater as error:
            end = "retried"
            metrics.RETRIES.inc()
            stats.failure(change_set, "retry scheduled", str(error))
            self.writes.note_failure(error)
            log.warning("retry scheduled", reason=str(error), delay=error.delay)
        except HistoryInconsistent as error:
            stats.failure(change_set, "history broken", str(error))
            log.error("history broken", reason=str(error), remedy="see `rebaser doctor`")
        except BaseException as error:
            if not isinstance(error, Exception) and not is_panic(error):
                raise
            await self._report(change_set, error)
        finally:
            metrics.TASK_ENDS.labels(end).inc()

    async def _report(self, change_set: ChangeSet, error: BaseException) -> None:
        """Log a failure and show it on the pages."""
        stats, what = self.services.notifier.stats, f"{type(error).__name__}: {error}"
        if isinstance(error, AppendRefused) and await self.writes.why_stopped():
            stats.failure(change_set, "work stopped", str(error))
            log.warning("run stopped", error=what)
        elif isinstance(error, OSError | JetStreamError | ClientError) and is_transient(error):
            failed = "store failed" if isinstance(error, OSError) else "NATS failed"
            stats.failure(change_set, failed, str(error))
            self.writes.note_failure(error)
            log.warning(failed, error=what)
        else:
            stats.failure(change_set, "work failed", what)
            log.error("work failed", exc_info=error)

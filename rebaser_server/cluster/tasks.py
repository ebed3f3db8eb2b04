"""Run tasks: lease each, process its change set, settle it, and recheck for work afterwards.

A task is leased while its run lasts, and then settled once, if it is still ours.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final, Never

import structlog
from structlog.contextvars import bound_contextvars

from rebaser_core.errors import ClientError, UnknownSubject
from rebaser_core.ids import ChangeSet
from rebaser_core.jetstream import (
    Delivery,
    Drift,
    JetStream,
    JetStreamError,
    PendingReply,
    deadlines,
)
from rebaser_core.requests import retry
from rebaser_server.cluster.nats_writes import WriteWatch
from rebaser_server.cluster.pauses import PauseMonitor
from rebaser_server.cluster.slots import SlotPool
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
from rebaser_server.runtime.containment import backoff, contained, printable
from rebaser_server.runtime.failures import is_panic
from rebaser_server.runtime.tasks import BackgroundTasks, Shutdown
from rebaser_server.runtime.transient_errors import is_transient
from rebaser_server.telemetry import metrics

log: Final = structlog.get_logger()

SETTLE_TIMEOUT: Final = 5.0  # seconds to settle a task, also during a cancellation
REPORTS: Final = 5
"""Minimum number of reports of progress in a lease, so that one or two may be lost."""
_FIRST_REPORT_AFTER: Final = 1.0  # seconds, at most
_NANOSECONDS: Final = 1e9
_INCONSISTENT_DELAY: Final = 30.0  # seconds until a run checks whether an operator repaired it


@dataclass(frozen=True, slots=True)
class LeaseSettings:
    """Seconds without a report before the server redelivers a task; seconds between reports."""

    ack_wait: float
    renew_every: float


class LeaseTerms:
    """The lease in force: the shorter one of our setting and the consumer's.

    The consumer's `ack_wait` alone decides when a task is redelivered. If our setting were longer,
    the server would give a task away under its holder, and the holder would count as dead (L1).
    """

    def __init__(self, configured: LeaseSettings) -> None:
        self._configured = configured
        self.settings = configured

    def heed(self, differences: Iterable[Drift]) -> None:
        """Use the consumer's `ack_wait`, if it differs from our configuration and is shorter."""
        configured = self._configured
        of_consumer = [
            drift.actual / _NANOSECONDS for drift in differences if drift.field == "ack_wait"
        ]
        ack_wait = min([configured.ack_wait, *of_consumer])
        renew_every = min(configured.renew_every, ack_wait / REPORTS)
        self.settings = LeaseSettings(ack_wait, renew_every)


@contextlib.asynccontextmanager
async def lease(js: JetStream, task: Delivery, terms: LeaseTerms) -> AsyncIterator[None]:
    """Lease `task` while the body runs; settle it by how the body ends.

    ==========================  ==========================================================
    the body                    the task message
    ==========================  ==========================================================
    returns                     acked, then removed by its sequence: in a cluster a task
                                lingers after its ack and refuses its successor (W11)
    raises `Interrupted`        nak'd: redelivered at once, elsewhere
    raises anything else, or    nak'd with a delay, `RetryLater`'s own, or one that doubles
    is cancelled                with each delivery
    outlives the lease, or      left alone in any case: it may be another's by
    raises `LeaseLost` or       now (W15). The body is cancelled and `LeaseLost` raised.
    `Fenced`
    ==========================  ==========================================================

    """
    task_lease = TaskLease(task, terms)
    try:
        async with BackgroundTasks() as tasks:
            tasks.start_after(task_lease.first_report_after, task_lease.renew)
            yield
    except (LeaseLost, Fenced):
        raise
    except BaseException as error:
        if task_lease.is_held:
            is_stopping = isinstance(error, Interrupted | asyncio.CancelledError)
            await _nak(
                task,
                _delay(error, task.delivered),
                # A retry ends with the lease: a later nak would take the task from its next holder.
                # A stop has a deadline of its own.
                SETTLE_TIMEOUT if is_stopping else task_lease.remaining,
            )
        raise
    # W15: the body may return before `renew` has noticed the end of the lease, as in a process that
    # was frozen.
    if not task_lease.is_held:
        raise LeaseLost(task.subject)
    await ack_and_delete(js, task)


class TaskLease:
    """Clock of a task that is surely ours for one `ack_wait` after each confirmed report.

    JetStream cannot tell a late ack or nak from a timely one: a late one settles the
    message while another process works on it. So the clock is kept here.
    """

    def __init__(self, task: Delivery, terms: LeaseTerms) -> None:
        self._task = task
        self._terms = terms
        self._clock: Callable[[], float] = asyncio.get_running_loop().time
        self._ends = self._clock() + terms.settings.ack_wait

    @property
    def remaining(self) -> float:
        """Seconds for which the task is surely ours."""
        return self._ends - self._clock()

    @property
    def is_held(self) -> bool:
        return self.remaining > 0

    @property
    def first_report_after(self) -> float:
        """Seconds until the first report; most runs that make room for another are over by then."""
        return min(_FIRST_REPORT_AFTER, self._terms.settings.renew_every / 2)

    async def renew(self) -> Never:
        """Report progress until cancelled, each report confirmed by the server (W1).

        Raises:
            LeaseLost: no report was confirmed for the whole of `ack_wait`.
        """
        try:
            async with deadlines.until(self._ends) as deadline:
                while True:
                    settings = self._terms.settings
                    with contextlib.suppress(JetStreamError):
                        sent = self._clock()
                        await self._task.in_progress(confirm=True, timeout=settings.renew_every)
                        # The server counts from the arrival of the report. This clock starts, and
                        # ends, earlier.
                        self._ends = sent + settings.ack_wait
                        metrics.LEASE_RENEWALS.inc()
                        deadline.reschedule(self._ends)
                    await asyncio.sleep(settings.renew_every)
        except TimeoutError:
            raise LeaseLost(self._task.subject) from None


def _delay(error: BaseException, delivered: int) -> float | None:
    if isinstance(error, RetryLater) and error.delay is not None:
        return error.delay
    if isinstance(error, HistoryInconsistent):
        return _INCONSISTENT_DELAY
    return None if isinstance(error, Interrupted) else backoff(delivered)


async def _nak(task: Delivery, delay: float | None, within: float) -> None:
    """Nak the task (W14). If that fails, the server redelivers it after `ack_wait`."""
    try:
        async with deadlines.within(within):
            await retry(lambda: task.nak(delay, confirm=True), within)
    except (JetStreamError, TimeoutError) as error:
        log.warning("task nak failed", task=task.subject, error=str(error))


async def ack_and_delete(js: JetStream, task: Delivery) -> None:
    """Ack and delete the task (W11). The answers prove nothing, so the caller rechecks.

    The two are sent together: each names the task by its own sequence, so their order at the
    server decides nothing.
    """
    acked: PendingReply[None] | None = None
    try:
        async with deadlines.within(SETTLE_TIMEOUT):
            acked = await task.ack_async()
            await js.delete_message(task.stream, task.stream_sequence)
            await acked.result(SETTLE_TIMEOUT)
    except (JetStreamError, TimeoutError) as error:
        log.warning("task ack failed", task=task.subject, error=str(error))
    finally:
        if acked is not None:
            acked.cancel()


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
        """Take a slot; return the coroutine that handles `task`, settles it and never raises."""
        try:
            change_set = self.services.streams.parse_change_set(task.subject)
        except UnknownSubject as error:
            return self._terminate(task, error)
        if self.pauses.is_paused(change_set):
            return self._drop_paused(task, change_set)
        # W1: the slot is taken before the coroutine starts, since the next pull asks for as many
        # tasks as there are free slots.
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
            await task.nak(self.slots.deferrals.defer(change_set, task.delivered))

    async def _drop_paused(self, task: Delivery, change_set: ChangeSet) -> None:
        """Remove the task of a paused change set, and touch nothing else (P2)."""
        with contained("task", subject=task.subject):
            await ack_and_delete(self.services.streams.js, task)
            await self._recheck(change_set)

    async def _recheck(self, change_set: ChangeSet) -> None:
        """Recheck for work (W12), unless paused: a resume makes tasks, but may find one (P2)."""
        if self.pauses.is_paused(change_set):
            with suppress(JetStreamError):  # then recheck: a needless task costs an empty run
                if await self.pauses.is_still_paused(change_set):
                    return
        await recheck_after_ack(self.services, change_set)

    async def _run(self, task: Delivery, change_set: ChangeSet, slot: SlotLease) -> None:
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
                async with lease(self.services.streams.js, task, self.lease_terms):
                    # X3: work may have been stopped since the pull. Raised within the lease, the
                    # error gives the task back.
                    self.writes.stop.check()
                    quiet = await process(self.services, change_set, self.shutdown, slot)
            # W12: the task is gone by now. While the task is there, a client's poke makes none, and
            # the client's request is found only by this look.
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

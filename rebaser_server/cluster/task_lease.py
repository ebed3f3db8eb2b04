"""The lease on a task: held while its run lasts, then the task is settled once, if still ours."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Iterable
from dataclasses import dataclass
from typing import Final, Never

import structlog

from rebaser_client.requests import retry
from rebaser_core.jetstream import (
    Delivery,
    Drift,
    JetStream,
    JetStreamError,
    PendingReply,
    deadlines,
)
from rebaser_server.errors import Fenced, HistoryInconsistent, Interrupted, LeaseLost, RetryLater
from rebaser_server.runtime.containment import backoff
from rebaser_server.runtime.tasks import BackgroundTasks
from rebaser_server.telemetry import metrics

log: Final = structlog.get_logger()

SETTLE_TIMEOUT: Final = 5.0  # seconds to settle a task, also during a cancellation
_REPORTS: Final = 4
"""Reports of progress that fit into a lease, at least, so that one or two may be lost."""
_FIRST_REPORT_AFTER: Final = 1.0  # seconds, at most
_NANOSECONDS: Final = 1e9
INCONSISTENT_DELAY: Final = 30.0  # seconds until a run checks whether an operator repaired it


@dataclass(frozen=True, slots=True)
class LeaseSettings:
    """Seconds without a report before the server redelivers a task; seconds between reports."""

    ack_wait: float
    renew_every: float


class LeaseTerms:
    """The lease in force: the shorter one of ours and the consumer's.

    The consumer's `ack_wait` alone decides when a task is redelivered. Were ours longer, the
    server would give a task away under its holder, and the holder would count as dead (L1).
    """

    def __init__(self, configured: LeaseSettings) -> None:
        self._configured = configured
        self.settings = configured

    def heed(self, differences: Iterable[Drift]) -> None:
        """Take over what the consumer has, from how it differs from our configuration."""
        configured = self._configured
        of_consumer = [
            drift.actual / _NANOSECONDS for drift in differences if drift.field == "ack_wait"
        ]
        ack_wait = min([configured.ack_wait, *of_consumer])
        renew_every = min(configured.renew_every, ack_wait / _REPORTS)
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
    outlives the lease, or      left alone, whatever else happened: it may be another's by
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
                SETTLE_TIMEOUT if is_stopping else task_lease.remaining,
            )
        raise
    if not task_lease.is_held:
        raise LeaseLost(task.subject)
    await ack_and_delete(js, task)


class TaskLease:
    """How long a task is surely ours: one `ack_wait` from the last confirmed report.

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
        """Seconds."""
        return self._ends - self._clock()

    @property
    def is_held(self) -> bool:
        return self.remaining > 0

    @property
    def first_report_after(self) -> float:
        """Seconds; most runs that make room for another are over by then."""
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
        return INCONSISTENT_DELAY
    return None if isinstance(error, Interrupted) else backoff(delivered)


async def _nak(task: Delivery, delay: float | None, within: float) -> None:
    """Nak the task (W14). If that fails, the server redelivers it after `ack_wait`."""
    try:
        async with deadlines.within(within):
            await retry(lambda: task.nak(delay, confirm=True), within)
    except (JetStreamError, TimeoutError) as error:
        log.warning("task nak failed", task=task.subject, error=str(error))


async def ack_and_delete(js: JetStream, task: Delivery) -> None:
    """Ack and delete the task (W11). Neither call proves anything, so the caller rechecks.

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

"""Schedule the dependent values updates of one change set: one at a time, none forgotten.

Rules D1 to D6. The control record says whether an update is due; `notify` is only a hint.
"""

import asyncio
from contextlib import suppress
from functools import cached_property, partial
from typing import Final, Never

import structlog

from rebaser_core.activities import ActivityKind
from rebaser_core.commits import DvuClaim
from rebaser_core.jetstream import deadlines
from rebaser_server.errors import DvuCancelled
from rebaser_server.processor.application import Job, JobPlanner, JobResult
from rebaser_server.processor.context import RunContext
from rebaser_server.processor.dvu.claim import ClaimedUpdate, claim_update
from rebaser_server.processor.dvu.committer import DvuCommitter, ResultNotCommitted
from rebaser_server.processor.dvu.failures import (
    STORE_DELAY,
    ends_the_run,
    failure_reason,
    give_up_message,
    retry_delay,
)
from rebaser_server.processor.ownership.committed_entry import CommittedEntry
from rebaser_server.runtime.containment import is_transient
from rebaser_server.runtime.failures import EvaluatorAway, JobFailed
from rebaser_server.runtime.tasks import Wakeup, background

log: Final = structlog.get_logger()

DEATHS_PER_ATTEMPT: Final = 2
"""Times `attempts` that failures, deaths of owners among them, may be in a row before an update is
given up untried: a process is more often killed for other reasons than for an update's."""
REPORT_EVERY: Final = 1.0  # seconds between two words of how far an update is
CANCELLED_DELAY: Final = 60.0  # seconds until an update that was cancelled is tried again


class DvuScheduler:
    """Runs the updates beside the request loop of one run, and shares its ownership."""

    def __init__(self, run: RunContext) -> None:
        """An update in hand stays due if `run.slot.cancel_dvu` is set."""
        ownership, services = run.ownership, run.services
        self._change_set = run.change_set
        self._ownership = ownership
        self._application = services.application
        self._attempts = services.settings.dvu_attempts
        self._max_failures = DEATHS_PER_ATTEMPT * self._attempts
        self._notifier = services.notifier
        self._committer = DvuCommitter(
            ownership,
            self._max_failures,
            partial(self._notifier.stats.values_failed, self._change_set),
        )
        self._cancels = run.slot.cancel_dvu
        self._may_crash = ownership.state.control.dvu_failures > 0
        """Whether an evaluator ended in the last attempt, or it is not known why that failed."""
        self._postponed = 0
        """Attempts in a row that came to nothing because the evaluator was away, or ended."""
        self.wakeup = Wakeup()
        """Set when an update may be due, which `run` sees to."""
        self._backoff_skipped = asyncio.Event()
        self._is_draining = False
        self._idle = asyncio.Event()
        """Set while no update is under way and the last one's result is committed."""
        self._idle.set()

    @cached_property
    def _planner(self) -> JobPlanner:
        return self._application.planner(self._change_set)

    def on_commit(self, committed: CommittedEntry) -> None:
        """Check soon whether an update is due; retry a failed or cancelled one if asked to."""
        if committed.action == "recompute":
            self._backoff_skipped.set()
        self.notify()

    def notify(self) -> None:
        """Check the control record soon."""
        if self._ownership.state.control.dvu_due:  # else its task would wake up for each request
            self.wakeup.set()

    async def count_death(self) -> None:
        """Count a failure if the previous owner died during an update: it may be the cause."""
        async with self._ownership.lock:
            head = self._ownership.state.control
            if head.claim is not None and head.dvu_due:
                await self._ownership.write(dvu_failures=head.dvu_failures + 1)
                log.warning("owner died during an update", failures=head.dvu_failures + 1)

    async def drain(self) -> None:
        """Begin no more updates; return once the result of the current one is committed (P4)."""
        self._is_draining = True
        await self._idle.wait()

    def resume(self) -> None:
        """Take `drain` back."""
        self._is_draining = False
        self.notify()

    async def run(self) -> Never:
        """Run each update that is due, until cancelled; a cancellation stops the current one."""
        while True:
            await self.wakeup.wait()
            self.wakeup.clear()
            while self._ownership.state.control.dvu_due and not self._is_draining:
                self._idle.clear()
                try:
                    await self._update()
                finally:
                    self._idle.set()

    async def _update(self) -> None:
        """One update: claim (D2), plan, evaluate, commit the result (D4), before the next (D3).

        Raises:
            RunEnded, JetStreamError: the whole run ends. Any other error is a failure of the
                update (D6).
        """
        update = await claim_update(self._ownership, self._planner, self._max_failures)
        if update is None:
            return
        claim = update.claim
        with self._ownership.pending_dvu.span(
            self._change_set, claim.id, update.affected
        ) as pending:
            try:
                await self._execute(update)
            except Exception as error:
                if isinstance(error, ResultNotCommitted):
                    details = {"reason": str(error), "failures": error.failures}
                    await self._publish(ActivityKind.DVU_FAILED, claim, **details)
                if ends_the_run(error):
                    raise
                await self._on_failure(update, error)
            if self._ownership.state.control.clean_sequence >= claim.covers:
                pending.covered()

    async def _execute(self, update: ClaimedUpdate) -> None:
        claim, job, affected = update.claim, update.job, update.affected
        if job is None:
            raise update.error or JobFailed("the update was not planned")
        await self._publish(ActivityKind.DVU_STARTED, claim, affected=affected)
        started = asyncio.get_running_loop().time()
        self._cancels.clear()
        try:
            async with self._cancels.interrupts():
                result = await self._run(job, claim)
        except DvuCancelled:
            log.warning("dvu cancelled", affected=affected)
            await self._publish(ActivityKind.DVU_CANCELLED, claim, affected=affected)
            await self._backoff(CANCELLED_DELAY)
            return
        if not await self._committer.commit(claim, update.base, result):
            await self._publish(ActivityKind.DVU_CANCELLED, claim, affected=affected)
            return
        self._may_crash, self._postponed = False, 0
        await self._publish(
            ActivityKind.DVU_FINISHED,
            claim,
            affected=affected,
            recomputed=result.recomputed,
            changed=len(result),
            seconds=round(asyncio.get_running_loop().time() - started, 3),
        )

    async def _run(self, job: Job, claim: DvuClaim) -> JobResult:
        """Run the job, and tell watchers how far it is."""
        progress: list[tuple[int, int]] = []
        async with background(self._report(progress, claim)):
            return await job.run(
                is_suspect=self._may_crash,
                on_progress=lambda done, in_all: progress.append((done, in_all)),
            )

    async def _report(self, progress: list[tuple[int, int]], claim: DvuClaim) -> Never:
        while True:
            await asyncio.sleep(REPORT_EVERY)
            if progress:
                done, in_all = progress[-1]
                progress.clear()
                await self._publish(ActivityKind.DVU_PROGRESS, claim, done=done, of=in_all)

    async def _on_failure(self, update: ClaimedUpdate, error: Exception) -> None:
        """Count the failure and wait; after too many failures give the update up (D6).

        What is no fault of the values is waited for, and counts nothing.
        """
        reason = failure_reason(error)
        if isinstance(error, EvaluatorAway):
            await self._postpone(update.claim, error, reason)
            return
        if is_transient(error):  # the store is away or full
            log.warning("dvu postponed", reason=reason)
            await self._backoff(STORE_DELAY)
            return
        failures = self._ownership.state.control.dvu_failures + 1
        is_known = isinstance(error, JobFailed)
        log.error(
            "dvu failed", reason=reason, failures=failures, exc_info=None if is_known else error
        )
        await self._publish(ActivityKind.DVU_FAILED, update.claim, reason=reason, failures=failures)
        self._may_crash = isinstance(error, JobFailed) and error.crashed
        if failures >= self._attempts and await self._give_up(update, reason):
            return
        async with self._ownership.lock:
            await self._ownership.write(dvu_failures=failures)
        await self._backoff(retry_delay(failures))

    async def _postpone(self, claim: DvuClaim, error: EvaluatorAway, reason: str) -> None:
        """Wait, longer each time, for what computes; the update fails no value for that (D6)."""
        self._postponed += 1
        self._may_crash = self._may_crash or error.crashed
        failures = self._ownership.state.control.dvu_failures
        log.error("dvu postponed", reason=reason, attempts=self._postponed)
        await self._publish(ActivityKind.DVU_FAILED, claim, reason=reason, failures=failures)
        await self._backoff(retry_delay(self._postponed))

    async def _give_up(self, update: ClaimedUpdate, reason: str) -> bool:
        """Fail the values that were not computed; if not even that works, the update stays due."""
        message = give_up_message(reason, self._ownership.state.control.dvu_failures + 1)
        try:
            if update.job is not None:
                result = await update.job.give_up(message)
            else:
                async with self._ownership.lock:
                    content = self._ownership.state.content
                    result = await asyncio.to_thread(
                        self._planner.fail_all, content, update.after, message
                    )
            await self._committer.commit(update.claim, update.base, result)
        except Exception as error:
            if ends_the_run(error):
                raise
            log.exception("dvu give-up failed")
            return False
        return True

    async def _backoff(self, delay: float) -> None:
        """Return after `delay` seconds, or once a recomputation was requested."""
        self._idle.set()
        self._backoff_skipped.clear()
        with suppress(TimeoutError):
            async with deadlines.within(delay):
                await self._backoff_skipped.wait()

    async def _publish(self, kind: ActivityKind, claim: DvuClaim, **details: object) -> None:
        await self._notifier.activity(self._change_set, kind, claim.id, **details)

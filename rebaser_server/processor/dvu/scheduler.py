"""Schedule the dependent values updates of one change set: one at a time, none forgotten.

Rules D1 to D6. The control record says whether an update is due; `notify` is only a hint.
"""

import asyncio
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Final, Never

import structlog

from rebaser_core.activities import ActivityKind
from rebaser_core.commits import DvuClaim
from rebaser_core.ids import ChangeSet, RequestId
from rebaser_core.jetstream import deadlines
from rebaser_server.compute.errors import DvuError, RunFailed
from rebaser_server.compute.plan.plan import Plan
from rebaser_server.compute.plan.update_planner import UpdatePlanner
from rebaser_server.compute.runs.executor import Executor
from rebaser_server.compute.units.run_store import RunStore
from rebaser_server.errors import DvuCancelled
from rebaser_server.processor.dvu.committer import DvuCommitter, ResultNotCommitted
from rebaser_server.processor.dvu.evaluation import DvuEvaluation
from rebaser_server.processor.dvu.failures import (
    STORE_DELAY,
    ends_the_run,
    failure_reason,
    give_up_message,
    retry_delay,
)
from rebaser_server.processor.dvu.results import collect, fail_affected, fail_uncomputed
from rebaser_server.processor.notifier import Notifier
from rebaser_server.processor.ownership import Ownership
from rebaser_server.runtime.concurrency import Interrupt
from rebaser_server.runtime.transient_errors import is_transient

log: Final = structlog.get_logger()

DEATHS_PER_ATTEMPT: Final = 2
"""An update is given up, untried, after this many times `attempts` failures in a row, with owners'
deaths: a process is killed for other reasons more often than for an update's."""
CANCELLED_DELAY: Final = 60.0  # seconds until an update that was cancelled is tried again


@dataclass(frozen=True, slots=True)
class _ClaimedUpdate:
    claim: DvuClaim
    base: int
    """The commit that claims it."""
    shelf: RunStore
    planned: Plan
    error: Exception | None = None
    """Why it could not be planned."""


class DvuScheduler:
    """Runs the updates beside the request loop of one run, and shares its ownership."""

    def __init__(
        self,
        change_set: ChangeSet,
        ownership: Ownership,
        executor: Executor,
        notifier: Notifier,
        *,
        planner: UpdatePlanner,
        deadline: timedelta,
        attempts: int,
        cancels: Interrupt,
    ) -> None:
        """`cancels` raises `DvuCancelled` while an update is evaluated; the update stays due.

        `deadline`: how long an update may go on without another computed value.
        """
        self._change_set = change_set
        self._ownership = ownership
        self._committer = DvuCommitter(ownership, DEATHS_PER_ATTEMPT * attempts)
        self._evaluation = DvuEvaluation(change_set, executor, notifier, deadline.total_seconds())
        self._notifier = notifier
        self._planner = planner
        self._attempts = attempts
        self._may_crash = ownership.state.control.dvu_failures > 0
        """Whether an evaluator crashed in the last attempt, or that failed for unknown reasons."""
        self._cancels = cancels
        self._wakeup = asyncio.Event()
        self._backoff_skipped = asyncio.Event()
        self._is_draining = False
        self._idle = asyncio.Event()
        """Set while no update is under way and the last one's result is committed."""
        self._idle.set()

    def notify(self) -> None:
        """Check the control record soon: something was committed."""
        if self._ownership.state.control.dvu_due:  # else its task would wake up for each request
            self._wakeup.set()

    async def count_death(self) -> None:
        """Count a failure if the previous owner died during an update: it may be the cause."""
        async with self._ownership.lock:
            head = self._ownership.state.control
            if head.claim is not None and head.dvu_due:
                await self._ownership.write(dvu_failures=head.dvu_failures + 1)
                log.warning("owner died during an update", failures=head.dvu_failures + 1)

    def skip_backoff(self) -> None:
        """Retry a failed or cancelled update at once."""
        self._backoff_skipped.set()

    async def drain(self) -> None:
        """Begin no more updates; return once the result of the current one is committed (P4)."""
        self._is_draining = True
        await self._idle.wait()

    def resume(self) -> None:
        """Begin updates again after `drain`."""
        self._is_draining = False
        self.notify()

    async def run(self) -> Never:
        """Run each update that is due, until cancelled; a cancellation stops the current one."""
        while True:
            await self._wakeup.wait()
            self._wakeup.clear()
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
        update = await self._claim()
        if update is None:
            return
        claim, affected = update.claim, update.planned.affected
        with self._ownership.pending_dvu.span(self._change_set, claim.id, affected) as pending:
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

    async def _execute(self, update: _ClaimedUpdate) -> None:
        if update.error is not None:
            raise update.error
        claim, planned, shelf = update.claim, update.planned, update.shelf
        self._notifier.stats.set_sketch(self._change_set, planned.preview)
        await self._publish(ActivityKind.DVU_STARTED, claim, affected=planned.affected)
        started = asyncio.get_running_loop().time()
        self._cancels.clear()
        try:
            async with self._cancels.interrupts():
                is_suspect = self._may_crash and self._ownership.state.control.dvu_failures > 0
                outcomes = await self._evaluation.evaluate(
                    planned, claim, shelf, is_suspect=is_suspect
                )
        except DvuCancelled:
            log.warning("dvu cancelled", affected=planned.affected)
            await self._publish(ActivityKind.DVU_CANCELLED, claim, affected=planned.affected)
            await self._backoff(CANCELLED_DELAY)
            return
        result = await asyncio.to_thread(collect, outcomes, shelf)
        self._planner.costs.learn(result.costs)
        if not await self._committer.commit(claim, update.base, result, shelf):
            await self._publish(ActivityKind.DVU_CANCELLED, claim, affected=planned.affected)
            return
        await self._publish(
            ActivityKind.DVU_FINISHED,
            claim,
            affected=planned.affected,
            recomputed=result.recomputed,
            changed=len(result),
            seconds=round(asyncio.get_running_loop().time() - started, 3),
        )

    async def _claim(self) -> _ClaimedUpdate | None:
        """Claim all roots, and plan from the very state that was claimed (D2).

        It overwrites a claim of an earlier run, whose result cannot be committed then. Results
        that the earlier run stored are in the run store, which all attempts share.
        """
        async with self._ownership.lock:
            head = self._ownership.state.control
            if not head.dvu_due:  # it is committed, or the change set is closed
                return None
            workspace, change_set = self._change_set
            shelf = self._ownership.loader.batches.run_store(
                f"{workspace}.{change_set}.{head.clean_sequence}"
            )
            is_repeated = head.claim is not None or head.dvu_failures > 0
            claim = DvuClaim(id=RequestId(), covers=head.dirty_sequence)
            base = await self._ownership.write(claim=claim)
            try:
                if head.dvu_failures >= DEATHS_PER_ATTEMPT * self._attempts:
                    raise DvuError(
                        "the processes ended that computed it, or its results cannot be stored"
                    )
                planned = await asyncio.to_thread(
                    self._planner.plan,
                    self._ownership.state.graph,
                    head.clean_sequence,
                    shelf,
                    is_repeated=is_repeated,
                )
            except Exception as error:  # noqa: BLE001 - memory, sizes, storage: a failed update
                return _ClaimedUpdate(claim, base, shelf, Plan(0, []), error)
        return _ClaimedUpdate(claim, base, shelf, planned)

    async def _on_failure(self, update: _ClaimedUpdate, error: Exception) -> None:
        """Count the failure and wait; after too many failures give the update up (D6)."""
        reason = failure_reason(error)
        if is_transient(error):  # the store is away or full, which is no fault of the values
            log.warning("dvu postponed", reason=reason)
            await self._backoff(STORE_DELAY)
            return
        failures = self._ownership.state.control.dvu_failures + 1
        is_known = isinstance(error, DvuError)
        log.error(
            "dvu failed", reason=reason, failures=failures, exc_info=None if is_known else error
        )
        await self._publish(ActivityKind.DVU_FAILED, update.claim, reason=reason, failures=failures)
        self._may_crash = isinstance(error, RunFailed)
        if failures >= self._attempts and await self._give_up(update, reason):
            return
        async with self._ownership.lock:
            await self._ownership.write(dvu_failures=failures)
        await self._backoff(retry_delay(failures))

    async def _give_up(self, update: _ClaimedUpdate, reason: str) -> bool:
        """Fail the values that were not computed; if not even that works, the update stays due."""
        message = give_up_message(reason, self._ownership.state.control.dvu_failures + 1)
        shelf = update.shelf
        try:
            if update.error is None:
                result = await fail_uncomputed(
                    update.planned.units, message, shelf, self._planner.slots
                )
            else:
                async with self._ownership.lock:
                    graph = self._ownership.state.graph
                    result = await asyncio.to_thread(fail_affected, graph, message, shelf)
            await self._committer.commit(update.claim, update.base, result, shelf)
        except Exception as error:
            if ends_the_run(error):
                raise
            log.exception("dvu give-up failed")
            return False
        return True

    async def _backoff(self, delay: float) -> None:
        """Return after `delay` seconds, or at `skip_backoff`."""
        self._idle.set()
        self._backoff_skipped.clear()
        with suppress(TimeoutError):
            async with deadlines.within(delay):
                await self._backoff_skipped.wait()

    async def _publish(self, kind: ActivityKind, claim: DvuClaim, **details: object) -> None:
        await self._notifier.activity(self._change_set, kind, claim.id, **details)

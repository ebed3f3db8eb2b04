"""Dependent values updates of one change set: one at a time, asked for together, never forgotten.

Rules D1 to D6. Whether an update is due stands in the head; asking is only a hint.
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
from rebaser_server.compute.plan.cost_model import CostModel
from rebaser_server.compute.plan.plan import Plan, plan
from rebaser_server.compute.runs.executor import Executor
from rebaser_server.compute.units.run_store import RunStore
from rebaser_server.compute.units.work_unit import CallLimits
from rebaser_server.errors import Cancelled
from rebaser_server.processor.dvu.committer import Settling, Unsettled
from rebaser_server.processor.dvu.evaluation import Evaluating
from rebaser_server.processor.dvu.failures import (
    STORE_DELAY,
    delay_after,
    ends_the_run,
    message_of,
    reason_of,
)
from rebaser_server.processor.dvu.results import gathered, given_up, unplanned
from rebaser_server.processor.notifier import Announcer
from rebaser_server.processor.ownership import Ownership
from rebaser_server.runtime.concurrency import Interrupt
from rebaser_server.runtime.transient_errors import is_transient

log: Final = structlog.get_logger()

DEATHS: Final = 2
"""Times `attempts` that failures, deaths of owners among them, may be in a row before an update is
given up untried: a process is more often killed for other reasons than for an update's."""
CANCELLED_DELAY: Final = 60.0  # seconds until an update that was cancelled is tried again


@dataclass(frozen=True, slots=True)
class _Update:
    claim: DvuClaim
    base: int
    """The line that claims it."""
    shelf: RunStore
    planned: Plan
    error: Exception | None = None
    """Why it could not be planned."""


class SerialDvu:
    """Runs beside the request loop of one run and shares its ownership."""

    def __init__(
        self,
        change_set: ChangeSet,
        own: Ownership,
        executor: Executor,
        announcer: Announcer,
        *,
        slots: int,
        deadline: timedelta,
        attempts: int,
        limits: CallLimits,
        blob_bytes: int,
        cancels: Interrupt,
    ) -> None:
        """`cancels` raises `Cancelled` while an update is evaluated; it stays due.

        `deadline`: for which an update may go on without computing another value. `blob_bytes`:
        of text that one evaluator is given at a time.
        """
        self._change_set = change_set
        self._own = own
        self._settling = Settling(own, DEATHS * attempts)
        self._evaluating = Evaluating(change_set, executor, announcer, deadline.total_seconds())
        self._announcer = announcer
        self._slots = slots
        self._attempts = attempts
        self._limits = limits
        self._blob_bytes = blob_bytes
        self._may_crash = own.state.head.dvu_failures > 0
        """Whether an evaluator ended in the last attempt, or it is not known why that failed."""
        self._book = CostModel()
        self._is_first = True
        self._cancels = cancels
        self._asked = asyncio.Event()
        self._hurried = asyncio.Event()
        self._held = False
        self._settled = asyncio.Event()
        """No update is evaluated, and what the last one found is committed."""
        self._settled.set()

    def ask(self) -> None:
        """Have the head looked at: something was committed."""
        if self._own.state.head.dvu_due:  # else its task would wake up for each request
            self._asked.set()

    async def suspect(self) -> None:
        """Count a failure if the owner before died with an update in hand, maybe of that."""
        async with self._own.lock:
            head = self._own.state.head
            if head.claim is not None and head.dvu_due:
                await self._own.write(dvu_failures=head.dvu_failures + 1)
                log.warning("owner died during an update", failures=head.dvu_failures + 1)

    def hurry(self) -> None:
        """Have no update wait that failed or was cancelled before."""
        self._hurried.set()

    async def finish(self) -> None:
        """Begin no more updates; return once what the one in hand finds is committed (P4)."""
        self._held = True
        await self._settled.wait()

    def go_on(self) -> None:
        """Take `finish` back."""
        self._held = False
        self.ask()

    async def run(self) -> Never:
        """Update whenever one is due, until cancelled, which stops the job in hand."""
        while True:
            await self._asked.wait()
            self._asked.clear()
            while self._own.state.head.dvu_due and not self._held:
                self._settled.clear()
                try:
                    await self._update()
                finally:
                    self._settled.set()

    async def _update(self) -> None:
        """One update: claim (D2), plan, evaluate, commit the result (D4), before the next (D3).

        Raises:
            WorkEnded, JetStreamError: what ends the whole run. Anything else that goes wrong is
                a failure of the update (D6).
        """
        update = await self._claim()
        if update is None:
            return
        claim, affected = update.claim, update.planned.affected
        with self._own.owed.update(self._change_set, claim.id, affected) as owed:
            try:
                await self._carry_out(update)
            except Exception as error:
                if isinstance(error, Unsettled):
                    told = {"reason": str(error), "failures": error.failures}
                    await self._tell(ActivityKind.DVU_FAILED, claim, **told)
                if ends_the_run(error):
                    raise
                await self._failed(update, error)
            if self._own.state.head.clean_sequence >= claim.covers:
                owed.paid()

    async def _carry_out(self, update: _Update) -> None:
        if update.error is not None:
            raise update.error
        claim, planned, shelf = update.claim, update.planned, update.shelf
        self._announcer.board.set_sketch(self._change_set, planned.preview)
        await self._tell(ActivityKind.DVU_STARTED, claim, affected=planned.affected)
        started = asyncio.get_running_loop().time()
        self._cancels.clear()
        try:
            async with self._cancels.interrupts():
                is_suspect = self._may_crash and self._own.state.head.dvu_failures > 0
                outcomes = await self._evaluating.outcomes(
                    planned, claim, shelf, is_suspect=is_suspect
                )
        except Cancelled:
            log.warning("dvu cancelled", affected=planned.affected)
            await self._tell(ActivityKind.DVU_CANCELLED, claim, affected=planned.affected)
            await self._later(CANCELLED_DELAY)
            return
        findings = await asyncio.to_thread(gathered, outcomes, shelf)
        self._book.learn(findings.costs)
        if not await self._settling.settle(claim, update.base, findings, shelf):
            await self._tell(ActivityKind.DVU_CANCELLED, claim, affected=planned.affected)
            return
        await self._tell(
            ActivityKind.DVU_FINISHED,
            claim,
            affected=planned.affected,
            recomputed=findings.recomputed,
            changed=len(findings),
            seconds=round(asyncio.get_running_loop().time() - started, 3),
        )

    async def _claim(self) -> _Update | None:
        """Claim the roots there are, and plan from the very state that was claimed (D2).

        A claim of an earlier run is overwritten: its result cannot be committed. What that run
        left is on the shelf of all attempts since the last update that was committed.
        """
        async with self._own.lock:
            head = self._own.state.head
            if not head.dvu_due:  # what was, is settled, or the change set is closed by now
                return None
            workspace, change_set = self._change_set
            shelf = self._own.archive.batches.shelf(
                f"{workspace}.{change_set}.{head.clean_sequence}"
            )
            claim = DvuClaim(id=RequestId(), covers=head.dirty_sequence)
            base = await self._own.write(claim=claim)
            try:
                if head.dvu_failures >= DEATHS * self._attempts:
                    raise DvuError(
                        "the processes ended that computed it, or its results cannot be stored"
                    )
                planned = await asyncio.to_thread(self._plan, shelf)
            except Exception as error:  # noqa: BLE001 - memory, sizes, storage: told of as a failure
                return _Update(claim, base, shelf, Plan(0, []), error)
        return _Update(claim, base, shelf, planned)

    def _plan(self, shelf: RunStore) -> Plan:
        """As an earlier attempt at this update planned it, in whichever process that was."""
        if self._is_first:
            self._book.seconds |= shelf.costs()
            self._is_first = False
        planned = plan(
            self._own.state.graph,
            self._slots,
            costs=self._book.seconds,
            limits=self._limits,
            most_bytes=self._blob_bytes,
        )
        if len(planned.units) > 1 and self._book.seconds:
            shelf.put_costs(self._book.seconds)
        return planned

    async def _failed(self, update: _Update, error: Exception) -> None:
        """Count it and wait, or after too many give the update up (D6)."""
        reason = reason_of(error)
        if is_transient(error):  # the store is away, or full: that fails no values
            log.warning("dvu postponed", reason=reason)
            await self._later(STORE_DELAY)
            return
        failures = self._own.state.head.dvu_failures + 1
        is_known = isinstance(error, DvuError)
        log.error(
            "dvu failed", reason=reason, failures=failures, exc_info=None if is_known else error
        )
        await self._tell(ActivityKind.DVU_FAILED, update.claim, reason=reason, failures=failures)
        self._may_crash = isinstance(error, RunFailed)
        if failures >= self._attempts and await self._is_given_up(update, reason):
            return
        async with self._own.lock:
            await self._own.write(dvu_failures=failures)
        await self._later(delay_after(failures))

    async def _is_given_up(self, update: _Update, reason: str) -> bool:
        """Have what was not computed fail; if not even that can be done, the update stays due."""
        message = message_of(reason, self._own.state.head.dvu_failures + 1)
        shelf = update.shelf
        try:
            if update.error is None:
                findings = await given_up(update.planned.units, message, shelf, self._slots)
            else:
                async with self._own.lock:
                    graph = self._own.state.graph
                    findings = await asyncio.to_thread(unplanned, graph, message, shelf)
            await self._settling.settle(update.claim, update.base, findings, shelf)
        except Exception as error:
            if ends_the_run(error):
                raise
            log.exception("dvu give-up failed")
            return False
        return True

    async def _later(self, delay: float) -> None:
        """Return after so many seconds, or when somebody is in a hurry."""
        self._settled.set()
        self._hurried.clear()
        with suppress(TimeoutError):
            async with deadlines.within(delay):
                await self._hurried.wait()

    async def _tell(self, kind: ActivityKind, claim: DvuClaim, **details: object) -> None:
        await self._announcer.activity(self._change_set, kind, claim.id, **details)

"""Dependent values updates of one change set: one at a time, asked for together, never forgotten.

Rules D1 to D6. Whether an update is due stands in the head; asking is only a hint.
"""

import asyncio
import random
from contextlib import suppress
from datetime import timedelta
from typing import Final, Never

import structlog

from rebaser_core import deadlines
from rebaser_core.activities import ActivityKind
from rebaser_core.commits import Claim
from rebaser_core.ids import ChangeSet, RequestId
from rebaser_core.jetstream import JetStream
from rebaser_core.subjects import Subjects
from rebaser_server.dvu.cost import CostBook
from rebaser_server.dvu.errors import DvuError
from rebaser_server.dvu.executor import Executor
from rebaser_server.dvu.isolation import run_isolated
from rebaser_server.dvu.outcome import Outcome
from rebaser_server.dvu.plan import Plan, plan
from rebaser_server.dvu.shelf import Shelf, Stored
from rebaser_server.errors import Cancelled
from rebaser_server.lifetimes import Wish, alongside
from rebaser_server.line.announcing import Announcer
from rebaser_server.line.findings import gathered, given_up
from rebaser_server.line.ownership import Ownership
from rebaser_server.line.settling import Settling

log: Final = structlog.get_logger()

FIRST_DELAY: Final = 1.0  # seconds until a failed update is tried again, doubled up to
LONGEST_DELAY: Final = 60.0
CANCELLED_DELAY: Final = 60.0  # seconds until an update that was cancelled is tried again
GIVEN_UP: Final = "not computed"
"""How the message of a value begins that was not computed for want of something to run on."""
REPORT_EVERY: Final = 1.0  # seconds
SHORTEST_LIMIT: Final = 5.0  # seconds for one blob while the value is looked for that breaks a run


class SerialDvu:
    """Runs beside the request loop of one run and shares its ownership."""

    def __init__(
        self,
        js: JetStream,
        subjects: Subjects,
        change_set: ChangeSet,
        own: Ownership,
        executor: Executor,
        announcer: Announcer,
        *,
        slots: int,
        deadline: timedelta,
        attempts: int,
        cancels: Wish,
    ) -> None:
        """`cancels` raises `Cancelled` while an update is evaluated; it stays due."""
        self._change_set = change_set
        self._own = own
        self._settling = Settling(js, subjects, change_set, own)
        self._executor = executor
        self._announcer = announcer
        self._slots = slots
        self._deadline = deadline
        self._attempts = attempts
        self._book = CostBook()
        self._is_first = True
        self._cancels = cancels
        self._asked = asyncio.Event()
        self._hurried = asyncio.Event()
        self._held = False
        self._settled = asyncio.Event()
        """No update is evaluated, and what the last one found is in line."""
        self._settled.set()

    def ask(self) -> None:
        """Have the head looked at: something was committed."""
        if self._own.state.head.dvu_due:  # else its task would wake up for each request
            self._asked.set()
        self._settling.look()

    def hurry(self) -> None:
        """Have no update wait that failed or was cancelled before."""
        self._hurried.set()

    async def finish(self) -> None:
        """Begin no more updates; return once what the one in hand finds is in line (P4)."""
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
        """One update: claim (D2), plan, evaluate, enqueue the result, see it handled (D3)."""
        claimed = await self._claim()
        if claimed is None:
            return
        claim, planned, base, shelf = claimed
        with self._own.owed.update(self._change_set, claim.id, planned.affected) as owed:
            await self._carry_out(claim, planned, base, shelf)
            if self._own.state.head.clean_sequence >= claim.covers:
                owed.paid()

    async def _carry_out(self, claim: Claim, planned: Plan, base: int, shelf: Shelf) -> None:
        self._announcer.board.sketched(self._change_set, planned.sketch)
        await self._tell(ActivityKind.DVU_STARTED, claim, affected=planned.affected)
        started = asyncio.get_running_loop().time()
        self._cancels.clear()
        try:
            async with deadlines.within(self._deadline.total_seconds()), self._cancels.interrupts():
                outcomes = await self._evaluate(planned, claim, shelf)
        except Cancelled:
            log.warning("dvu cancelled", affected=planned.affected)
            await self._tell(ActivityKind.DVU_CANCELLED, claim, affected=planned.affected)
            await self._later(CANCELLED_DELAY)
            return
        except (DvuError, TimeoutError) as error:
            reason = str(error) or "deadline exceeded"
            if await self._failed(claim, reason):
                findings = await asyncio.to_thread(
                    given_up, planned.blobs, self._message(reason), shelf
                )
                await self._settling.settle(claim, base, findings, shelf, self._settled)
            return
        findings = await asyncio.to_thread(gathered, outcomes, shelf)
        self._book.learn(findings.costs)
        await self._settling.settle(claim, base, findings, shelf, self._settled)
        await self._tell(
            ActivityKind.DVU_FINISHED,
            claim,
            affected=planned.affected,
            recomputed=findings.recomputed,
            changed=len(findings),
            seconds=round(asyncio.get_running_loop().time() - started, 3),
        )

    async def _claim(self) -> tuple[Claim, Plan, int, Shelf] | None:
        """Claim the roots there are, and plan from the very state that was claimed (D2).

        A claim of an earlier run is overwritten: its result will be stale. What that run left
        is on the shelf of all attempts since the last update that was committed.
        """
        async with self._own.lock:
            head = self._own.state.head
            if not head.dvu_due:  # what was, is settled, or the change set is closed by now
                return None
            workspace, change_set = self._change_set
            shelf = self._own.archive.batches.shelf(
                f"{workspace}.{change_set}.{head.clean_sequence}"
            )
            claim = Claim(id=RequestId(), covers=head.dirty_sequence)
            base = await self._own.write(claim=claim)
            planned = await asyncio.to_thread(self._plan, shelf)
        return claim, planned, base, shelf

    def _plan(self, shelf: Shelf) -> Plan:
        """As an earlier attempt at this update planned it, in whichever process that was."""
        if self._is_first:
            self._book.seconds |= shelf.costs()
            self._is_first = False
        planned = plan(self._own.state.graph, self._slots, costs=self._book.seconds)
        if len(planned.blobs) > 1 and self._book.seconds:
            shelf.put_costs(self._book.seconds)
        return planned

    async def _evaluate(self, planned: Plan, claim: Claim, shelf: Shelf) -> list[Outcome | Stored]:
        if not planned.blobs:
            return []
        progress: list[tuple[int, int]] = []
        async with alongside(self._report(progress, claim)):
            if self._own.state.head.dvu_failures:  # once may be chance; now look which value it is
                limit = max(SHORTEST_LIMIT, self._deadline.total_seconds() / 20)
                return await run_isolated(self._executor, planned.blobs, limit=limit, shelf=shelf)
            return await self._executor.run(
                planned.blobs, shelf=shelf, on_progress=lambda *done: progress.append(done)
            )

    async def _report(self, progress: list[tuple[int, int]], claim: Claim) -> Never:
        while True:
            await asyncio.sleep(REPORT_EVERY)
            if progress:
                done, in_all = progress.pop()
                progress.clear()
                await self._tell(ActivityKind.DVU_PROGRESS, claim, done=done, of=in_all)

    async def _failed(self, claim: Claim, reason: str) -> bool:
        """Count it and wait; whether that was too often, and it is to be given up (D6)."""
        failures = self._own.state.head.dvu_failures + 1
        log.error("dvu failed", reason=reason, failures=failures)
        await self._tell(ActivityKind.DVU_FAILED, claim, reason=reason, failures=failures)
        if failures >= self._attempts:
            return True
        async with self._own.lock:
            await self._own.write(dvu_failures=failures)
        delay = min(FIRST_DELAY * 2.0 ** (failures - 1), LONGEST_DELAY)
        await self._later(delay * random.uniform(0.5, 1.0))  # noqa: S311 - jitter
        return False

    async def _later(self, delay: float) -> None:
        """Return after so many seconds, or when somebody is in a hurry."""
        self._settled.set()
        self._hurried.clear()
        with suppress(TimeoutError):
            async with deadlines.within(delay):
                await self._hurried.wait()

    def _message(self, reason: str) -> str:
        """Of a value that was given up."""
        failures = self._own.state.head.dvu_failures + 1
        return f"{GIVEN_UP}, {failures} updates failed: {reason}"[:1000]

    async def _tell(self, kind: ActivityKind, claim: Claim, **details: object) -> None:
        await self._announcer.activity(self._change_set, kind, claim.id, **details)

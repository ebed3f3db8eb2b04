"""Dependent values updates of one change set: one at a time, asked for together, never forgotten.

Rules D1 to D6. Whether an update is due stands in the head; asking is only a hint.
"""

import asyncio
import random
from collections.abc import Sequence
from contextlib import suppress
from datetime import timedelta
from typing import Final, Never

import structlog

from rebaser_client.publishing import publish_request, publish_task
from rebaser_core.activities import ActivityKind
from rebaser_core.commits import Claim
from rebaser_core.ids import ChangeSet, RequestId
from rebaser_core.jetstream import JetStream
from rebaser_core.messages import Computed, EnqueueUpdatesRequest, EnqueueUpdatesRequestV1
from rebaser_core.subjects import Subjects
from rebaser_core.updates import SetComputed
from rebaser_server.announcing import Announcer
from rebaser_server.dvu.blob import Blob
from rebaser_server.dvu.errors import DvuError
from rebaser_server.dvu.evaluate import Outcome
from rebaser_server.dvu.executor import Executor
from rebaser_server.dvu.isolation import run_isolated
from rebaser_server.dvu.plan import Plan, plan
from rebaser_server.lifetimes import alongside
from rebaser_server.ownership import Ownership

log: Final = structlog.get_logger()

FIRST_DELAY: Final = 1.0  # seconds until a failed update is tried again, doubled up to
LONGEST_DELAY: Final = 60.0
POKE_TIMEOUT: Final = 2.0  # seconds
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
    ) -> None:
        self._js = js
        self._subjects = subjects
        self._change_set = change_set
        self._own = own
        self._executor = executor
        self._announcer = announcer
        self._slots = slots
        self._deadline = deadline
        self._attempts = attempts
        self._asked = asyncio.Event()
        self._handled = asyncio.Event()

    def ask(self) -> None:
        """Have the head looked at: something was committed."""
        self._asked.set()
        self._handled.set()

    async def run(self) -> Never:
        """Update whenever one is due, until cancelled, which stops the job in hand."""
        while True:
            await self._asked.wait()
            self._asked.clear()
            while self._own.state.head.dvu_due:
                await self._update()

    async def _update(self) -> None:
        """One update: claim (D2), plan, evaluate, enqueue the result, see it handled (D3)."""
        claim, planned, base = await self._claim()
        await self._tell(ActivityKind.DVU_STARTED, claim, affected=planned.affected)
        started = asyncio.get_running_loop().time()
        try:
            async with asyncio.timeout(self._deadline.total_seconds()):
                outcomes = await self._evaluate(planned, claim)
        except (DvuError, TimeoutError) as error:
            await self._failed(claim, planned, str(error) or "deadline exceeded")
            return
        results = await asyncio.to_thread(_updates_of, outcomes)
        await self._settle(claim, base, results)
        await self._tell(
            ActivityKind.DVU_FINISHED,
            claim,
            affected=planned.affected,
            recomputed=sum(outcome.recomputed for outcome in outcomes),
            changed=len(results),
            seconds=round(asyncio.get_running_loop().time() - started, 3),
        )

    async def _claim(self) -> tuple[Claim, Plan, int]:
        """Claim the roots there are, and plan from the very state that was claimed (D2).

        A claim of an earlier run is overwritten: its result will be stale.
        """
        async with self._own.lock:
            claim = Claim(id=RequestId(), covers=self._own.state.head.dirty_sequence)
            base = await self._own.write(claim=claim)
            planned = await asyncio.to_thread(plan, self._own.state.graph, self._slots)
        return claim, planned, base

    async def _evaluate(self, planned: Plan, claim: Claim) -> list[Outcome]:
        if not planned.blobs:
            return []
        progress: list[tuple[int, int]] = []
        async with alongside(self._report(progress, claim)):
            if self._own.state.head.dvu_failures:  # once may be chance; now look which value it is
                limit = max(SHORTEST_LIMIT, self._deadline.total_seconds() / 20)
                return await run_isolated(self._executor, planned.blobs, limit=limit)
            return await self._executor.run(
                planned.blobs, on_progress=lambda *done: progress.append(done)
            )

    async def _report(self, progress: list[tuple[int, int]], claim: Claim) -> Never:
        while True:
            await asyncio.sleep(REPORT_EVERY)
            if progress:
                done, in_all = progress.pop()
                progress.clear()
                await self._tell(ActivityKind.DVU_PROGRESS, claim, done=done, of=in_all)

    async def _settle(self, claim: Claim, base: int, results: Sequence[SetComputed]) -> None:
        """Have the results committed under their claim, if it stands.

        Results travel as a request, in line with all others. Where nothing came out
        changed there is nothing to put in line, and the head alone is written.
        """
        if results:
            sequence = await self._enqueue(claim, base, results)
            await self._until_handled(sequence, claim)
            return
        async with self._own.lock:
            if self._own.state.head.claim == claim:
                await self._own.write(claim=None, clean_sequence=claim.covers, dvu_failures=0)

    async def _enqueue(self, claim: Claim, base: int, results: Sequence[SetComputed]) -> int:
        computed = Computed(claim=claim.id, covers=claim.covers, commit=base)
        # The claim's id is the request's: published twice, the result is stored once (D4).
        address = await self._own.archive.batches.place(claim.id, results, computed)
        request = EnqueueUpdatesRequestV1(
            id=claim.id,
            workspace_id=self._change_set.workspace_id,
            change_set_id=self._change_set.change_set_id,
            updates_address=address,
        )
        headers, payload = EnqueueUpdatesRequest.encode(request)
        try:
            return await publish_request(
                self._js, self._subjects, self._change_set, headers, payload
            )
        except asyncio.CancelledError:
            # An end never separates the two publishes: the result may be stored (D4).
            with suppress(TimeoutError):
                async with asyncio.timeout(POKE_TIMEOUT):
                    await publish_task(self._js, self._subjects, self._change_set)
            raise

    async def _until_handled(self, sequence: int, claim: Claim) -> None:
        """D3: no new update before this one's result was handled."""
        while True:
            self._handled.clear()
            head = self._own.state.head
            if head.last_sequence >= sequence or head.claim != claim:
                return
            await self._handled.wait()

    async def _failed(self, claim: Claim, planned: Plan, reason: str) -> None:
        """Count it and wait; after too many mark the affected values failed, and go on (D6)."""
        failures = self._own.state.head.dvu_failures + 1
        log.error("dvu failed", reason=reason, failures=failures)
        await self._tell(ActivityKind.DVU_FAILED, claim, reason=reason, failures=failures)
        if failures >= self._attempts:
            ids = [value_id for blob in planned.blobs for value_id in Blob.decode(blob).ids]
            message = f"not computed, {failures} updates failed: {reason}"[:1000]
            results = [SetComputed(value_id=value_id, failed=message) for value_id in ids]
            await self._settle(claim, self._own.state.commit, results)
            return
        async with self._own.lock:
            await self._own.write(dvu_failures=failures)
        delay = min(FIRST_DELAY * 2.0 ** (failures - 1), LONGEST_DELAY)
        await asyncio.sleep(delay * random.uniform(0.5, 1.0))  # noqa: S311 - jitter

    async def _tell(self, kind: ActivityKind, claim: Claim, **details: object) -> None:
        await self._announcer.activity(self._change_set, kind, claim.id, **details)


def _updates_of(outcomes: Sequence[Outcome]) -> list[SetComputed]:
    return [_update_of(result) for outcome in outcomes for result in outcome.results]


def _update_of(result: tuple[str, str, object]) -> SetComputed:
    value_id, status, what = result
    match status:
        case "ok":
            return SetComputed(value_id=value_id, value=what)
        case "failed":
            return SetComputed(value_id=value_id, failed=str(what))
        case _:
            return SetComputed(value_id=value_id, blocked_by=str(what))

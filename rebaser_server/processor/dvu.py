"""Schedule the dependent values updates of one change set: one at a time, none forgotten.

Rules D1 to D6. The control record says whether an update is due; `notify` is only a hint. An update
is claimed and planned, evaluated, and committed in one commit under its claim. One that fails is
tried again after a delay.
"""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, Final, Never, TypeVar

import structlog
from structlog.contextvars import bound_contextvars

from rebaser_core.activities import ActivityKind
from rebaser_core.commits import NO_REQUEST, DvuClaim, RequestOutcome, SettledRequest
from rebaser_core.errors import many
from rebaser_core.ids import RequestId
from rebaser_core.jetstream import deadlines
from rebaser_core.jetstream.deadlines import Backoff
from rebaser_core.messages import Correction, UpdatesAddress
from rebaser_server.errors import DvuCancelled, RetryLater, RunEnded
from rebaser_server.processor.application import Job, JobPlanner, JobResult
from rebaser_server.processor.context import RunContext
from rebaser_server.processor.ownership import CommittedEntry, Ownership
from rebaser_server.runtime.failures import EvaluatorAway, JobFailed
from rebaser_server.runtime.progress import JobProgress
from rebaser_server.runtime.tasks import Wakeup, background, finish
from rebaser_server.runtime.transient_errors import is_transient
from rebaser_server.telemetry import metrics

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class ClaimedUpdate:
    claim: DvuClaim
    base: int
    """The commit that makes the claim."""
    after: int
    """The sequence up to which updates are committed."""
    job: Job | None
    error: Exception | None = None
    """Reason why it could not be planned."""

    @property
    def affected(self) -> int:
        """Values that may be recomputed, as far as is known by now."""
        return self.job.affected if self.job else 0


async def claim_update(
    ownership: Ownership, planner: JobPlanner, max_failures: int
) -> ClaimedUpdate | None:
    """Claim what is left to do, and plan from the very state that was claimed (D2).

    Requests wait for the claim, and not for the plan. A claim of an earlier run is overwritten:
    its result cannot be committed.
    """
    async with ownership.lock:
        state = ownership.state
        control = state.control
        if not control.dvu_due:  # what was, is settled, or the change set is closed by now
            return None
        after = control.clean_sequence
        is_repeated = control.claim is not None or control.dvu_failures > 0
        # D5: requests that come during the update are not covered, and their roots bring the next
        # one.
        claim = DvuClaim(id=RequestId(), covers=control.dirty_sequence)
        # D6: the claim is committed before the plan is made: if planning ends the process, the next
        # owner sees a claim, and counts the death as a failed update.
        base = await ownership.write(claim=claim)
        # D6: after too many failures the update is not even planned, since planning may end the
        # process.
        plan, error = None, _given_up(control.dvu_failures, max_failures)
        if error is None:
            prepare = partial(planner.prepare, state.content, after, is_repeated=is_repeated)
            plan, error = await _attempt(prepare)
    if callable(plan):
        job, error = await _attempt(plan)
        return ClaimedUpdate(claim, base, after, job, error)
    return ClaimedUpdate(claim, base, after, plan, error)


def _given_up(failures: int, max_failures: int) -> Exception | None:
    if failures < max_failures:
        return None
    return JobFailed("the processes ended that computed it, or its results cannot be stored")


async def _attempt(do: Callable[[], T]) -> tuple[T | None, Exception | None]:
    """Return what `do`, which blocks, returns or raises."""
    try:
        return await asyncio.to_thread(do), None
    except Exception as error:  # noqa: BLE001 - memory, sizes, storage: reported as a failed update
        return None, error


log: Final = structlog.get_logger()

_APPEND_GRACE: Final = 2.0  # seconds for an append that is under way when the run ends
_MAX_CORRECTIONS: Final = 20
"""Number of rejected results that the commit lists one by one, at most."""


class ResultNotCommitted(RetryLater):
    """The result could not be committed, and that was counted as a failed update (D6)."""

    def __init__(self, reason: str, failures: int) -> None:
        super().__init__(reason)
        self.failures = failures


class DvuCommitter:
    """Commits the results of one change set's updates, in one run."""

    def __init__(
        self, ownership: Ownership, attempts: int, on_failed: Callable[[int], None]
    ) -> None:
        """`attempts`: failures after which an update is given up; at one more it is dropped.

        `on_failed` gets the number of values that are failed after each update that is committed.
        """
        self._ownership = ownership
        self._attempts = attempts
        self._on_failed = on_failed

    async def commit(
        self, claim: DvuClaim, base: int, result: JobResult, *, is_part: bool = False
    ) -> bool:
        """Commit the result under its claim; return False if the claim is not current (D4).

        The result is stored first, without the lock. Cancelled, the commit is in the log or not;
        the update is then done, or still due. After a part it is still due, and its claim stands.

        Args:
            claim: under which it was computed.
            base: the commit that made the claim.
            result: what the job found.
            is_part: whether more results are to come.

        Raises:
            Fenced: another run owns the change set; the state is worthless.
            ResultNotCommitted: this failed, and not because NATS or the store were away; the
                state is worthless.
            RetryLater: NATS or the store did not take it after it was applied. The update
                is still due; the state is worthless.
            Exception: the results could not be stored, and nothing was changed.
        """
        max_bytes = self._ownership.loader.log.max_batch_bytes
        # A part has an id of its own, since the log has no id twice.
        named = claim.model_copy(update={"id": RequestId()}) if is_part else claim
        address = await result.store(named, base, max_bytes) if len(result) else None
        async with self._ownership.lock:
            # D4: looked at under the lock. Earlier, the claim could still go: the result would then
            # take effect in a change set that was closed meanwhile.
            if self._ownership.state.control.claim != claim:
                return False
            await self._apply_and_append(named, address, result, is_part=is_part)
        if is_part:  # all files of the update are needed yet
            return True
        # Behind the commit: if the run dies before it, the next attempt uses the files.
        with suppress(OSError):  # if it stays, it becomes garbage, which is collected
            await asyncio.to_thread(result.clear)
        return True

    async def _apply_and_append(
        self,
        claim: DvuClaim,
        address: UpdatesAddress | None,
        result: JobResult,
        *,
        is_part: bool = False,
    ) -> None:
        """Apply the result and append its commit; the caller holds the lock."""
        covered: dict[str, Any]
        covered = {"claim": None, "clean_sequence": claim.covers, "dvu_failures": 0}
        settled, failing, state = None, None, self._ownership.state
        is_last = not is_part and claim.covers >= state.control.dirty_sequence
        try:
            code = result.code(state.code, is_last=is_last)
            if address:
                settled, failing = await self._apply(claim, address, result)
            with self._ownership.spans.result_span():
                # A run that dies after a part leaves the update due: claim and clean sequence stay.
                # The part's code is named, since the rest may be computed with another.
                await self._append(settled, code=code, **({} if is_part else covered))
        except (RunEnded, asyncio.CancelledError):
            # W15: the content may hold the result, and the log not.
            self._ownership.spoil()
            raise
        except Exception as error:
            self._ownership.spoil()
            if is_transient(error):
                reason = f"an update's result was not committed: {error}"
                raise RetryLater(reason) from error
            raise await self._count_failure(error, covered) from error
        if failing is not None:
            self._on_failed(failing)

    async def _apply(
        self, claim: DvuClaim, address: UpdatesAddress, result: JobResult
    ) -> tuple[SettledRequest, int]:
        """Return what the commit says of the result, and the number of values that are failed."""
        content = self._ownership.state.content
        applied = await content.apply(NO_REQUEST, result.batch, claim.covers)
        if applied.failed:
            metrics.DVU_VALUES.labels("failed").inc(applied.failed)
        settled = SettledRequest(
            id=claim.id,
            sequence=NO_REQUEST,
            outcome=RequestOutcome.APPLIED,
            updates=address,
            corrections=_corrections_for_log(applied.corrections),
            covers=claim.covers,
        )
        return settled, applied.failing

    async def _append(self, settled: SettledRequest | None, **changes: Any) -> None:
        """Write the commit; a cancellation waits for it a moment."""
        await finish(self._ownership.write(settled, **changes), _APPEND_GRACE)

    async def _count_failure(self, error: Exception, covered: dict[str, Any]) -> ResultNotCommitted:
        """Count the failure; drop the update if even giving it up failed. Return why the run ends.

        It ends in any case: the graph may hold half of the result.
        """
        failures = self._ownership.state.control.dvu_failures + 1
        reason = f"an update's result was not committed: {type(error).__name__}: {error}"[:1000]
        log.error("result commit failed", exc_info=error, failures=failures)
        if failures > self._attempts:
            log.error("update dropped", covers=covered["clean_sequence"], reason=reason)
            await self._ownership.write(**covered)
        else:
            await self._ownership.write(claim=None, dvu_failures=failures)
        return ResultNotCommitted(reason, failures)


def _corrections_for_log(corrections: Sequence[Correction]) -> tuple[Correction, ...]:
    """Return what the commit holds of the rejected results: so little that it surely fits."""
    if len(corrections) <= _MAX_CORRECTIONS:
        return tuple(corrections)
    detail = f"{many(len(corrections), 'value')} defined anew, or removed, after being computed"
    return (corrections[0].model_copy(update={"detail": detail}),)


FIRST_DELAY: Final = 1.0  # seconds until a failed update is tried again, doubled up to
MAX_DELAY: Final = 60.0
_NOT_COMPUTED: Final = "not computed"
"""First words of the message of a value that was not computed although no function failed."""
STORE_DELAY: Final = 15.0  # seconds until an update is tried again after the store failed
_MAX_REASON: Final = 1_000
"""Characters of the text of a failure."""


def _ends_the_run(error: Exception) -> bool:
    """Whether the error is not the update's: another run owns the change set, or NATS is away."""
    is_of_nats = is_transient(error) and not isinstance(error, OSError)
    return is_of_nats or isinstance(error, RunEnded)


def _failure_reason(error: Exception) -> str:
    """Return the reason that users see."""
    name = "" if isinstance(error, JobFailed | EvaluatorAway) else type(error).__name__
    return ": ".join(filter(None, (name, str(error))))[:_MAX_REASON]


def _give_up_message(reason: str, failures: int) -> str:
    return f"{_NOT_COMPUTED}, {many(failures, 'update')} failed: {reason}"[:_MAX_REASON]


def retry_delay(failures: int) -> float:
    """Return the seconds to wait after this number of failures in a row."""
    return Backoff(FIRST_DELAY, MAX_DELAY).jittered(failures)


_DEATHS_PER_ATTEMPT: Final = 2
"""Times `attempts` that failures, deaths of owners among them, may be in a row before an update is
given up untried: a process is more often killed for other reasons than for an update's."""
_REPORT_EVERY: Final = 1.0  # seconds between two words of how far an update is
_CANCELLED_DELAY: Final = 60.0  # seconds until an update that was cancelled is tried again


class DvuScheduler:
    """Runs the updates beside the request loop of one run, and shares its ownership."""

    def __init__(self, run: RunContext) -> None:
        """An update in hand stays due if `run.slot.cancel_dvu` is set."""
        ownership, services = run.ownership, run.services
        self._change_set = run.change_set
        self._ownership = ownership
        self._application = services.application
        self._attempts = services.settings.dvu_attempts
        self._max_failures = _DEATHS_PER_ATTEMPT * self._attempts
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
        self.is_postponed = False
        """Whether the update that is due waits for what is away: nothing is in hand."""
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
            # Before the control record is read: a commit that comes during an update sets it again.
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
        with (
            bound_contextvars(claim=str(claim.id)),
            self._ownership.pending_dvu.span(
                self._change_set, claim.id, update.affected
            ) as pending,
        ):
            try:
                await self._execute(update)
            except Exception as error:
                if isinstance(error, ResultNotCommitted):
                    details = {"reason": str(error), "failures": error.failures}
                    await self._publish(ActivityKind.DVU_FAILED, claim, **details)
                if _ends_the_run(error):
                    raise
                await self._on_failure(update, error)
            if self._ownership.state.control.clean_sequence >= claim.covers:
                pending.covered()

    async def _execute(self, update: ClaimedUpdate) -> None:
        claim, job = update.claim, update.job
        if job is None:
            raise update.error or JobFailed("the update was not planned")
        await self._publish(ActivityKind.DVU_STARTED, claim, affected=job.affected)
        started = asyncio.get_running_loop().time()
        self._cancels.clear()
        try:
            async with self._cancels.interrupts():
                result = await self._run(job, update)
        except DvuCancelled:
            log.warning("dvu cancelled", affected=job.affected)
            await self._publish(ActivityKind.DVU_CANCELLED, claim, affected=job.affected)
            await self._backoff(_CANCELLED_DELAY)
            return
        # Outside the interrupts: a cancelled commit spoils the state and ends the run, and an
        # operator wants to end the computation alone.
        if not await self._committer.commit(claim, update.base, result):
            await self._publish(ActivityKind.DVU_CANCELLED, claim, affected=job.affected)
            return
        self._may_crash, self._postponed = False, 0
        await self._publish(
            ActivityKind.DVU_FINISHED,
            claim,
            affected=job.affected,
            recomputed=result.recomputed,
            changed=result.changed,
            seconds=round(asyncio.get_running_loop().time() - started, 3),
        )

    async def _run(self, job: Job, update: ClaimedUpdate) -> JobResult:
        """Run the job, and tell watchers how far it is."""
        progress = JobProgress(job.affected)
        commit_part = partial(self._committer.commit, update.claim, update.base, is_part=True)
        async with background(self._report(progress, update.claim)):
            return await job.run(
                is_suspect=self._may_crash, progress=progress, commit_part=commit_part
            )

    async def _report(self, progress: JobProgress, claim: DvuClaim) -> Never:
        seen = 0
        while True:
            await asyncio.sleep(_REPORT_EVERY)
            if progress.records > seen:
                seen, done, in_all = progress.records, progress.done, progress.total
                await self._publish(ActivityKind.DVU_PROGRESS, claim, done=done, of=in_all)

    async def _on_failure(self, update: ClaimedUpdate, error: Exception) -> None:
        """Count the failure and wait; after too many failures give the update up (D6).

        What is no fault of the values is waited for, and counts nothing.
        """
        reason = _failure_reason(error)
        if isinstance(error, EvaluatorAway):
            await self._postpone(update.claim, error, reason)
            return
        if is_transient(error):  # the store is away or full
            log.warning("dvu postponed", reason=reason)
            await self._wait_for_what_is_away(STORE_DELAY)
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
            # D6: in the control record, so that the next run goes on counting.
            await self._ownership.write(dvu_failures=failures)
        await self._backoff(retry_delay(failures))

    async def _postpone(self, claim: DvuClaim, error: EvaluatorAway, reason: str) -> None:
        """Wait, longer each time, for what computes; the update fails no value for that (D6)."""
        self._postponed += 1
        self._may_crash = self._may_crash or error.crashed
        failures = self._ownership.state.control.dvu_failures
        log.error("dvu postponed", reason=reason, attempts=self._postponed)
        await self._publish(ActivityKind.DVU_FAILED, claim, reason=reason, failures=failures)
        await self._wait_for_what_is_away(retry_delay(self._postponed))

    async def _give_up(self, update: ClaimedUpdate, reason: str) -> bool:
        """Fail the values that were not computed; if not even that works, the update stays due."""
        message = _give_up_message(reason, self._ownership.state.control.dvu_failures + 1)
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
            if _ends_the_run(error):
                raise
            log.exception("dvu give-up failed")
            return False
        return True

    async def _wait_for_what_is_away(self, delay: float) -> None:
        self.is_postponed = True
        try:
            await self._backoff(delay)
        finally:
            self.is_postponed = False

    async def _backoff(self, delay: float) -> None:
        """Return after `delay` seconds, or once a recomputation was requested."""
        # P4: a paused run that waits to try again has no update in hand, so that its drain ends.
        self._idle.set()
        self._backoff_skipped.clear()
        with suppress(TimeoutError):
            async with deadlines.within(delay):
                await self._backoff_skipped.wait()

    async def _publish(self, kind: ActivityKind, claim: DvuClaim, **details: object) -> None:
        await self._notifier.activity(self._change_set, kind, claim.id, **details)

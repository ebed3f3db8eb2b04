"""Commit the result of a dependent values update: in one commit, under the update's claim."""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Final

import structlog

from rebaser_core.commits import NO_REQUEST, DvuClaim, RequestOutcome, SettledRequest
from rebaser_core.errors import many
from rebaser_core.messages import Correction, UpdatesAddress
from rebaser_server.errors import RetryLater, RunEnded
from rebaser_server.processor.application import JobResult
from rebaser_server.processor.ownership.ownership import Ownership
from rebaser_server.runtime.containment import is_transient
from rebaser_server.runtime.tasks import finish
from rebaser_server.telemetry import metrics

log: Final = structlog.get_logger()

APPEND_GRACE: Final = 2.0  # seconds for an append that is under way when the run ends
_MAX_CORRECTIONS: Final = 20
"""Most rejected results that the commit lists one by one."""


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

        `on_failed` gets the number of values that failed in each update that is committed.
        """
        self._ownership = ownership
        self._attempts = attempts
        self._on_failed = on_failed

    async def commit(self, claim: DvuClaim, base: int, result: JobResult) -> bool:
        """Commit the result under its claim; return False if the claim is not current (D4).

        The result is stored first, without the lock. Cancelled, the commit is in the log or not;
        the update is then done, or still due.

        Args:
            claim: under which it was computed.
            base: the commit that made the claim.
            result: what the job found.

        Raises:
            Fenced: another run owns the change set; the state is worthless.
            ResultNotCommitted: this failed, and not because NATS or the store were away; the
                state is worthless.
            RetryLater: NATS or the store did not take it after it was applied. The update
                is still due; the state is worthless.
            Exception: the results could not be stored, and nothing was changed.
        """
        max_bytes = self._ownership.loader.log.max_batch_bytes
        address = await result.store(claim, base, max_bytes) if len(result) else None
        async with self._ownership.lock:
            if self._ownership.state.control.claim != claim:
                return False
            await self._apply_and_append(claim, address, result)
        with suppress(OSError):  # if it stays, it becomes garbage, which is collected
            await asyncio.to_thread(result.clear)
        return True

    async def _apply_and_append(
        self, claim: DvuClaim, address: UpdatesAddress | None, result: JobResult
    ) -> None:
        """Apply the result and append its commit; the caller holds the lock."""
        covered = {"claim": None, "clean_sequence": claim.covers, "dvu_failures": 0}
        handled, failed = None, 0
        try:
            if address:
                handled, failed = await self._apply(claim, address, result)
            with self._ownership.spans.result_span():
                await self._append(handled, **covered)
        except (RunEnded, asyncio.CancelledError):
            self._ownership.spoil()
            raise
        except Exception as error:
            self._ownership.spoil()
            if is_transient(error):
                reason = f"an update's result was not committed: {error}"
                raise RetryLater(reason) from error
            raise await self._count_failure(error, covered) from error
        self._on_failed(failed)

    async def _apply(
        self, claim: DvuClaim, address: UpdatesAddress, result: JobResult
    ) -> tuple[SettledRequest, int]:
        """What the commit says of the result, and how many values failed."""
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
        return settled, applied.failed

    async def _append(self, handled: SettledRequest | None, **changes: Any) -> None:
        """Write the commit; a cancellation waits for it a moment."""
        await finish(self._ownership.write(handled, **changes), APPEND_GRACE)

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

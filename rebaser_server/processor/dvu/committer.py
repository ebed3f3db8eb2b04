"""How the result of a dependent values update gets into the log: in one line, under its claim."""

import asyncio
from contextlib import suppress
from typing import Any, Final

import structlog

from rebaser_core.commits import NO_REQUEST, DvuClaim, RequestOutcome, SettledRequest
from rebaser_core.messages import Correction, DvuResultInfo, UpdatesAddress
from rebaser_server.commit_log.apply_batch import performed
from rebaser_server.commit_log.batch_store import Batch
from rebaser_server.compute.units.run_store import RunStore
from rebaser_server.errors import RetryLater, Unwritten, WorkEnded
from rebaser_server.processor.dvu.results import Findings
from rebaser_server.processor.ownership import Ownership
from rebaser_server.runtime.transient_errors import is_transient
from rebaser_server.telemetry import metrics

log: Final = structlog.get_logger()

LAST_WORD: Final = 2.0  # seconds for a line that is on its way when the run ends
_TOLD: Final = 20
"""Results that were not taken of which the line tells one by one."""


class Unsettled(RetryLater):
    """The result could not be committed, and that was counted as a failed update (D6)."""

    def __init__(self, reason: str, failures: int) -> None:
        super().__init__(reason)
        self.failures = failures


class Settling:
    """Of one change set, in one run."""

    def __init__(self, own: Ownership, attempts: int) -> None:
        """`attempts`: failures after which an update was given up; one more, and it is dropped."""
        self._own = own
        self._attempts = attempts

    async def settle(self, claim: DvuClaim, base: int, findings: Findings, shelf: RunStore) -> bool:
        """Have the findings committed under their claim; False: it stands no more (D4).

        They are placed first, without the lock. Cancelled, the line is there or not; the
        update is then done with, or still due.

        Raises:
            Overtaken: another run owns the change set; the state is worthless.
            Unsettled: this failed, and not for the weather; the state is worthless.
            RetryLater: NATS or the store did not take it after it was folded in. The update
                is still due; the state is worthless.
            Exception: the results could not be placed, and nothing was changed.
        """
        address = await self._placed(claim, base, findings, shelf) if len(findings) else None
        async with self._own.lock:
            if self._own.state.head.claim != claim:
                return False
            await self._commit(claim, address, findings, shelf)
        with suppress(OSError):  # nothing refers to it; it is collected some day
            await asyncio.to_thread(shelf.clear, [file.name for file in findings.files])
        return True

    async def _placed(
        self, claim: DvuClaim, base: int, findings: Findings, shelf: RunStore
    ) -> UpdatesAddress:
        computed = DvuResultInfo(claim=claim.id, covers=claim.covers, commit=base)
        archive = self._own.archive
        return await findings.placed(archive.batches, claim.id, computed, shelf, archive.log.room)

    async def _commit(
        self, claim: DvuClaim, address: UpdatesAddress | None, findings: Findings, shelf: RunStore
    ) -> None:
        """Fold the findings in and append the line that says so; the caller holds the lock."""
        settled = {"claim": None, "clean_sequence": claim.covers, "dvu_failures": 0}
        try:
            handled = await self._folded(claim, address, findings, shelf) if address else None
            with self._own.traces.settling():
                await self._append(handled, **settled)
        except (WorkEnded, asyncio.CancelledError):
            raise
        except Exception as error:
            why = error.__cause__ if isinstance(error, Unwritten) and error.__cause__ else error
            if is_transient(why):
                reason = f"an update's result was not committed: {why}"
                raise RetryLater(reason) from error
            raise await self._failed(error, settled) from error

    async def _folded(
        self, claim: DvuClaim, address: UpdatesAddress, findings: Findings, shelf: RunStore
    ) -> SettledRequest:
        names = [file.name for file in findings.files]
        batch = Batch(findings.updates, shelf=shelf if names else None, names=names)
        done = await performed(self._own.state, NO_REQUEST, batch, claim.covers)
        if done.failed:
            metrics.DVU_VALUES.labels("failed").inc(done.failed)
        return SettledRequest(
            id=claim.id,
            sequence=NO_REQUEST,
            outcome=RequestOutcome.APPLIED,
            updates=address,
            corrections=_told(done.corrections),
            covers=claim.covers,
        )

    async def _append(self, handled: SettledRequest | None, **changes: Any) -> None:
        """Write the line; an end of the run leaves it a moment to arrive."""
        line = asyncio.ensure_future(self._own.write(handled, **changes))
        try:
            await asyncio.shield(line)
        except asyncio.CancelledError:
            await asyncio.wait([line], timeout=LAST_WORD)
            line.cancel()
            raise

    async def _failed(self, error: Exception, settled: dict[str, Any]) -> Unsettled:
        """Count it, or go on without the result where even giving up failed; why the run ends.

        It ends in any case: the graph may hold half of the result.
        """
        failures = self._own.state.head.dvu_failures + 1
        reason = f"an update's result was not committed: {type(error).__name__}: {error}"[:1000]
        log.error("result commit failed", exc_info=error, failures=failures)
        if failures > self._attempts:
            log.error("update dropped", covers=settled["clean_sequence"], reason=reason)
            await self._own.write(**settled)
        else:
            await self._own.write(claim=None, dvu_failures=failures)
        return Unsettled(reason, failures)


def _told(corrections: list[Correction]) -> tuple[Correction, ...]:
    """What the line says of results that were not taken: so much that it surely fits."""
    if len(corrections) <= _TOLD:
        return tuple(corrections)
    detail = f"{len(corrections)} values were defined anew, or removed, since they were computed"
    return (corrections[0].model_copy(update={"detail": detail}),)

"""What went wrong with a request, counted, and its way to the dead letters (L1, L2)."""

from dataclasses import dataclass
from typing import Final

import structlog

from rebaser_core.commits import FailedAttempts, RequestOutcome, SettledRequest
from rebaser_core.jetstream import Delivery, JetStreamError
from rebaser_server.errors import RetryLater
from rebaser_server.processor.apply_request import stage_duplicate, stage_request
from rebaser_server.processor.context import RunContext
from rebaser_server.processor.dead_letters import store_dead_letter
from rebaser_server.processor.ownership.ownership import Ownership
from rebaser_server.processor.rejection import REASON_LENGTH
from rebaser_server.processor.request_queue import request_id_of
from rebaser_server.runtime.containment import backoff

log: Final = structlog.get_logger()

DEATHS_PER_ATTEMPT: Final = 2
"""A request becomes a dead letter, untried, after this many times `attempts` runs died at it: a
process is killed for reasons of its own more often than an attempt fails for them."""


@dataclass(frozen=True, slots=True)
class RequestAttempts:
    """The failures of, and deaths at, the request at the head of the queue (control record).

    The caller of each method but `count_death` holds the ownership's lock.
    """

    run: RunContext

    @property
    def _ownership(self) -> Ownership:
        return self.run.ownership

    @property
    def _limit(self) -> int:
        return self.run.services.settings.attempts

    def _before(self, sequence: int) -> FailedAttempts:
        before = self._ownership.control.attempts
        if before is not None and before.sequence == sequence:
            return before
        return FailedAttempts(sequence=sequence)

    async def count_death(self, owner: str, sequence: int) -> None:
        """Count a death at the request of that sequence: `owner` may have died at it (L1).

        So a request that kills its process becomes a dead letter, too.
        """
        async with self._ownership.lock:
            before = self._before(sequence)
            attempts = before.model_copy(update={"deaths": before.deaths + 1})
            await self._ownership.write(attempts=attempts)
        log.warning("owner died", former=owner, deaths=attempts.deaths)

    async def count_failure(self, request: Delivery, error: BaseException) -> RetryLater:
        """Count a failed attempt; after too many, dead-letter the request (L1).

        Return why the run must end: the graph may hold half a batch.
        """
        sequence, reason = request.stream_sequence, describe(error)
        log.error(
            "request failed", request=str(request_id_of(request)), sequence=sequence, exc_info=error
        )
        before = self._before(sequence)
        failed = before.model_copy(update={"count": before.count + 1})
        if failed.count >= self._limit:
            await self._dead_letter(request, reason, failed.count)
            return RetryLater(reason, 0)
        await self._ownership.write(attempts=failed)
        return RetryLater(reason, backoff(failed.count))

    async def end_deadly(self, request: Delivery) -> bool:
        """Dead-letter the request, untried, if too many runs died at it; return whether (L1)."""
        if self._ownership.control.attempts is None:  # as nearly always
            return False
        deaths = self._before(request.stream_sequence).deaths
        if deaths < DEATHS_PER_ATTEMPT * self._limit:
            return False
        await self._dead_letter(request, "too many runs died, or lost their lease, at it", deaths)
        return True

    async def end_unprocessable(self, request: Delivery, error: Exception) -> None:
        """Dead-letter the request after an error that no repetition can mend."""
        failures = self._before(request.stream_sequence).count
        await self._dead_letter(request, describe(error), failures + 1)

    async def _dead_letter(self, request: Delivery, reason: str, attempts: int) -> None:
        """Copy the request to the dead letters, and only then commit that it is dead (L2)."""
        if request_id_of(request) in self._ownership.state.recent:
            stage_duplicate(self._ownership, request, request_id_of(request))
            await self._ownership.flush()
            return
        try:
            await store_dead_letter(
                self.run.services.js,
                self.run.services.subjects,
                self._ownership.loader,
                request,
                reason=reason,
                attempts=attempts,
            )
        except (JetStreamError, OSError) as error:
            raise RetryLater(f"dead letter not stored: {error}") from error
        handled = SettledRequest(
            id=request_id_of(request),
            sequence=request.stream_sequence,
            outcome=RequestOutcome.DEAD,
            message=reason[:REASON_LENGTH].encode(errors="replace").decode(),
        )
        stage_request(self._ownership, request, handled)
        await self._ownership.flush()
        log.error(
            "request dead-lettered", request=str(handled.id), reason=reason, attempts=attempts
        )


def describe(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"

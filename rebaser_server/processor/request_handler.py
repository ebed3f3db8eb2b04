"""Handle requests: apply, answer again or dead-letter each; then delete and reply (W4 to W9)."""

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

import structlog

from rebaser_core.commits import FailedAttempts, RequestOutcome, SettledRequest
from rebaser_core.errors import MessageError, NewerVersion
from rebaser_core.jetstream import Delivery, JetStreamError
from rebaser_server.errors import AppendRefused, NeedsNewerVersion, RetryLater, RunEnded
from rebaser_server.processor.apply_request import (
    Unprocessable,
    apply_request,
    is_batchable,
    read_request,
    stage_duplicate,
    stage_request,
)
from rebaser_server.processor.context import RunContext
from rebaser_server.processor.dead_letters import store_dead_letter
from rebaser_server.processor.ownership.committed_entry import CommittedEntry
from rebaser_server.processor.ownership.ownership import Ownership
from rebaser_server.processor.rejection import REASON_LENGTH
from rebaser_server.processor.replies import CommittedRequest, final_result
from rebaser_server.processor.request_queue import RequestQueue, announced_request, request_id_of
from rebaser_server.processor.result_publisher import publish_result
from rebaser_server.runtime.transient_errors import backoff, is_transient

log: Final = structlog.get_logger()

DEATHS_PER_ATTEMPT: Final = 2
"""A request becomes a dead letter, untried, after this many times `attempts` runs died at it: a
process is killed for reasons of its own more often than an attempt fails for them."""


@dataclass(frozen=True, slots=True)
class RequestHandler:
    """Handles the requests of one run."""

    run: RunContext
    queue: RequestQueue
    _committed: dict[int, CommittedRequest] = field(default_factory=dict, init=False)
    """Of the requests in hand those that are committed, by stream sequence."""

    @property
    def ownership(self) -> Ownership:
        return self.run.ownership

    @property
    def _attempts(self) -> int:
        return self.run.services.settings.attempts

    @property
    def batch_size(self) -> int:
        """How many requests one call of `handle` should be given."""
        # If a run's death counts against the first request, all before it must be committed.
        if self.ownership.unreleased_owner:
            return 1
        return self.ownership.loader.log.append_limit(self.queue.backlog)

    async def handle(self, requests: Sequence[Delivery]) -> None:
        """Apply, answer again or dead-letter `requests` in order: commit each, then delete it.

        Each has a commit of its own; if one fails, those before it are handled.

        Raises:
            RetryLater: one could not be handled now; it is at the head of the queue.
            Fenced: the change set has another owner; the first few may be handled.
        """
        try:
            await self._handle(requests)
        finally:
            self.ownership.spans.abandon("not settled")
            self._committed.clear()

    def on_commit(self, committed: CommittedEntry) -> None:
        """Note the result of a request that was committed."""
        if committed.request is not None:
            result = CommittedRequest(committed.request, committed.sequence)
            self._committed[committed.request.sequence] = result

    async def _handle(self, requests: Sequence[Delivery]) -> None:
        done: list[Delivery] = []
        failed: RetryLater | None = None
        async with self.ownership.lock:
            for request in requests:
                try:
                    with self.ownership.spans.begin(request_id_of(request), request):
                        await self._handle_one(request)
                    done.append(request)
                except RetryLater as error:
                    failed = error
                except AppendRefused as error:
                    failed = await self._on_append_refused([*done, request], error)
                if failed is not None:
                    break
            try:
                await self.ownership.flush()
            except AppendRefused as error:
                failed = await self._on_append_refused(done, error)
        settled = [request for request in done if self._is_committed(request)]
        results = [await self._result(request) for request in settled]
        for request in settled:
            await self.queue.delete(request.stream_sequence)
        for request, result in zip(settled, results, strict=True):
            if result is not None:
                await publish_result(self.run, request, result)
        if failed is not None:
            raise failed

    async def _handle_one(self, request: Delivery) -> None:
        if request.stream_sequence > self.ownership.control.last_sequence:
            await self._attempt(request)
        else:  # settled before (W5), or of another stream (S-5)
            self.ownership.loader.require_settled(
                self.ownership.state,
                request.stream_sequence,
                announced_request(request.headers),
                request.timestamp,
            )

    async def _result(self, request: Delivery) -> CommittedRequest | None:
        committed = self._committed.get(request.stream_sequence)
        return await final_result(self.ownership, request_id_of(request), committed)

    def _is_committed(self, request: Delivery) -> bool:
        """Whether the log is known to hold the request's commit."""
        return request.stream_sequence <= self.ownership.state.control.last_sequence

    async def _on_append_refused(
        self, requests: Sequence[Delivery], error: AppendRefused
    ) -> RetryLater:
        """Count a failure of the request whose commit was refused; return why the run must end.

        The commits before it are written (L1), so it is the first unsettled one of `requests`.
        """
        cause = error.__cause__ or error
        refused = next((each for each in requests if not self._is_committed(each)), None)
        if refused is None or is_transient(cause):
            return RetryLater(str(error))
        try:
            return await self._count_failure(
                refused, self._attempts_at(refused.stream_sequence), cause
            )
        except AppendRefused as again:
            return RetryLater(str(again))

    async def count_death(self, owner: str) -> None:
        """Count a death at the request at the head of the queue: `owner` may have died at it (L1).

        So a request that kills its process becomes a dead letter, too.
        """
        first = await self.queue.lowest_sequence(after=self.ownership.state.control.last_sequence)
        if first is not None:
            async with self.ownership.lock:
                before = self._attempts_at(first)
                attempts = before.model_copy(update={"deaths": before.deaths + 1})
                await self.ownership.write(attempts=attempts)
            log.warning("owner did not release", former=owner, deaths=attempts.deaths)

    async def _attempt(self, request: Delivery) -> None:
        """Apply the request; dead-letter it if it fails and a repetition cannot help."""
        before = self._attempts_at(request.stream_sequence)
        if before.deaths >= DEATHS_PER_ATTEMPT * self._attempts:
            await self._dead_letter(request, "every run that tried it died", before.deaths)
            return
        try:
            await self._apply(request)
        except (RunEnded, AppendRefused):
            raise
        except asyncio.CancelledError:
            self.ownership.spoil()
            raise
        except NewerVersion as error:
            raise NeedsNewerVersion(error) from error
        except (MessageError, Unprocessable) as error:
            await self._dead_letter(request, _describe(error), before.count + 1)
        except Exception as error:
            self.ownership.spoil()
            if is_transient(error):
                raise RetryLater(_describe(error)) from error
            raise await self._count_failure(request, before, error) from error

    async def _apply(self, request: Delivery) -> None:
        """Apply the request; commit it, too, unless it may be committed with those after it."""
        ownership = self.ownership
        message = read_request(self.run.change_set, request)
        is_alone = not is_batchable(message) or ownership.has_staged(message.id)
        if is_alone:
            await ownership.flush()
        unused = await apply_request(self.run, request, message)
        if is_alone:
            await ownership.flush()
        if unused is not None:
            with suppress(JetStreamError, OSError):
                await ownership.loader.batches.delete(unused)

    def _attempts_at(self, sequence: int) -> FailedAttempts:
        before = self.ownership.control.attempts
        return (
            before if before and before.sequence == sequence else FailedAttempts(sequence=sequence)
        )

    async def _count_failure(
        self, request: Delivery, before: FailedAttempts, error: BaseException
    ) -> RetryLater:
        """Count a failed attempt; after too many, dead-letter the request (L1).

        Return why the run must end: the graph may hold half a batch.
        """
        sequence, reason = request.stream_sequence, _describe(error)
        log.error(
            "request failed", request=str(request_id_of(request)), sequence=sequence, exc_info=error
        )
        failed = before.model_copy(update={"count": before.count + 1})
        if failed.count >= self._attempts:
            await self._dead_letter(request, reason, failed.count)
            return RetryLater(reason, 0)
        await self.ownership.write(attempts=failed)
        return RetryLater(reason, backoff(failed.count))

    async def _dead_letter(self, request: Delivery, reason: str, attempts: int) -> None:
        """Copy the request to the dead letters, and only then commit that it is dead (L2)."""
        if request_id_of(request) in self.ownership.state.recent:
            stage_duplicate(self.ownership, request, request_id_of(request))
            await self.ownership.flush()
            return
        try:
            await store_dead_letter(
                self.run.services.js,
                self.run.services.subjects,
                self.ownership.loader,
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
        stage_request(self.ownership, request, handled)
        await self.ownership.flush()
        log.error(
            "request dead-lettered", request=str(handled.id), reason=reason, attempts=attempts
        )


def _describe(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"

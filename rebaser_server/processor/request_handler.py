"""Handle requests: apply, answer again or dead-letter each; then delete and reply (W4 to W9)."""

import asyncio
from collections.abc import Sequence
from contextlib import suppress

from rebaser_client.requests import request_digest
from rebaser_core.errors import MessageError, NewerVersion
from rebaser_core.jetstream import Delivery, JetStreamError
from rebaser_server.errors import AppendRefused, NeedsNewerVersion, RetryLater, RunEnded
from rebaser_server.processor.apply_request import (
    Unprocessable,
    apply_request,
    is_batchable,
    read_request,
)
from rebaser_server.processor.context import RunContext
from rebaser_server.processor.ownership.committed_entry import CommittedEntry
from rebaser_server.processor.replies import CommittedRequest, final_result, recent_result
from rebaser_server.processor.request_attempts import RequestAttempts, describe
from rebaser_server.processor.request_queue import RequestQueue, announced_request, request_id_of
from rebaser_server.processor.result_publisher import publish_result
from rebaser_server.runtime.containment import is_transient


class RequestHandler:
    """Handles the requests of one run."""

    def __init__(self, run: RunContext, queue: RequestQueue) -> None:
        self.run = run
        self.queue = queue
        self.ownership = run.ownership
        self.attempts = RequestAttempts(run)
        self._committed: dict[int, CommittedRequest] = {}
        """Of the requests in hand those that are committed, by stream sequence."""

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
        request = committed.request
        if request is not None:
            self._committed[request.sequence] = CommittedRequest(request, committed.sequence)

    async def _handle(self, requests: Sequence[Delivery]) -> None:
        done: list[Delivery] = []
        failed: RetryLater | None = None
        async with self.ownership.lock:
            for request in requests:
                try:
                    with self.ownership.spans.begin(request, request_id_of):
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
        for request, result in zip(settled, results, strict=True):
            if result is not None:
                await publish_result(self.run, request, result)
        for request in settled:
            await self.queue.handled.add(request.stream_sequence)
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
        digest = request_digest(request.payload)
        if committed is None:  # settled before (W5)
            return await recent_result(self.ownership, request_id_of(request), digest)
        return await final_result(self.ownership, committed, digest)

    def _is_committed(self, request: Delivery) -> bool:
        """Whether the log is known to hold the request's commit."""
        return request.stream_sequence <= self.ownership.state.control.last_sequence

    async def _on_append_refused(
        self, requests: Sequence[Delivery], error: AppendRefused
    ) -> RetryLater:
        """Count a failure of the request whose commit was refused; return why the run must end.

        The commits before it are written (L1), so it is the first unsettled one of `requests`.
        """
        cause = error.reason
        refused = next((each for each in requests if not self._is_committed(each)), None)
        if refused is None or is_transient(cause):
            return RetryLater(str(error))
        if stopped := await self.run.services.why_stopped():  # the next one would be refused, too
            return RetryLater(stopped)
        try:
            return await self.attempts.count_failure(refused, cause)
        except AppendRefused as again:
            return RetryLater(str(again))

    async def count_death(self, owner: str) -> None:
        """Count a death at the first request in the queue: `owner` may have died at it (L1)."""
        first = await self.queue.lowest_sequence(after=self.ownership.state.control.last_sequence)
        if first is not None:
            await self.attempts.count_death(owner, first)

    async def _attempt(self, request: Delivery) -> None:
        """Apply the request; dead-letter it if it fails and a repetition cannot help."""
        if await self.attempts.end_deadly(request):
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
            await self.attempts.end_unprocessable(request, error)
        except Exception as error:
            self.ownership.spoil()
            if is_transient(error):
                raise RetryLater(describe(error)) from error
            raise await self.attempts.count_failure(request, error) from error

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

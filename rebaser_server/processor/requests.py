"""Handle requests: apply, answer again or dead-letter each; then delete and reply (W4 to W9).

A request is negotiated, its batch fetched, rebased and staged (W7). Failures are counted, and may
end in the dead letters (L1, L2). After the commit follow its activity, its reply, and its place in
the statistics.

Actions on a change set as a whole, such as checkpoint and delete, are in line with its requests:
every batch stored before is applied before, and every later batch meets the change set as the
action left it. So there is no race.
"""

import asyncio
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import structlog

from rebaser_core.activities import ActivityKind
from rebaser_core.commits import (
    AUTHOR_LENGTH,
    CallEffect,
    ClosedState,
    FailedAttempts,
    RequestOutcome,
    SettledRequest,
)
from rebaser_core.errors import MessageError, NewerVersion
from rebaser_core.ids import ChangeSet, RequestId
from rebaser_core.jetstream import Delivery, JetStreamError
from rebaser_core.messages import UpdatesAddress, total_count
from rebaser_core.records import ChangeSetRequest, ChangeSetRequestV1, ChangeSetStatus
from rebaser_core.requests import request_digest
from rebaser_core.versioning import AUTHOR, CONTENT_TYPE, MESSAGE_TYPE, REPLY_INBOX, header
from rebaser_server.commit_log.state import State
from rebaser_server.errors import AppendRefused, NeedsNewerVersion, RetryLater, RunEnded
from rebaser_server.processor.application import Application, Changes, RequestMessage, Unprocessable
from rebaser_server.processor.context import RunContext
from rebaser_server.processor.dead_letters import (
    REASON_LENGTH,
    command_rejection,
    is_other_request,
    reject,
    store_dead_letter,
    used_id,
)
from rebaser_server.processor.outcomes import (
    CommittedRequest,
    build_response,
    final_result,
    recent_result,
)
from rebaser_server.processor.ownership import Ownership
from rebaser_server.processor.request_queue import RequestQueue, announced_request, request_id_of
from rebaser_server.runtime.containment import backoff
from rebaser_server.runtime.transient_errors import is_transient

_ANSWERED_AFTER: Final = 0.02
"""Seconds after which requests that are applied are committed and answered, though others wait."""
_SMALL_PAYLOAD: Final = 64 * 1024
"""Bytes of a request up to which it is read on the event loop: more would hold up others."""
_CLOSES: Final = {"abandon": ChangeSetStatus.ABANDONED, "delete": ChangeSetStatus.DELETED}


async def execute(
    run: RunContext, message: ChangeSetRequestV1, sequence: int
) -> tuple[SettledRequest, Changes]:
    """Execute or reject the command; return the settled request and the new control fields."""
    ownership = run.ownership
    author = (message.by or "")[:AUTHOR_LENGTH] or None
    settled = SettledRequest(
        id=message.id, sequence=sequence, outcome=RequestOutcome.APPLIED, author=author
    )
    rejection = command_rejection(ownership.state, message)
    if rejection is not None:
        return reject(settled, rejection), {}
    match message.action:
        case "checkpoint":
            return settled, {}
        case "abandon" | "delete":
            return settled, close(ownership.state, message.id, _CLOSES[message.action])
        case _:
            return await run.services.application.execute(ownership, message, settled)


def close(state: State, request: RequestId, status: ChangeSetStatus) -> Changes:
    """Return the control fields that close the change set and drop its due DVU."""
    return {"closing": ClosedState(status=status, request=request), **without_dvu(state)}


def without_dvu(state: State) -> dict[str, Any]:
    """Return the control fields after which no DVU is due."""
    return {"claim": None, "clean_sequence": state.control.dirty_sequence, "dvu_failures": 0}


def read_request(
    application: Application, change_set: ChangeSet, request: Delivery
) -> RequestMessage:
    """Read a request to that change set.

    Raises:
        MalformedMessage, UnsupportedMessage, Unprocessable: it can never take effect.
        NewerVersion: this build cannot read it.
    """
    message: RequestMessage
    if header(request.headers, MESSAGE_TYPE) == ChangeSetRequest.name:
        message = ChangeSetRequest.decode(request.headers, request.payload)
    else:
        message = application.read(request)
    addressed = ChangeSet(message.workspace_id, message.change_set_id)
    if addressed != change_set:
        raise Unprocessable(f"published for {change_set}, but is for {addressed}")
    return message


async def apply_request(
    run: RunContext, request: Delivery, message: RequestMessage
) -> UpdatesAddress | None:
    """Apply `request` and stage its commit, for any outcome.

    The caller holds the ownership's lock, has nothing staged unless `message` is batchable, and
    writes the commit with `ownership.flush`. Returns the address of the batch as the client sent
    it, if nothing refers to it once the commit is written.

    Raises:
        MissingBatch, Unprocessable: nothing was staged, and the content is as before.
        Exception: the content may hold half a batch; the state is worthless.
    """
    ownership = run.ownership
    # W7: looked up before the batch is read, since a repetition's batch may be gone: a batch that
    # no commit refers to is deleted once its request is settled.
    if message.id in ownership.state.recent:
        _stage_duplicate(ownership, request, message.id)
        return None
    if isinstance(message, ChangeSetRequestV1):
        settled, changes = await execute(run, message, request.stream_sequence)
        _stage_request(ownership, request, settled, action=message.action, **changes)
        return None
    applied = await run.services.application.apply(ownership, request, message)
    if applied.settled.outcome is RequestOutcome.DUPLICATE:
        _stage_duplicate(ownership, request, message.id)
        return None
    # D1: in the very commit of the request, so that the death of the run forgets no update.
    dirty: Changes = {"dirty_sequence": request.stream_sequence} if applied.is_dirty else {}
    _stage_request(
        ownership,
        request,
        applied.settled,
        is_edit=applied.is_edit,
        call=applied.call,
        **dirty,
    )
    return applied.unused


def _stage_duplicate(ownership: Ownership, request: Delivery, request_id: RequestId) -> None:
    """Stage the commit of a request whose id was settled before: nothing is applied.

    The request was stored twice, because the server had forgotten its id; or it is another request
    with that id, which its commit then says.
    """
    recent = ownership.state.recent.get(request_id)
    is_other = recent is not None and is_other_request(
        recent.digest, request_digest(request.payload)
    )
    settled = SettledRequest(
        id=request_id,
        sequence=request.stream_sequence,
        outcome=RequestOutcome.DUPLICATE,
        message=used_id(recent.commit) if recent is not None and is_other else None,
    )
    _stage_request(ownership, request, settled)


def _stage_request(
    ownership: Ownership,
    request: Delivery,
    settled: SettledRequest,
    *,
    action: str | None = None,
    call: CallEffect | None = None,
    **changes: Any,
) -> None:
    """Stage the commit that settles a request, and carries out `action`; see `Ownership.stage`."""
    author = header(request.headers, AUTHOR)
    if author:
        author = author[:AUTHOR_LENGTH].encode(errors="replace").decode()
        settled = settled.model_copy(update={"author": author})
    if settled.outcome is not RequestOutcome.APPLIED:
        action = None
    ownership.stage(
        settled,
        stored=request.stored,
        digest=request_digest(request.payload),
        action=action,
        call=call,
        last_sequence=settled.sequence,
        attempts=None,
        **changes,
    )


log: Final = structlog.get_logger()

_DEATHS_PER_ATTEMPT: Final = 2
"""Multiple of `attempts` after which a request becomes a dead letter, untried, since runs died at
it: a process is killed more often for other reasons than an attempt fails for them."""


@dataclass(frozen=True, slots=True)
class _RequestAttempts:
    """The failures of, and deaths at, the request at the head of the queue (control record).

    The caller holds the ownership's lock, except for `count_death`.
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
        # L1: the content is spoiled, but this commit changes the control record alone. The commits
        # staged before the failed request are written with it, since those requests stand.
        await self._ownership.write(attempts=failed)
        return RetryLater(reason, backoff(failed.count))

    async def end_deadly(self, request: Delivery) -> bool:
        """Dead-letter the request, untried, if too many runs died at it; return whether (L1)."""
        if self._ownership.control.attempts is None:  # as nearly always
            return False
        deaths = self._before(request.stream_sequence).deaths
        if deaths < _DEATHS_PER_ATTEMPT * self._limit:
            return False
        await self._dead_letter(request, "too many runs died, or lost their lease, at it", deaths)
        return True

    async def end_unprocessable(self, request: Delivery, error: Exception) -> None:
        """Dead-letter the request after an error that no repetition can mend."""
        failures = self._before(request.stream_sequence).count
        await self._dead_letter(request, describe(error), failures + 1)

    async def _dead_letter(self, request: Delivery, reason: str, attempts: int) -> None:
        """Copy the request to the dead letters, and only then commit that it is dead (L2)."""
        # W7: the id has its outcome already; a dead letter would contradict that.
        if request_id_of(request) in self._ownership.state.recent:
            _stage_duplicate(self._ownership, request, request_id_of(request))
            await self._ownership.flush()
            return
        try:
            await store_dead_letter(
                self.run.services.streams,
                self._ownership.loader,
                request,
                reason=reason,
                attempts=attempts,
            )
        except (JetStreamError, OSError) as error:
            raise RetryLater(f"dead letter not stored: {error}") from error
        settled = SettledRequest(
            id=request_id_of(request),
            sequence=request.stream_sequence,
            outcome=RequestOutcome.DEAD,
            message=reason[:REASON_LENGTH].encode(errors="replace").decode(),
        )
        _stage_request(self._ownership, request, settled)
        await self._ownership.flush()
        log.error(
            "request dead-lettered", request=str(settled.id), reason=reason, attempts=attempts
        )


def describe(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"


_ACTIVITIES: Final = {
    RequestOutcome.DEAD: ActivityKind.REQUEST_DEAD,
    RequestOutcome.REFUSED: ActivityKind.REQUEST_REFUSED,
}


async def publish_result(run: RunContext, request: Delivery, result: CommittedRequest) -> None:
    """Count the result of a committed request, publish its activity and send its reply."""
    spans, sequence = run.ownership.spans, request.stream_sequence
    with spans.use(sequence):
        outcome = result.settled.outcome
        said = outcome.value
        corrected = total_count(result.settled.corrections)
        change_set, notifier = run.change_set, run.services.notifier
        notifier.stats.request(change_set, outcome, request.stored, corrected)
        # Of a call nothing follows that others wait for: its answer says all.
        if result.call is None:
            await notifier.activity(
                change_set,
                _ACTIVITIES.get(outcome, ActivityKind.REQUEST_APPLIED),
                result.settled.id,
                commit=result.commit,
                outcome=said,
                corrections=corrected,
            )
        inbox = header(request.headers, REPLY_INBOX)
        if inbox:
            content_type = header(request.headers, CONTENT_TYPE)
            with spans.reply_span(sequence):
                await notifier.reply(inbox, build_response(change_set, result), content_type)
        spans.end(sequence, outcome=said, commit=result.commit)


class RequestHandler:
    def __init__(self, run: RunContext, queue: RequestQueue) -> None:
        self.run = run
        self.queue = queue
        self.ownership = run.ownership
        self.attempts = _RequestAttempts(run)
        self._committed: dict[int, CommittedRequest] = {}
        """Committed requests among those in hand, by stream sequence."""

    @property
    def batch_size(self) -> int:
        """Number of requests that one call of `handle` should be given."""
        # If a run's death counts against the first request, all before it must be committed.
        if self.ownership.unreleased_owner:
            return 1
        return self.ownership.loader.log.append_limit(self.queue.backlog)

    async def handle(self, requests: Sequence[Delivery]) -> None:
        """Apply, answer again or dead-letter `requests` in order: commit each, then delete it.

        Each gets one commit; if one fails, those before it are settled.

        Raises:
            RetryLater: one could not be handled now; it is at the head of the queue.
            Fenced: the change set has another owner; the first few may be handled.
        """
        waiting = deque(requests)
        while waiting:
            await self._handle_some(waiting)

    async def _handle_some(self, waiting: deque[Delivery]) -> None:
        """Handle requests, and take them from `waiting`, until that has taken some time.

        So the answer to one does not wait for others that take long.
        """
        done: list[Delivery] = []
        failed: RetryLater | None = None
        clock = asyncio.get_running_loop().time
        end = clock() + _ANSWERED_AFTER
        try:
            async with self.ownership.lock:
                self.ownership.settle = partial(self._settle, done)
                while waiting and clock() < end:
                    request = waiting.popleft()
                    try:
                        with self.ownership.spans.begin(request, request_id_of):
                            if self._is_new(request):
                                await self._attempt(request)
                        done.append(request)
                    except RetryLater as error:
                        failed = error
                    except AppendRefused as error:
                        failed = await self._on_append_refused([*done, request], error)
                    if failed is not None:
                        break
                # L1: also behind a failure, since what is staged came before the failed request.
                try:
                    await self.ownership.flush()
                except AppendRefused as error:
                    failed = await self._on_append_refused(done, error)
            # W8: behind the commits, and outside the lock, so that updates, checkpoints and readers
            # do not wait for replies. The requests before a failed one are answered, too.
            await self._answer(done)
        finally:
            self.ownership.settle = None
            self.ownership.spans.abandon("not settled")
            self._committed.clear()
        if failed is not None:
            raise failed

    async def _settle(self, done: list[Delivery]) -> None:
        """Commit and answer those that are `done`, and take them from there."""
        if done:
            await self.ownership.flush()
            await self._answer(done)
            done.clear()

    def on_commit(self, request: SettledRequest, sequence: int, call: CallEffect | None) -> None:
        """Note the result of a request, which the commit with that sequence settles."""
        self._committed[request.sequence] = CommittedRequest(request, sequence, call)

    def _is_new(self, request: Delivery) -> bool:
        """Whether no commit settled the request before (W5).

        Raises:
            HistoryInconsistent: the request is of another stream (S-5).
        """
        if request.stream_sequence > self.ownership.control.last_sequence:
            return True
        self.ownership.loader.require_settled(
            self.ownership.state,
            request.stream_sequence,
            announced_request(request.headers),
            request.timestamp,
        )
        return False

    async def _answer(self, done: Sequence[Delivery]) -> None:
        """Reply to the requests that are committed, then delete them."""
        # W9: behind a refused commit, `done` may have requests that no commit settles. Those must
        # stay.
        settled = [request for request in done if self._is_committed(request)]
        results = [await self._result(request) for request in settled]
        for request, result in zip(settled, results, strict=True):
            if result is not None:
                await publish_result(self.run, request, result)
        for request in settled:
            await self.queue.handled.add(request.stream_sequence)

    async def _result(self, request: Delivery) -> CommittedRequest | None:
        committed = self._committed.get(request.stream_sequence)
        digest = request_digest(request.payload)
        if committed is None:  # settled before (W5)
            return await recent_result(self.ownership, request_id_of(request), digest)
        return await final_result(self.ownership, committed, digest)

    def _is_committed(self, request: Delivery) -> bool:
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
        # Behind the settled ones: a settled request may be left whose delete was lost, and the
        # owner did not die at that one.
        first = await self.queue.lowest_sequence(after=self.ownership.state.control.last_sequence)
        if first is not None:
            await self.attempts.count_death(owner, first)

    async def _attempt(self, request: Delivery) -> None:
        """Apply the request; dead-letter it if it fails and a repetition cannot help.

        The request is committed, too, unless it may be committed with those after it.
        """
        if await self.attempts.end_deadly(request):
            return
        ownership = self.ownership
        try:
            message = await self._read(request)
            # W7: an id that comes twice is recognised only once its first commit is written, and
            # the application may read the log. So nothing may be staged before either.
            is_alone = (
                isinstance(message, ChangeSetRequestV1)
                or not self.run.services.application.is_batchable(message)
                or ownership.has_staged(message.id)
            )
            if is_alone:
                await ownership.flush()
            unused = await apply_request(self.run, request, message)
            if is_alone:
                await ownership.flush()
            # Behind the commit: if that fails, the next attempt needs the batch.
            await self._discard(unused)
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

    async def _read(self, request: Delivery) -> RequestMessage:
        if len(request.payload) <= _SMALL_PAYLOAD:
            return read_request(self.run.services.application, self.run.change_set, request)
        return await asyncio.to_thread(
            read_request, self.run.services.application, self.run.change_set, request
        )

    async def _discard(self, unused: UpdatesAddress | None) -> None:
        """Delete a batch that nothing refers to; if it stays, it becomes garbage."""
        if unused is not None:
            with suppress(JetStreamError, OSError):
                await self.ownership.loader.batches.delete(unused)

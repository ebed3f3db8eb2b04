"""Handle one request: apply it, answer it again or bury it; then delete and reply (W4 to W9)."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

import structlog

from rebaser_core.activities import ActivityKind
from rebaser_core.batch_limits import BatchLimits
from rebaser_core.commits import FailedAttempts, RequestOutcome, SettledRequest
from rebaser_core.corrections import total_count
from rebaser_core.errors import MessageError, NewerVersion
from rebaser_core.ids import ChangeSet, RequestId
from rebaser_core.jetstream import Delivery, JetStream, JetStreamError
from rebaser_core.subjects import Subjects
from rebaser_core.versioning import CONTENT_TYPE, REPLY_INBOX, announced_id
from rebaser_server.errors import LeftForNewer, RetryLater, Unwritten, WorkEnded
from rebaser_server.processor.apply_request import Unprocessable, apply, repeated, stage
from rebaser_server.processor.dead_letters import bury
from rebaser_server.processor.notifier import Announcer
from rebaser_server.processor.ownership import Ownership
from rebaser_server.processor.rejection import REASON_LENGTH
from rebaser_server.processor.replies import Settled, response_to, settled
from rebaser_server.processor.request_queue import RequestQueue
from rebaser_server.runtime.transient_errors import backoff, is_transient

log: Final = structlog.get_logger()

DEATHS: Final = 2
"""Times `attempts` that runs may die before the request they died at is buried untried: a
process is more often killed for other reasons than an attempt fails for them."""


_Done = tuple[Delivery, RequestId, Settled | None]
"""A request, its id, and what became of it; None if nobody knows any more."""

_TOLD: Final = {
    RequestOutcome.DEAD: ActivityKind.REQUEST_DEAD,
    RequestOutcome.REFUSED: ActivityKind.REQUEST_REFUSED,
}


@dataclass(frozen=True, slots=True)
class Handler:
    """What it takes to handle the requests of one change set, in one run."""

    js: JetStream
    subjects: Subjects
    change_set: ChangeSet
    own: Ownership
    queue: RequestQueue
    announcer: Announcer
    attempts: int
    limits: BatchLimits = field(default_factory=BatchLimits)

    @property
    def at_once(self) -> int:
        """How many requests one call of `handle` should be given."""
        # A run whose death is to be blamed on the first in line must have committed the others.
        return 1 if self.own.former else self.own.archive.log.at_once

    async def handle(self, requests: Sequence[Delivery]) -> None:
        """Have `requests` applied, answered or buried, in order: committed, deletion asked for.

        Each has a line of its own; where one fails, those before it are done.

        Raises:
            RetryLater: one could not be handled now and is first in line by now.
            Overtaken: the change set has another owner; the first so many may be done.
        """
        try:
            await self._handle(requests)
        finally:
            self.own.traces.drop("not settled")

    async def _handle(self, requests: Sequence[Delivery]) -> None:
        done: list[_Done] = []
        failed: RetryLater | None = None
        async with self.own.lock:
            for request in requests:
                request_id = id_of(request)
                try:
                    with self.own.traces.begin(request_id, request):
                        what = await self._settled(request, request_id)
                    done.append((request, request_id, what))
                except RetryLater as error:
                    failed = error
                except Unwritten as error:
                    failed = await self._unwritten([*(each for each, _, _ in done), request], error)
                if failed is not None:
                    break
            try:
                await self.own.flush()
            except Unwritten as error:
                failed = await self._unwritten([each for each, _, _ in done], error)
            written = [each for each in done if self._is_settled(each[0])]
            done = [(request, its_id, self._committed(what)) for request, its_id, what in written]
        for request, _, _ in done:
            await self.queue.delete(request.stream_sequence)
        for request, request_id, what in done:
            if what is not None:
                with self.own.traces.within(request_id):
                    await self._tell(request, request_id, what)
        if failed is not None:
            raise failed

    async def _settled(self, request: Delivery, request_id: RequestId) -> Settled | None:
        if request.stream_sequence > self.own.head.last_sequence:
            return await self._decide(request)
        return await settled(self.own, request_id)  # handled before, and never again (W5)

    def _is_settled(self, request: Delivery) -> bool:
        """By the log, as far as it is known to be written."""
        return request.stream_sequence <= self.own.state.head.last_sequence

    async def _unwritten(self, requests: Sequence[Delivery], error: Unwritten) -> RetryLater:
        """A line was refused: put off the request that it was to settle; why the run must end.

        Those before it are written (L1): the first of `requests` that is not settled is it.
        """
        cause = error.__cause__ or error
        refused = next((each for each in requests if not self._is_settled(each)), None)
        if refused is None or is_transient(cause):
            return RetryLater(str(error))
        try:
            return await self._failed(refused, self._attempts_at(refused.stream_sequence), cause)
        except Unwritten as again:
            return RetryLater(str(again))

    def _committed(self, what: Settled | None) -> Settled | None:
        """With its commit, now that it is written."""
        if what is None or what.commit:
            return what
        return what._replace(commit=self.own.state.recent[what.handled.id].commit)

    async def suspect(self, former: str) -> None:
        """Count an attempt at the first request in line, at which `former` may have died (L1).

        So a request that ends its process is buried in the end, too.
        """
        first = await self.queue.first(after=self.own.state.head.last_sequence)
        if first is not None:
            async with self.own.lock:
                before = self._attempts_at(first)
                attempts = before.model_copy(update={"deaths": before.deaths + 1})
                await self.own.write(attempts=attempts)
            log.warning("owner did not release", former=former, deaths=attempts.deaths)

    async def _decide(self, request: Delivery) -> Settled:
        """Attempt it; what comes of that is judged by whether a repetition can help."""
        before = self._attempts_at(request.stream_sequence)
        if before.deaths >= DEATHS * self.attempts:
            return await self._bury(request, "whoever tried it died", before.deaths)
        try:
            return await apply(self.own, request, self.limits)
        except (WorkEnded, Unwritten):
            raise
        except NewerVersion as error:
            raise LeftForNewer(error) from error
        except (MessageError, Unprocessable) as error:
            return await self._bury(request, _told(error), before.count + 1)
        except Exception as error:
            self.own.spoil()
            if is_transient(error):
                raise RetryLater(_told(error)) from error
            raise await self._failed(request, before, error) from error

    def _attempts_at(self, sequence: int) -> FailedAttempts:
        before = self.own.head.attempts
        return (
            before if before and before.sequence == sequence else FailedAttempts(sequence=sequence)
        )

    async def _failed(
        self, request: Delivery, before: FailedAttempts, error: BaseException
    ) -> RetryLater:
        """Count a failed attempt, or bury the request after too many (L1); why the run must end.

        It ends in any case: the graph may hold half a batch.
        """
        sequence, reason = request.stream_sequence, _told(error)
        log.error("request failed", request=str(id_of(request)), sequence=sequence, exc_info=error)
        failed = before.model_copy(update={"count": before.count + 1})
        if failed.count >= self.attempts:
            await self._bury(request, reason, failed.count)
            return RetryLater(reason, 0)
        await self.own.write(attempts=failed)
        return RetryLater(reason, backoff(failed.count))

    async def _bury(self, request: Delivery, reason: str, attempts: int) -> Settled:
        """Copy it to the dead letters, and only then say in the log that it is dead (L2)."""
        if id_of(request) in self.own.state.recent:
            return await repeated(self.own, request, id_of(request))
        try:
            await bury(
                self.js,
                self.subjects,
                self.own.archive,
                request,
                reason=reason,
                attempts=attempts,
            )
        except (JetStreamError, OSError) as error:
            raise RetryLater(f"dead letter not stored: {error}") from error
        handled = SettledRequest(
            id=id_of(request),
            sequence=request.stream_sequence,
            outcome=RequestOutcome.DEAD,
            message=reason[:REASON_LENGTH].encode(errors="replace").decode(),
        )
        stage(self.own, request, handled)
        await self.own.flush()
        log.error(
            "request dead-lettered", request=str(handled.id), reason=reason, attempts=attempts
        )
        return Settled(handled, self.own.state.commit)

    async def _tell(self, request: Delivery, request_id: RequestId, what: Settled) -> None:
        outcome = what.handled.outcome
        waited = time.time() - request.stored
        corrected = total_count(what.handled.corrections)
        is_result = outcome is RequestOutcome.STALE  # of an older Rebaser
        self.announcer.board.request(
            self.change_set, outcome.value, max(0.0, waited), corrected, is_result=is_result
        )
        await self.announcer.activity(
            self.change_set,
            _TOLD.get(outcome, ActivityKind.REQUEST_APPLIED),
            what.handled.id,
            commit=what.commit,
            outcome=outcome.value,
            corrections=corrected,
        )
        inbox = request.headers.get(REPLY_INBOX)
        if inbox:
            content_type = request.headers.get(CONTENT_TYPE)
            with self.own.traces.replying(request_id):
                await self.announcer.reply(inbox, response_to(self.change_set, what), content_type)
        self.own.traces.end(request_id, outcome=outcome.value, commit=what.commit)


def _told(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"


def id_of(request: Delivery) -> RequestId:
    """The id that the headers announce; of a request that has none, one made of its sequence."""
    try:
        return RequestId.from_str(announced_id(request.headers) or "")
    except ValueError:
        return RequestId.from_int(request.stream_sequence)

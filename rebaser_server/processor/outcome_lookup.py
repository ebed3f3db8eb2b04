"""What became of a request, for callers that did not hear it (W8): any Rebaser can tell."""

import asyncio
from typing import Final

import structlog

from rebaser_core.commits import NO_REQUEST, Commit, RequestOutcome, SettledRequest
from rebaser_core.ids import ChangeSet, RequestId
from rebaser_core.jetstream import JetStream, OrderedPushConsumer
from rebaser_core.outcome_query import OutcomeQueryV1, OutcomeReplyV2, RequestState
from rebaser_core.subjects import Subjects
from rebaser_core.versioning import announced_id
from rebaser_server.commit_log.log import CommitLog
from rebaser_server.commit_log.retention import Kept
from rebaser_server.commit_log.state import Known, recent_in
from rebaser_server.processor.replies import Settled, response_to
from rebaser_server.store.checkpoints import Checkpoints

log: Final = structlog.get_logger()


class Outcomes:
    """Looks in the log and in the requests that wait; changes nothing, owns nothing.

    It knows the requests since the last checkpoint and the last thousand before it; of those
    whose line was purged only whether they were applied.
    """

    def __init__(self, js: JetStream, subjects: Subjects, checkpoints: Checkpoints) -> None:
        self._js = js
        self._subjects = subjects
        self._checkpoints = checkpoints

    async def of(self, query: OutcomeQueryV1) -> OutcomeReplyV2:
        """Where the request is. What is stored or handled meanwhile may be missed."""
        change_set = ChangeSet(query.workspace_id, query.change_set_id)
        # Waiting first: a request is deleted only after the log has it.
        waiting = await self._waiting(change_set, query.id)
        what = await self._settled(change_set, query.id)
        if what is not None:
            response = response_to(change_set, what)
            return OutcomeReplyV2(id=query.id, state=RequestState.HANDLED, response=response)
        state = RequestState.WAITING if waiting else RequestState.UNKNOWN
        return OutcomeReplyV2(id=query.id, state=state)

    async def _waiting(self, change_set: ChangeSet, request_id: RequestId) -> bool:
        reader = OrderedPushConsumer(
            self._js,
            self._subjects.requests_stream,
            self._subjects.requests(change_set),
            headers_only=True,
        )
        async with reader:
            while (request := await reader.next(idle_timeout=0)) is not None:
                if announced_id(request.headers) == str(request_id):
                    return True
        return False

    async def _settled(self, change_set: ChangeSet, request_id: RequestId) -> Settled | None:
        """What the last checkpoint remembers of it or, if it does not, a line behind that.

        The log may go back much further, for the sake of the past.
        """
        try:
            small = await asyncio.to_thread(self._checkpoints.metadata, change_set) or {}
        except OSError as error:
            log.warning("checkpoint unreadable", change_set=str(change_set), error=str(error))
            small = {}
        known = recent_in(small).get(request_id) if small else None
        if known is not None:
            return await self._remembered(change_set, request_id, known)
        kept = Kept.all_in(small)
        return await self._behind(change_set, request_id, kept[-1].commit if kept else 0)

    async def _remembered(
        self, change_set: ChangeSet, request_id: RequestId, known: Known
    ) -> Settled:
        """All that its line says, or, if that was purged, what became of it."""
        line = await CommitLog(self._js, self._subjects, change_set).line(known.commit)
        if line is not None and line.handled is not None:
            return Settled(line.handled, known.commit)
        return Settled(
            SettledRequest(id=request_id, sequence=0, outcome=known.outcome), known.commit
        )

    async def _behind(
        self, change_set: ChangeSet, request_id: RequestId, after: int
    ) -> Settled | None:
        """The line that settles it, unless that only says it had been settled before."""
        reader = OrderedPushConsumer(
            self._js,
            self._subjects.commits_stream,
            self._subjects.commits(change_set),
            start_sequence=after + 1,
        )
        async with reader:
            while (line := await reader.next(idle_timeout=0)) is not None:
                handled = Commit.decode(line.headers, line.payload).handled
                if handled is None or handled.id != request_id or handled.sequence == NO_REQUEST:
                    continue
                if handled.outcome is not RequestOutcome.DUPLICATE:
                    return Settled(handled, line.stream_sequence)
        return None

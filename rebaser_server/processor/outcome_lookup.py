"""Look up the outcome of a request for a caller that missed the reply (W8); any Rebaser can."""

import asyncio
from typing import Final

import structlog

from rebaser_core.commits import NO_REQUEST, Commit, RequestOutcome, SettledRequest
from rebaser_core.errors import NewerVersion
from rebaser_core.ids import ChangeSet, RequestId
from rebaser_core.jetstream import JetStream, ordered_reader
from rebaser_core.messages import OutcomeQueryV1, OutcomeReplyV2, RequestState
from rebaser_core.subjects import Subjects
from rebaser_core.versioning import REQUEST_DIGEST, announced_id
from rebaser_server.commit_log.log import CommitLog
from rebaser_server.commit_log.state import (
    CheckpointRef,
    RecentRequest,
    RecentRequests,
    StateMachine,
)
from rebaser_server.processor.rejection import is_other_request
from rebaser_server.processor.replies import CommittedRequest, build_response, refused_as_other

log: Final = structlog.get_logger()


class OutcomeLookup:
    """Looks in the log and in the queue of requests; changes nothing, owns nothing.

    It knows the requests since the last checkpoint and those that are remembered before it, at
    least the last thousand; of one whose commit was purged it only knows whether it was applied.
    """

    def __init__(self, js: JetStream, subjects: Subjects, machine: StateMachine) -> None:
        self._js = js
        self._subjects = subjects
        self._machine = machine

    async def find(self, query: OutcomeQueryV1, digest: str = "") -> OutcomeReplyV2:
        """Return the request's outcome. A request stored or settled meanwhile may be missed.

        `digest`: of the request that is meant; another one may have had its id.
        """
        change_set = ChangeSet(query.workspace_id, query.change_set_id)
        # Waiting first: a request is deleted only after the log has it.
        waiting = await self._is_waiting(change_set, query.id)
        result, settled = await self._find_result(change_set, query.id)
        is_other = is_other_request(settled, digest)
        if result is not None and is_other:
            result = refused_as_other(query.id, result.commit)
        if result is not None and not (is_other and waiting):  # until then it may be forgotten
            response = build_response(change_set, result)
            return OutcomeReplyV2(id=query.id, state=RequestState.HANDLED, response=response)
        state = RequestState.WAITING if waiting else RequestState.UNKNOWN
        return OutcomeReplyV2(id=query.id, state=state)

    async def _is_waiting(self, change_set: ChangeSet, request_id: RequestId) -> bool:
        reader = ordered_reader(
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

    async def _find_result(
        self, change_set: ChangeSet, request_id: RequestId
    ) -> tuple[CommittedRequest | None, str]:
        """Return the result from the last checkpoint, or else from a commit after it.

        Beside it, the digest of the request, if it is known. The log may go back much further,
        since it keeps the past.
        """
        try:
            recent, checkpoint = await asyncio.to_thread(
                self._read_checkpoint, change_set, request_id
            )
        except (OSError, NewerVersion) as error:
            log.warning("checkpoint unreadable", change_set=str(change_set), error=str(error))
            recent, checkpoint = None, 0
        if recent is not None:
            return await self._from_recent(change_set, request_id, recent), recent.digest
        return await self._scan_log(change_set, request_id, checkpoint)

    def _read_checkpoint(
        self, change_set: ChangeSet, request_id: RequestId
    ) -> tuple[RecentRequest | None, int]:
        """What the last checkpoint knows of the request, and the checkpoint's commit. Blocks."""
        metadata = self._machine.metadata(change_set)
        if not metadata:
            return None, 0
        checkpoints = CheckpointRef.read_all(metadata)
        recent = RecentRequests.from_metadata(metadata).get(request_id)
        return recent, checkpoints[-1].commit if checkpoints else 0

    async def _from_recent(
        self, change_set: ChangeSet, request_id: RequestId, recent: RecentRequest
    ) -> CommittedRequest:
        """Return the result from its commit; if that was purged, only the outcome."""
        entry = await CommitLog(self._js, self._subjects, change_set).entry(recent.commit)
        if entry is not None and entry.handled is not None:
            return CommittedRequest(entry.handled, recent.commit)
        return CommittedRequest(
            SettledRequest(id=request_id, sequence=0, outcome=recent.outcome), recent.commit
        )

    async def _scan_log(
        self, change_set: ChangeSet, request_id: RequestId, after: int
    ) -> tuple[CommittedRequest | None, str]:
        """Return the result from the commit that settles it; a duplicate's commit is skipped."""
        reader = ordered_reader(
            self._js,
            self._subjects.commits_stream,
            self._subjects.commits(change_set),
            opt_start_seq=after + 1,
        )
        async with reader:
            while (message := await reader.next(idle_timeout=0)) is not None:
                handled = Commit.decode(message.headers, message.payload).handled
                if handled is None or handled.id != request_id or handled.sequence == NO_REQUEST:
                    continue
                if handled.outcome is not RequestOutcome.DUPLICATE:
                    digest = message.headers.get(REQUEST_DIGEST, "")
                    return CommittedRequest(handled, message.stream_sequence), digest
        return None, ""

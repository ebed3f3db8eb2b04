"""Answers to callers: replies to requests, activities, and outcomes that are looked up later.

A reply is built from the commit that settles the request. Any Rebaser can look up the outcome of a
request for a caller that missed the reply (W8). A run publishes replies and activities once and
without waiting.
"""

import asyncio
import re
from collections.abc import Callable
from typing import Any, Final, NamedTuple

import nats.errors
import structlog

from rebaser_core import codecs, trace_context
from rebaser_core.activities import ActivityKind, encode_activity
from rebaser_core.commits import NO_REQUEST, CallEffect, Commit, RequestOutcome, SettledRequest
from rebaser_core.errors import NewerVersion
from rebaser_core.ids import ChangeSet, RequestId
from rebaser_core.jetstream import ordered_reader
from rebaser_core.messages import (
    CUT,
    Correction,
    EnqueueUpdatesResponse,
    EnqueueUpdatesResponseV3,
    ErrorDetail,
    ErrorStatus,
    Inline,
    InlineBatch,
    OutcomeQueryV1,
    OutcomeReplyV2,
    RequestState,
    SuccessStatusV3,
    SuccessV3,
)
from rebaser_core.streams import Streams
from rebaser_core.versioning import REQUEST_DIGEST, announced_id
from rebaser_server.commit_log.log import CommitLog
from rebaser_server.commit_log.state import (
    CheckpointRef,
    RecentRequest,
    RecentRequests,
    StateMachine,
)
from rebaser_server.processor.dead_letters import is_other_request, used_id
from rebaser_server.processor.ownership import Ownership
from rebaser_server.telemetry.work_stats import WorkStats

_FALLBACK_MESSAGES: Final = {
    RequestOutcome.DEAD: "in the dead letters",
    RequestOutcome.REFUSED: "refused",
}
"""Reason in a reply if the commit with the reason was purged."""


class CommittedRequest(NamedTuple):
    settled: SettledRequest
    commit: int
    call: CallEffect | None = None


async def final_result(
    ownership: Ownership, committed: CommittedRequest, digest: str
) -> CommittedRequest:
    """Return the result of a request that was settled just now; for a duplicate the first one's.

    The ownership has written all staged commits. `digest` is the request's.
    """
    if committed.settled.outcome is RequestOutcome.DUPLICATE:
        return await recent_result(ownership, committed.settled.id, digest) or committed
    return committed


async def recent_result(
    ownership: Ownership, request_id: RequestId, digest: str
) -> CommittedRequest | None:
    """Return the result of a request that was settled before; None if the log lost it.

    If its id was another request's, by the `digest`, the result is a refusal. The ownership has
    written all staged commits.
    """
    recent = ownership.state.recent.get(request_id)
    if recent is None:
        return None
    if is_other_request(recent.digest, digest):
        return _refused_as_other(request_id, recent.commit)
    return await _from_recent(ownership.loader.log, request_id, recent)


async def _from_recent(
    log: CommitLog, request_id: RequestId, recent: RecentRequest
) -> CommittedRequest:
    """Return the result from its commit; if that was purged, only the outcome."""
    entry = await log.entry(recent.commit)
    if entry is not None and entry.settled is not None:
        return CommittedRequest(entry.settled, recent.commit, entry.call)
    return CommittedRequest(
        SettledRequest(id=request_id, sequence=0, outcome=recent.outcome), recent.commit
    )


def _refused_as_other(request_id: RequestId, commit: int) -> CommittedRequest:
    """Return the result of a request whose id was another one's, settled by `commit`."""
    settled = SettledRequest(
        id=request_id, sequence=0, outcome=RequestOutcome.REFUSED, message=used_id(commit)
    )
    return CommittedRequest(settled, commit)


def _shorten(response: EnqueueUpdatesResponseV3) -> EnqueueUpdatesResponseV3:
    """Return the response without details that a message has no room for; it says so."""
    if isinstance(response.status, ErrorStatus):
        return response
    notice = Correction(index=0, code=CUT, detail="too large for a message; the log has all of it")
    success = SuccessV3(
        updates_performed=Inline(inline=InlineBatch(updates=[])),
        commit=response.status.success.commit,
        corrections=(notice,),
    )
    return response.model_copy(update={"status": SuccessStatusV3(success=success)})


def build_response(change_set: ChangeSet, result: CommittedRequest) -> EnqueueUpdatesResponseV3:
    """Build the final response, which never changes as long as the commit is not purged."""
    settled, commit, call = result
    status: SuccessStatusV3 | ErrorStatus
    if settled.outcome in (RequestOutcome.DEAD, RequestOutcome.REFUSED):
        status = ErrorStatus(
            error=ErrorDetail(message=settled.message or _FALLBACK_MESSAGES[settled.outcome])
        )
    elif call is not None:
        status = SuccessStatusV3(success=SuccessV3(commit=commit, result=call.result))
    else:
        status = SuccessStatusV3(
            success=SuccessV3(
                updates_performed=settled.updates or Inline(inline=InlineBatch(updates=[])),
                commit=commit,
                corrections=settled.corrections,
            )
        )
    return EnqueueUpdatesResponseV3(
        id=settled.id,
        workspace_id=change_set.workspace_id,
        change_set_id=change_set.change_set_id,
        status=status,
    )


log: Final = structlog.get_logger()


class OutcomeLookup:
    """Looks in the log and in the queue of requests; changes nothing, owns nothing.

    It knows the requests since the last checkpoint and those that are remembered before it, at
    least the last thousand. If the commit is purged, only whether the request was applied is known.
    """

    def __init__(self, streams: Streams, machine: StateMachine) -> None:
        self._streams = streams
        self._machine = machine

    async def find(self, query: OutcomeQueryV1, digest: str = "") -> OutcomeReplyV2:
        """Return the request's outcome. A request stored or settled meanwhile may be missed.

        `digest` is that of the request that is meant; another one may have had its id.
        """
        change_set = ChangeSet(query.workspace_id, query.change_set_id)
        # Waiting first: a request is deleted only after the log has it.
        waiting = await self._is_waiting(change_set, query.id)
        result, settled = await self._find_result(change_set, query.id)
        is_other = is_other_request(settled, digest)
        if result is not None and is_other:
            result = _refused_as_other(query.id, result.commit)
        if result is not None and not (is_other and waiting):  # until then it may be forgotten
            response = build_response(change_set, result)
            return OutcomeReplyV2(id=query.id, state=RequestState.SETTLED, response=response)
        state = RequestState.WAITING if waiting else RequestState.UNKNOWN
        return OutcomeReplyV2(id=query.id, state=state)

    async def _is_waiting(self, change_set: ChangeSet, request_id: RequestId) -> bool:
        reader = ordered_reader(
            self._streams.js,
            self._streams.requests_stream,
            self._streams.requests(change_set),
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

        The request's digest is returned, too, if it is known. The log may go back much further,
        since it keeps the past.
        """
        try:
            recent, checkpoint = await asyncio.to_thread(
                self._read_checkpoint, change_set, request_id
            )
        except (OSError, NewerVersion) as error:
            log.warning("checkpoint unreadable", change_set=str(change_set), error=str(error))
            recent, checkpoint = None, 0
        commits = CommitLog(self._streams, change_set)
        if recent is not None:
            return await _from_recent(commits, request_id, recent), recent.digest
        return await self._scan_log(change_set, request_id, checkpoint)

    def _read_checkpoint(
        self, change_set: ChangeSet, request_id: RequestId
    ) -> tuple[RecentRequest | None, int]:
        """Return the request as the last checkpoint knows it, and that one's commit. Blocks."""
        metadata = self._machine.metadata(change_set)
        if not metadata:
            return None, 0
        checkpoints = CheckpointRef.read_all(metadata)
        recent = RecentRequests.from_metadata(metadata).get(request_id)
        return recent, checkpoints[-1].commit if checkpoints else 0

    async def _scan_log(
        self, change_set: ChangeSet, request_id: RequestId, after: int
    ) -> tuple[CommittedRequest | None, str]:
        """Return the result from the commit that settles it; a duplicate's commit is skipped."""
        reader = ordered_reader(
            self._streams.js,
            self._streams.commits_stream,
            self._streams.commits(change_set),
            opt_start_seq=after + 1,
        )
        async with reader:
            while (message := await reader.next(idle_timeout=0)) is not None:
                entry = Commit.decode(message.headers, message.payload)
                settled = entry.settled
                if settled is None or settled.id != request_id or settled.sequence == NO_REQUEST:
                    continue
                if settled.outcome is not RequestOutcome.DUPLICATE:
                    digest = message.headers.get(REQUEST_DIGEST, "")
                    found = CommittedRequest(settled, message.stream_sequence, entry.call)
                    return found, digest
        return None, ""


_INBOX_LENGTH: Final = 200
"""Maximum number of characters of a reply inbox: a longer one gets no reply."""

_DETAIL_LENGTH: Final = 1_000
"""Maximum number of characters of a text among the details of an activity."""

_SUBJECT: Final = re.compile(r"[!-)+\-/-=?-~]+(\.[!-)+\-/-=?-~]+)*")


Observe = Callable[[ChangeSet, ActivityKind, RequestId | None, dict[str, Any]], None]


class Notifier:
    """Publishes without waiting for an answer. A lost message harms nothing: the log has it all."""

    def __init__(self, streams: Streams) -> None:
        self.stats = WorkStats()
        """Statistics that the status page shows."""
        self.observe: Observe | None = None
        """Function that is called with each activity but `REQUEST_APPLIED`; it does not block."""
        self._streams = streams

    async def reply(
        self, inbox: str, response: EnqueueUpdatesResponseV3, content_type: str | None
    ) -> None:
        """Answer to `inbox` in the encoding of the caller's request.

        A subject that is no inbox gets no answer, so that callers cannot make us write into
        streams.
        """
        ours = self._streams.join("rebaser.")
        fits = len(inbox) <= _INBOX_LENGTH and _SUBJECT.fullmatch(inbox)
        if not fits or inbox.startswith(("$", ours)):
            log.warning("reply inbox rejected", inbox=inbox[:200])
            return
        content_type = codecs.content_type_or_default(content_type)
        headers, payload = EnqueueUpdatesResponse.encode(response, content_type)
        headers = dict(trace_context.inject(headers))
        if len(payload) > self._streams.js.message_limits.max_payload_for(inbox, headers):
            _, payload = EnqueueUpdatesResponse.encode(_shorten(response), content_type)
        await self._publish(inbox, payload, headers)

    async def activity(
        self,
        change_set: ChangeSet,
        kind: ActivityKind,
        request_id: RequestId | None = None,
        **details: Any,
    ) -> None:
        """Publish an activity of the change set, and count it; long texts are cut."""
        details = {
            name: detail[:_DETAIL_LENGTH] if isinstance(detail, str) else detail
            for name, detail in details.items()
        }
        if kind is not ActivityKind.REQUEST_APPLIED:  # the most frequent, of which it keeps nothing
            self.stats.activity(change_set, kind, request_id, details)
            if self.observe is not None:
                self.observe(change_set, kind, request_id, details)
        headers, payload = encode_activity(change_set, kind, request_id, details)
        await self._publish(self._streams.activities(change_set), payload, headers)

    async def _publish(self, subject: str, payload: bytes, headers: dict[str, str]) -> None:
        try:
            await self._streams.js.nc.publish(subject, payload, headers=headers)
        except (nats.errors.Error, OSError) as error:
            log.warning("publish failed", subject=subject, error=str(error))

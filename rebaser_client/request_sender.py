"""Store requests and learn their outcomes: the base of the whole client."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import chain, repeat
from typing import Any, Final

from rebaser_client.errors import OutcomeUnknown, ReadRefused, Unreachable
from rebaser_client.reply_inbox import ReplyInbox
from rebaser_client.request_publisher import (
    TaskPublisher,
    ensure_task,
    message_id,
    publish_request,
    request_digest,
)
from rebaser_client.workspace_check import WorkspaceCheck
from rebaser_core.ids import ChangeSet, RequestId
from rebaser_core.jetstream import JetStream, JetStreamError
from rebaser_core.messages import (
    EnqueueUpdatesResponseV2,
    OutcomeQuery,
    OutcomeQueryV1,
    OutcomeReply,
    OutcomeReplyV2,
    RequestState,
)
from rebaser_core.query_protocol import REPLY_TIMEOUT, RETRY_AFTER
from rebaser_core.records import ChangeSetRequest, ChangeSetRequestV2
from rebaser_core.subjects import Subjects
from rebaser_core.versioning import MESSAGE_ID, REPLY_INBOX, REPLY_VERSION, REQUEST_DIGEST

Reply = Awaitable[EnqueueUpdatesResponseV2]

OUTCOME_POLLS: Final = (1.0, 10.0, 20.0, 40.0)
OUTCOME_POLL_INTERVAL: Final = 60.0
"""Seconds without a reply after which the task is looked after (C3) and the outcome asked for:
ever more, since a request behind many others waits for long, and so do those who asked."""

OUTCOME_TIMEOUT: Final = 10.0  # seconds


@dataclass(frozen=True, slots=True)
class RequestOptions:
    """How one client makes its requests."""

    content_type: str
    author: str | None
    """Who sends them, for the log of commits and the registry."""
    retry_for: float
    """Seconds in which a publish without a reply is repeated."""


class RequestSender:
    """Sends the requests of one client."""

    def __init__(
        self,
        js: JetStream,
        subjects: Subjects,
        replies: ReplyInbox,
        options: RequestOptions,
        workspace_check: WorkspaceCheck,
    ) -> None:
        self._js = js
        self._subjects = subjects
        self._replies = replies
        self._options = options
        self._workspace_check = workspace_check
        self._tasks = TaskPublisher.using(js, subjects, options.retry_for)

    async def send(self, change_set: ChangeSet, headers: dict[str, str], payload: bytes) -> None:
        """As `publish_request`."""
        await publish_request(
            self._js,
            self._subjects,
            change_set,
            headers | {MESSAGE_ID: message_id(headers[MESSAGE_ID], change_set, payload)},
            payload,
            retry_for=self._options.retry_for,
            tasks=self._tasks,
        )

    async def send_with_reply(
        self,
        change_set: ChangeSet,
        request_id: RequestId,
        headers: dict[str, str],
        payload: bytes,
    ) -> Reply:
        """Send the request as `send` does; return the response to await: it comes once.

        Awaiting it raises `OutcomeUnknown` if the request was handled so long ago that no
        Rebaser remembers it.
        """
        digest = request_digest(payload)
        answer = self._replies.expect(change_set, request_id, digest)
        try:
            inbox = self._replies.address(request_id, digest)
            await self.send(change_set, {**headers, REPLY_INBOX: inbox}, payload)
        except BaseException:
            answer.cancel()
            raise
        return self._await_reply(change_set, request_id, digest, answer)

    async def send_command(self, request: ChangeSetRequestV2) -> EnqueueUpdatesResponseV2:
        """Ask something of a change set as a whole; its final answer.

        Raises:
            NotInWorkspace: it is another workspace's; nothing was sent.
        """
        change_set = ChangeSet(request.workspace_id, request.change_set_id)
        await self._workspace_check.check(change_set)
        request = request.model_copy(update={"by": self._options.author})
        headers, payload = ChangeSetRequest.encode(request, self._options.content_type)
        return await (await self.send_with_reply(change_set, request.id, headers, payload))

    async def outcome(
        self, change_set: ChangeSet, request_id: RequestId, digest: str = ""
    ) -> OutcomeReplyV2:
        """What became of a request; changes nothing.

        With its digest, it is refused if its id was another request's.

        Raises:
            Unreachable: no Rebaser answered, or one that was too busy to look.
            ReadRefused: one did, and said why it does not tell.
        """
        query = OutcomeQueryV1(
            id=request_id,
            workspace_id=change_set.workspace_id,
            change_set_id=change_set.change_set_id,
        )
        headers, payload = OutcomeQuery.encode(query, self._options.content_type)
        headers[REPLY_VERSION] = str(OutcomeReply.current.VERSION)
        headers[REPLY_TIMEOUT] = str(OUTCOME_TIMEOUT)
        if digest:
            headers[REQUEST_DIGEST] = digest
        try:
            answer = await self._js.connection.request(
                self._subjects.outcomes(change_set),
                payload,
                headers=headers,
                timeout=OUTCOME_TIMEOUT,
            )
        except JetStreamError as error:
            raise Unreachable(f"no Rebaser answered: {error}") from error
        reply = OutcomeReply.decode(answer.headers or {}, answer.data)
        if reply.error is None:
            return reply
        if RETRY_AFTER in (answer.headers or {}):
            raise Unreachable(f"no Rebaser answered: {reply.error}")
        raise ReadRefused(reply.error)

    async def _await_reply(
        self,
        change_set: ChangeSet,
        request_id: RequestId,
        digest: str,
        answer: asyncio.Future[EnqueueUpdatesResponseV2],
    ) -> EnqueueUpdatesResponseV2:
        """Wait for the reply, and now and then ask for it: it is plain NATS and may be lost.

        None will come, either, if the request was sent before and is handled already.
        """
        self._js.connection.guard()
        unknown = 0
        try:
            for patience in chain(OUTCOME_POLLS, repeat(OUTCOME_POLL_INTERVAL)):
                done, _ = await asyncio.wait([answer], timeout=patience)
                ask = partial(self._ask, change_set, request_id, digest)
                known = None if done else await self._look_after(ask, answer)
                if answer.done():
                    return answer.result()
                if known is not None:
                    if known.response is not None:
                        return known.response
                    unknown += known.state is RequestState.UNKNOWN
                if unknown > 1:  # once may be a replica that lags behind
                    raise OutcomeUnknown(f"request {request_id} is not known any more")
            raise AssertionError("there is always another ask")
        finally:
            answer.cancel()

    async def _look_after(
        self,
        ask: Callable[[], Coroutine[Any, Any, OutcomeReplyV2 | None]],
        answer: asyncio.Future[Any],
    ) -> OutcomeReplyV2 | None:
        """See to the task (C3) and `ask` for the outcome, until `answer` is there.

        None if it came first, or no Rebaser told: those that are busy take long to.
        """
        asking = asyncio.create_task(ask(), name="ask for an outcome")
        try:
            await asyncio.wait([answer, asking], return_when=asyncio.FIRST_COMPLETED)
            return None if answer.done() else asking.result()
        finally:
            asking.cancel()
            await asyncio.gather(asking, return_exceptions=True)

    async def _ask(
        self, change_set: ChangeSet, request_id: RequestId, digest: str
    ) -> OutcomeReplyV2 | None:
        await ensure_task(self._js, self._subjects, change_set)
        with suppress(Unreachable):
            return await self.outcome(change_set, request_id, digest)
        return None

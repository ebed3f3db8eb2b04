"""`RebaserClient`: enqueue updates for a change set, and await what became of them."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from itertools import chain, repeat
from typing import Any, Final, Self

from nats.aio.client import Client
from pydantic import TypeAdapter, ValidationError

from rebaser_client.batches import INLINE_BYTES, INLINE_UPDATES, place_batch
from rebaser_client.errors import NotStored, OutcomeUnknown, TooLarge, Unreachable
from rebaser_client.operations import Operations
from rebaser_client.publishing import RETRY_FOR, publish_request, publish_task, queue_full
from rebaser_client.reading import Reader
from rebaser_client.replies import Replies, receiving
from rebaser_client.workspaces import Workspaces
from rebaser_core import codecs
from rebaser_core.change_sets import ChangeSetRequest, ChangeSetRequestV2
from rebaser_core.commits import AUTHOR_LENGTH
from rebaser_core.errors import MalformedMessage
from rebaser_core.ids import ChangeSet, ChangeSetId, RequestId, WorkspaceId
from rebaser_core.jetstream import (
    ConnectOptions,
    Full,
    JetStream,
    JetStreamError,
    ObjectStore,
    connected,
)
from rebaser_core.limits import Limits
from rebaser_core.messages import (
    EnqueueUpdatesRequest,
    EnqueueUpdatesRequestV1,
    EnqueueUpdatesResponseV2,
    Inline,
)
from rebaser_core.messages import Updates as Shipped
from rebaser_core.outcomes import (
    OutcomeQuery,
    OutcomeQueryV1,
    OutcomeReply,
    OutcomeReplyV1,
    RequestState,
)
from rebaser_core.subjects import Subjects
from rebaser_core.updates import AnyUpdate, UpdateList
from rebaser_core.versioned import AUTHOR, REPLY_INBOX, brief

Updates = Sequence[AnyUpdate | dict[str, Any]]
"""Updates as classes of `rebaser_core.updates`, or as the wire has them."""

Reply = Awaitable[EnqueueUpdatesResponseV2]

ASKS: Final = (1.0, 10.0, 20.0, 40.0)
ASK_EVERY: Final = 60.0
"""Seconds without a reply after which the task is looked after (C3) and the outcome asked for:
ever more, since a request behind many others waits for long, and so do those who asked."""

OUTCOME_TIMEOUT: Final = 10.0  # seconds

_LOCAL: Final = ("nats://127.0.0.1:4222",)

_LIMITS: Final = Limits()

_UPDATES: Final[TypeAdapter[list[AnyUpdate]]] = TypeAdapter(UpdateList)


class RebaserClient:
    """Enqueues requests over one connection, which stays its owner's; tasks may share it."""

    def __init__(
        self,
        js: JetStream,
        replies: Replies,
        *,
        prefix: str | None = None,
        content_type: str = codecs.CBOR,
        retry_for: float = RETRY_FOR,
        limits: Limits = _LIMITS,
        author: str | None = None,
    ) -> None:
        """`author`: who asks, for the log and the registry; 200 characters of it are kept."""
        if content_type not in codecs.CONTENT_TYPES:
            known = ", ".join(sorted(codecs.CONTENT_TYPES))
            raise ValueError(f"content type {content_type!r}; there are {known}")
        self._js = js
        self._replies = replies
        self._subjects = Subjects(prefix)
        self._batches = ObjectStore(js, self._subjects.batches_bucket)
        self._content_type = content_type
        self._retry_for = retry_for
        self._limits = limits
        if author is not None and not author.isprintable():
            raise ValueError(f"author {author!r}: characters that cannot be printed")
        self._author = (author or "")[:AUTHOR_LENGTH] or None
        self.workspaces = Workspaces(js, self._subjects, limits, self._author, self._ask)
        """Workspaces and their change sets: create, fork, apply and so on."""
        self.operations = Operations(self._ask)
        """What is asked of one change set by an operator."""

    @classmethod
    @asynccontextmanager
    async def on(cls, nc: Client, js: JetStream, **options: Any) -> AsyncIterator[Self]:
        """A client on an open connection; `options` are the constructor's."""
        async with receiving(nc) as replies:
            yield cls(js, replies, **options)

    async def enqueue_updates(
        self,
        workspace_id: WorkspaceId,
        change_set_id: ChangeSetId,
        updates: Updates,
        *,
        request_id: RequestId | None = None,
    ) -> RequestId:
        """Enqueue a batch; its request id, once it is stored and its task known to exist.

        Requests of a change set are applied in the order in which they were stored, each
        once, whole or not at all. To try again after an error pass the same `request_id`.
        A batch too large for a message is stored beside the stream first.

        Raises:
            MalformedMessage: `updates` are no updates; nothing was sent.
            TooLarge: they are beyond a limit; nothing was sent.
            NotStored: not confirmed in time; it may be stored all the same.
            QueueFull: too much waits already; it is not stored. Ask again later.
        """
        change_set = ChangeSet(workspace_id, change_set_id)
        return await self._enqueue(change_set, None, updates, request_id)

    async def enqueue_updates_with_reply(
        self,
        workspace_id: WorkspaceId,
        change_set_id: ChangeSetId,
        updates: Updates,
        *,
        request_id: RequestId | None = None,
    ) -> tuple[RequestId, Reply]:
        """As `enqueue_updates`, with the response to await: it comes once and is final.

        Bound the wait with `asyncio.timeout`; giving up does not take the request back.
        Awaiting raises `OutcomeUnknown` if the request was handled so long ago that nobody
        remembers it.
        """
        change_set = ChangeSet(workspace_id, change_set_id)
        return await self._enqueue_with_reply(change_set, None, updates, request_id)

    async def enqueue_updates_from_change_set(
        self,
        workspace_id: WorkspaceId,
        change_set_id: ChangeSetId,
        from_change_set_id: ChangeSetId,
        updates: Updates,
        *,
        request_id: RequestId | None = None,
    ) -> RequestId:
        """As `enqueue_updates`, for a batch taken from another change set, which it names."""
        change_set = ChangeSet(workspace_id, change_set_id)
        return await self._enqueue(change_set, from_change_set_id, updates, request_id)

    async def enqueue_updates_from_change_set_with_reply(
        self,
        workspace_id: WorkspaceId,
        change_set_id: ChangeSetId,
        from_change_set_id: ChangeSetId,
        updates: Updates,
        *,
        request_id: RequestId | None = None,
    ) -> tuple[RequestId, Reply]:
        """Both of the above."""
        change_set = ChangeSet(workspace_id, change_set_id)
        return await self._enqueue_with_reply(change_set, from_change_set_id, updates, request_id)

    async def outcome(
        self, workspace_id: WorkspaceId, change_set_id: ChangeSetId, request_id: RequestId
    ) -> OutcomeReplyV1:
        """What became of a recent request, for a caller that gave up waiting for its reply.

        Changes nothing and may be asked as often as one likes.

        Raises:
            Unreachable: no Rebaser answered.
        """
        change_set = ChangeSet(workspace_id, change_set_id)
        query = OutcomeQueryV1(
            id=request_id, workspace_id=workspace_id, change_set_id=change_set_id
        )
        headers, payload = OutcomeQuery.encode(query, self._content_type)
        try:
            answer = await self._js.link.request(
                self._subjects.outcomes(change_set),
                payload,
                headers=headers,
                timeout=OUTCOME_TIMEOUT,
            )
        except JetStreamError as error:
            raise Unreachable(f"no Rebaser answered: {error}") from error
        return OutcomeReply.decode(answer.headers or {}, answer.data)

    def reader(self, workspace_id: WorkspaceId, change_set_id: ChangeSetId) -> Reader:
        """Who reads the change set's values and history; nothing is asked yet."""
        change_set = ChangeSet(workspace_id, change_set_id)
        return Reader(self._js, self._subjects, change_set, self._content_type)

    async def _enqueue(
        self,
        change_set: ChangeSet,
        origin: ChangeSetId | None,
        updates: Updates,
        request_id: RequestId | None,
        reply_to: str | None = None,
    ) -> RequestId:
        request_id = request_id or RequestId()
        headers, payload = await self._encode(change_set, origin, updates, request_id)
        if self._author is not None:
            headers[AUTHOR] = self._author
        if reply_to is not None:
            headers[REPLY_INBOX] = reply_to
        await publish_request(
            self._js, self._subjects, change_set, headers, payload, retry_for=self._retry_for
        )
        return request_id

    async def _encode(
        self,
        change_set: ChangeSet,
        origin: ChangeSetId | None,
        updates: Updates,
        request_id: RequestId,
    ) -> tuple[dict[str, str], bytes]:
        if len(updates) <= INLINE_UPDATES:
            batch = _read(updates)
        else:  # in a thread, since it would hold up the connection, too
            batch = await asyncio.to_thread(_read, updates)
        complaint = self._limits.complaint(batch, len(batch))
        if complaint is not None:
            raise TooLarge(f"request {request_id}: {complaint}")
        small = Inline(inline=Shipped(updates=batch))
        request = EnqueueUpdatesRequestV1(
            id=request_id,
            workspace_id=change_set.workspace_id,
            change_set_id=change_set.change_set_id,
            updates_address=small,
            from_change_set_id=origin,
        )
        if len(batch) <= INLINE_UPDATES:
            encoded = EnqueueUpdatesRequest.encode(request, self._content_type)
            if len(encoded[1]) <= INLINE_BYTES:  # so is the batch in it: most need no second look
                return encoded
        try:
            address = await place_batch(
                self._batches, request_id, batch, self._content_type, self._limits.batch_bytes
            )
        except Full as error:
            raise queue_full(f"the batch of request {request_id}", error) from error
        except JetStreamError as error:
            raise NotStored(f"the batch of request {request_id}: {error}") from error
        request = request.model_copy(update={"updates_address": address})
        return EnqueueUpdatesRequest.encode(request, self._content_type)

    async def _enqueue_with_reply(
        self,
        change_set: ChangeSet,
        origin: ChangeSetId | None,
        updates: Updates,
        request_id: RequestId | None,
    ) -> tuple[RequestId, Reply]:
        request_id = request_id or RequestId()
        answer = self._replies.expect(request_id)
        try:
            inbox = self._replies.inbox(request_id)
            await self._enqueue(change_set, origin, updates, request_id, inbox)
        except BaseException:
            answer.cancel()
            raise
        return request_id, self._answered(change_set, request_id, answer)

    async def _ask(self, request: ChangeSetRequestV2) -> EnqueueUpdatesResponseV2:
        """Ask something of a change set as a whole; its final answer."""
        change_set = ChangeSet(request.workspace_id, request.change_set_id)
        request = request.model_copy(update={"by": self._author})
        headers, payload = ChangeSetRequest.encode(request, self._content_type)
        answer = self._replies.expect(request.id)
        try:
            headers[REPLY_INBOX] = self._replies.inbox(request.id)
            await publish_request(
                self._js, self._subjects, change_set, headers, payload, retry_for=self._retry_for
            )
        except BaseException:
            answer.cancel()
            raise
        return await self._answered(change_set, request.id, answer)

    async def _answered(
        self,
        change_set: ChangeSet,
        request_id: RequestId,
        answer: asyncio.Future[EnqueueUpdatesResponseV2],
    ) -> EnqueueUpdatesResponseV2:
        """Wait for the reply, and now and then ask for it: it is plain NATS and may be lost.

        None will come, either, if the request was sent before and is handled already.
        """
        unknown = 0
        try:
            for patience in chain(ASKS, repeat(ASK_EVERY)):
                done, _ = await asyncio.wait([answer], timeout=patience)
                if done:
                    return answer.result()
                await publish_task(self._js, self._subjects, change_set)
                with suppress(Unreachable):
                    known = await self.outcome(*change_set, request_id)
                    if known.response is not None:
                        return known.response
                    unknown += known.state is RequestState.UNKNOWN
                if unknown > 1:  # once may be a replica that lags behind
                    raise OutcomeUnknown(f"request {request_id} is not known any more")
            raise AssertionError("there is always another ask")
        finally:
            answer.cancel()


def _read(updates: Updates) -> list[AnyUpdate]:
    try:
        return _UPDATES.validate_python(updates)
    except ValidationError as error:
        raise MalformedMessage(f"updates: {brief(error)}") from error


@asynccontextmanager
async def connect(
    *servers: str,
    prefix: str | None = None,
    api_prefix: str | None = None,
    domain: str | None = None,
    content_type: str = codecs.CBOR,
    author: str | None = None,
    **options: Any,
) -> AsyncIterator[RebaserClient]:
    """A client with a connection of its own, which is closed with the body.

    Args:
        servers: NATS URLs; the local one if none is given.
        prefix: of the deployment's streams and subjects, `REBASER_NATS__PREFIX` there.
        api_prefix: JetStream API prefix of another account (ADR-19); `domain` likewise.
        domain: JetStream domain (ADR-19).
        content_type: what requests are encoded as.
        author: who asks, for the log of commits.
        options: of `rebaser_core.jetstream.ConnectOptions`: user, password, token, tls, …

    Raises:
        Unreachable: no connection within `connect_timeout` seconds, 10 by default.
    """
    wanted = ConnectOptions(servers=servers or _LOCAL, name="rebaser client", **options)
    async with AsyncExitStack() as stack:
        try:
            nc = await stack.enter_async_context(connected(wanted))
        except JetStreamError as error:
            raise Unreachable(str(error)) from error
        js = JetStream(nc, api_prefix=api_prefix, domain=domain)
        on = RebaserClient.on(nc, js, prefix=prefix, content_type=content_type, author=author)
        yield await stack.enter_async_context(on)

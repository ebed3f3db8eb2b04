"""Send requests and learn their outcomes: the base of the whole client.

A small batch lies inside its request, a larger one in the bucket of batches. `ReplyInbox` receives
the answers to all requests of a client over one subscription.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from functools import partial
from itertools import chain, repeat
from typing import Any, Final, Literal, TypeVar

from blake3 import blake3
from nats.aio.client import Client
from nats.aio.msg import Msg
from pydantic import TypeAdapter, ValidationError

from rebaser_client.errors import (
    ClientClosed,
    OutcomeUnknown,
    ReadRefused,
    RequestDead,
    RequestIdUsed,
    RequestRefused,
)
from rebaser_client.plain_values import plain
from rebaser_core import trace_context
from rebaser_core.errors import MalformedMessage, MessageError, NotConfirmed, TooLarge, Unreachable
from rebaser_core.ids import ChangeSet, ChangeSetId, RequestId
from rebaser_core.jetstream import Full, JetStreamError, ObjectStore, Unsendable
from rebaser_core.jetstream.connection import subscribed
from rebaser_core.messages import (
    ID_USED,
    EnqueueUpdatesRequest,
    EnqueueUpdatesRequestV1,
    EnqueueUpdatesResponse,
    EnqueueUpdatesResponseV3,
    ErrorStatus,
    Inline,
    ObjectRef,
    OutcomeQuery,
    OutcomeQueryV1,
    OutcomeReply,
    OutcomeReplyV2,
    RequestState,
    SuccessV3,
    UpdatesAddress,
    UpdatesBatch,
    UpdatesBatchV1,
    encode_inline_request,
)
from rebaser_core.messages import InlineBatch as Shipped
from rebaser_core.query_protocol import REPLY_TIMEOUT, RETRY_AFTER
from rebaser_core.records import ChangeSetRequest, ChangeSetRequestV1
from rebaser_core.registry import WorkspaceCheck
from rebaser_core.requests import (
    INLINE_BYTES,
    INLINE_UPDATES,
    TaskPublisher,
    ensure_task,
    message_id,
    publish_request,
    queue_full,
    request_digest,
    retry,
)
from rebaser_core.streams import Streams
from rebaser_core.updates import AnyUpdate, BatchLimits, LazyUpdates, UpdateSequence, size_violation
from rebaser_core.versioning import AUTHOR, MESSAGE_ID, REPLY_INBOX, REQUEST_DIGEST, first_error

T = TypeVar("T")

_Key = tuple[ChangeSet, RequestId, str]
"""Change set, id and digest of a request. An id belongs to its change set: others may have it, too.
A second request with one change set and id is refused, which is no answer to the first."""


class ReplyInbox:
    """Hands each response to the caller that waits for it."""

    def __init__(self, inbox: str) -> None:
        self.inbox_root = inbox
        self._pending: dict[_Key, list[asyncio.Future[EnqueueUpdatesResponseV3]]] = {}

    def expect(
        self, change_set: ChangeSet, request_id: RequestId, digest: str
    ) -> asyncio.Future[EnqueueUpdatesResponseV3]:
        """Return the future response. Call it before sending the request; cancel to stop waiting.

        Each call returns another future, also for one request.
        """
        future: asyncio.Future[EnqueueUpdatesResponseV3]
        future = asyncio.get_running_loop().create_future()
        key = change_set, request_id, digest
        self._pending.setdefault(key, []).append(future)
        future.add_done_callback(lambda done: self._forget(key, done))
        return future

    def _forget(self, key: _Key, future: asyncio.Future[EnqueueUpdatesResponseV3]) -> None:
        waiting = self._pending[key]
        waiting.remove(future)
        if not waiting:
            del self._pending[key]

    def close(self) -> None:
        """End every wait for a response: none comes any more."""
        for future in [each for waiting in self._pending.values() for each in waiting]:
            if not future.done():
                future.set_exception(ClientClosed())
                future.exception()  # mark it as read: the caller may never await it

    def address(self, request_id: RequestId, digest: str) -> str:
        return f"{self.inbox_root}.{request_id}-{digest}"

    async def receive(self, message: Msg) -> None:
        """Take a reply; an unreadable one is dropped."""
        with suppress(MessageError):
            headers = message.headers or {}
            response = EnqueueUpdatesResponse.decode(headers, message.data)
            if trace_context.is_on():
                _trace_reply(headers, response)
            change_set = ChangeSet(response.workspace_id, response.change_set_id)
            digest = message.subject.rpartition("-")[2]
            for future in self._pending.get((change_set, response.id, digest), ()):
                if not future.done():
                    future.set_result(response)


def _trace_reply(headers: Mapping[str, str], response: EnqueueUpdatesResponseV3) -> None:
    """Record the reply's arrival in the request's trace."""
    trace_context.start_span(
        "rebaser reply received",
        ChangeSet(response.workspace_id, response.change_set_id),
        "CONSUMER",
        parent=trace_context.context_of(headers),
        request=str(response.id),
    ).end()


@asynccontextmanager
async def receiving_replies(nc: Client) -> AsyncIterator[ReplyInbox]:
    """Receive replies while the body runs."""
    replies = ReplyInbox(nc.new_inbox())
    async with subscribed(nc, f"{replies.inbox_root}.*", replies.receive):
        try:
            yield replies
        finally:
            replies.close()


Reply = Awaitable[EnqueueUpdatesResponseV3]

REFUSED: Final = "refused: "
"""Beginning of the error in a reply that is no dead letter."""


def settled(
    response: EnqueueUpdatesResponseV3, refusal: type[RequestRefused] = RequestRefused
) -> SuccessV3:
    """The result of a request that was done.

    Raises:
        RequestIdUsed, RequestDead: it was not done.
        RequestRefused: it was not done, either; of the class `refusal`.
    """
    status = response.status
    if not isinstance(status, ErrorStatus):
        return status.success
    message = status.error.message
    if message.startswith(ID_USED):
        raise RequestIdUsed(message.removeprefix(REFUSED))
    if message.startswith(REFUSED):
        raise refusal(message.removeprefix(REFUSED))
    raise RequestDead(f"request {response.id}: {message}")


Action = Literal["refresh", "apply", "abandon", "delete", "checkpoint", "recompute"]

OUTCOME_POLLS: Final = (1.0, 10.0, 20.0, 40.0)
_OUTCOME_POLL_INTERVAL: Final = 60.0
"""Seconds without a reply after which the task is checked (C3) and the outcome asked for. The
interval grows, since a request behind many others waits for long, and so do the clients that
ask."""

OUTCOME_TIMEOUT: Final = 10.0  # seconds


@dataclass(frozen=True, slots=True)
class RequestOptions:
    """Options of one client's requests."""

    content_type: str
    author: str | None
    """Author of the requests, for the log of commits and the registry."""
    retry_for: float
    """Seconds during which a publish without a reply is repeated."""
    limits: BatchLimits


class RequestSender:
    """Sends the requests of one client."""

    def __init__(
        self,
        streams: Streams,
        replies: ReplyInbox,
        options: RequestOptions,
        workspace_check: WorkspaceCheck,
    ) -> None:
        self.streams: Final = streams
        self.options: Final = options
        self.batches: Final = ObjectStore(streams.js, streams.batches_bucket)
        self.workspace_check: Final = workspace_check
        """Knowledge of which workspaces and change sets belong together."""
        self._replies = replies
        self._tasks = TaskPublisher.using(streams, options.retry_for)

    async def enqueue(
        self,
        change_set: ChangeSet,
        updates: "Updates",
        request_id: RequestId | str | None = None,
        origin: ChangeSetId | str | None = None,
    ) -> RequestId:
        """Store a batch that was taken from `origin`; return its request id. See `publish_request`.

        Raises:
            NotInWorkspace: the change set is another workspace's; nothing was sent.
            MalformedMessage, TooLarge: see `_encode_request`.
        """
        sent = RequestId() if request_id is None else RequestId.of(request_id, "request_id")
        await self.send_encoded(change_set, *await self._encode(change_set, updates, sent, origin))
        return sent

    async def enqueue_with_reply(
        self,
        change_set: ChangeSet,
        updates: "Updates",
        request_id: RequestId | str | None = None,
        origin: ChangeSetId | str | None = None,
    ) -> tuple[RequestId, Reply]:
        """Store a batch as `enqueue`; return the response to await, too, which comes once.

        Awaiting it raises `OutcomeUnknown` if no Rebaser remembers the request, which was settled
        long ago.
        """
        sent = RequestId() if request_id is None else RequestId.of(request_id, "request_id")
        encoded = await self._encode(change_set, updates, sent, origin)
        return sent, await self.send_encoded_with_reply(change_set, sent, *encoded)

    async def upload(self, workspace: str, name: str, payload: bytes) -> None:
        """Store a file of a workspace under the BLAKE3 of its bytes. May be repeated.

        Raises:
            NotConfirmed, QueueFull, TooLarge: it is not stored, perhaps, or surely.
        """
        part = self.batches.part(workspace)
        await self._upload(f"file {name}", lambda: part.put_once(name, payload))

    async def _upload(self, what: str, put: Callable[[], Awaitable[T]]) -> T:
        """Put an object; see `upload`."""
        try:
            return await retry(put, self.options.retry_for, self.streams.js.connection.sleep)
        except Full as error:
            raise queue_full(what, error) from error
        except Unsendable as error:
            raise TooLarge(f"{what}: {error}") from error
        except JetStreamError as error:
            raise NotConfirmed(f"{what}: {error}") from error

    async def command(
        self,
        change_set: ChangeSet,
        action: Action,
        *,
        reviewed: str | None = None,
        values: Sequence[str] | None = None,
    ) -> tuple[RequestId, int]:
        """Send a command to a change set as a whole; return the request's id and its commit.

        Raises:
            NotInWorkspace: it is another workspace's; nothing was sent.
            RequestRefused: the change set takes no such request; nothing was done.
        """
        await self.workspace_check.check(change_set)
        request = ChangeSetRequestV1(
            id=RequestId(),
            **change_set._asdict(),
            action=action,
            reviewed=reviewed,
            by=self.options.author,
            values=None if values is None else list(values),
        )
        encoded = ChangeSetRequest.encode(request, self.options.content_type)
        response = await (await self.send_encoded_with_reply(change_set, request.id, *encoded))
        if isinstance(response.status, ErrorStatus):
            raise RequestRefused(response.status.error.message.removeprefix(REFUSED))
        return request.id, response.status.success.commit or 0

    async def _encode(
        self,
        change_set: ChangeSet,
        updates: "Updates",
        request_id: RequestId,
        given_origin: ChangeSetId | str | None,
    ) -> tuple[dict[str, str], bytes]:
        origin = None
        if given_origin is not None:
            origin = ChangeSetId.of(given_origin, "from_change_set_id")
        await self.workspace_check.check(change_set)
        headers, payload = await self._encode_request(request_id, change_set, origin, updates)
        if self.options.author is not None:
            headers[AUTHOR] = self.options.author
        return headers, payload

    async def _encode_request(
        self,
        request_id: RequestId,
        change_set: ChangeSet,
        origin: ChangeSetId | None,
        updates: "Updates",
    ) -> tuple[dict[str, str], bytes]:
        """Headers and payload of the request to apply `updates`, stored first if they are many.

        Raises:
            MalformedMessage: they are no updates; nothing was sent.
            TooLarge: they are beyond a limit; nothing was sent.
            NotConfirmed, QueueFull: the batch is not stored, perhaps, or surely.
        """
        content_type, limits = self.options.content_type, self.options.limits
        if len(updates) <= INLINE_UPDATES:
            batch = validate(updates)
        else:  # in a thread, since it would hold up the connection, too
            batch = await asyncio.to_thread(validate, updates)
        complaint = limits.violation(batch, len(batch))
        if complaint is not None:
            raise TooLarge(f"request {request_id}: {complaint}")
        if len(batch) <= INLINE_UPDATES:
            encoded = encode_inline_request(request_id, change_set, origin, batch, content_type)
            if len(encoded[1]) <= INLINE_BYTES:  # so is the batch in it: mostly so
                return encoded
        put = partial(
            store_batch, self.batches, request_id, batch, content_type, limits.batch_bytes
        )
        address = await self._upload(f"the batch of request {request_id}", put)
        request = EnqueueUpdatesRequestV1(
            id=request_id,
            **change_set._asdict(),
            updates_address=address,
            from_change_set_id=origin,
        )
        return EnqueueUpdatesRequest.encode(request, content_type)

    async def send_encoded(
        self, change_set: ChangeSet, headers: dict[str, str], payload: bytes
    ) -> None:
        """Store an encoded request, see `publish_request`."""
        await publish_request(
            self.streams,
            change_set,
            headers | {MESSAGE_ID: message_id(headers[MESSAGE_ID], change_set, payload)},
            payload,
            retry_for=self.options.retry_for,
            tasks=self._tasks,
        )

    async def send_encoded_with_reply(
        self,
        change_set: ChangeSet,
        request_id: RequestId,
        headers: dict[str, str],
        payload: bytes,
    ) -> Reply:
        """Store an encoded request; return the response to await, see `enqueue_with_reply`."""
        digest = request_digest(payload)
        answer = self._replies.expect(change_set, request_id, digest)
        try:
            inbox = self._replies.address(request_id, digest)
            await self.send_encoded(change_set, {**headers, REPLY_INBOX: inbox}, payload)
        except BaseException:
            answer.cancel()
            raise
        return self._await_reply(change_set, request_id, digest, answer)

    async def outcome(
        self, change_set: ChangeSet, request_id: RequestId, digest: str = ""
    ) -> OutcomeReplyV2:
        """Return the outcome of a request; change nothing.

        With the `digest` of the request, the query is refused if the id was another request's.

        Raises:
            Unreachable: no Rebaser answered, or one that was too busy to look.
            ReadRefused: a Rebaser refused, and said why.
        """
        query = OutcomeQueryV1(id=request_id, **change_set._asdict())
        headers, payload = OutcomeQuery.encode(query, self.options.content_type)
        headers[REPLY_TIMEOUT] = str(OUTCOME_TIMEOUT)
        if digest:
            headers[REQUEST_DIGEST] = digest
        try:
            answer = await self.streams.js.connection.request(
                self.streams.outcomes(change_set),
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
        answer: asyncio.Future[EnqueueUpdatesResponseV3],
    ) -> EnqueueUpdatesResponseV3:
        """Wait for the reply, and now and then ask for it: it is plain NATS and may be lost.

        No reply comes, either, if the request was sent before and is settled already.
        """
        self.streams.js.connection.guard()
        unknown = 0
        try:
            for patience in chain(OUTCOME_POLLS, repeat(_OUTCOME_POLL_INTERVAL)):
                done, _ = await asyncio.wait([answer], timeout=patience)
                ask = partial(self._ask, change_set, request_id, digest)
                known = None if done else await self._look_after(ask, answer)
                if answer.done():
                    return answer.result()
                if known is not None:
                    if known.response is not None:
                        return known.response
                    unknown += known.state is RequestState.UNKNOWN
                if unknown > 1:  # the first time, a replica may lag behind
                    raise OutcomeUnknown(f"request {request_id} is not known any more")
            raise AssertionError("there is always another ask")
        finally:
            answer.cancel()

    async def _look_after(
        self,
        ask: Callable[[], Coroutine[Any, Any, OutcomeReplyV2 | None]],
        answer: asyncio.Future[Any],
    ) -> OutcomeReplyV2 | None:
        """Check the task (C3) and `ask` for the outcome, until `answer` is there.

        Return None if `answer` came first, or no Rebaser gave the outcome: a busy one takes long.
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
        await ensure_task(self.streams, change_set)
        with suppress(Unreachable):
            return await self.outcome(change_set, request_id, digest)
        return None


Updates = Sequence[AnyUpdate | Mapping[str, Any]]
"""Updates as classes of `rebaser_core.updates`, or as the wire has them. Values in the latter form
may be of any type that `plain_values` turns into JSON."""

_UPDATES: Final[TypeAdapter[Sequence[AnyUpdate]]] = TypeAdapter(UpdateSequence)


def validate(updates: Updates) -> Sequence[AnyUpdate]:
    """The updates as classes, or as they are if they are known to be valid.

    Raises:
        MalformedMessage: they are no updates.
    """
    if not isinstance(updates, list) and isinstance(updates, LazyUpdates):
        return updates
    try:
        return _UPDATES.validate_python(list(updates))
    except ValidationError:  # mostly they are plain, and not looked at twice
        made = [plain(each) if isinstance(each, Mapping) else each for each in updates]
    try:
        return _UPDATES.validate_python(made)
    except ValidationError as error:
        raise MalformedMessage(f"updates: {first_error(error)}") from error


async def store_batch(
    bucket: ObjectStore,
    request_id: RequestId,
    updates: Sequence[AnyUpdate],
    content_type: str,
    max_bytes: int = BatchLimits().batch_bytes,
) -> UpdatesAddress:
    """Store the batch if it is large; return its address either way. May be repeated.

    An object's name is the BLAKE3 of its bytes, which contain the request's id: the object belongs
    to this request alone, and a repeated request stores it under its old name.

    Raises:
        TooLarge: it takes more than `max_bytes` bytes; nothing was stored.
    """
    if len(updates) <= INLINE_UPDATES:
        payload = encode_batch(request_id, updates, content_type)
        if len(payload) <= INLINE_BYTES:
            return Inline(inline=Shipped(updates=updates))
    else:  # in a thread, since it would hold up the connection, too
        payload = await asyncio.to_thread(encode_batch, request_id, updates, content_type)
    if len(payload) > max_bytes:
        raise TooLarge(f"request {request_id}: {size_violation(len(payload), max_bytes)}")
    name = blake3(payload).hexdigest()
    await bucket.put_once(name, payload)
    return ObjectRef(object=name)


def encode_batch(request_id: RequestId, updates: Sequence[AnyUpdate], content_type: str) -> bytes:
    listed, table = updates.split() if isinstance(updates, LazyUpdates) else (updates, None)
    batch = UpdatesBatchV1(id=request_id, updates=listed, table=table)
    return UpdatesBatch.encode(batch, content_type)[1]

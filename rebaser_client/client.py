"""`RebaserClient`: enqueue updates for a change set, and await what became of them."""

from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, Final, Self

from nats.aio.client import Client

from rebaser_client.batches import Updates, encode_request
from rebaser_client.correction_reader import read_all
from rebaser_client.errors import Unreachable
from rebaser_client.operations import Operations
from rebaser_client.registry import Registry
from rebaser_client.reply_inbox import ReplyInbox, receiving_replies
from rebaser_client.request_publisher import RETRY_FOR
from rebaser_client.request_sender import Reply, RequestOptions, RequestSender
from rebaser_client.value_reader import ChangeSetReader
from rebaser_client.workspace_check import WorkspaceCheck
from rebaser_client.workspaces import Workspaces
from rebaser_core import codecs
from rebaser_core.batch_limits import BatchLimits
from rebaser_core.commits import AUTHOR_LENGTH
from rebaser_core.ids import ChangeSet, ChangeSetId, RequestId, WorkspaceId
from rebaser_core.jetstream import (
    ConnectOptions,
    JetStream,
    JetStreamError,
    ObjectStore,
    connected,
)
from rebaser_core.messages import Correction
from rebaser_core.outcome_query import OutcomeReplyV2
from rebaser_core.subjects import Subjects
from rebaser_core.versioning import AUTHOR

_LOCAL: Final = ("nats://127.0.0.1:4222",)

_LIMITS: Final = BatchLimits()


class RebaserClient:
    """Enqueues requests over one connection, which stays its owner's; tasks may share it."""

    def __init__(
        self,
        js: JetStream,
        replies: ReplyInbox,
        *,
        prefix: str | None = None,
        content_type: str = codecs.CBOR,
        retry_for: float = RETRY_FOR,
        limits: BatchLimits = _LIMITS,
        author: str | None = None,
    ) -> None:
        """`author`: who asks, for the log and the registry; 200 characters of it are kept."""
        if content_type not in codecs.CONTENT_TYPES:
            known = ", ".join(sorted(codecs.CONTENT_TYPES))
            raise ValueError(f"content type {content_type!r}; there are {known}")
        self._js = js
        self._subjects = Subjects(prefix)
        self._batches = ObjectStore(js, self._subjects.batches_bucket)
        self._limits = limits
        if author is not None and not author.isprintable():
            raise ValueError(f"author {author!r}: characters that cannot be printed")
        author = (author or "")[:AUTHOR_LENGTH] or None
        self._options = RequestOptions(content_type, author, retry_for)
        self.workspace_check = WorkspaceCheck(Registry(js, self._subjects))
        """Which workspaces and change sets belong together."""
        self._sender = requests = RequestSender(
            js, self._subjects, replies, self._options, self.workspace_check
        )
        self.workspaces = Workspaces(js, self._subjects, limits, author, requests.send_command)
        """Workspaces and their change sets: create, fork, apply and so on."""
        self.operations = Operations(requests.send_command)
        """Operator actions on one change set."""

    @classmethod
    @asynccontextmanager
    async def on(cls, nc: Client, js: JetStream, **options: Any) -> AsyncIterator[Self]:
        """A client on an open connection; `options` are the constructor's."""
        async with receiving_replies(nc) as replies:
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
            NotInWorkspace: the registry knows the change set in another workspace; nothing was
                sent. Where it knows neither, a new change set begins with the request.
            MalformedMessage: `updates` are no updates; nothing was sent.
            TooLarge: they are beyond a limit; nothing was sent.
            NotConfirmed: not confirmed in time; it may be stored all the same.
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
        Awaiting raises `OutcomeUnknown` if the request was handled so long ago that no Rebaser
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
        """As `enqueue_updates`, for a batch that was taken from another change set."""
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
        """As `enqueue_updates_from_change_set`, with the response to await."""
        change_set = ChangeSet(workspace_id, change_set_id)
        return await self._enqueue_with_reply(change_set, from_change_set_id, updates, request_id)

    async def corrections(self, corrections: Sequence[Correction]) -> Sequence[Correction]:
        """Return all corrections, if a response or a log entry has only the first of many.

        Raises:
            ReadRefused: they were removed with their commit.
        """
        return await read_all(self._batches, corrections)

    async def outcome(
        self, workspace_id: WorkspaceId, change_set_id: ChangeSetId, request_id: RequestId
    ) -> OutcomeReplyV2:
        """Return the outcome of a recent request, for a caller that missed the reply.

        Changes nothing and may be repeated at will.

        Raises:
            Unreachable: no Rebaser answered.
        """
        return await self._sender.outcome(ChangeSet(workspace_id, change_set_id), request_id)

    def reader(self, workspace_id: WorkspaceId, change_set_id: ChangeSetId) -> ChangeSetReader:
        """Return a reader of the change set's values and history; makes no request."""
        change_set = ChangeSet(workspace_id, change_set_id)
        return ChangeSetReader(self._js, self._subjects, change_set, self._options.content_type)

    async def _enqueue(
        self,
        change_set: ChangeSet,
        origin: ChangeSetId | None,
        updates: Updates,
        request_id: RequestId | None,
    ) -> RequestId:
        request_id = request_id or RequestId()
        headers, payload = await self._encode(change_set, origin, updates, request_id)
        await self._sender.send(change_set, headers, payload)
        return request_id

    async def _enqueue_with_reply(
        self,
        change_set: ChangeSet,
        origin: ChangeSetId | None,
        updates: Updates,
        request_id: RequestId | None,
    ) -> tuple[RequestId, Reply]:
        request_id = request_id or RequestId()
        headers, payload = await self._encode(change_set, origin, updates, request_id)
        reply = await self._sender.send_with_reply(change_set, request_id, headers, payload)
        return request_id, reply

    async def _encode(
        self,
        change_set: ChangeSet,
        origin: ChangeSetId | None,
        updates: Updates,
        request_id: RequestId,
    ) -> tuple[dict[str, str], bytes]:
        await self.workspace_check.check(change_set)
        content_type, limits = self._options.content_type, self._limits
        headers, payload = await encode_request(
            self._batches, request_id, change_set, origin, updates, content_type, limits
        )
        if self._options.author is not None:
            headers[AUTHOR] = self._options.author
        return headers, payload


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
        api_prefix: JetStream API prefix of another account (ADR-19); excludes `domain`.
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

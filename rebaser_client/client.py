"""`RebaserClient`: enqueue updates for a change set, and await what became of them.

A batch's outcome: its commit, its corrections, and the values that failed because of it.

Enqueue batches: until they are stored, committed, or their dependent values computed.

The corrections of a request that were too many for its response.
"""

import asyncio
import os
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal, Self

from nats.aio.client import Client

from rebaser_client.display import package
from rebaser_client.errors import (
    ClientClosed,
    ClientForked,
    ReadRefused,
    RequestDead,
    RequestIdUsed,
    RequestRefused,
    Unreachable,
    WrongEventLoop,
)
from rebaser_client.registry import Registry, WorkspaceCheck
from rebaser_client.requests import (
    RETRY_FOR,
    Reply,
    ReplyInbox,
    RequestOptions,
    RequestSender,
    Updates,
    encode_request,
    receiving_replies,
)
from rebaser_client.workspaces import AddressBook, Operations, Workspaces
from rebaser_core import codecs
from rebaser_core.commits import AUTHOR_LENGTH
from rebaser_core.ids import ChangeSet, ChangeSetId, RequestId, WorkspaceId
from rebaser_core.jetstream import (
    ConnectOptions,
    JetStream,
    JetStreamError,
    NotFound,
    ObjectDamaged,
    ObjectStore,
    connected,
)
from rebaser_core.messages import (
    ID_USED,
    Correction,
    Corrections,
    EnqueueUpdatesResponseV2,
    ErrorStatus,
    OutcomeReplyV1,
    omitted,
)
from rebaser_core.streams import Streams
from rebaser_core.updates import BatchLimits
from rebaser_core.versioning import AUTHOR

if TYPE_CHECKING:
    from rebaser_client.named import NamedWorkspace
    from rebaser_client.outcomes import Progress, Settlement, SettlementWatch, Values
    from rebaser_client.reader import ChangeSetReader

_REFUSED: Final = "refused: "
"""How the message of a reply begins that is no dead letter."""


@dataclass(frozen=True, slots=True)
class BatchOutcome:
    """What became of a batch, as far as the caller waited."""

    request_id: RequestId
    commit: int | None = None
    """The commit that applied it; None if the caller waited until it was stored only."""
    corrections: Sequence[Correction] = ()
    """What Rebaser changed or left out, because it did not fit the change set."""
    settlement: "Settlement | None" = None
    """None unless the caller waited until dependent values were computed."""

    @property
    def failed(self) -> "Values":
        """Values that failed because of this batch; none unless the caller waited for them."""
        return () if self.settlement is None else self.settlement.failed

    @property
    def blocked(self) -> "Values":
        """Values that were not computed because an input of theirs failed."""
        return () if self.settlement is None else self.settlement.blocked


def committed(response: EnqueueUpdatesResponseV2) -> BatchOutcome:
    """The outcome that a reply shows.

    Raises:
        RequestIdUsed, RequestRefused, RequestDead: the reply is an error; nothing was done.
    """
    status = response.status
    if not isinstance(status, ErrorStatus):
        return BatchOutcome(response.id, status.success.commit or 0, status.success.corrections)
    message = status.error.message
    if message.startswith(ID_USED):
        raise RequestIdUsed(message.removeprefix(_REFUSED))
    if message.startswith(_REFUSED):
        raise RequestRefused(message.removeprefix(_REFUSED))
    raise RequestDead(f"request {response.id}: {message}")


Wait = Literal["stored", "committed", "computed"]
"""Until when `enqueue` waits; each includes the one before it."""


class BatchEnqueuer:
    """Enqueues batches, and waits for what becomes of them."""

    def __init__(
        self,
        streams: Streams,
        sender: RequestSender,
        options: RequestOptions,
        limits: BatchLimits,
        workspace_check: WorkspaceCheck,
    ) -> None:
        self._streams = streams
        self._batches = ObjectStore(streams.js, streams.batches_bucket)
        self._sender = sender
        self._options = options
        self._limits = limits
        self.workspace_check = workspace_check
        """Which workspaces and change sets belong together."""

    async def enqueue(
        self,
        workspace_id: WorkspaceId | str,
        change_set_id: ChangeSetId | str,
        updates: Updates,
        *,
        wait: Wait = "committed",
        request_id: RequestId | str | None = None,
    ) -> BatchOutcome:
        """Enqueue a batch, wait, and return its outcome. A cancellation does not take it back.

        With `wait="computed"` the outcome has the values that failed: a failure of a value is
        no error of the batch.

        Raises:
            NotInWorkspace, MalformedMessage, TooLarge, NotConfirmed, QueueFull: as
                `enqueue_updates`.
            RequestIdUsed: another batch was sent under the id before; nothing of this one was done.
            RequestRefused, RequestDead: final; nothing was done.
            OutcomeUnknown: the request was handled so long ago that no Rebaser remembers it.
            Unreachable, ReadRefused: committed and computed, but no Rebaser said what failed.
        """
        if wait == "stored":
            sent = await self.enqueue_updates(
                workspace_id, change_set_id, updates, request_id=request_id
            )
            return BatchOutcome(sent)
        _, reply = await self.enqueue_updates_with_reply(
            workspace_id, change_set_id, updates, request_id=request_id
        )
        outcome = committed(await reply)
        if wait == "committed":
            return outcome
        reader = self.reader(workspace_id, change_set_id)
        watch = self._watch(workspace_id, change_set_id)
        settlement = await watch.settlement(reader, outcome.commit, updates)
        return BatchOutcome(outcome.request_id, outcome.commit, outcome.corrections, settlement)

    async def settled(
        self,
        workspace_id: WorkspaceId | str,
        change_set_id: ChangeSetId | str,
        commit: int | None = None,
    ) -> "Settlement":
        """Wait until all that `commit` left to be computed is; return what has no result.

        Without a commit, the last one counts. Changes nothing, and may be cancelled and repeated.
        Bound the wait with `asyncio.timeout`: while a change set is paused, it has no end.

        Raises:
            Unreachable: no Rebaser answered which values failed.
            ReadRefused: the change set has too many values for one answer.
        """
        reader = self.reader(workspace_id, change_set_id)
        return await self._watch(workspace_id, change_set_id).settlement(reader, commit)

    def progress(
        self,
        workspace_id: WorkspaceId | str,
        change_set_id: ChangeSetId | str,
        commit: int | None = None,
    ) -> "AsyncIterator[Progress]":
        """How far the work on `commit` is, as it changes; ends when `settled` would return.

        The first item comes at once; between two there are at most a few seconds.
        """
        return self._watch(workspace_id, change_set_id).progress(commit)

    def reader(
        self, workspace_id: WorkspaceId | str, change_set_id: ChangeSetId | str
    ) -> "ChangeSetReader":
        """Return a reader of the change set's values and history; makes no request."""
        from rebaser_client.reader import ChangeSetReader  # slow, and not needed to send

        change_set = ChangeSet.of(workspace_id, change_set_id)
        return ChangeSetReader(self._streams, change_set, self._options.content_type)

    async def enqueue_updates(
        self,
        workspace_id: WorkspaceId | str,
        change_set_id: ChangeSetId | str,
        updates: Updates,
        *,
        request_id: RequestId | str | None = None,
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
        change_set = ChangeSet.of(workspace_id, change_set_id)
        return await self._enqueue(change_set, None, updates, request_id)

    async def enqueue_updates_with_reply(
        self,
        workspace_id: WorkspaceId | str,
        change_set_id: ChangeSetId | str,
        updates: Updates,
        *,
        request_id: RequestId | str | None = None,
    ) -> tuple[RequestId, Reply]:
        """As `enqueue_updates`, with the response to await: it comes once and is final.

        Bound the wait with `asyncio.timeout`; giving up does not take the request back.
        Awaiting raises `OutcomeUnknown` if the request was handled so long ago that no Rebaser
        remembers it.
        """
        change_set = ChangeSet.of(workspace_id, change_set_id)
        return await self._enqueue_with_reply(change_set, None, updates, request_id)

    async def enqueue_updates_from_change_set(
        self,
        workspace_id: WorkspaceId | str,
        change_set_id: ChangeSetId | str,
        from_change_set_id: ChangeSetId | str,
        updates: Updates,
        *,
        request_id: RequestId | str | None = None,
    ) -> RequestId:
        """As `enqueue_updates`, for a batch that was taken from another change set."""
        change_set = ChangeSet.of(workspace_id, change_set_id)
        return await self._enqueue(change_set, from_change_set_id, updates, request_id)

    async def enqueue_updates_from_change_set_with_reply(
        self,
        workspace_id: WorkspaceId | str,
        change_set_id: ChangeSetId | str,
        from_change_set_id: ChangeSetId | str,
        updates: Updates,
        *,
        request_id: RequestId | str | None = None,
    ) -> tuple[RequestId, Reply]:
        """As `enqueue_updates_from_change_set`, with the response to await."""
        change_set = ChangeSet.of(workspace_id, change_set_id)
        return await self._enqueue_with_reply(change_set, from_change_set_id, updates, request_id)

    def _watch(
        self, workspace_id: WorkspaceId | str, change_set_id: ChangeSetId | str
    ) -> "SettlementWatch":
        from rebaser_client.outcomes import SettlementWatch  # the same

        return SettlementWatch(self._streams, ChangeSet.of(workspace_id, change_set_id))

    async def _enqueue(
        self,
        change_set: ChangeSet,
        origin: ChangeSetId | str | None,
        updates: Updates,
        given: RequestId | str | None,
    ) -> RequestId:
        request_id = _request_id(given)
        headers, payload = await self._encode(change_set, origin, updates, request_id)
        await self._sender.send(change_set, headers, payload)
        return request_id

    async def _enqueue_with_reply(
        self,
        change_set: ChangeSet,
        origin: ChangeSetId | str | None,
        updates: Updates,
        given: RequestId | str | None,
    ) -> tuple[RequestId, Reply]:
        request_id = _request_id(given)
        headers, payload = await self._encode(change_set, origin, updates, request_id)
        reply = await self._sender.send_with_reply(change_set, request_id, headers, payload)
        return request_id, reply

    async def _encode(
        self,
        change_set: ChangeSet,
        given_origin: ChangeSetId | str | None,
        updates: Updates,
        request_id: RequestId,
    ) -> tuple[dict[str, str], bytes]:
        origin = None
        if given_origin is not None:
            origin = ChangeSetId.of(given_origin, "from_change_set_id")
        await self.workspace_check.check(change_set)
        content_type, limits = self._options.content_type, self._limits
        headers, payload = await encode_request(
            self._batches, request_id, change_set, origin, updates, content_type, limits
        )
        if self._options.author is not None:
            headers[AUTHOR] = self._options.author
        return headers, payload


def _request_id(given: RequestId | str | None) -> RequestId:
    return RequestId() if given is None else RequestId.of(given, "request_id")


async def read_all(bucket: ObjectStore, corrections: Sequence[Correction]) -> Sequence[Correction]:
    """Return all corrections; those given may be the first of them and an entry for the others.

    Raises:
        ReadRefused: the others were removed with their commit.
    """
    more = omitted(corrections)
    if more is None:
        return corrections
    try:
        payload = await bucket.get(more.object)
    except (NotFound, ObjectDamaged) as error:
        raise ReadRefused(f"corrections in object {more.object}: {error}") from error
    return (await asyncio.to_thread(Corrections.decode_stored, payload)).corrections


_LOCAL: Final = ("nats://127.0.0.1:4222",)

_LIMITS: Final = BatchLimits()


class _Lifetime:
    """Process and event loop in which a client may be used until it is closed."""

    def __init__(self, nc: Client) -> None:
        self._nc = nc
        self._process = os.getpid()
        self._loop = asyncio.get_running_loop()

    def check(self) -> None:
        """Raise `ClientForked`, `ClientClosed` or `WrongEventLoop` if the client is not usable."""
        if os.getpid() != self._process:
            raise ClientForked
        if self._nc.is_closed:
            raise ClientClosed
        if asyncio.get_running_loop() is not self._loop:
            raise WrongEventLoop


class RebaserClient(BatchEnqueuer):
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
        streams = Streams(prefix, js=js)
        if author is not None and not author.isprintable():
            raise ValueError(f"author {author!r}: characters that cannot be printed")
        author = (author or "")[:AUTHOR_LENGTH] or None
        options = RequestOptions(content_type, author, retry_for)
        check = WorkspaceCheck(None if js.is_imported else Registry(streams))
        sender = RequestSender(streams, replies, options, check)
        super().__init__(streams, sender, options, limits, check)
        self.workspaces = Workspaces(streams, limits, author, sender.send_command)
        """Workspaces and their change sets: create, fork, apply and so on."""
        self.addresses = AddressBook(self.workspaces)
        """Workspaces and change sets by name."""
        self.operations = Operations(sender.send_command)
        """Operator actions on one change set."""

    def __repr__(self) -> str:
        url = self._streams.js.nc.connected_url
        return f"<{type(self).__name__} of {url.netloc.rpartition('@')[2] if url else 'no server'}>"

    @classmethod
    @asynccontextmanager
    async def on(cls, nc: Client, js: JetStream, **options: Any) -> AsyncIterator[Self]:
        """A client on an open connection; `options` are the constructor's."""
        js.connection.guard = _Lifetime(nc).check
        async with receiving_replies(nc) as replies:
            yield cls(js, replies, **options)

    async def find(self, address: str) -> ChangeSet:
        """The ids of the change set of an address: `shop`, `shop/winter`, or a unique part of ids.

        Raises:
            NoSuchChangeSet, AmbiguousAddress: see `AddressBook.find`.
        """
        return (await self.addresses.find(address)).change_set

    def workspace(self, name: str) -> "NamedWorkspace":
        """The workspace of that name: `edit` its head, or a `branch`. No I/O.

        To find a name takes the permissions of an operator, see docs/security.md.
        """
        from rebaser_client.named import NamedWorkspace  # slow; ids do without it

        return NamedWorkspace(self, self.workspaces, name)

    async def enqueue_table(
        self,
        workspace_id: WorkspaceId | str,
        change_set_id: ChangeSetId | str,
        table: Any,
        *,
        functions: Updates = (),
        wait: Wait = "committed",
        request_id: RequestId | str | None = None,
    ) -> BatchOutcome:
        """As `enqueue`, of `functions` and, behind them, a put or a set for each row of a table.

        Args:
            table: of pyarrow, Polars, pandas or DuckDB, or the path or URI of a Parquet file, with
                the columns in docs/clients.md: `id` and any of `name`, `value` or `json`,
                `function`, `inputs` and `set`.
            functions: updates before those of the rows. Of a table in parts, send them with the
                first: a function that is defined again has all its values computed anew.

        Raises:
            MissingPackage: a package of the extra `arrow` is not installed.
            MalformedMessage: the rows are no updates; the message names the column.
            OSError: the file cannot be read.
            ClientError: as `enqueue`.
        """
        where = ChangeSet.of(workspace_id, change_set_id)
        request_id = None if request_id is None else RequestId.of(request_id, "request_id")
        tables = package("rebaser_client.tables", extra="arrow")
        updates = await asyncio.to_thread(tables.read_updates, table, functions)
        return await self.enqueue(*where, updates, wait=wait, request_id=request_id)

    async def corrections(self, corrections: Sequence[Correction]) -> Sequence[Correction]:
        """Return all corrections, if a response or a log entry has only the first of many.

        Raises:
            ReadRefused: they were removed with their commit.
        """
        return await read_all(self._batches, corrections)

    async def outcome(
        self,
        workspace_id: WorkspaceId | str,
        change_set_id: ChangeSetId | str,
        request_id: RequestId | str,
    ) -> OutcomeReplyV1:
        """Return the outcome of a recent request, for a caller that missed the reply.

        Changes nothing and may be repeated at will.

        Raises:
            Unreachable: no Rebaser answered.
        """
        return await self._sender.outcome(
            ChangeSet.of(workspace_id, change_set_id), RequestId.of(request_id, "request_id")
        )


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
        Unreachable: a URL is none of a NATS server; or every server refused the connection; or
            there was none within `connect_timeout` seconds, 10 by default.
    """
    async with AsyncExitStack() as stack:
        try:
            wanted = ConnectOptions(servers=servers or _LOCAL, name="rebaser client", **options)
            nc = await stack.enter_async_context(connected(wanted))
        except JetStreamError as error:
            raise Unreachable(str(error)) from error
        js = JetStream(nc, api_prefix=api_prefix, domain=domain)
        on = RebaserClient.on(nc, js, prefix=prefix, content_type=content_type, author=author)
        yield await stack.enter_async_context(on)

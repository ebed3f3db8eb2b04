"""`RebaserClient`: enqueue updates for a change set, and await what became of them."""

import asyncio
import os
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING, Any, Final, Self

from nats.aio.client import Client

from rebaser_client.address_book import AddressBook
from rebaser_client.batch_enqueuer import BatchEnqueuer, Wait
from rebaser_client.batches import Updates
from rebaser_client.correction_reader import read_all
from rebaser_client.display.frames import package
from rebaser_client.errors import ClientClosed, ClientForked, Unreachable, WrongEventLoop
from rebaser_client.operations import Operations
from rebaser_client.outcomes.batch_outcome import BatchOutcome
from rebaser_client.registry import Registry
from rebaser_client.reply_inbox import ReplyInbox, receiving_replies
from rebaser_client.request_publisher import RETRY_FOR
from rebaser_client.request_sender import RequestOptions, RequestSender
from rebaser_client.workspace_check import WorkspaceCheck
from rebaser_client.workspaces import Workspaces
from rebaser_core import codecs
from rebaser_core.commits import AUTHOR_LENGTH
from rebaser_core.ids import ChangeSet, ChangeSetId, RequestId, WorkspaceId
from rebaser_core.jetstream import (
    ConnectOptions,
    JetStream,
    JetStreamError,
    connected,
)
from rebaser_core.messages import Correction, OutcomeReplyV2
from rebaser_core.subjects import Subjects
from rebaser_core.updates import BatchLimits

if TYPE_CHECKING:
    from rebaser_client.drafts.named_workspace import NamedWorkspace

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
        subjects = Subjects(prefix)
        if author is not None and not author.isprintable():
            raise ValueError(f"author {author!r}: characters that cannot be printed")
        author = (author or "")[:AUTHOR_LENGTH] or None
        options = RequestOptions(content_type, author, retry_for)
        check = WorkspaceCheck(None if js.is_imported else Registry(js, subjects))
        sender = RequestSender(js, subjects, replies, options, check)
        super().__init__(js, subjects, sender, options, limits, check)
        self.workspaces = Workspaces(js, subjects, limits, author, sender.send_command)
        """Workspaces and their change sets: create, fork, apply and so on."""
        self.addresses = AddressBook(self.workspaces)
        """Workspaces and change sets by name."""
        self.operations = Operations(sender.send_command)
        """Operator actions on one change set."""

    def __repr__(self) -> str:
        url = self._js.nc.connected_url
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
        from rebaser_client.drafts.named_workspace import NamedWorkspace  # slow; ids do without it

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
    ) -> OutcomeReplyV2:
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

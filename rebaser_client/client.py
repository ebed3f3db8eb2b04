"""`RebaserClient`: the way to the change sets of a deployment, over one connection."""

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import wraps
from typing import TYPE_CHECKING, Any, Final, NoReturn, ParamSpec, Self

from nats.aio.client import Client

from rebaser_client.errors import ClientClosed, ClientForked, ReadRefused, WrongEventLoop
from rebaser_client.requests import (
    Reply,
    ReplyInbox,
    RequestOptions,
    RequestSender,
    Updates,
    receiving_replies,
)
from rebaser_client.workspaces import AddressBook, Workspaces
from rebaser_core import codecs
from rebaser_core.commits import AUTHOR_LENGTH
from rebaser_core.errors import Unreachable
from rebaser_core.ids import ChangeSet, ChangeSetId, RequestId, WorkspaceId
from rebaser_core.jetstream import (
    ConnectOptions,
    JetStream,
    JetStreamError,
    NotFound,
    ObjectDamaged,
    connected,
)
from rebaser_core.messages import Correction, Corrections, omitted
from rebaser_core.registry import Registry, WorkspaceCheck
from rebaser_core.requests import RETRY_FOR
from rebaser_core.streams import Streams
from rebaser_core.updates import BatchLimits

if TYPE_CHECKING:
    from rebaser_client.change_set import ChangeSetHandle, WorkspaceHandle
    from rebaser_client.services import DeclaredService, ServiceHandle

P = ParamSpec("P")

_LOCAL: Final = "nats://127.0.0.1:4222"


def _from_environment() -> tuple[str, ...]:
    """Servers of the variable that names them to `rebaser`, too; the local one if it is not set."""
    urls = os.environ.get("REBASER_NATS__URL") or _LOCAL
    return tuple(url.strip() for url in urls.split(","))


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


class RebaserClient:
    """Enqueues requests over one connection, whose owner closes it; tasks may share it.

    Example:
        shop = client.workspace("shop")
        print(await shop.values("net", "gross"))
    """

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
        """Use an open connection.

        `author` is for the log and the registry; 200 characters of it are kept.
        """
        if content_type not in codecs.CONTENT_TYPES:
            known = ", ".join(sorted(codecs.CONTENT_TYPES))
            raise ValueError(f"content type {content_type!r}; there are {known}")
        self._streams = Streams(prefix, js=js)
        if author is not None and not author.isprintable():
            raise ValueError(f"author {author!r}: characters that cannot be printed")
        author = (author or "")[:AUTHOR_LENGTH] or None
        options = RequestOptions(content_type, author, retry_for, limits)
        self.workspace_check = WorkspaceCheck(None if js.is_imported else Registry(self._streams))
        """Knowledge of which workspaces and change sets belong together."""
        self._sender = RequestSender(self._streams, replies, options, self.workspace_check)
        self.workspaces = Workspaces(self._sender)
        """The registered workspaces: create, list, fork and delete."""
        self.addresses = AddressBook(self.workspaces)
        """Workspaces and change sets by name."""

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

    def change_set(
        self, address: WorkspaceId | str, change_set_id: ChangeSetId | str | None = None
    ) -> "ChangeSetHandle":
        """The change set of an address, or of the ids of workspace and change set. No request.

        An address is `shop`, `shop/winter`, or a unique part of ids. To find a name takes the
        permissions of an operator, see docs/security.md. Two ids need not be registered.

        Raises:
            MalformedId: two ids are given, and one of them is no id.
        """
        from rebaser_client.change_set import ChangeSetHandle  # slow, and not needed to send

        where = str(address) if change_set_id is None else ChangeSet.of(address, change_set_id)
        return ChangeSetHandle(self._sender, self.workspaces, where)

    def workspace(self, name: str) -> "WorkspaceHandle":
        """The workspace of that name: `edit` its head, or `fork` a branch. No request."""
        from rebaser_client.change_set import WorkspaceHandle  # slow to import

        return WorkspaceHandle(self._sender, self.workspaces, name)

    def service(self, service: "str | DeclaredService") -> "ServiceHandle":
        """A service of handlers, by name; or as a program declares it, to call its version.

        No request.

        Example:
            print(await client.service("orders").key("o-17").call("add", "cup"))
        """
        from rebaser_client.services import ServiceHandle  # slow to import

        return ServiceHandle(self._sender, self.workspaces.registry, service)

    async def enqueue_updates(
        self,
        workspace_id: WorkspaceId | str,
        change_set_id: ChangeSetId | str,
        updates: Updates,
        *,
        request_id: RequestId | str | None = None,
    ) -> RequestId:
        """Enqueue as `ChangeSetHandle.enqueue`; return the request id once the batch is stored."""
        change_set = ChangeSet.of(workspace_id, change_set_id)
        return await self._sender.enqueue(change_set, updates, request_id)

    async def enqueue_updates_with_reply(
        self,
        workspace_id: WorkspaceId | str,
        change_set_id: ChangeSetId | str,
        updates: Updates,
        *,
        request_id: RequestId | str | None = None,
    ) -> tuple[RequestId, Reply]:
        """Enqueue as `ChangeSetHandle.enqueue_with_reply`."""
        change_set = ChangeSet.of(workspace_id, change_set_id)
        return await self._sender.enqueue_with_reply(change_set, updates, request_id)

    async def enqueue_updates_from_change_set(
        self,
        workspace_id: WorkspaceId | str,
        change_set_id: ChangeSetId | str,
        from_change_set_id: ChangeSetId | str,
        updates: Updates,
        *,
        request_id: RequestId | str | None = None,
    ) -> RequestId:
        """Enqueue as `enqueue_updates`, with a batch that was taken from another change set."""
        change_set = ChangeSet.of(workspace_id, change_set_id)
        return await self._sender.enqueue(change_set, updates, request_id, from_change_set_id)

    async def enqueue_updates_from_change_set_with_reply(
        self,
        workspace_id: WorkspaceId | str,
        change_set_id: ChangeSetId | str,
        from_change_set_id: ChangeSetId | str,
        updates: Updates,
        *,
        request_id: RequestId | str | None = None,
    ) -> tuple[RequestId, Reply]:
        """Enqueue as `enqueue_updates_from_change_set`, with the response to await."""
        change_set = ChangeSet.of(workspace_id, change_set_id)
        return await self._sender.enqueue_with_reply(
            change_set, updates, request_id, from_change_set_id
        )

    async def corrections(self, corrections: Sequence[Correction]) -> Sequence[Correction]:
        """Return all corrections, if those given end with an entry for the others.

        Raises:
            ReadRefused: the others were removed with their commit.
        """
        more = omitted(corrections)
        if more is None:
            return corrections
        try:
            payload = await self._sender.batches.get(more.object)
        except (NotFound, ObjectDamaged) as error:
            raise ReadRefused(f"corrections in object {more.object}: {error}") from error
        return (await asyncio.to_thread(Corrections.decode_stored, payload)).corrections


@dataclass(frozen=True)
class _Unopened(AbstractAsyncContextManager[RebaserClient]):
    """A client to be; it says how to get one."""

    _opening: AbstractAsyncContextManager[RebaserClient]

    async def __aenter__(self) -> RebaserClient:
        return await self._opening.__aenter__()

    async def __aexit__(self, *error: Any) -> bool | None:  # noqa: PYI036 - handed on
        return await self._opening.__aexit__(*error)

    def __getattr__(self, name: str) -> NoReturn:
        raise AttributeError(f"write `async with connect(…) as client:`, then `client.{name}`")


def _says_how(
    connecting: Callable[P, AbstractAsyncContextManager[RebaserClient]],
) -> Callable[P, AbstractAsyncContextManager[RebaserClient]]:
    return wraps(connecting)(lambda *args, **options: _Unopened(connecting(*args, **options)))


@_says_how
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
    """Connect while the body runs, and yield a client.

    Args:
        servers: NATS URLs; if none is given, those in `REBASER_NATS__URL`, else the local one.
        prefix: of the deployment's streams and subjects, `REBASER_NATS__PREFIX` there.
        api_prefix: JetStream API prefix of another account (ADR-19); excludes `domain`.
        domain: JetStream domain (ADR-19).
        content_type: encoding of requests.
        author: author of the requests, for the log of commits.
        options: of `rebaser_core.jetstream.ConnectOptions`: user, password, token, tls, …

    Raises:
        Unreachable: a URL is none of a NATS server; or every server refused the connection; or
            there was none within `connect_timeout` seconds, 10 by default.

    Example:
        async with connect(author="ada") as client:
            print(await client.change_set("shop").values("gross"))
    """
    async with AsyncExitStack() as stack:
        try:
            wanted = ConnectOptions(
                servers=servers or _from_environment(), name="rebaser client", **options
            )
            nc = await stack.enter_async_context(connected(wanted))
        except JetStreamError as error:
            raise Unreachable(str(error)) from error
        js = JetStream(nc, api_prefix=api_prefix, domain=domain)
        on = RebaserClient.on(nc, js, prefix=prefix, content_type=content_type, author=author)
        yield await stack.enter_async_context(on)

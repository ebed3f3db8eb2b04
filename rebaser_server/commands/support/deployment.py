"""A command's connection to the deployment that the settings name.

An operation that NATS does not permit to this user ends a command at once, not with a timeout. A
pause is described by its scope, and by the command that ends it.
"""

import argparse
import asyncio
import functools
import re
import shlex
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Coroutine, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Never, TypeVar

import nats.errors

from rebaser_client.client import RebaserClient
from rebaser_client.workspaces import HEAD
from rebaser_core.errors import NoSuchChangeSet, RebaserError
from rebaser_core.ids import CANONICAL, ChangeSet
from rebaser_core.jetstream import JetStreamError, connected
from rebaser_core.records import PauseScope, enclosing_scopes
from rebaser_core.registry import Registry
from rebaser_core.streams import Streams
from rebaser_core.subjects import Subjects
from rebaser_server.commands.support.arguments import Handler
from rebaser_server.errors import MissingBatch
from rebaser_server.ops.answers import STATUS, statuses
from rebaser_server.runtime.tasks import background, wait_forever
from rebaser_server.settings.nats_connection import connect_options, open_jetstream
from rebaser_server.settings.settings import Settings
from rebaser_server.terminal.lines import complain

if TYPE_CHECKING:
    from rebaser_server.commit_log.batch_store import BatchStore
    from rebaser_server.commit_log.state_loader import StateLoader

T = TypeVar("T")

_VIOLATION: Final = re.compile(r'permissions violation for (\w+) to "([^"]+)"', re.IGNORECASE)
"""Pattern of a refusal: NATS names the operation and the subject only in the text of the error."""


class NotPermitted(RebaserError):
    """The NATS user in the settings may not do this. The last step of the command had no effect."""


class _PermissionWatch:
    """Receives the errors of a connection; a refusal ends the command that waits for a reply."""

    def __init__(self, user: str | None, optional: Collection[str] = ()) -> None:
        """Watch the errors of `user`; a refusal of a subject in `optional` ends nothing."""
        self._optional = optional
        self.lacks_optional = False
        """Whether NATS refused a subject in `optional`."""
        self._user = f"user {user!r}" if user else "this user"
        self._task: asyncio.Task[object] | None = None
        self._refusal: str | None = None

    def on_error(self, error: Exception) -> None:
        violation = _VIOLATION.search(str(error))
        if violation is None or self._refusal is not None or self._task is None:
            return
        if violation[2] in self._optional:
            self.lacks_optional = True
            return
        verb = "subscribe to" if violation[1].lower().startswith("subs") else "publish to"
        self._refusal = f"NATS does not let {self._user} {verb} {violation[2]!r}"
        self._task.cancel()

    @contextmanager
    def enforced(self) -> Iterator[None]:
        """Cancel the body, as a timeout does, as soon as NATS refuses an operation.

        Raises:
            NotPermitted: NATS refused one.
        """
        task = asyncio.current_task()
        self._task, cancelled = task, task.cancelling() if task else 0
        try:
            yield
        except asyncio.CancelledError:
            if self._refusal is None or task is None or task.uncancel() > cancelled:
                raise
            raise NotPermitted(self._refusal) from None
        finally:
            self._task = None


_PATIENCE: Final = 4.0
"""Seconds after which a command that is not done looks whether NATS writes, and between looks."""


@dataclass(frozen=True, slots=True)
class Deployment:
    """Streams and subjects of a deployment, and a client for it, on one connection."""

    streams: Streams
    client: RebaserClient
    settings: Settings

    async def settings_with_store(self) -> Settings:
        """The settings with the store's location, which they rarely name.

        Raises:
            StoreNotKnown: neither the settings nor a Rebaser name it.
        """
        from rebaser_server.ops.store_location import settings_with_store

        return await settings_with_store(self.streams.js, self.settings)

    async def state_loader(self, change_set: ChangeSet) -> "StateLoader":
        """A loader of the change set's state; raises as `settings_with_store`."""
        from rebaser_server.graph_application.state_machine import open_state_loader

        return open_state_loader(self.streams.js, await self.settings_with_store(), change_set)

    async def with_batches(self, read: Callable[["BatchStore"], Awaitable[T]]) -> T:
        """Return what `read` makes of the batches, most of which lie in NATS.

        The store is looked for only if one is missing: then this raises as `settings_with_store`.
        """
        from rebaser_server.commit_log.batch_store import open_batch_store  # slow

        try:
            return await read(open_batch_store(self.streams, self.settings))
        except RebaserError as error:
            if not isinstance(error.__cause__, MissingBatch):
                raise
        return await read(open_batch_store(self.streams, await self.settings_with_store()))

    async def check_change_set(self, change_set: ChangeSet) -> None:
        """Check the two ids. The change set may be new.

        Raises:
            NotInWorkspace: it belongs to another workspace, or to none.
        """
        await self.client.workspace_check.check(change_set)

    async def require_change_set(self, change_set: ChangeSet, hint: str = "") -> None:
        """Check that it is registered, or has a log or requests.

        Raises:
            NotInWorkspace: it belongs to another workspace, or to none.
            NoSuchChangeSet: it does not exist; the message ends with `hint`.
        """
        await self.check_change_set(change_set)
        if await self._has_messages(change_set):
            return
        if not await Registry(self.streams).has_change_set(change_set):
            raise NoSuchChangeSet(
                f"there is no change set {change_set.change_set_id} in workspace "
                f"{change_set.workspace_id}{hint}"
            )

    async def _has_messages(self, change_set: ChangeSet) -> bool:
        streams, last = self.streams, self.streams.js.get_message
        commits, requests = streams.commits(change_set), streams.requests(change_set)
        if await last(streams.commits_stream, last_by_subject=commits) is not None:
            return True
        return await last(streams.requests_stream, last_by_subject=requests) is not None


_IDS: Final = re.compile(rf"\b({CANONICAL[1:-1]})\.({CANONICAL[1:-1]})")


async def name_change_sets(deployment: Deployment, error: RebaserError) -> None:
    """Put addresses in place of the ids of change sets in the error's message."""
    text = str(error)
    if error.args != (text,):
        return
    with suppress(RebaserError):
        for ids in set(_IDS.findall(text)):
            text = text.replace(
                ".".join(ids), repr(await deployment.client.addresses.address_of(ids))
            )
    error.args = (text,)


def with_deployment(
    handler: Callable[[Deployment, argparse.Namespace], Coroutine[Any, Any, int | None]],
) -> Handler:
    """The handler, given a connection to the deployment that the settings name."""

    @functools.wraps(handler)
    async def connected(settings: Settings, arguments: argparse.Namespace) -> int | None:
        async with open_deployment(settings) as deployment:
            try:
                return await handler(deployment, arguments)
            except JetStreamError:
                raise  # subjects stay as they are; and NATS may be away
            except RebaserError as error:
                await name_change_sets(deployment, error)
                raise

    return connected


@asynccontextmanager
async def open_deployment(settings: Settings) -> AsyncIterator[Deployment]:
    """Connect while the body runs.

    Raises:
        NatsUnreachable: NATS does not answer.
        NotPermitted: NATS refuses an operation of the body to this user.
    """
    prefix = settings.nats.prefix
    optional = (Subjects(prefix).join(STATUS), "$SYS.REQ.USER.INFO")
    watch = _PermissionWatch(settings.nats.user, optional)
    async with connected(connect_options(settings), on_error=watch.on_error) as nc:
        js = open_jetstream(nc, settings.nats)
        streams = Streams(prefix, js=js)
        async with RebaserClient.on(nc, js, prefix=prefix, author=settings.author) as client:
            with watch.enforced():
                async with background(_say_if_unwritten(streams, watch)):
                    yield Deployment(streams, client, settings)


async def _say_if_unwritten(streams: Streams, watch: _PermissionWatch) -> Never:
    """Report on stderr, while the command waits, why NATS keeps nothing, and when it does again."""
    said = False
    while True:
        await asyncio.sleep(_PATIENCE)
        if watch.lacks_optional:  # it would be refused again and again
            await wait_forever()
        with suppress(JetStreamError, nats.errors.Error):
            problem = await _nats_problem(streams)
            if problem is not None and not said:
                what, remedy = problem
                complain(f"rebaser: {what}", f"  {remedy}")
            elif problem is None and said:
                complain("rebaser: NATS is well again")
            said = problem is not None


async def _nats_problem(streams: Streams) -> tuple[str, str] | None:
    """Reason why NATS does not keep messages, and the remedy.

    Both come from the Rebasers, or from a trial if the user may try.
    """
    from rebaser_server.cluster.nats_writes import permissions, unwritten

    for report in await statuses(streams):
        if report.get("natsProblem"):
            what, remedy = report["natsProblem"]
            return str(what), str(remedy)
    problem = await unwritten(streams, await permissions(streams.js))
    return None if problem is None else (problem.what, problem.remedy)


async def describe(deployment: Deployment, scope: PauseScope) -> str:
    if scope.workspace_id is None:
        return "everything"
    kind = "workspace" if scope.change_set_id is None else "change set"
    return f"{kind} {await _name(deployment, scope)!r}"


async def warn_if_paused(
    deployment: Deployment, *change_sets: ChangeSet, waiting: str = "the request"
) -> None:
    """Warn on stderr if `waiting` will wait for the end of a pause of any of the change sets."""
    complain(*await pause_texts(deployment, *change_sets, waiting=waiting))


async def pause_texts(deployment: Deployment, *change_sets: ChangeSet, waiting: str) -> list[str]:
    """Texts on the pauses that keep `waiting` back, with the commands that end them."""
    from rebaser_server.cluster.pauses import PauseStore

    pauses, texts = await PauseStore(deployment.streams).all(), dict[str, None]()
    for change_set in change_sets:
        for scope in enclosing_scopes(change_set):
            if scope in pauses:
                what, how = await describe(deployment, scope), await resume_hint(deployment, scope)
                texts[f"{what} is paused: {waiting} waits for {how}"] = None
                break
    return [*texts]


async def resume_hint(deployment: Deployment, scope: PauseScope) -> str:
    """The command that ends the pause."""
    return f"`rebaser resume {shlex.quote(await _name(deployment, scope))}`"


async def _name(deployment: Deployment, scope: PauseScope) -> str:
    """Words that name the scope in `rebaser pause`; for a head `shop/head`."""
    addresses = deployment.client.addresses
    if scope.workspace_id is None:
        return "--all"
    name = await addresses.name_of(scope.workspace_id)
    if scope.change_set_id is None:
        return name
    address = await addresses.address_of(ChangeSet(scope.workspace_id, scope.change_set_id))
    return f"{address}/{HEAD}" if address == name else address

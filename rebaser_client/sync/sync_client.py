"""The classes of the client, each with its asynchronous methods made blocking."""

import asyncio
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any, Final, Self, TypeVar

from rebaser_client.address_book import AddressBook
from rebaser_client.batch_enqueuer import Wait
from rebaser_client.client import RebaserClient
from rebaser_client.client import connect as connect_async
from rebaser_client.drafts.named_change_set import EditedDraft, NamedChangeSet
from rebaser_client.drafts.named_workspace import NamedBranch, NamedWorkspace
from rebaser_client.drafts.plan import LoadPlan
from rebaser_client.operations import Operations
from rebaser_client.sync.blocking import Blocking, blocking, documented, iterating
from rebaser_client.sync.loop_thread import LoopThread
from rebaser_client.value_reader import ChangeSetReader
from rebaser_client.workspaces import Workspaces
from rebaser_core.ids import ChangeSetId, WorkspaceId

W = TypeVar("W")


class SyncReader(Blocking[ChangeSetReader]):
    """As `ChangeSetReader`."""

    values = blocking(ChangeSetReader.values)
    functions = blocking(ChangeSetReader.functions)
    why = blocking(ChangeSetReader.why)
    difference = blocking(ChangeSetReader.difference)
    plan_revert = blocking(ChangeSetReader.plan_revert)
    log = blocking(ChangeSetReader.log)


class SyncOperations(Blocking[Operations]):
    """As `Operations`."""

    checkpoint = blocking(Operations.checkpoint)
    recompute = blocking(Operations.recompute)


class SyncWorkspaces(Blocking[Workspaces]):
    """As `Workspaces`."""

    create = blocking(Workspaces.create)
    all = blocking(Workspaces.all)
    change_sets = blocking(Workspaces.change_sets)
    describe = blocking(Workspaces.describe)
    fork = blocking(Workspaces.fork)
    rename = blocking(Workspaces.rename)
    comment = blocking(Workspaces.comment)
    comments = blocking(Workspaces.comments)
    refresh = blocking(Workspaces.refresh)
    apply = blocking(Workspaces.apply)
    abandon = blocking(Workspaces.abandon)
    delete = blocking(Workspaces.delete)
    delete_workspace = blocking(Workspaces.delete_workspace)


class SyncAddressBook(Blocking[AddressBook]):
    """As `AddressBook`."""

    find = blocking(AddressBook.find)
    workspace = blocking(AddressBook.workspace)
    all = blocking(AddressBook.all)
    address_of = blocking(AddressBook.address_of)
    name_of = blocking(AddressBook.name_of)
    check_free = blocking(AddressBook.check_free)


class SyncChangeSet(Blocking[W]):
    """As `NamedChangeSet`."""

    ids = blocking(NamedChangeSet.ids)
    values = blocking(NamedChangeSet.values)
    why = blocking(NamedChangeSet.why)
    plan_revert = blocking(NamedChangeSet.plan_revert)
    comment = blocking(NamedChangeSet.comment)
    comments = blocking(NamedChangeSet.comments)
    settled = blocking(NamedChangeSet.settled)
    progress = iterating(NamedChangeSet.progress)
    plan = blocking(NamedChangeSet.plan)
    load = blocking(NamedChangeSet.load)
    finish = blocking(NamedChangeSet.finish)

    @documented(NamedChangeSet.edit)
    @contextmanager
    def edit(
        self,
        *,
        prune: bool = False,
        wait: Wait = "computed",
        confirm: Callable[[LoadPlan], bool] = lambda _: True,
    ) -> Iterator[EditedDraft]:
        """As `NamedChangeSet.edit`."""
        edited = EditedDraft()
        yield edited
        self.finish(edited, prune=prune, wait=wait, confirm=confirm)


class SyncBranch(SyncChangeSet[NamedBranch]):
    """As `NamedBranch`."""

    difference = blocking(NamedBranch.difference)
    differences = blocking(NamedBranch.differences)
    apply = blocking(NamedBranch.apply)
    abandon = blocking(NamedBranch.abandon)

    @documented(NamedBranch.fork)
    def fork(self, *, exist_ok: bool = False) -> Self:
        """As `NamedBranch.fork`."""
        self._loop.run(self._wrapped.fork(exist_ok=exist_ok))
        return self


class SyncWorkspace(SyncChangeSet[NamedWorkspace]):
    """As `NamedWorkspace`."""

    @documented(NamedWorkspace.create)
    def create(self, *, exist_ok: bool = False) -> Self:
        """As `NamedWorkspace.create`."""
        self._loop.run(self._wrapped.create(exist_ok=exist_ok))
        return self

    @documented(NamedWorkspace.branch)
    def branch(self, name: str) -> SyncBranch:
        """As `NamedWorkspace.branch`."""
        return SyncBranch(self._wrapped.branch(name), self._loop)


class SyncClient(Blocking[RebaserClient]):
    """As `RebaserClient`; a context manager that closes the connection."""

    find = blocking(RebaserClient.find)
    enqueue = blocking(RebaserClient.enqueue)
    enqueue_table = blocking(RebaserClient.enqueue_table)
    enqueue_updates = blocking(RebaserClient.enqueue_updates)
    enqueue_updates_from_change_set = blocking(RebaserClient.enqueue_updates_from_change_set)
    settled = blocking(RebaserClient.settled)
    progress = iterating(RebaserClient.progress)
    corrections = blocking(RebaserClient.corrections)
    outcome = blocking(RebaserClient.outcome)

    def __init__(self, wrapped: RebaserClient, loop: LoopThread, close: Callable[[], None]) -> None:
        super().__init__(wrapped, loop)
        self.workspaces = SyncWorkspaces(wrapped.workspaces, loop)
        self.addresses = SyncAddressBook(wrapped.addresses, loop)
        self.operations = SyncOperations(wrapped.operations, loop)
        self.close: Final = close
        """Close the connection, and end the thread; again, or in a forked process, do nothing."""

    @documented(RebaserClient.workspace)
    def workspace(self, name: str) -> SyncWorkspace:
        """As `RebaserClient.workspace`."""
        return SyncWorkspace(self._wrapped.workspace(name), self._loop)

    @documented(RebaserClient.reader)
    def reader(
        self, workspace_id: WorkspaceId | str, change_set_id: ChangeSetId | str
    ) -> SyncReader:
        """As `RebaserClient.reader`."""
        return SyncReader(self._wrapped.reader(workspace_id, change_set_id), self._loop)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def connect(*servers: str, **options: Any) -> SyncClient:
    """Connect; arguments and errors are those of `rebaser_client.connect`.

    Use it in `with`, or call its `close` at the end.
    """
    loop, ready, closing = LoopThread(), Future[RebaserClient](), asyncio.Event()

    async def hold() -> None:
        """Open and close in one task."""
        async with connect_async(*servers, **options) as client:
            ready.set_result(client)
            await closing.wait()

    held = loop.start(hold())
    held.add_done_callback(lambda ended: _fail(ready, ended))

    def close() -> None:
        if loop.is_forked or not loop.is_open:
            return
        loop.call(closing.set)
        held.result()
        loop.stop()

    try:
        return SyncClient(ready.result(), loop, close)
    except BaseException:
        held.cancel()
        loop.stop()
        raise


def _fail(ready: Future[RebaserClient], ended: Future[None]) -> None:
    if not ready.done() and not ended.cancelled():
        ready.set_exception(ended.exception())

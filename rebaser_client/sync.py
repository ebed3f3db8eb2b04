"""The blocking client: the classes of the asynchronous one, run by an event loop in a thread.

`blocking` turns an asynchronous method into one that waits, with its arguments, types and
docstring.
"""

import asyncio
import os
import sys
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Iterator
from concurrent.futures import CancelledError, Future
from contextlib import contextmanager
from functools import wraps
from threading import RLock, Thread, current_thread
from typing import TYPE_CHECKING, Any, Concatenate, Final, Generic, ParamSpec, Self, TypeVar

from rebaser_client.change_set import ChangeSetHandle, WorkspaceHandle
from rebaser_client.client import RebaserClient
from rebaser_client.client import connect as connect_async
from rebaser_client.errors import ClientClosed, ClientForked
from rebaser_client.outcomes import Wait
from rebaser_client.services import DeclaredService, KeyHandle, ServiceHandle
from rebaser_client.table_reads import TableValue
from rebaser_client.workspaces import AddressBook, Workspaces
from rebaser_core.ids import ChangeSetId, WorkspaceId

if TYPE_CHECKING:  # slow, and only for who writes values by name
    from rebaser_client.plan import EditedDraft, LoadPlan

T = TypeVar("T")


class LoopThread:
    """An event loop in a background thread."""

    def __init__(self) -> None:
        self._process = os.getpid()
        self.is_open = True
        """Whether the thread runs."""
        self._loop = asyncio.new_event_loop()
        self._changing = RLock()  # a finalizer may begin work amid the beginning of other work
        self._thread = Thread(target=self._loop.run_forever, name="rebaser client", daemon=True)
        self._thread.start()

    @property
    def is_forked(self) -> bool:
        """Whether this process is a fork of the process that has the thread."""
        return os.getpid() != self._process

    def check(self) -> None:
        """Raise `ClientForked` or `ClientClosed` if the thread cannot run work any more."""
        if self.is_forked:
            raise ClientForked
        if not self.is_open:
            raise ClientClosed

    def start(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """Begin the work in the thread.

        Raises:
            ClientForked, ClientClosed: it cannot, see `check`.
        """
        try:
            self.check()  # before the lock, too: a fork may leave it locked
            with self._changing:  # the end of the thread cancels what began before it
                self.check()
                return asyncio.run_coroutine_threadsafe(work, self._loop)
        except BaseException:
            work.close()
            raise

    def call(self, callback: Callable[[], None]) -> None:
        """Call back in the thread, soon."""
        self._loop.call_soon_threadsafe(callback)

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Return the result of the work. An interrupt of the caller cancels it."""
        future = self.start(work)
        try:
            return future.result()
        except BaseException as error:
            future.cancel()
            if isinstance(error, CancelledError) and not self.is_open:
                raise ClientClosed from None  # by another thread
            raise

    def iterate(self, items: AsyncIterator[T]) -> Iterator[T]:
        """Yield the items, each awaited when it is asked for.

        The iterator is closed if the caller stops early.
        """
        turn = asyncio.Lock()  # an interrupted step still cleans up when the iterator is closed

        async def step() -> list[T]:
            async with turn:
                try:
                    return [await anext(items)]
                except StopAsyncIteration:
                    return []

        async def close() -> None:
            async with turn:
                if isinstance(items, AsyncGenerator):
                    await items.aclose()

        try:
            while item := self.run(step()):
                yield item[0]
        finally:
            if self.is_open and not self.is_forked and not sys.is_finalizing():
                if current_thread() is self._thread:  # garbage is collected in any thread
                    self.start(close())
                else:
                    self.run(close())

    def stop(self) -> None:
        """Cancel all work in the thread, and end the thread; a second call does nothing."""
        if self.is_forked:
            return
        with self._changing:
            was_open, self.is_open = self.is_open, False
        if not was_open:
            return
        asyncio.run_coroutine_threadsafe(_cancel_all(), self._loop).result()
        self.call(self._loop.stop)
        self._thread.join()
        self._loop.close()


async def _cancel_all() -> None:
    """End all other tasks of the loop, and its iterators that were left."""
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    await asyncio.get_running_loop().shutdown_asyncgens()


P = ParamSpec("P")
W = TypeVar("W")


class Blocking(Generic[W]):
    """A wrapper of an asynchronous object whose methods are called from outside its loop."""

    def __init__(self, wrapped: W, loop: LoopThread) -> None:
        self._wrapped: Final = wrapped
        self._loop: Final = loop

    def __repr__(self) -> str:
        return f"<{type(self).__name__} for {self._wrapped!r}>"


def documented(method: Callable[..., Any]) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """Copy the docstring of the asynchronous method to a method written by hand."""

    def document(written: Callable[P, T]) -> Callable[P, T]:
        written.__doc__ = method.__doc__
        return written

    return document


def blocking(
    method: Callable[Concatenate[Any, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[Blocking[Any], P], T]:
    """The blocking method: equal name and arguments, and it waits for the result."""

    @wraps(method)
    def call(self: Blocking[Any], /, *args: P.args, **options: P.kwargs) -> T:
        self._loop.check()
        return self._loop.run(method(self._wrapped, *args, **options))

    return call


def _iterating(
    method: Callable[Concatenate[Any, P], AsyncIterator[T]],
) -> Callable[Concatenate[Blocking[Any], P], Iterator[T]]:
    """The blocking method: equal name and arguments, and its items are iterated over."""

    @wraps(method)
    def call(self: Blocking[Any], /, *args: P.args, **options: P.kwargs) -> Iterator[T]:
        self._loop.check()
        return self._loop.iterate(method(self._wrapped, *args, **options))

    return call


class SyncKey(Blocking[KeyHandle]):
    """Blocking `KeyHandle`."""

    call = blocking(KeyHandle.call)
    send = blocking(KeyHandle.send)
    cancel = blocking(KeyHandle.cancel)
    timers = blocking(KeyHandle.timers)
    state = blocking(KeyHandle.state)
    outcome = blocking(KeyHandle.outcome)


class SyncService(Blocking[ServiceHandle]):
    """Blocking `ServiceHandle`."""

    describe = blocking(ServiceHandle.describe)
    version = blocking(ServiceHandle.version)

    @documented(ServiceHandle.key)
    def key(self, key: str) -> SyncKey:
        """Blocking `ServiceHandle.key`."""
        return SyncKey(self._wrapped.key(key), self._loop)


class SyncWorkspaces(Blocking[Workspaces]):
    """Blocking `Workspaces`."""

    create = blocking(Workspaces.create)
    all = blocking(Workspaces.all)
    services = blocking(Workspaces.services)
    change_sets = blocking(Workspaces.change_sets)
    fork = blocking(Workspaces.fork)
    delete_workspace = blocking(Workspaces.delete_workspace)


class SyncAddressBook(Blocking[AddressBook]):
    """Blocking `AddressBook`."""

    find = blocking(AddressBook.find)
    workspace = blocking(AddressBook.workspace)
    all = blocking(AddressBook.all)
    address_of = blocking(AddressBook.address_of)
    name_of = blocking(AddressBook.name_of)
    check_free = blocking(AddressBook.check_free)


class SyncTable(Blocking[TableValue]):
    """Blocking `TableValue`."""

    scan = _iterating(TableValue.scan)
    head = blocking(TableValue.head)
    diff = blocking(TableValue.diff)
    to_arrow = blocking(TableValue.to_arrow)
    to_pandas = blocking(TableValue.to_pandas)
    to_polars = blocking(TableValue.to_polars)

    def __init__(self, wrapped: TableValue, loop: LoopThread) -> None:
        super().__init__(wrapped, loop)
        self.commit: Final = wrapped.commit
        self.id: Final = wrapped.id
        self.name: Final = wrapped.name
        self.schema: Final = wrapped.schema
        """Columns, see `TableValue`."""
        self.rows: Final = wrapped.rows
        self.size: Final = wrapped.size
        self.files: Final = wrapped.files

    def _repr_html_(self) -> str:
        return self._wrapped._repr_html_()


class SyncChangeSet(Blocking[W]):
    """Blocking `ChangeSetHandle`."""

    ids = blocking(ChangeSetHandle.ids)
    enqueue = blocking(ChangeSetHandle.enqueue)
    set_value = blocking(ChangeSetHandle.set_value)
    enqueue_table = blocking(ChangeSetHandle.enqueue_table)
    outcome = blocking(ChangeSetHandle.outcome)
    settled = blocking(ChangeSetHandle.settled)
    progress = _iterating(ChangeSetHandle.progress)
    values = blocking(ChangeSetHandle.values)
    without_result = blocking(ChangeSetHandle.without_result)
    functions = blocking(ChangeSetHandle.functions)
    log = blocking(ChangeSetHandle.log)
    history = blocking(ChangeSetHandle.history)
    changes = _iterating(ChangeSetHandle.changes)
    why = blocking(ChangeSetHandle.why)
    difference = blocking(ChangeSetHandle.difference)
    differences = blocking(ChangeSetHandle.differences)
    plan_revert = blocking(ChangeSetHandle.plan_revert)
    plan = blocking(ChangeSetHandle.plan)
    upload = blocking(ChangeSetHandle.upload)
    load = blocking(ChangeSetHandle.load)
    describe = blocking(ChangeSetHandle.describe)
    rename = blocking(ChangeSetHandle.rename)
    comment = blocking(ChangeSetHandle.comment)
    comments = blocking(ChangeSetHandle.comments)
    checkpoint = blocking(ChangeSetHandle.checkpoint)
    recompute = blocking(ChangeSetHandle.recompute)
    refresh = blocking(ChangeSetHandle.refresh)
    apply = blocking(ChangeSetHandle.apply)
    abandon = blocking(ChangeSetHandle.abandon)
    delete = blocking(ChangeSetHandle.delete)
    _table = blocking(ChangeSetHandle.table)

    @documented(ChangeSetHandle.table)
    def table(self, name: str, *, at: int | None = None) -> SyncTable:
        """Blocking `ChangeSetHandle.table`."""
        return SyncTable(self._table(name, at=at), self._loop)

    @contextmanager
    @documented(ChangeSetHandle.edit)
    def edit(
        self,
        *,
        prune: bool = False,
        wait: Wait = "computed",
        confirm: "Callable[[LoadPlan], bool]" = lambda _: True,
    ) -> "Iterator[EditedDraft]":
        """Blocking `ChangeSetHandle.edit`."""
        from rebaser_client.plan import EditedDraft

        self._loop.check()
        edited = EditedDraft()
        yield edited
        plan = self.plan(edited, prune=prune)
        agreed = bool(plan) and confirm(plan)  # here: in the loop, it would block other threads
        edited.end(plan, self.load(plan, wait=wait) if agreed else None)


class SyncWorkspace(SyncChangeSet[WorkspaceHandle]):
    """Blocking `WorkspaceHandle`."""

    @documented(WorkspaceHandle.create)
    def create(self, *, exist_ok: bool = False) -> Self:
        """Blocking `WorkspaceHandle.create`."""
        self._loop.run(self._wrapped.create(exist_ok=exist_ok))
        return self

    @documented(WorkspaceHandle.change_set)
    def change_set(self, name: str) -> SyncChangeSet[ChangeSetHandle]:
        """Blocking `WorkspaceHandle.change_set`."""
        return SyncChangeSet(self._wrapped.change_set(name), self._loop)

    @documented(WorkspaceHandle.fork)
    def fork(self, name: str, *, exist_ok: bool = False) -> SyncChangeSet[ChangeSetHandle]:
        """Blocking `WorkspaceHandle.fork`."""
        branch = self._loop.run(self._wrapped.fork(name, exist_ok=exist_ok))
        return SyncChangeSet(branch, self._loop)


class SyncClient(Blocking[RebaserClient]):
    """Blocking `RebaserClient`; a context manager that closes the connection."""

    enqueue_updates = blocking(RebaserClient.enqueue_updates)
    enqueue_updates_from_change_set = blocking(RebaserClient.enqueue_updates_from_change_set)
    corrections = blocking(RebaserClient.corrections)

    def __init__(self, wrapped: RebaserClient, loop: LoopThread, close: Callable[[], None]) -> None:
        super().__init__(wrapped, loop)
        self.workspaces = SyncWorkspaces(wrapped.workspaces, loop)
        self.addresses = SyncAddressBook(wrapped.addresses, loop)
        self.close: Final = close
        """Close the connection, and end the thread; do nothing if that is done, or in a forked
        process."""

    @documented(RebaserClient.change_set)
    def change_set(
        self, address: WorkspaceId | str, change_set_id: ChangeSetId | str | None = None
    ) -> SyncChangeSet[ChangeSetHandle]:
        """Blocking `RebaserClient.change_set`."""
        return SyncChangeSet(self._wrapped.change_set(address, change_set_id), self._loop)

    @documented(RebaserClient.workspace)
    def workspace(self, name: str) -> SyncWorkspace:
        """Blocking `RebaserClient.workspace`."""
        return SyncWorkspace(self._wrapped.workspace(name), self._loop)

    @documented(RebaserClient.service)
    def service(self, service: str | DeclaredService) -> SyncService:
        """Blocking `RebaserClient.service`."""
        return SyncService(self._wrapped.service(service), self._loop)

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

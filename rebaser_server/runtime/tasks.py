"""Asyncio's tasks: beside a body, interruptible, or in turns.

`BackgroundTasks` run beside a body, for no longer than it lasts. `Interrupt` ends waits, and
`Shutdown` the process. `Turns` gives seats to owners in turns, and `compute_in_turn` one thread at
a time to each owner, so that an owner of much work does not keep others waiting.
"""

import asyncio
import math
import signal
import sys
from asyncio import AbstractEventLoop, Lock
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager, suppress
from contextvars import Context, copy_context
from errno import EAGAIN
from functools import partial
from itertools import islice
from types import TracebackType
from typing import Any, Final, Never, ParamSpec, Self, TypeVar
from weakref import WeakKeyDictionary, WeakValueDictionary

from rebaser_server.errors import BackgroundEnded, Fenced, Interrupted, LeaseLost, RunEnded
from rebaser_server.runtime.failures import LibraryPanicked, is_panic

Work = Callable[[], Coroutine[Any, Any, Never]]


async def wait_forever() -> Never:
    await asyncio.Event().wait()
    raise AssertionError("the event is never set")


class Wakeup(asyncio.Event):
    """An event for one task, which is begun when it is first set."""

    def __init__(self) -> None:
        super().__init__()
        self._begin: Callable[[], None] | None = None

    def begins(self, begin: Callable[[], None]) -> None:
        """Call `begin` once it is set: now, or then."""
        if self.is_set():
            begin()
        else:
            self._begin = begin

    def set(self) -> None:
        super().set()
        if self._begin is not None:
            begin, self._begin = self._begin, None
            begin()


class TaskGroup(asyncio.TaskGroup):  # noqa: TID251 - the one place that mends it
    """A task group that swallows no cancellation, also before Python 3.13 (cpython gh-116720).

    If a task of it fails as the body is cancelled by others, the error is raised, and the next wait
    is cancelled. There asyncio's own raises the error alone: its handler would go on, and work that
    was cancelled would be waited for without end.
    """

    _parent_cancel_requested: bool
    """Whether asyncio has cancelled the body, as a task failed."""

    async def __aenter__(self) -> Self:
        if (task := asyncio.current_task()) is not None:
            self._task, self._cancelled = task, task.cancelling()
        return await super().__aenter__()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        was_in_body = self._parent_cancel_requested
        try:
            await super().__aexit__(kind, error, trace)
        except BaseExceptionGroup:
            if sys.version_info < (3, 13):
                if self._parent_cancel_requested and not was_in_body:  # asyncio never takes it back
                    self._task.uncancel()
                if self._task.cancelling() > self._cancelled:
                    self._task.uncancel()
                    self._task.cancel()
            raise


class BackgroundTasks:
    """Tasks beside a body, each begun when there is something to do.

    If one ends before the body does, the body is cancelled and the error raised in its place. The
    error is raised bare: of several at once, the one that forbids most.

    Raises:
        BackgroundEnded: a task returned or was cancelled by others while the body ran.
        Exception: what a task raised, without an exception group around it.
    """

    def __init__(self) -> None:
        self._group = TaskGroup()
        self._tasks: list[asyncio.Task[None]] = []
        self._timers: list[asyncio.TimerHandle] = []
        self._wakeups: list[Wakeup] = []
        self._is_over = False

    async def __aenter__(self) -> Self:
        await self._group.__aenter__()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._is_over = True
        for timer in self._timers:
            timer.cancel()
        for task in self._tasks:
            task.cancel()
        # Else there would be cycles: a wakeup has the work that it begins, which mostly has it, and
        # a cancelled task its traceback.
        for wakeup in self._wakeups:
            wakeup.begins(lambda: None)
        self._tasks.clear()
        try:
            await self._group.__aexit__(kind, error, trace)
        except BaseExceptionGroup as errors:
            # `LeaseLost` and `Fenced` forbid to settle anything: no other may hide them (W15).
            raise max(errors.exceptions, key=_is_fencing) from None

    def start(self, work: Work, context: Context | None = None) -> None:
        """Begin `work`, which never returns; do nothing once the body or a task has ended."""
        if not (self._is_over or any(task.done() for task in self._tasks)):
            task = self._group.create_task(self._endless(work), context=context)
            self._tasks.append(task)

    def start_after(self, seconds: float, work: Work) -> None:
        """Begin `work` after `seconds`."""
        loop = asyncio.get_running_loop()
        self._timers.append(loop.call_later(seconds, self.start, work))

    def start_on(self, wakeup: Wakeup, work: Work) -> None:
        """Begin `work` when `wakeup` is set, in the context of this call."""
        wakeup.begins(partial(self.start, work, copy_context()))
        self._wakeups.append(wakeup)

    async def _endless(self, work: Work) -> None:
        coroutine = work()
        try:
            await coroutine
        except asyncio.CancelledError:
            if self._is_over:
                raise
            raise BackgroundEnded(f"{coroutine} was cancelled while it was needed") from None
        if not self._is_over:
            raise BackgroundEnded(f"{coroutine} returned while it was needed")


@asynccontextmanager
async def background(work: Coroutine[Any, Any, Never]) -> AsyncIterator[None]:
    """Run `work` for exactly as long as the body, as `BackgroundTasks` does."""
    try:
        async with BackgroundTasks() as tasks:
            tasks.start(lambda: work)
            yield
    finally:
        work.close()  # cancelled before its first step, it was never awaited


def _is_fencing(error: BaseException) -> bool:
    return isinstance(error, LeaseLost | Fenced)


T = TypeVar("T")
P = ParamSpec("P")

PROCESS_LIMITS: Final = "a limit of processes and threads is reached, of the user or the container"


class WorkThreads(ThreadPoolExecutor):
    """Threads for blocking work, in which a panic of a library is an error of that work alone.

    As a `BaseException` a panic would end every task group up to the process. If a limit of
    processes forbids another thread, the work waits for a free one.
    """

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Call the function in a thread.

        Raises:
            LibraryPanicked: from the result, in place of a panic.
            BlockingIOError: the pool has no thread, and none can be started.
        """
        return super().submit(partial(_without_panic, fn, *args, **kwargs))

    def _adjust_thread_count(self) -> None:
        """Start a thread for the submitted work, if there may be more.

        Raises:
            BlockingIOError: the pool has no thread, and none can be started.
        """
        try:
            super()._adjust_thread_count()
        except RuntimeError as error:  # "can't start new thread"
            if not self._threads:
                raise BlockingIOError(EAGAIN, f"{error}: {PROCESS_LIMITS}") from error


def _without_panic(fn: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    try:
        return fn(*args, **kwargs)
    except BaseException as error:
        if is_panic(error):
            raise LibraryPanicked(f"a library panicked: {error}") from error
        raise


_SWITCH_INTERVAL: Final = 0.0005
"""Seconds after which a thread that computes lets another one go on: ten times as often as by
default. The loop waits so long for each such thread whenever it wakes, several times a request."""


def switch_often() -> None:
    """Let the event loop go on soon beside threads that compute."""
    sys.setswitchinterval(_SWITCH_INTERVAL)


async def for_each_concurrently(
    items: Iterable[T], do: Callable[[T], Awaitable[None]], at_once: int
) -> None:
    """Call `do` for each item, `at_once` at a time; the first error cancels the others.

    Raises:
        Exception: an error of `do`, bare. Items not begun are left.
    """
    remaining = iter(items)

    async def work() -> None:
        for item in remaining:
            await do(item)

    try:
        async with TaskGroup() as group:
            for _ in range(at_once):
                group.create_task(work())
    except BaseExceptionGroup as errors:
        raise errors.exceptions[0] from None


async def finish(work: Coroutine[Any, Any, T], grace: float) -> T:
    """Return what `work` returns; a cancellation lets it go on for up to `grace` seconds first.

    Its error is dropped then.
    """
    task = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        # First: a second cancellation ends the wait.
        task.add_done_callback(drop_error)
        try:
            await asyncio.wait([task], timeout=grace)
        finally:
            task.cancel()
        raise


def drop_error(task: asyncio.Future[Any]) -> None:
    """Keep asyncio from reporting the error of a task whose caller was cancelled."""
    if not task.cancelled():
        task.exception()


class Permits:
    """Permits for parallel work, first come, first served: fewer if the work is slow.

    Work that takes too long lowers the number of permits, down to one, and quick work raises it a
    little. So a process that lacks time begins less, but finishes that.
    """

    _DEEPEST_CUT: Final = 0.25
    _STUCK: Final = 4
    """Multiple of `quick` after which others go on without waiting for the work."""

    def __init__(
        self, most: int, quick: float = math.inf, clock: Callable[[], float] | None = None
    ) -> None:
        """Give `most` permits while work is over within `quick` seconds (default: any time).

        `clock` returns seconds (default: the loop's).
        """
        self._most = most
        self._quick = quick
        self._clock = clock or (lambda: asyncio.get_running_loop().time())
        self._limit = float(most)
        self._cut_at = -math.inf
        self._held: dict[object, tuple[float, asyncio.TimerHandle | None]] = {}
        """Start of each held permit, and the timer that ends it."""
        self._waiting: dict[asyncio.Future[None], None] = {}

    @property
    def limit(self) -> int:
        return int(self._limit)

    @property
    def room(self) -> int:
        """Number of further pieces of work that may come: one may wait for each permit."""
        return max(0, 2 * self.limit - len(self._held) - len(self._waiting))

    async def acquire(self) -> object:
        loop, permit = asyncio.get_running_loop(), object()
        if self._waiting or len(self._held) >= self.limit:
            turn: asyncio.Future[None] = loop.create_future()
            self._waiting[turn] = None
            try:
                await turn
            except asyncio.CancelledError:
                del self._waiting[turn]
                self._wake()
                raise
            del self._waiting[turn]
        end = None
        if self._quick < math.inf:
            end = loop.call_later(self._STUCK * self._quick, self.release, permit)
        self._held[permit] = self._clock(), end
        return permit

    def release(self, permit: object) -> None:
        """Give the permit back, which tells how long the work took. May be repeated."""
        if permit not in self._held:
            return
        held, now = len(self._held), self._clock()
        since, end = self._held.pop(permit)
        if end is not None:
            end.cancel()
        if now - since <= self._quick:
            self._limit = min(self._most, self._limit + 1 / self._limit)
        elif since >= self._cut_at:  # else the last cut was for it, too
            cut = max(self._DEEPEST_CUT, self._quick / (now - since))
            self._limit = max(1.0, min(self._limit, held) * cut)
            self._cut_at = now
        self._wake()

    def _wake(self) -> None:
        """Wake as many waiters as there are permits; they take them a moment later."""
        for turn in islice(self._waiting, max(0, self.limit - len(self._held))):
            if not turn.done():
                turn.set_result(None)


class WatchedLock(asyncio.Lock):
    """A lock that notes whether a body raised: it may have left guarded data half changed."""

    def __init__(self) -> None:
        super().__init__()
        self.failed = False

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.failed |= kind is not None
        await super().__aexit__(kind, error, trace)


class Interrupt:
    """An event that other tasks wait for, and that interrupts bodies."""

    def __init__(self, error: type[RunEnded]) -> None:
        """Make an event; `interrupts` raises `error`."""
        self._error = error
        self._event = asyncio.Event()
        self._scopes: dict[_InterruptScope, None] = {}

    @property
    def is_set(self) -> bool:
        return self._event.is_set()

    @property
    def has_waiters(self) -> bool:
        """Whether a body runs that `set` would interrupt."""
        return bool(self._scopes)

    def set(self) -> None:
        self._event.set()
        for body in self._scopes:
            body.end()

    def clear(self) -> None:
        self._event.clear()

    async def wait(self) -> None:
        await self._event.wait()

    def check(self) -> None:
        """Raise the error if the event is set, as `interrupts` does before its body."""
        if self._event.is_set():
            raise self._error

    def interrupts(self) -> "_InterruptScope":
        """Cancel the body when the event is set, and raise the error.

        The body must lose nothing if it is cancelled at any point. No task is made, since each wait
        for a request enters one.
        """
        return _InterruptScope(self._error, self._event, self._scopes)


class _InterruptScope:
    """A cancel scope like `asyncio.timeout` without a deadline, at a third of its cost."""

    __slots__ = ("_cancelled", "_ended", "_error", "_event", "_scopes", "_task")

    def __init__(
        self, error: type[RunEnded], event: asyncio.Event, scopes: "dict[_InterruptScope, None]"
    ) -> None:
        self._error, self._event, self._scopes = error, event, scopes
        self._ended = False

    async def __aenter__(self) -> None:
        if self._event.is_set():
            raise self._error
        task = asyncio.current_task()
        if task is None:
            raise RuntimeError("only a task can be interrupted")
        self._task, self._cancelled = task, task.cancelling()
        self._scopes[self] = None

    def end(self) -> None:
        if not self._ended:
            self._ended = True
            self._task.cancel()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: object
    ) -> None:
        self._scopes.pop(self, None)
        if not self._ended:
            return
        cancelled_by_others = self._task.uncancel() > self._cancelled
        if kind is asyncio.CancelledError and not cancelled_by_others:
            raise self._error from None


class Shutdown(Interrupt):
    """The shutdown of the process: once set, it stays set."""

    def __init__(self) -> None:
        super().__init__(Interrupted)


@contextmanager
def on_signals(shutdown: Shutdown) -> Iterator[None]:
    """Set `shutdown` on SIGTERM or SIGINT; on a second one cancel the task that entered here."""
    loop = asyncio.get_running_loop()
    main = asyncio.current_task()

    def stop() -> None:
        if shutdown.is_set and main is not None:
            main.cancel()
        shutdown.set()

    signals = (signal.SIGTERM, signal.SIGINT)
    for number in signals:
        loop.add_signal_handler(number, stop)
    try:
        yield
    finally:
        for number in signals:
            loop.remove_signal_handler(number)


_lines: Final = WeakKeyDictionary[AbstractEventLoop, WeakValueDictionary[str, Lock]]()
"""The lock of each owner with a thread that computes, or that waits for one."""


async def compute_in_turn(
    owner: str, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs
) -> T:
    """Call the function in a thread, after those that the owner's earlier calls wait for.

    Threads that compute share the interpreter with the event loop: with each of them, it waits
    longer whenever it wakes. So an owner gets one of them, for any amount of work. If the call is
    cancelled, the owner's next call still waits until the function has returned.
    """
    lines = _lines.setdefault(asyncio.get_running_loop(), WeakValueDictionary())
    line = lines.get(owner)
    if line is None:
        line = lines[owner] = Lock()
    await line.acquire()
    return await unlocked_after(line, asyncio.to_thread(function, *args, **kwargs))


async def unlocked_after(lock: Lock, work: Coroutine[Any, Any, T]) -> T:
    """Return what `work` returns; release the lock after it, also if the caller is cancelled."""
    task = asyncio.ensure_future(work)
    task.add_done_callback(lambda _: lock.release())
    task.add_done_callback(drop_error)
    return await asyncio.shield(task)


class Turns:
    """A semaphore that serves its waiting owners in a circle, one seat each.

    An owner who waits for many seats gets one, and then stands behind all others who wait.
    """

    def __init__(self, seats: int) -> None:
        self._free = seats
        """Number of free seats; 0 while an owner waits."""
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}
        """Waiting futures of each owner, the next owner first; each waits for one seat at least."""

    @property
    def is_wanted(self) -> bool:
        return bool(self._waiting)

    def take_free(self) -> bool:
        is_free = self._free > 0
        self._free -= is_free
        return is_free

    async def take(self, owner: str) -> None:
        """Take a seat once it is the owner's turn. Cancelled, it takes none."""
        if self.take_free():
            return
        seat = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(owner, deque()).append(seat)
        try:
            await seat
        except asyncio.CancelledError:
            if seat.cancelled():
                self._leave(owner, seat)
            else:
                self.give()
            raise

    def give(self) -> None:
        """Give a seat back, or one more, to the next owner who waits."""
        while self._waiting:
            owner = next(iter(self._waiting))
            seats = self._waiting.pop(owner)
            seat = seats.popleft()
            if seats:
                self._waiting[owner] = seats
            if not seat.cancelled():
                seat.set_result(None)
                return
        self._free += 1

    def _leave(self, owner: str, seat: asyncio.Future[None]) -> None:
        seats = self._waiting.get(owner, deque())
        with suppress(ValueError):
            seats.remove(seat)
        if not seats:
            self._waiting.pop(owner, None)

"""Execution of handlers: where others' code runs, so that it holds up nothing but itself.

`async def` handlers share an event loop in a thread of its own; each `def` handler has a thread. A
call that takes longer than its limit has failed, and what its code goes on
to do changes nothing here. A loop that a handler blocks beyond its limit is left to that handler,
and another one takes its place; of the calls that were on it, those that are not to blame are tried
again, and nothing is counted.
"""

import asyncio
import threading
import traceback
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import suppress
from contextvars import Context, ContextVar, copy_context
from functools import partial
from typing import Any, Final
from weakref import WeakKeyDictionary

import structlog

from rebaser_server.handlers.service import CallRefused, CallUnkeepable, Handler, Reject
from rebaser_server.runtime.tasks import drop_error

log: Final = structlog.get_logger()

_LOOK_EVERY: Final = 0.25
"""Seconds between two looks at the calls that are not over."""
_BLOCKED_AFTER: Final = 1.0
"""Seconds after which a handler that blocks the loop of handlers is named in the log."""
_FRAMES: Final = 5
"""Number of places of a traceback that an error names, the last ones."""


_CALL: Final[ContextVar[str]] = ContextVar("call")
"""Name of the call whose code runs; tasks that this code begins have it, too."""


class HandlerFailed(Exception):
    """A call of a handler failed. It is tried again, and becomes a dead letter in the end."""


class HandlerHeldUp(OSError):
    """A call came to nothing because another handler blocked its loop: no fault of the call."""


class _Call:
    """A call that is made."""

    def __init__(self, handler: Handler, number: int, until: float) -> None:
        self.handler = handler
        self.name = f"{handler.place}, call {number} of this process"
        self.until = until
        """Time at which it has failed."""
        self.outcome: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self.loop: _Loop | None = None
        """Loop that it is on; None: it has a thread."""
        self.task: asyncio.Task[None] | None = None
        """Task on that loop, once it began."""


class _Loop:
    """An event loop in a thread."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.loop.set_task_factory(self._task)
        self._callers: WeakKeyDictionary[asyncio.Task[Any], str] = WeakKeyDictionary()
        """Names of the calls that began the tasks of this loop."""
        self.silent_since: float | None = None
        """Time at which it was asked to answer, unless it has."""
        self.blamed: str | None = None
        """Call that the log named last, for blocking this loop."""
        self._waiting: deque[Callable[[], object]] = deque()
        self._is_woken = False
        threading.Thread(target=self._run, name="handlers", daemon=True).start()

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        self.loop.run_forever()
        # Stopped: what is on it was given up, and may be tried again elsewhere.
        for task in asyncio.all_tasks(self.loop):
            task.cancel()
        self.loop.run_until_complete(asyncio.sleep(0))
        self.loop.close()

    def submit(self, work: Callable[[], object]) -> None:
        """Submit `work`, for the loop to call. Of many, only the first one wakes it up."""
        self._waiting.append(work)
        if not self._is_woken:
            self._is_woken = True
            with suppress(RuntimeError):  # closed: it was stopped, and no caller waits
                self.loop.call_soon_threadsafe(self._drain)

    def _drain(self) -> None:
        # Before the look: what is appended behind it wakes the loop again.
        self._is_woken = False
        while self._waiting:
            self._waiting.popleft()()

    def ask(self, now: float) -> None:
        """Ask it to answer, to see whether it turns."""
        if self.silent_since is None:
            self.silent_since = now
            self.submit(self._answer)

    def _answer(self) -> None:
        self.silent_since = None

    def _task(
        self, loop: asyncio.AbstractEventLoop, coroutine: Any, /, **options: Any
    ) -> asyncio.Task[Any]:
        task = asyncio.Task(coroutine, loop=loop, **options)
        context = options.get("context") or copy_context()
        self._callers[task] = context.get(_CALL, "")
        return task

    @property
    def running(self) -> str:
        """Name of the call whose task runs at this moment; empty if no call's does."""
        task = asyncio.current_task(self.loop)
        return "" if task is None else self._callers.get(task, "")

    def stop(self) -> None:
        """End it once the code that it runs lets it turn; its other calls are cancelled."""
        self.submit(self.loop.stop)


class _Threads:
    """Threads for `def` handlers: as many as run at a time. None keeps the process from ending."""

    def __init__(self) -> None:
        self._idle: list[_Thread] = []
        self._lock = threading.Lock()

    def submit(self, work: Callable[[], object]) -> None:
        with self._lock:
            thread = self._idle.pop() if self._idle else None
        if thread is None:
            thread = _Thread(self._give_back)
        thread.take(work)

    def _give_back(self, thread: "_Thread") -> None:
        with self._lock:
            self._idle.append(thread)


class _Thread:
    def __init__(self, give_back: "Callable[[_Thread], None]") -> None:
        self._give_back = give_back
        self._ready = threading.Semaphore(0)
        self._work: Callable[[], object] | None = None
        threading.Thread(target=self._run, name="handler", daemon=True).start()

    def take(self, work: Callable[[], object]) -> None:
        self._work = work
        self._ready.release()

    def _run(self) -> None:
        while True:
            self._ready.acquire()
            if self._work is not None:
                self._work()
            self._work = None
            self._give_back(self)


Middleware = Sequence[Callable[..., Any]]


class HandlerExecution:
    """Calls handlers. One for a process; used from one event loop, which no handler holds up."""

    def __init__(self) -> None:
        self._threads = _Threads()
        self._on: _Loop | None = None
        self._calls: dict[_Call, None] = {}
        self._count = 0
        self._watcher: asyncio.Task[None] | None = None
        self._ended: deque[tuple[_Call, Any, BaseException | None]] = deque()
        self._is_woken = False

    async def call(
        self,
        handler: Handler,
        context: Any,
        arguments: Sequence[Any],
        named: dict[str, Any],
        middleware: Middleware,
    ) -> Any:
        """Return what the handler returns. A cancellation leaves the handler to its own.

        Raises:
            Reject, CallRefused, CallUnkeepable: as the handler or what is around it raised them.
            HandlerFailed: it failed, or took too long.
            HandlerHeldUp: nothing is known about it.
        """
        loop = asyncio.get_running_loop()
        self._count += 1
        call = _Call(handler, self._count, loop.time() + handler.timeout)
        call.outcome.add_done_callback(drop_error)
        work = partial(handler.function, context, *arguments, **named)
        self._calls[call] = None
        if self._watcher is None or self._watcher.done():
            self._watcher = loop.create_task(self._watch(), name="watch handlers")
        end = partial(self._end, loop, call)
        try:
            if handler.is_async or middleware:
                if self._on is None:
                    self._on = _Loop()
                where = call.loop = self._on
                body = partial(self._body, handler, context, work, middleware)
                where.submit(partial(_start, where, call, body, end, copy_context()))
            else:
                self._threads.submit(partial(copy_context().run, _run, work, end))
            return await call.outcome
        finally:
            self._calls.pop(call, None)

    def _end(
        self,
        loop: asyncio.AbstractEventLoop,
        call: _Call,
        result: Any,
        error: BaseException | None,
    ) -> None:
        """Note the outcome of a call; called in any thread. Of many, the first wakes the loop."""
        self._ended.append((call, result, error))
        if not self._is_woken:
            self._is_woken = True
            try:
                loop.call_soon_threadsafe(self._deliver)
            except RuntimeError:  # the loop is closed, and no caller waits
                self._is_woken = False

    def _deliver(self) -> None:
        self._is_woken = False  # before the look, as `_Loop._drain`
        while self._ended:
            call, result, error = self._ended.popleft()
            if call.outcome.done():  # it took too long, or its caller is gone
                continue
            if error is None:
                call.outcome.set_result(result)
            elif isinstance(
                error, Reject | CallRefused | CallUnkeepable | HandlerFailed | HandlerHeldUp
            ):
                call.outcome.set_exception(error)
            else:
                failed = HandlerFailed(_describe(error))
                failed.__cause__ = error
                call.outcome.set_exception(failed)

    async def _body(
        self,
        handler: Handler,
        context: Any,
        work: Callable[[], Any],
        middleware: Middleware,
    ) -> Any:
        """Call the handler within what is around it; runs on the loop of handlers."""

        async def innermost() -> Any:
            if handler.is_async:
                return await work()
            loop = asyncio.get_running_loop()
            done = loop.create_future()

            def settle(result: Any, error: BaseException | None) -> None:
                if done.done():
                    return
                if error is None:
                    done.set_result(result)
                else:
                    unraisable = _is_unraisable(error)
                    done.set_exception(HandlerFailed(_describe(error)) if unraisable else error)

            def end(result: Any, error: BaseException | None) -> None:
                loop.call_soon_threadsafe(settle, result, error)

            self._threads.submit(partial(copy_context().run, _run, work, end))
            return await done

        call_next: Callable[[], Awaitable[Any]] = innermost
        for around in middleware:
            call_next = partial(around, context, handler.name, call_next)
        return await call_next()

    async def _watch(self) -> None:
        """End calls that take too long, and leave loops that are blocked, while there are calls."""
        clock = asyncio.get_running_loop().time
        while self._calls:
            await asyncio.sleep(_LOOK_EVERY)
            now = clock()
            # Asked at the look before, and silent since.
            loops = {each.loop for each in self._calls if each.loop is not None}
            blocked = {loop for loop in loops if loop.silent_since is not None}
            for loop in loops:
                self._look(loop, now)
            for call in [each for each in self._calls if each.until <= now]:
                # On a blocked loop it may have had no turn: another call took its time.
                if call.loop not in blocked or call.loop.running == call.name:
                    self._end_late(call)

    def _look(self, loop: _Loop, now: float) -> None:
        """Name who blocks the loop; once that call is too late, leave the loop to it."""
        since = loop.silent_since
        loop.ask(now)
        if since is None or now - since < _BLOCKED_AFTER:
            return
        culprit = loop.running
        named = culprit or "a callback"
        if loop.blamed != culprit:
            loop.blamed = culprit
            log.warning(
                "handler blocks the loop of handlers",
                handler=named,
                remedy="declare it with `def`, or await what it waits for",
            )
        calls = [each for each in self._calls if each.loop is loop]
        if any(each.name == culprit for each in calls):
            is_over = any(each.name == culprit and each.until <= now for each in calls)
        else:
            # A callback, or a task that a call left behind. It may be over in a moment, and other
            # code run: the loop is left once it was silent for as long as a call on it may take.
            silent = now - since
            is_over = any(each.until <= now and silent >= each.handler.timeout for each in calls)
        if not is_over:
            return
        log.error("loop of handlers left", blocked_by=named, calls=len(calls))
        if self._on is loop:
            self._on = None
        loop.stop()
        for call in calls:
            if not culprit and call.until <= now:
                self._end_late(call)  # it is not known whose callback it is
            elif call.name != culprit and not call.outcome.done():
                held_up = HandlerHeldUp(f"{named} blocked the loop of handlers")
                call.outcome.set_exception(held_up)

    def _end_late(self, call: _Call) -> None:
        loop = call.loop
        if call.outcome.done():
            return
        name, limit = call.handler.name, call.handler.timeout
        log.error("handler took too long", handler=call.name, seconds=limit)
        if loop is not None and call.task is not None:
            loop.submit(call.task.cancel)
        call.outcome.set_exception(
            HandlerFailed(f"{name} took longer than {limit:g} s, and may be running yet")
        )

    def close(self) -> None:
        """End the loop. What runs is left to its own."""
        if self._watcher is not None:
            self._watcher.cancel()
        if self._on is not None:
            self._on.stop()
            self._on = None


End = Callable[[Any, BaseException | None], None]
"""Notes the outcome of a call."""


def _run(work: Callable[[], Any], end: End) -> None:
    try:
        result = work()
    except BaseException as error:  # noqa: BLE001 - SystemExit would end the thread
        end(None, error)
    else:
        end(result, None)


def _start(
    where: _Loop,
    call: _Call,
    body: Callable[[], Coroutine[Any, Any, Any]],
    end: End,
    context: Context,
) -> None:
    """Begin a call; called on the loop of handlers, in the context of any call."""

    async def run() -> None:
        try:
            result = await body()
        except BaseException as error:  # noqa: BLE001 - SystemExit would end the loop for all
            end(None, error)
        else:
            end(result, None)

    context.run(_CALL.set, call.name)
    call.task = where.loop.create_task(run(), name=call.name, context=context)


def _is_unraisable(error: BaseException) -> bool:
    """Whether the error would end a loop that it is raised on, or no future can have it."""
    return not isinstance(error, Exception) or isinstance(error, StopIteration)


def _describe(error: BaseException) -> str:
    """Return what the error says, and where it was raised: the last places of others' code."""
    frames = [
        each
        for each in traceback.extract_tb(error.__traceback__)
        if "rebaser_server" not in each.filename
    ][-_FRAMES:]
    where = ", ".join(f"{each.filename}:{each.lineno} in {each.name}" for each in frames)
    try:
        said = str(error)
    except Exception:  # noqa: BLE001 - others' code, as all of the error is
        said = "its text cannot be read"
    return f"{type(error).__name__}{': ' if said else ''}{said}{f' (at {where})' if where else ''}"

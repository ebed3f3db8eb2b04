"""Execution of handlers: where others' code runs, so that it holds up nothing but itself.

`async def` handlers share an event loop in a thread of its own; each `def` handler has a thread. A
call that takes longer than its limit has failed, whatever its code goes on to do: what it does
later changes nothing here. A loop that a handler blocks beyond its limit is left to that handler,
and another one takes its place; of the calls that were on it, those that are not to blame are tried
again, and nothing is counted.
"""

import asyncio
import threading
import traceback
from collections import deque
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from contextvars import copy_context
from functools import partial
from typing import Any, Final

import structlog

from rebaser_core.jetstream.deadlines import until, within
from rebaser_server.handlers.service import CallRefused, CallUnkeepable, Handler, Reject
from rebaser_server.runtime.tasks import drop_error

log: Final = structlog.get_logger()

_BLOCKED_AFTER: Final = 1.0
"""Seconds after which a handler that blocks the loop of handlers is named in the log."""
_GRACE: Final = 1.0
"""Seconds that a handler has to end once it is cancelled."""
_FRAMES: Final = 5
"""Number of places of a traceback that an error names, the last ones."""


class HandlerFailed(Exception):
    """A call of a handler failed. It is tried again, and becomes a dead letter in the end."""


class HandlerHeldUp(OSError):
    """A call came to nothing because another handler blocked its loop: no fault of the call."""


class _Loop:
    """An event loop in a thread, and the calls that are on it."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.calls: dict[Future[Any], str] = {}
        """Calls that are not over, and the names of their tasks."""
        self.blamed = ""
        """Task that the log named last, for blocking this loop."""
        self._waiting: deque[Callable[[], object]] = deque()
        self._is_woken = False
        self._thread = threading.Thread(target=self._run, name="handlers", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        self.loop.run_forever()

    def submit(self, work: Callable[[], object]) -> None:
        """Have the loop call `work`. Of many, only the first one wakes it up."""
        self._waiting.append(work)
        if not self._is_woken:
            self._is_woken = True
            self.loop.call_soon_threadsafe(self._drain)

    def _drain(self) -> None:
        # Before the look: what is appended behind it wakes the loop again.
        self._is_woken = False
        while self._waiting:
            self._waiting.popleft()()

    @property
    def running(self) -> str:
        """Name of the task whose code runs at this moment; empty if none does."""
        task = asyncio.current_task(self.loop)
        return "" if task is None else task.get_name()

    def stop(self) -> None:
        self.loop.call_soon_threadsafe(self.loop.stop)


class _Threads:
    """Threads for `def` handlers: as many as run at a time. None keeps the process from ending."""

    def __init__(self) -> None:
        self._idle: list[_Thread] = []
        self._lock = threading.Lock()

    def submit(self, work: Callable[[], Any], done: Future[Any]) -> None:
        with self._lock:
            thread = self._idle.pop() if self._idle else None
        if thread is None:
            thread = _Thread(self._give_back)
        thread.take(work, done)

    def _give_back(self, thread: "_Thread") -> None:
        with self._lock:
            self._idle.append(thread)


class _Thread:
    def __init__(self, give_back: "Callable[[_Thread], None]") -> None:
        self._give_back = give_back
        self._ready = threading.Semaphore(0)
        self._work: tuple[Callable[[], Any], Future[Any]] | None = None
        threading.Thread(target=self._run, name="handler", daemon=True).start()

    def take(self, work: Callable[[], Any], done: Future[Any]) -> None:
        self._work = work, done
        self._ready.release()

    def _run(self) -> None:
        while True:
            self._ready.acquire()
            if self._work is None:
                continue
            work, done = self._work
            self._work = None
            outcome: tuple[bool, Any]
            try:
                outcome = True, work()
            except BaseException as error:  # noqa: BLE001 - also SystemExit, which would end the thread alone
                outcome = False, error
            # First: the caller's next call finds this thread idle.
            self._give_back(self)
            if not done.cancelled():
                _settle(done, *outcome)


def _settle(done: Future[Any], is_result: bool, outcome: Any) -> None:  # noqa: FBT001 - of one caller
    if is_result:
        done.set_result(outcome)
    else:
        done.set_exception(outcome)


class HandlerExecution:
    """Calls handlers. One for a process; used from one event loop, which no handler holds up."""

    def __init__(self) -> None:
        self._threads = _Threads()
        self._on: _Loop | None = None
        self._count = 0

    async def call(
        self,
        handler: Handler,
        context: Any,
        arguments: list[Any],
        named: dict[str, Any],
        middleware: list[Callable[..., Any]],
    ) -> Any:
        """Return what the handler returns. A cancellation leaves the handler to its own.

        Raises:
            Reject, CallRefused, CallUnkeepable: as the handler or what is around it raised them.
            HandlerFailed: it failed, or took too long.
            HandlerHeldUp: nothing is known about it.
        """
        work = partial(handler.function, context, *arguments, **named)
        if handler.is_async or middleware:
            outcome = self._on_loop(handler, context, work, middleware)
        else:
            outcome = self._in_thread(handler, work)
        try:
            return await outcome
        except (Reject, CallRefused, CallUnkeepable, HandlerFailed, HandlerHeldUp):
            raise
        except asyncio.CancelledError:
            raise
        except BaseException as error:
            raise HandlerFailed(_describe(error)) from error

    async def _in_thread(self, handler: Handler, work: Callable[[], Any]) -> Any:
        done: Future[Any] = Future()
        self._threads.submit(partial(copy_context().run, work), done)
        return await self._await(handler, done)

    async def _await(self, handler: Handler, done: Future[Any]) -> Any:
        outcome = asyncio.wrap_future(done)
        outcome.add_done_callback(drop_error)
        try:
            async with within(handler.timeout):
                return await asyncio.shield(outcome)
        except TimeoutError:
            if outcome.done():  # the handler's own
                return outcome.result()
            log.error("handler took too long", handler=handler.place, seconds=handler.timeout)
            raise HandlerFailed(
                f"{handler.name} took longer than {handler.timeout:g} s, and may be running yet"
            ) from None

    async def _on_loop(
        self,
        handler: Handler,
        context: Any,
        work: Callable[[], Any],
        middleware: list[Callable[..., Any]],
    ) -> Any:
        """Run on the loop of handlers."""
        if self._on is None:
            self._on = _Loop()
        where, done = self._on, Future[Any]()
        self._count += 1
        name = where.calls[done] = f"{handler.place}, call {self._count} of this process"
        body = partial(self._body, handler, context, work, middleware)
        where.submit(partial(_start, where, body, name, done))
        outcome = asyncio.wrap_future(done)
        outcome.add_done_callback(drop_error)
        clock = asyncio.get_running_loop().time
        end, is_named, culprit = clock() + handler.timeout + _GRACE, False, ""
        try:
            while True:
                left = end - clock()
                try:
                    async with within(max(0.0, min(left, _BLOCKED_AFTER))):
                        return await asyncio.shield(outcome)
                except TimeoutError:
                    if outcome.done():
                        return outcome.result()
                    # The loop turns if it answers at all.
                    if await self._turns(where):
                        if clock() >= end:
                            break
                        continue
                    culprit = where.running
                    if not is_named and where.blamed != culprit:
                        where.blamed, is_named = culprit, True
                        log.warning(
                            "handler blocks the loop of handlers",
                            handler=culprit,
                            remedy="declare it with `def`, or await what it waits for",
                        )
                    if clock() >= end:
                        self._leave(where, culprit)
                        break
        finally:
            where.calls.pop(done, None)
        if where is not self._on and culprit != name:
            raise HandlerHeldUp(f"{culprit} blocked the loop of handlers")
        log.error("handler took too long", handler=handler.place, seconds=handler.timeout)
        raise HandlerFailed(
            f"{handler.name} took longer than {handler.timeout:g} s, and may be running yet"
        )

    async def _turns(self, where: _Loop) -> bool:
        """Whether the loop of handlers answers within a moment."""
        answer: Future[None] = Future()
        where.submit(partial(_answer, answer))
        done, _ = await asyncio.wait([asyncio.wrap_future(answer)], timeout=_BLOCKED_AFTER / 4)
        return bool(done)

    def _leave(self, where: _Loop, culprit: str) -> None:
        """Leave a blocked loop to the handler that blocks it; others get a new one."""
        if self._on is where:
            log.error("loop of handlers left", blocked_by=culprit, calls=len(where.calls))
            self._on = None
        for done, name in where.calls.items():
            if name != culprit and not done.done():
                done.set_exception(HandlerHeldUp(f"{culprit} blocked the loop of handlers"))

    async def _body(
        self,
        handler: Handler,
        context: Any,
        work: Callable[[], Any],
        middleware: list[Callable[..., Any]],
    ) -> Any:
        """Call the handler within what is around it; runs on the loop of handlers."""

        async def innermost() -> Any:
            if handler.is_async:
                return await work()
            done: Future[Any] = Future()
            self._threads.submit(partial(copy_context().run, work), done)
            return await asyncio.wrap_future(done)

        call_next: Callable[[], Awaitable[Any]] = innermost
        for around in middleware:
            call_next = partial(around, context, handler.name, call_next)
        clock = asyncio.get_running_loop().time
        end = clock() + handler.timeout
        try:
            async with until(end):
                return await call_next()
        except TimeoutError:
            if clock() < end:  # the handler's own
                raise
            raise HandlerFailed(f"{handler.name} took longer than {handler.timeout:g} s") from None

    def close(self) -> None:
        """End the loop. What runs is left to its own."""
        if self._on is not None:
            self._on.stop()
            self._on = None


def _start(where: _Loop, body: Callable[[], Awaitable[Any]], name: str, done: Future[Any]) -> None:
    """Begin a call; called on the loop of handlers."""

    async def run() -> None:
        outcome: tuple[bool, Any]
        try:
            outcome = True, await body()
        except BaseException as error:  # noqa: BLE001 - SystemExit would end the loop for all
            outcome = False, error
        if not done.done():
            _settle(done, *outcome)

    task = where.loop.create_task(run(), name=name)
    task.add_done_callback(drop_error)


def _answer(answer: Future[None]) -> None:
    if not answer.done():
        answer.set_result(None)


def _describe(error: BaseException) -> str:
    """Return what the error says, and where it was raised: the last places of others' code."""
    frames = [
        each
        for each in traceback.extract_tb(error.__traceback__)
        if "rebaser_server" not in each.filename
    ][-_FRAMES:]
    where = ", ".join(f"{each.filename}:{each.lineno} in {each.name}" for each in frames)
    said = str(error)
    return f"{type(error).__name__}{': ' if said else ''}{said}{f' (at {where})' if where else ''}"

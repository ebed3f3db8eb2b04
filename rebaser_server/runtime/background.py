"""Tasks beside a body, for no longer than it lasts."""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from contextvars import Context, copy_context
from functools import partial
from types import TracebackType
from typing import Any, Never, Self

from rebaser_server.errors import BackgroundEnded, Fenced, LeaseLost

Work = Callable[[], Coroutine[Any, Any, Never]]


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


class BackgroundTasks:
    """Tasks beside a body, each begun when there is something to do.

    If one ends before the body does, the body is cancelled and the error raised in its
    place. What leaves is one bare error: where several came at once, the one that forbids most.

    Raises:
        BackgroundEnded: a task returned or was cancelled by others while the body ran.
        Exception: what a task raised, without an exception group around it.
    """

    def __init__(self) -> None:
        self._group = asyncio.TaskGroup()
        self._tasks: list[asyncio.Task[None]] = []
        self._timers: list[asyncio.TimerHandle] = []
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
        try:
            await self._group.__aexit__(kind, error, trace)
        except BaseExceptionGroup as errors:
            # `LeaseLost` and `Fenced` forbid to settle anything: no other may hide them (W15).
            raise max(errors.exceptions, key=_is_fencing) from None

    def start(self, work: Work, context: Context | None = None) -> None:
        """Begin `work`, which never returns; nothing once the body or a task has ended."""
        if not (self._is_over or any(task.done() for task in self._tasks)):
            task = self._group.create_task(self._endless(work), context=context)
            self._tasks.append(task)

    def start_after(self, seconds: float, work: Work) -> None:
        """Begin `work` in so many seconds."""
        loop = asyncio.get_running_loop()
        self._timers.append(loop.call_later(seconds, self.start, work))

    def start_on(self, wakeup: Wakeup, work: Work) -> None:
        """Begin `work` when `wakeup` is set, in the context of this call."""
        wakeup.begins(partial(self.start, work, copy_context()))

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

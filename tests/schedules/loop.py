"""A seeded event loop for several simulated processes, in virtual time: nothing waits for real."""

import asyncio
import heapq
import itertools
import math
import random
import sys
from asyncio import events
from collections import deque
from collections.abc import Callable, Coroutine
from contextvars import Context, ContextVar, copy_context
from typing import Any

_PROCESS: ContextVar["Process"] = ContextVar("process")


class Stuck(Exception):
    """Whoever still waits would wait for ever."""


class Task(asyncio.Task):
    """A task whose place in a set is the same in every run: by number and not by address."""

    _numbers = itertools.count()

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._number = next(self._numbers)
        super().__init__(*args, **kwargs)

    def __hash__(self) -> int:
        return self._number

    def __eq__(self, other: object) -> bool:
        return self is other


class Process:
    """Tasks that are frozen and killed together.

    Its callbacks run in the order in which they became ready, as asyncio promises. Between
    processes there is no order: whenever several have something to do, chance decides.
    """

    def __init__(self, loop: "Loop", name: str) -> None:
        self.name = name
        self.frozen = False
        self.seconds_a_step = 0.0
        """Processor time that each of its callbacks takes: it begins no other one meanwhile."""
        self.computing = False
        self.tasks: list[asyncio.Task] = []
        self.ready: deque[asyncio.Handle] = deque()
        self.context = Context()  # empty, so that no test before this one has an effect
        self.context.run(_PROCESS.set, self)
        self._loop = loop

    @classmethod
    def current(cls) -> "Process":
        return _PROCESS.get()

    def start(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task:
        """Have it do this as soon as its turn comes."""
        return self._loop.create_task(work, context=self.context.copy())

    def freeze(self) -> None:
        """Let nothing of it run until it is thawed; what becomes ready meanwhile waits.

        One that is never thawed was killed: it ends between two awaits, without cleanup.
        """
        self.frozen = True
        self._loop.rest(self)

    def thaw(self) -> None:
        self.frozen = False
        self._loop.wake(self)


class Loop(asyncio.AbstractEventLoop):
    """Runs one schedule: the seed decides every order that asyncio leaves open.

    Time stands still while anything is ready and then jumps to the next timer. Work for
    threads is done inline, a moment later, and its result is there another moment later.
    """

    def __init__(self, seed: object) -> None:
        Task._numbers = itertools.count()
        self._random = random.Random(f"loop {seed}")
        self._now = 0.0
        self._timers: list[tuple[float, int, asyncio.Handle]] = []
        self._numbers = itertools.count()
        self._runnable: list[Process] = []
        self.errors: list[tuple[str, str]] = []
        """Process, and what nobody caught there."""
        self.steps = 0
        self.processes: list[Process] = []
        self.outside = self.process("outside")

    def process(self, name: str) -> Process:
        process = Process(self, name)
        self.processes.append(process)
        return process

    def run(self, main: Coroutine[Any, Any, Any], at_most: float = math.inf) -> Any:
        """What `main` returns; it runs outside of all processes.

        Raises:
            Stuck: it would never return, or has not after `at_most` callbacks.
        """
        hooks = sys.get_asyncgen_hooks()
        sys.set_asyncgen_hooks(finalizer=self._close_later)
        events._set_running_loop(self)
        try:
            task = self.outside.start(main)
            while not task.done():
                self._step()
                if self.steps > at_most:
                    raise Stuck("callback after callback, and no end")
            return task.result()
        finally:
            events._set_running_loop(None)
            sys.set_asyncgen_hooks(*hooks)

    def _close_later(self, generator: Any) -> None:
        self.outside.start(generator.aclose())

    def _step(self) -> None:
        timers = self._timers
        if not self._runnable:
            if not timers:
                raise Stuck("nothing is ready, and no timer runs")
            self._now = max(self._now, timers[0][0])
        while timers and timers[0][0] <= self._now:
            _, _, timer = heapq.heappop(timers)
            if not timer._cancelled:
                self._enqueue(timer)
        if not self._runnable:
            return
        process = self._runnable[int(self._random.random() * len(self._runnable))]
        if len(process.ready) == 1:
            self._runnable.remove(process)
        self.steps += 1
        handle = process.ready.popleft()
        if not handle._cancelled:
            handle._run()
            if process.seconds_a_step:
                self._compute(process)

    def _compute(self, process: Process) -> None:
        process.computing = True
        self.rest(process)
        context = self.outside.context
        self.call_later(process.seconds_a_step, self._computed, process, context=context)

    def _computed(self, process: Process) -> None:
        process.computing = False
        self.wake(process)

    def _enqueue(self, handle: asyncio.Handle) -> None:
        process = handle._context.get(_PROCESS, self.outside)
        process.ready.append(handle)
        if len(process.ready) == 1:
            self.wake(process)

    def rest(self, process: Process) -> None:
        if process in self._runnable:
            self._runnable.remove(process)

    def wake(self, process: Process) -> None:
        stands_still = process.frozen or process.computing
        if process.ready and not stands_still and process not in self._runnable:
            self._runnable.append(process)

    def forget(self) -> None:
        """Let go of everything that is still to come, and of all tasks."""
        self._timers.clear()
        for process in self.processes:
            process.tasks.clear()

    def time(self) -> float:
        return self._now

    def call_soon(self, callback: Callable[..., Any], *args: Any, context: Any = None) -> Any:
        handle = asyncio.Handle(callback, args, self, context)
        self._enqueue(handle)
        return handle

    call_soon_threadsafe = call_soon

    def call_at(
        self, when: float, callback: Callable[..., Any], *args: Any, context: Any = None
    ) -> Any:
        timer = asyncio.TimerHandle(when, callback, args, self, context)
        heapq.heappush(self._timers, (when, next(self._numbers), timer))
        return timer

    def call_later(
        self, delay: float, callback: Callable[..., Any], *args: Any, context: Any = None
    ) -> Any:
        return self.call_at(self._now + delay, callback, *args, context=context)

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """It is skipped when its time comes."""

    def create_future(self) -> asyncio.Future:
        return asyncio.Future(loop=self)

    def create_task(
        self, coro: Coroutine[Any, Any, Any], *, name: str | None = None, context: Any = None
    ) -> asyncio.Task:
        task = Task(coro, loop=self, name=name or "task", context=context)
        tasks = (context or copy_context()).get(_PROCESS, self.outside).tasks
        if len(tasks) > 100 and not self._random.getrandbits(7):
            tasks[:] = [task for task in tasks if not task.done()]
        tasks.append(task)  # who is killed must not be collected as garbage: that runs `finally`
        return task

    def run_in_executor(
        self, executor: Any, func: Callable[..., Any], *args: Any
    ) -> asyncio.Future:
        done = self.create_future()

        def work() -> None:
            if done.cancelled() and self._random.random() < 0.5:
                return  # it had not begun
            try:
                set_result, result = done.set_result, func(*args)
            except Exception as error:  # noqa: BLE001 - for whoever waits
                set_result, result = done.set_exception, error
            self.call_later(self._moment(), lambda: done.done() or set_result(result))

        self.call_later(self._moment(), work)
        return done

    def _moment(self) -> float:
        return self._random.random() ** 4 * 0.02

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        error = context.get("exception")
        who = context.get("task") or context.get("future") or context.get("handle")
        what = f"{context.get('message')}: {type(error).__name__}: {error} ({who!r})"
        self.errors.append((_PROCESS.get(self.outside).name, what))

    def get_debug(self) -> bool:
        return False

    def is_running(self) -> bool:
        return True

    def is_closed(self) -> bool:
        return False

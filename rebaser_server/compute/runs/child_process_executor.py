"""Runs units in child processes, without Spark: a small run costs what its values cost.

All workspaces share the children, and take them in turns. A task that takes longer than `QUICK`
leaves its seat to others and goes on in a slow one; if no slow seat is free, it is ended, and
begins again when one is. So a quick task waits for quick ones only.
"""

import asyncio
import pickle
from collections import deque
from collections.abc import Sequence
from typing import Final, Never
from uuid import uuid4

from rebaser_server.compute.errors import RunFailed, evaluator_error
from rebaser_server.compute.runs.executor import PROGRESS_EVERY, OnProgress, TotalProgress
from rebaser_server.compute.runs.local_worker import BROKEN, DONE
from rebaser_server.compute.runs.run import DvuRun
from rebaser_server.compute.runs.worker_process import WorkerProcess
from rebaser_server.compute.units.run_store import RunStore, StoredResult
from rebaser_server.compute.units.unit_result import UnitResult
from rebaser_server.compute.units.work_unit import WorkUnit, count_values
from rebaser_server.runtime.tasks import Turns, background

HEAD_START: Final = 0.1
"""Seconds that tasks wait for children that are there before another one is started, which takes
as long as many cheap tasks do."""
QUICK: Final = 0.25
"""Seconds of a task, from when its child is there, after which it is slow."""
SLOW_SEATS: Final = 2
"""Slow tasks at once, for each quick one."""


class ChildProcessExecutor:
    """An `Executor` with several child processes, each of which computes one unit at a time.

    Not threads: functions would hold up the event loop that keeps tasks ours, could not be
    stopped, and could take this process down. A child is started when a task needs it, anew
    after a cancellation or a crash, and ends with this process.
    """

    def __init__(self, children: int = 1) -> None:
        """Start no child yet.

        `children`: quick tasks at once, and tasks of one run; `SLOW_SEATS` times as many slow ones
        go on beside them.
        """
        self._limit = children
        self._open = 1
        """Quick tasks at once as of now: more only where they are needed for a while."""
        self._opening: asyncio.TimerHandle | None = None
        self._quick, self._slow = Turns(self._open), Turns(SLOW_SEATS * children)
        self._idle: list[WorkerProcess] = []
        self._busy: set[WorkerProcess] = set()

    async def start(self) -> None:
        await self.run([WorkUnit().encode()])

    async def close(self) -> None:
        await asyncio.gather(*map(self._end, [*self._idle, *self._busy]))

    async def run(
        self,
        units: Sequence[bytes | memoryview],
        *,
        owner: str = "",
        store: RunStore | None = None,
        on_progress: OnProgress | None = None,
    ) -> list[UnitResult | StoredResult]:
        progress = TotalProgress(sum(map(count_values, units)), on_progress)
        rest, results = deque(enumerate(units)), dict[int, UnitResult | StoredResult]()

        async def compute_rest() -> None:
            while rest:
                index, unit = rest.popleft()
                results[index] = await self._run_unit(unit, owner, store, progress.part())

        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(min(self._limit, len(units))):
                    group.create_task(compute_rest())
        except ExceptionGroup as errors:
            raise errors.exceptions[0] from None  # in a group it would not be known for what it is
        return [results[index] for index in range(len(units))]

    async def _run_unit(
        self,
        unit: bytes | memoryview,
        owner: str,
        store: RunStore | None,
        on_progress: OnProgress | None,
    ) -> UnitResult | StoredResult:
        run, is_slow = DvuRun(f"beside-{uuid4()}", [unit], store), False
        async with background(_report(run, on_progress)):
            while tasks := await asyncio.to_thread(run.next_tasks):
                [(number, task)] = tasks.items()
                question = pickle.dumps((task, store, run.id))
                answer = None
                if not is_slow:
                    answer, is_slow = await self._ask_quickly(question, owner)
                if answer is None:
                    answer = await self._ask_slowly(question, owner)
                run.record(number, answer)
                if on_progress is not None:
                    on_progress(await asyncio.to_thread(run.values_done), run.size)
        [result] = run.results()
        return result

    async def _ask_quickly(self, question: bytes, owner: str) -> tuple[bytes | None, bool]:
        """The answer, and whether it took long; None if it has to be asked for slowly."""
        await self._take_quick_seat(owner)
        seat = self._quick
        try:
            child, is_fresh = await self._take_child()
            asking = asyncio.ensure_future(self._execute(question, child, is_fresh=is_fresh))
            try:
                await asyncio.wait([asking], timeout=QUICK)
                if not asking.done():
                    if not self._slow.take_free():
                        return None, True
                    seat.give()
                    seat = self._slow
                return await asking, seat is self._slow
            finally:
                if not asking.done():
                    asking.cancel()
                    await asyncio.wait([asking])
                if child in self._busy:  # cancelled before it was asked
                    await self._end(child)
        finally:
            seat.give()

    async def _ask_slowly(self, question: bytes, owner: str) -> bytes:
        await self._slow.take(owner)
        try:
            child, is_fresh = await self._take_child()
            return await self._execute(question, child, is_fresh=is_fresh)
        finally:
            self._slow.give()

    async def _take_quick_seat(self, owner: str) -> None:
        if not self._quick.take_free():
            self._open_later()
            await self._quick.take(owner)

    def _open_later(self) -> None:
        if self._opening is None and self._open < self._limit:
            loop = asyncio.get_running_loop()
            self._opening = loop.call_later(HEAD_START, self._open_seat)

    def _open_seat(self) -> None:
        self._opening = None
        if self._quick.is_wanted:
            self._open += 1
            self._quick.give()
            self._open_later()

    async def _take_child(self) -> tuple[WorkerProcess, bool]:
        """A child that is idle, or a new one, and whether it is new."""
        if self._idle:
            child = self._idle.pop()
            self._busy.add(child)
            return child, False
        return await self._start_child(), True

    async def _start_child(self) -> WorkerProcess:
        try:
            child = await WorkerProcess.start()
        except EOFError as error:
            raise RunFailed("the evaluator ended before it was ready") from error
        self._busy.add(child)
        return child

    async def _execute(self, question: bytes, child: WorkerProcess, *, is_fresh: bool) -> bytes:
        """The answer of a child in which no function has left its marks.

        What goes wrong in a child that has computed something before may be the fault of that, so
        a fresh one tries, too, before it is the unit's.
        """
        answer = await self._ask(question, child)
        if answer[:1] == BROKEN and not is_fresh:
            answer = await self._ask(question, await self._start_child())
        if answer[:1] == BROKEN:
            reason = answer[1:].decode()
            raise evaluator_error(reason.partition(":")[0], reason)
        return answer[1:]

    async def _ask(self, question: bytes, child: WorkerProcess) -> bytes:
        try:
            answer = await child.ask(question)
        except EOFError as error:
            await self._end(child)
            raise RunFailed(f"the evaluator ended with exit code {child.code}") from error
        except asyncio.CancelledError:
            await self._end(child)  # there is no other way to stop a function
            raise
        self._busy.discard(child)
        if answer[:1] != DONE or len(self._idle) >= self._open:
            await self._end(child)  # with all that functions did to it
        else:
            self._idle.append(child)
        return answer

    async def _end(self, child: WorkerProcess) -> None:
        self._busy.discard(child)
        await child.end()


async def _report(run: DvuRun, on_progress: OnProgress | None) -> Never:
    while True:
        await asyncio.sleep(PROGRESS_EVERY)
        if on_progress is not None:
            on_progress(await asyncio.to_thread(run.values_done), run.size)

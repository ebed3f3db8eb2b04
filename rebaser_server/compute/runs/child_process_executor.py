"""Runs units in a child process, without Spark: a small run costs what its values cost."""

import asyncio
import pickle
from collections.abc import Sequence
from typing import Never
from uuid import uuid4

from rebaser_server.compute.errors import RunFailed, evaluator_error
from rebaser_server.compute.runs.executor import PROGRESS_EVERY, OnProgress
from rebaser_server.compute.runs.local_worker import BROKEN, DONE
from rebaser_server.compute.runs.run import DvuRun
from rebaser_server.compute.runs.worker_process import WorkerProcess
from rebaser_server.compute.units.run_store import RunStore, StoredResult
from rebaser_server.compute.units.unit_result import UnitResult
from rebaser_server.compute.units.work_unit import WorkUnit
from rebaser_server.runtime.background import background


class ChildProcessExecutor:
    """An `Executor` with one child process, one unit at a time.

    Not a thread: functions would hold up the event loop that keeps tasks ours, could not be
    stopped, and could take this process down. The child is started by the first run, anew
    after a cancellation or a crash, and ends with this process.
    """

    def __init__(self) -> None:
        self._child: WorkerProcess | None = None
        self._lock = asyncio.Lock()

    async def start(self) -> None:
        await self.run([WorkUnit().encode()])

    async def run(
        self,
        units: Sequence[bytes | memoryview],
        *,
        store: RunStore | None = None,
        on_progress: OnProgress | None = None,
    ) -> list[UnitResult | StoredResult]:
        run = DvuRun(f"beside-{uuid4()}", units, store)
        async with background(_report(run, on_progress)):
            while tasks := await asyncio.to_thread(run.next_tasks):
                for number, task in tasks.items():
                    async with self._lock:
                        answer = await self._execute(pickle.dumps((task, store, run.id)))
                    run.record(number, answer)
                    if on_progress is not None:
                        on_progress(await asyncio.to_thread(run.values_done), run.size)
        return run.results()

    async def close(self) -> None:
        if self._child is not None:
            await self._end(self._child)

    async def _execute(self, question: bytes) -> bytes:
        """The answer of a child in which no function has left its marks.

        What goes wrong in a child that has computed something before may be the fault of that, so
        a fresh one tries, too, before it is the unit's.
        """
        is_fresh = self._child is None
        answer = await self._ask(question)
        if answer[:1] == BROKEN and not is_fresh:
            answer = await self._ask(question)
        if answer[:1] == BROKEN:
            reason = answer[1:].decode()
            raise evaluator_error(reason.partition(":")[0], reason)
        return answer[1:]

    async def _ask(self, question: bytes) -> bytes:
        if self._child is None:
            self._child = await WorkerProcess.start()
        child = self._child
        try:
            answer = await child.ask(question)
        except EOFError as error:
            await self._end(child)
            raise RunFailed(f"the evaluator ended with exit code {child.code}") from error
        except asyncio.CancelledError:
            await self._end(child)  # there is no other way to stop a function
            raise
        if answer[:1] != DONE:
            await self._end(child)  # with all that functions did to it
        return answer

    async def _end(self, child: WorkerProcess) -> None:
        if self._child is child:
            self._child = None
        await child.end()


async def _report(run: DvuRun, on_progress: OnProgress | None) -> Never:
    while True:
        await asyncio.sleep(PROGRESS_EVERY)
        if on_progress is not None:
            on_progress(await asyncio.to_thread(run.values_done), run.size)

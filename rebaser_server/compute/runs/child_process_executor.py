"""Runs blobs beside this process, without Spark: a small run costs what its values cost."""

import asyncio
import pickle
from collections.abc import Sequence
from typing import Never
from uuid import uuid4

from rebaser_server.compute.errors import RunFailed
from rebaser_server.compute.runs.executor import PROGRESS_EVERY, OnProgress
from rebaser_server.compute.runs.local_worker import DONE
from rebaser_server.compute.runs.run import Run
from rebaser_server.compute.runs.worker_process import Child
from rebaser_server.compute.units.run_store import Shelf, Stored
from rebaser_server.compute.units.unit_result import Outcome
from rebaser_server.compute.units.work_unit import Blob
from rebaser_server.runtime.concurrency import alongside


class InProcessExecutor:
    """An `Executor` with one child process, one blob at a time.

    Not a thread: functions would hold up the event loop that keeps tasks ours, could not be
    stopped, and could take this process down. The child is started by the first run, anew
    after a cancellation or a crash, and ends with this process.
    """

    def __init__(self) -> None:
        self._child: Child | None = None
        self._turn = asyncio.Lock()

    async def start(self) -> None:
        await self.run([Blob().encode()])

    async def run(
        self,
        blobs: Sequence[bytes | memoryview],
        *,
        shelf: Shelf | None = None,
        on_progress: OnProgress | None = None,
    ) -> list[Outcome | Stored]:
        run = Run(f"beside-{uuid4()}", blobs, shelf)
        async with alongside(_report(run, on_progress)):
            while orders := await asyncio.to_thread(run.orders):
                for number, order in orders.items():
                    async with self._turn:
                        answer = await self._answer(pickle.dumps((order, shelf, run.id)))
                    run.answered(number, answer)
                    if on_progress is not None:
                        on_progress(await asyncio.to_thread(run.done), run.size)
        return run.outcomes()

    async def close(self) -> None:
        if self._child is not None:
            await self._end(self._child)

    async def _answer(self, question: bytes) -> bytes:
        if self._child is None:
            self._child = await Child.start()
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
            raise RunFailed(answer[1:].decode())
        return answer[1:]

    async def _end(self, child: Child) -> None:
        if self._child is child:
            self._child = None
        await child.end()


async def _report(run: Run, on_progress: OnProgress | None) -> Never:
    while True:
        await asyncio.sleep(PROGRESS_EVERY)
        if on_progress is not None:
            on_progress(await asyncio.to_thread(run.done), run.size)

"""Runs blobs beside this process, without Spark: a small run costs what its values cost."""

import asyncio
import pickle
import sys
from asyncio import StreamReader, StreamWriter
from asyncio.subprocess import PIPE, Process
from collections.abc import Sequence
from contextlib import suppress
from typing import Never, cast
from uuid import uuid4

from rebaser_core import deadlines
from rebaser_server.dvu.blob import Blob
from rebaser_server.dvu.errors import RunFailed
from rebaser_server.dvu.executor import PROGRESS_EVERY, OnProgress
from rebaser_server.dvu.orders import Run
from rebaser_server.dvu.outcome import Outcome
from rebaser_server.dvu.shelf import Shelf, Stored
from rebaser_server.dvu.worker import DONE, LENGTH
from rebaser_server.lifetimes import alongside


class InProcessExecutor:
    """An `Executor` with one child process, one blob at a time.

    Not a thread: functions would hold up the event loop that keeps tasks ours, could not be
    stopped, and could take this process down. The child is started by the first run, anew
    after a cancellation or a crash, and ends with this process.
    """

    def __init__(self) -> None:
        self._child: Process | None = None
        self._turn = asyncio.Lock()

    async def start(self) -> None:
        await self.run([Blob().encode()])

    async def run(
        self,
        blobs: Sequence[bytes],
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
        child = await self._running()
        try:
            answer = await _ask(child, question)
        except (OSError, EOFError) as error:
            with suppress(TimeoutError):
                async with deadlines.within(1):  # it has ended by itself; killed, its code is lost
                    await child.wait()
            await self._end(child)
            raise RunFailed(f"the evaluator ended with exit code {child.returncode}") from error
        except asyncio.CancelledError:
            await self._end(child)  # there is no other way to stop a function
            raise
        if answer[:1] != DONE:
            raise RunFailed(answer[1:].decode())
        return answer[1:]

    async def _running(self) -> Process:
        if self._child is None:
            # A session of its own: Ctrl-C is for this process, which decides what it means.
            self._child = await asyncio.create_subprocess_exec(
                sys.executable, "-P", "-m", "rebaser_server.dvu.worker",
                stdin=PIPE, stdout=PIPE, start_new_session=True,
            )  # fmt: skip
        return self._child

    async def _end(self, child: Process) -> None:
        if self._child is child:
            self._child = None
        if child.returncode is None:
            with suppress(ProcessLookupError):
                child.kill()
        await child.wait()


async def _report(run: Run, on_progress: OnProgress | None) -> Never:
    while True:
        await asyncio.sleep(PROGRESS_EVERY)
        if on_progress is not None:
            on_progress(await asyncio.to_thread(run.done), run.size)


async def _ask(child: Process, question: bytes) -> bytes:
    stdin, stdout = cast("StreamWriter", child.stdin), cast("StreamReader", child.stdout)
    stdin.write(len(question).to_bytes(LENGTH) + question)
    await stdin.drain()
    length = int.from_bytes(await stdout.readexactly(LENGTH))
    return await stdout.readexactly(length)

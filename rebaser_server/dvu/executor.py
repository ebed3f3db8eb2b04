"""Runs the blobs of a plan: what callers may rely on wherever that is, and how Spark does it."""

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from itertools import accumulate
from threading import Event
from typing import Any, Final, Protocol
from uuid import uuid4

from rebaser_server.dvu.blob import Blob, size
from rebaser_server.dvu.causes import cause_of
from rebaser_server.dvu.errors import RunFailed, SessionFailed
from rebaser_server.dvu.evaluate import Outcome, decode_outcome
from rebaser_server.dvu.options import SparkOptions
from rebaser_server.dvu.session import Session

OnProgress = Callable[[int, int], None]
"""Values done, at least, and values in all. Called on the event loop, now and then."""

PROGRESS_EVERY: Final = 0.5
"""Seconds."""
CANCEL_GRACE: Final = 1.0
"""Seconds for which a cancelled run waits until its job is gone."""


class Executor(Protocol):
    async def start(self) -> None:
        """Let the first run find everything warm. Optional; may be repeated or cancelled."""

    async def run(
        self, blobs: Sequence[bytes], *, on_progress: OnProgress | None = None
    ) -> list[Outcome]:
        """The outcome of each blob, in their order. Several runs may go on at once.

        Cancelled, it ends what it began, within about a second; other runs go on. May be
        repeated: functions are pure.

        Raises:
            RunFailed: the run broke down; there are no outcomes.
            SessionFailed: there is nothing to run on.
        """

    async def close(self) -> None:
        """End what was started, runs in hand included; these raise `RunFailed`."""


class SparkExecutor:
    """An `Executor` with one Spark job a run, whose jobs take turns.

    The session is started by the first run, and by a later one if it was lost: whatever ends
    the JVM fails the runs in hand and no others.
    """

    def __init__(self, options: SparkOptions, *, at_once: int = 32) -> None:
        """Of more than `at_once` runs, some wait."""
        self.slots: Final = options.slots
        self._session = Session(options)
        self._threads = ThreadPoolExecutor(at_once, thread_name_prefix="spark-run")

    @property
    def jvm_pid(self) -> int | None:
        """Whose memory is Spark's; None if there is no session."""
        return self._session.jvm_pid

    async def start(self) -> None:
        await self.run([Blob().encode()] * self.slots)  # starts a worker for each slot, too

    async def run(
        self, blobs: Sequence[bytes], *, on_progress: OnProgress | None = None
    ) -> list[Outcome]:
        if not blobs:
            return []
        run = _Run(blobs)
        try:
            job = self._threads.submit(self._evaluate, run)
        except RuntimeError:
            raise SessionFailed("the executor is closed") from None
        ending = asyncio.wrap_future(job)
        try:
            while on_progress is not None and not ending.done():
                await asyncio.wait([ending], timeout=PROGRESS_EVERY)
                tasks = await asyncio.to_thread(self._session.tasks_done, run.group)
                on_progress(run.done_with(tasks), run.size)
            return await ending
        finally:
            if not job.done():
                ending.cancel()
                await asyncio.to_thread(self._cancel, run, job)

    async def close(self) -> None:
        await asyncio.to_thread(self._session.close)
        await asyncio.to_thread(self._threads.shutdown)

    def _evaluate(self, run: "_Run") -> list[Outcome]:
        from rebaser_server.dvu import stage  # noqa: PLC0415 - imports pyarrow: slow

        spark = self._session.get()
        if run.is_cancelled.is_set():
            return []  # for nobody
        try:
            return list(map(decode_outcome, stage.evaluate_on(spark, run.group, run.blobs)))
        except Exception as error:  # whatever it is, and there is no list, the run is over
            cause = self._session.end() or cause_of(error)
            raise RunFailed(f"Spark could not complete the run: {cause}") from error

    def _cancel(self, run: "_Run", job: Future[Any]) -> None:
        run.is_cancelled.set()  # first: without a session, there is no group to cancel yet
        self._session.cancel(run.group)
        wait([job], CANCEL_GRACE)


class _Run:
    """A run's job group, and how far it is."""

    def __init__(self, blobs: Sequence[bytes]) -> None:
        self.blobs = blobs
        self.group = f"rebaser-{uuid4()}"
        self.is_cancelled = Event()
        # Which tasks are done is not known, only how many: count the smallest.
        self._done_at_least = [0, *accumulate(sorted(map(size, blobs)))]
        self.size = self._done_at_least[-1]

    def done_with(self, tasks: int) -> int:
        return self._done_at_least[tasks]

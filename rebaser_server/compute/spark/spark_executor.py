"""Runs the units of a plan as Spark jobs."""

import asyncio
import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from threading import Event
from typing import Any, Final
from uuid import uuid4

from rebaser_server.compute.errors import RunFailed, SessionFailed, breakdown
from rebaser_server.compute.runs.executor import PROGRESS_EVERY, OnProgress
from rebaser_server.compute.runs.run import DvuRun
from rebaser_server.compute.spark import spark_job
from rebaser_server.compute.spark.error_text import root_cause
from rebaser_server.compute.spark.options import SparkOptions
from rebaser_server.compute.spark.session import SessionHolder
from rebaser_server.compute.units.run_store import RunStore, StoredResult
from rebaser_server.compute.units.unit_result import UnitResult
from rebaser_server.compute.units.work_unit import WorkUnit

CANCEL_GRACE: Final = 1.0
"""Seconds for which a cancelled run waits until its job is gone."""


class SparkExecutor:
    """An `Executor` with Spark jobs, most often one a run; those of several runs take turns.

    A task gives way after some seconds of work, and the rest of its unit is asked for in
    another job: so a small run waits for seconds at most, however long a large one takes.

    The session is started by the first run, and by a later one if it was lost: whatever ends
    the JVM fails the runs in hand and no others.
    """

    def __init__(self, options: SparkOptions, *, max_concurrent_runs: int = 32) -> None:
        """Of more than `at_once` runs, some wait."""
        self.slots: Final = options.slots
        self._session = SessionHolder(options)
        self._threads = ThreadPoolExecutor(max_concurrent_runs, thread_name_prefix="spark-run")

    @property
    def jvm_pid(self) -> int | None:
        """Whose memory is Spark's; None if there is no session, or none of ours."""
        return self._session.jvm_pid

    async def start(self) -> None:
        await self.run([WorkUnit().encode()] * self.slots)  # starts a worker for each slot, too

    async def run(
        self,
        units: Sequence[bytes | memoryview],
        *,
        store: RunStore | None = None,
        on_progress: OnProgress | None = None,
    ) -> list[UnitResult | StoredResult]:
        if not units:
            return []
        run = DvuRun(f"rebaser-{uuid4()}", units, store)
        is_cancelled = Event()
        try:
            job = self._threads.submit(self._evaluate, run, is_cancelled)
        except RuntimeError:
            raise SessionFailed("the executor is closed") from None
        ending = asyncio.wrap_future(job)
        try:
            while on_progress is not None and not ending.done():
                await asyncio.wait([ending], timeout=PROGRESS_EVERY)
                if not ending.done():
                    on_progress(await asyncio.to_thread(run.values_done), run.size)
            results = await ending
            if on_progress is not None:
                on_progress(run.size, run.size)
            return results
        finally:
            if not job.done():
                ending.cancel()
                is_cancelled.set()  # first: without a session, there is no job to cancel yet
                await asyncio.to_thread(self._cancel, run, job)

    async def close(self) -> None:
        await asyncio.to_thread(self._session.close)
        await asyncio.to_thread(self._threads.shutdown)

    def _evaluate(self, run: DvuRun, is_cancelled: Event) -> list[UnitResult | StoredResult]:
        while tasks := run.next_tasks():
            with self._session.job(run.id) as spark:
                if is_cancelled.is_set():
                    return []  # the caller is gone
                try:
                    answers = spark_job.execute_tasks(spark, [*tasks.values()], run.store, run.id)
                except Exception as error:  # whatever it is, and there is no list, the run is over
                    cause = self._session.end_reason() or root_cause(error)
                    reason = f"Spark could not complete the run: {cause}"
                    raise breakdown(RunFailed, reason) from error
            for number, answer in zip(tasks, answers, strict=True):
                run.record(number, answer)
        return run.results()

    def _cancel(self, run: DvuRun, job: Future[Any]) -> None:
        give_up = time.monotonic() + CANCEL_GRACE
        while not job.done() and time.monotonic() < give_up:
            self._session.cancel(run.id)  # again, lest it had not begun yet
            wait([job], CANCEL_GRACE / 5)

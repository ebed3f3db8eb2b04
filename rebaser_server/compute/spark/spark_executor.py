"""Runs the units of a plan as Spark jobs."""

import asyncio
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, wait
from contextlib import contextmanager
from threading import Event
from typing import TYPE_CHECKING, Any, Final
from uuid import uuid4

from structlog.contextvars import get_contextvars

from rebaser_server.compute.errors import (
    RunFailed,
    SessionFailed,
    breakdown,
    evaluator_error,
)
from rebaser_server.compute.runs.executor import PROGRESS_EVERY, OnProgress
from rebaser_server.compute.runs.run import DvuRun
from rebaser_server.compute.spark import spark_job
from rebaser_server.compute.spark.error_text import python_error_name, root_cause
from rebaser_server.compute.spark.options import SparkOptions
from rebaser_server.compute.spark.session import SessionHolder
from rebaser_server.compute.units.run_store import RunStore, StoredResult
from rebaser_server.compute.units.unit_result import UnitResult
from rebaser_server.compute.units.work_unit import WorkUnit
from rebaser_server.runtime.tasks import Turns, WorkThreads
from rebaser_server.telemetry.work_stats import SparkAbsence

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LOOK_EVERY: Final = 5.0
"""Seconds between two looks whether a run that goes on has a session that can complete it."""
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
        """Start no session yet. Runs beyond `max_concurrent_runs` wait for their owner's turn."""
        self.slots: Final = options.slots
        self.absence: SparkAbsence | None = None
        """Set from a failure to start Spark, or its loss, until it computes again."""
        self._has_computed = False
        self._session = SessionHolder(options)
        self._turns = Turns(max_concurrent_runs)
        self._threads = WorkThreads(max_concurrent_runs, thread_name_prefix="spark-run")

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
        owner: str = "",
        store: RunStore | None = None,
        on_progress: OnProgress | None = None,
    ) -> list[UnitResult | StoredResult]:
        if not units:
            return []
        await self._turns.take(owner)
        try:
            return await self._run(units, store, on_progress)
        finally:
            self._turns.give()

    async def _run(
        self,
        units: Sequence[bytes | memoryview],
        store: RunStore | None,
        on_progress: OnProgress | None,
    ) -> list[UnitResult | StoredResult]:
        run = DvuRun(_run_id(), units, store)
        is_cancelled = Event()
        try:
            job = self._threads.submit(self._evaluate, run, is_cancelled)
        except RuntimeError:
            raise SessionFailed("the executor is closed") from None
        ending = asyncio.wrap_future(job)
        try:
            looked = time.monotonic()
            while not ending.done():
                await asyncio.wait([ending], timeout=PROGRESS_EVERY)
                if ending.done():
                    break
                if on_progress is not None:
                    on_progress(await asyncio.to_thread(run.values_done), run.size)
                if time.monotonic() - looked > LOOK_EVERY:
                    await self._require_session(ending)
                    looked = time.monotonic()
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
            with self._required_session(run) as spark:
                if is_cancelled.is_set():
                    return []  # the caller is gone
                try:
                    answers = spark_job.execute_tasks(spark, [*tasks.values()], run.store, run.id)
                except Exception as error:  # whatever it is, and there is no list, the run is over
                    raise self._failure(error) from error
            self.absence, self._has_computed = None, True
            for number, answer in zip(tasks, answers, strict=True):
                run.record(number, answer)
        return run.results()

    @contextmanager
    def _required_session(self, run: DvuRun) -> Iterator["SparkSession"]:
        about = f"update of {run.size:,} values"
        try:
            with self._session.job(run.id, about) as spark:
                yield spark
        except SessionFailed as error:
            self._note_absence(str(error))
            raise

    def _note_absence(self, reason: str) -> None:
        since = {} if self.absence is None else {"since": self.absence.since}
        self.absence = SparkAbsence(reason, not self._has_computed, **since)

    def _failure(self, error: Exception) -> Exception:
        """Error of the run that ended with this one: its class says what is at fault."""
        ended, about = self._session.end_reason(), "Spark could not complete the run"
        if ended is not None:
            self._note_absence(ended)
            return breakdown(RunFailed, f"{about}: {ended}")
        reason, name = f"{about}: {root_cause(error)}", python_error_name(error)
        return breakdown(RunFailed, reason) if name is None else evaluator_error(name, reason)

    async def _require_session(self, ending: "asyncio.Future[Any]") -> None:
        """Raise `SessionFailed` if a run waits for nothing, unless it learns by itself."""
        reason = await asyncio.to_thread(self._session.end_reason)
        if reason is not None and not (await asyncio.wait([ending], timeout=CANCEL_GRACE))[0]:
            self._note_absence(reason)
            raise SessionFailed(f"Spark could not complete the run: {reason}")

    def _cancel(self, run: DvuRun, job: Future[Any]) -> None:
        give_up = time.monotonic() + CANCEL_GRACE
        while not job.done() and time.monotonic() < give_up:
            self._session.cancel(run.id)  # again, lest it had not begun yet
            wait([job], CANCEL_GRACE / 5)


def _run_id() -> str:
    """Name of the run's jobs in Spark, with the change set that the run is of, if any."""
    context = get_contextvars()
    change_set = [str(context[name]) for name in ("workspace", "change_set") if name in context]
    return "-".join(["rebaser", *filter(None, [".".join(change_set)]), uuid4().hex[:12]])

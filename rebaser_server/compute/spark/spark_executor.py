"""Runs the units of a plan as Spark jobs.

It starts and stops the one Spark session of this process, and makes the archive of classes from
which Spark's JVM starts.
"""

import asyncio
import os
import shutil
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from concurrent.futures import Future, wait
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from contextvars import copy_context
from dataclasses import replace
from functools import partial
from importlib.metadata import version
from pathlib import Path
from subprocess import Popen
from threading import Lock, Thread
from typing import TYPE_CHECKING, Any, Final, Literal, TypeVar
from uuid import uuid4

import structlog
from structlog.contextvars import get_contextvars

from rebaser_core.errors import many
from rebaser_core.trace_context import current_ids
from rebaser_server.compute.errors import RunFailed, SessionFailed, breakdown, evaluator_error
from rebaser_server.compute.evaluator_processes import Template
from rebaser_server.compute.executors import PROGRESS_EVERY, UnitTasks
from rebaser_server.compute.results import StoredResult, UnitResult
from rebaser_server.compute.run import Run
from rebaser_server.compute.spark import spark_job
from rebaser_server.compute.spark.launch import find_java, launch
from rebaser_server.compute.spark.options import (
    ScratchDirectory,
    SparkOptions,
    archive_path,
    plain_directory,
    python_error_name,
    require_supported,
    root_cause,
    with_remedy,
)
from rebaser_server.compute.work_unit import WorkUnit
from rebaser_server.runtime.failures import EvaluatorAway
from rebaser_server.runtime.progress import JobProgress
from rebaser_server.runtime.tasks import Turns, WorkThreads
from rebaser_server.telemetry.work_stats import SparkAbsence

if TYPE_CHECKING:
    from rebaser_server.compute.spark.connect_session import ConnectSession
    from rebaser_server.compute.spark.jvm import JvmSession

    Running = JvmSession | ConnectSession


T = TypeVar("T")

Way = Literal["job", "query", "call"]
"""A session that others have, too; one alone; or an `Entrance` to one alone, for a child."""
Ask = Callable[[bytes], bytes | int | None]
"""Function that returns a new child's answer, or its exit code; None once its caller is gone."""

log: Final = structlog.get_logger()

_SLOTS_EVERY: Final = 10.0
"""Seconds, while there are jobs, between two questions to a cluster for its size."""


class _SessionHolder:
    """Holder of at most one Spark session: started when first needed, and again when it was lost.

    All methods block and may be called from any thread. A JVM that it starts ends with this
    process, also if that is killed, and Ctrl-C does not reach it.
    """

    def __init__(self, options: SparkOptions, has_tables: Callable[[], bool]) -> None:
        self._options = options
        self._has_tables = has_tables
        self._is_for_tables = False
        self._jobs = 0
        """Callers of `job` that have a session."""
        self._counting = Lock()
        self._lock = Lock()
        self._running: Running | None = None
        self._starting: Popen[bytes] | None = None
        self._is_closed = False
        self.slots = options.slots
        """Units evaluated at a time: a guess, or what the session last said."""
        self._asked_for_slots = float("-inf")

    @contextmanager
    def job(self, run: str, about: str, way: Way = "job") -> Iterator[Any]:
        """Yield the session, for this thread to run work of this run in it.

        `about`: what Spark's own pages call the run.

        The first takes seconds, in which the session starts.

        Raises:
            SessionFailed: the session cannot be started now, and the next call tries again; or it
                is closed.
        """
        running = self._get(for_tables=way != "job")
        try:
            is_due = time.monotonic() - self._asked_for_slots > _SLOTS_EVERY
            if not self._options.is_local and is_due:
                self._asked_for_slots = time.monotonic()
                # On its own thread: no run waits for the answer.
                Thread(target=self._ask_for_slots, args=(running,), daemon=True).start()
            with _begun(getattr(running, way)(run, about)) as session:
                yield session
        finally:
            with self._counting:
                self._jobs -= 1

    def _ask_for_slots(self, running: "Running") -> None:
        try:
            self.slots = max(1, running.slots() or self.slots)
        except Exception as error:  # noqa: BLE001 - the session may be ending
            log.info("parallelism unknown", reason=root_cause(error))

    def _get(self, *, for_tables: bool) -> "Running":
        with self._lock:
            if self._is_closed:
                raise SessionFailed("the session is closed")
            running = self._running
            if running is not None and (
                running.end_reason() is not None
                or (
                    for_tables
                    and self._options.is_local
                    and not (self._is_for_tables or self._jobs)
                )
            ):
                self._stop()
            if self._running is None:
                self._is_for_tables = for_tables or self._has_tables()
                options = replace(self._options, for_tables=self._is_for_tables)
                # On the main thread, Spark would take Ctrl-C over.
                with WorkThreads(1) as thread:
                    starting = thread.submit(_start, options, self._on_launched)
                    try:
                        self._running = starting.result()
                    except EvaluatorAway:
                        raise
                    except Exception as error:  # no place to write, or half installed
                        where = f" (its files: {options.state_directory})"
                        reason = f"Spark did not start: {with_remedy(str(error))}{where}"
                        raise SessionFailed(reason) from error
                    finally:
                        self._starting = None
            # A job is counted before the lock is free. Else a first query could stop the session
            # that the job was given.
            with self._counting:
                self._jobs += 1
            return self._running

    def _on_launched(self, process: Popen[bytes]) -> None:
        self._starting = process
        # `close` sets its flag and then looks for a process. Here the order is the opposite: so one
        # of the two sees the other, and no JVM is left.
        if self._is_closed:
            process.kill()

    @property
    def is_starting(self) -> bool:
        """Whether a JVM is coming up, which on a busy machine takes longer than a call may."""
        return self._starting is not None

    @property
    def jvm_pid(self) -> int | None:
        running = self._running
        return None if running is None else running.jvm_pid

    def end_reason(self) -> str | None:
        """Return the reason why the session's work has ended with it; None if it goes on."""
        if self._is_closed:
            return "its session was closed"
        running = self._running
        return None if running is None else running.end_reason()

    def cancel(self, run: str) -> None:
        """End the jobs of this run, also those that have not begun yet.

        Does nothing without a session, and does not wait for the jobs' ends.
        """
        running = self._running
        if running is not None:
            running.cancel(run)

    def reap(self) -> None:
        """End what goes on of cancelled runs, if need be with all others."""
        running = self._running
        if running is not None:
            running.reap()

    def steps(self, run: str) -> int:
        """Return a number that is another one once more tasks of a query are done."""
        running = self._running
        return 0 if running is None else running.steps(run)

    def cut_log(self) -> None:
        """Drop all but the end of what Spark and functions have printed, if that is much."""
        with suppress(OSError):  # a server of others has no log here
            if self._options.log.stat().st_size > _MOST_PRINTED:
                _cut(self._options.log, _KEPT_PRINTED)

    def close(self) -> None:
        """End the session; its work fails, and from now on `job` does."""
        self._is_closed = True
        starting = self._starting
        if starting is not None:
            starting.kill()  # the caller that waits for it fails at once
        with self._lock:
            self._stop()

    def _stop(self) -> None:
        running, self._running = self._running, None  # first: no other call finds it while it ends
        if running is not None:
            running.stop()


_MOST_PRINTED: Final = 16 << 20
"""Bytes in the log from which on it is cut."""
_KEPT_PRINTED: Final = 1 << 20


def _cut(log: Path, kept: int) -> None:
    """Leave that many bytes, the last ones. The JVM goes on appending to the file."""
    with log.open("r+b") as file:
        dropped = file.seek(-kept, os.SEEK_END)
        end = file.read()
        file.truncate(0)
    with log.open("ab") as file:
        file.write(b"(%d bytes before this were dropped)\n" % dropped + end)


def _start(options: SparkOptions, begun: Callable[[Popen[bytes]], None]) -> "Running":
    # Imported here and not above: pyspark costs most of a second, and many a process never
    # needs it. In this process's own JVM that second passes while the JVM starts.
    require_supported(version("pyspark"), "installed here")
    if options.remote is not None:
        from rebaser_server.compute.spark import connect_session

        return connect_session.start(options)
    options.state_directory.mkdir(parents=True, exist_ok=True)
    java = find_java(options.state_directory, os.environ)
    with suppress(FileNotFoundError):
        options.log.replace(options.log.with_suffix(".log.1"))  # says why the last one ended
    scratch = ScratchDirectory(options.state_directory / "scratch")
    process = launch(options, java, scratch)
    begun(process)
    from rebaser_server.compute.spark import jvm

    return jvm.start(options, java, scratch, process)


_LOOK_EVERY: Final = 5.0
"""Seconds between two looks whether a running run has a session that can complete it."""
_CANCEL_GRACE: Final = 1.0
"""Seconds for which a cancelled run waits until its job is gone."""


_SHOWN: Final = ("workspace", "change_set", "claim", "trace_id")
"""Keys of log lines that a job's name on Spark's pages repeats, to show the work that it is for."""


def _about(what: str) -> str:
    """Return the name of a job, made in the task that the work belongs to."""
    labels = get_contextvars() | current_ids()
    shown = [f"{name.replace('_', ' ')} {labels[name]}" for name in _SHOWN if name in labels]
    return ", ".join([f"update of {what}", *shown])


async def _ask_child(question: bytes, gone: Future[None]) -> bytes | int | None:
    """Return the answer of a child, or its exit code; None once the caller is gone.

    The child is asked nothing else, and has ended when this returns.
    """
    asking = asyncio.ensure_future(_in_child(question))
    try:
        either: list[asyncio.Future[Any]] = [asking, asyncio.wrap_future(gone)]
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        return await asking if asking.done() else None
    finally:
        asking.cancel()
        await asyncio.wait([asking])


async def _in_child(question: bytes) -> bytes | int | None:
    template = Template()
    try:
        child = await template.fork()
        try:
            return await child.ask(question)
        except EOFError:
            await child.end()  # first, since it may have closed its channel alone
            return child.code
        finally:
            await child.end()
    except EOFError as error:
        raise RunFailed("the evaluator ended before it was ready") from error
    finally:
        await template.close()


@contextmanager
def _begun(opened: AbstractContextManager[Any]) -> Iterator[Any]:
    """Enter it; if that fails, the session has ended since it was looked at, and is no value's."""
    with ExitStack() as stack:
        try:
            session = stack.enter_context(opened)
        except EvaluatorAway:
            raise
        except Exception as error:  # py4j, pyspark and gRPC raise many kinds
            reason = f"Spark's session ended before a run began: {root_cause(error)}"
            raise SessionFailed(reason) from error
        yield session


class SparkExecutor:
    """A `Place` with Spark jobs, most often one a run; those of several runs take turns.

    A task gives way after some seconds of work, and the rest of its unit is asked for in another
    job: so a small run waits for seconds at most, also behind a large one.

    The session is started by the first run, and by a later one if it was lost: the end of the JVM
    fails the runs in hand and no others.
    """

    def __init__(
        self,
        options: SparkOptions,
        *,
        has_tables: Callable[[], bool] = lambda: False,
        max_concurrent_runs: int = 32,
    ) -> None:
        """Start no session yet. Runs beyond `max_concurrent_runs` wait for their owner's turn.

        `has_tables`: whether queries are likely, for which Spark starts with other settings. The
        first query starts it anew with these if nothing else runs in it.
        """
        self.absence: SparkAbsence | None = None
        """Absence of Spark: set from a failure to start it, or its loss, until it computes
        again."""
        self._has_computed = False
        self._session = _SessionHolder(options, has_tables)
        self.end_reason: Final = self._session.end_reason
        self._turns = Turns(max_concurrent_runs)
        self._threads = WorkThreads(max_concurrent_runs, thread_name_prefix="spark-run")

    @property
    def is_ready(self) -> bool:
        """Whether it computed when it last was to; False before the first time."""
        return self._has_computed and self.absence is None

    @property
    def slots(self) -> int:
        """Units evaluated at a time; of a cluster, as it was some seconds ago."""
        return self._session.slots

    @property
    def jvm_pid(self) -> int | None:
        """Process whose memory is Spark's; None if there is no session, or none of ours."""
        return self._session.jvm_pid

    async def start(self) -> None:
        await self.run([WorkUnit()] * self.slots)  # starts a worker for each slot, too

    async def run(
        self, units: Sequence[WorkUnit], run: Run = Run()
    ) -> list[UnitResult | StoredResult]:
        if not units:
            return []
        tasks = UnitTasks(_run_id(), units, run.store)
        about, progress = _about(many(tasks.size, "value")), run.progress

        async def report() -> None:
            progress.record(await asyncio.to_thread(tasks.values_done))

        await self._turns.take(run.owner)
        try:
            gone = Future[None]()
            job = self._in_pool(partial(self._evaluate, tasks, about, gone))
            results = await self._ended(tasks.id, job, gone, report, progress)
        finally:
            self._turns.give()
        progress.record(tasks.size)
        return results

    async def run_alone(
        self, work: Callable[[Any, Ask], T], way: Way, about: str, run: Run
    ) -> T | None:
        """Run an extension's work, which blocks; extend the progress while tasks of it are done."""
        name, label, steps = _run_id(), _about(about), 0
        gone, loop = Future[None](), asyncio.get_running_loop()

        async def report() -> None:
            nonlocal steps
            before, steps = steps, await asyncio.to_thread(self._session.steps, name)
            if steps != before:
                run.progress.extend()

        def ask(question: bytes) -> bytes | int | None:
            return asyncio.run_coroutine_threadsafe(_ask_child(question, gone), loop).result()

        def compute() -> T | None:
            with self._required_session(name, label, way) as session:
                # The caller may have gone while the session started, before there was a job.
                found = None if gone.done() else work(session, ask)
            if not gone.done():
                self.absence, self._has_computed = None, True
            return found

        await self._turns.take(run.owner)
        try:
            # With what log lines show about the work, for a function's prints.
            job = self._in_pool(partial(copy_context().run, compute))
            return await self._ended(name, job, gone, report, run.progress)
        finally:
            self._turns.give()

    def _in_pool(self, compute: Callable[[], T]) -> Future[T]:
        try:
            return self._threads.submit(compute)
        except RuntimeError:
            raise SessionFailed("the executor is closed") from None

    async def _ended(
        self,
        run: str,
        job: Future[T],
        gone: Future[None],
        report: Callable[[], Awaitable[None]],
        progress: JobProgress,
    ) -> T:
        """Return what comes of work in a thread; cancelled, end the jobs of the run.

        `gone` is done once the caller is gone. The start of a JVM takes nothing of the time
        in which the run must get on.
        """
        ending = asyncio.wrap_future(job)
        try:
            looked = time.monotonic()
            while not ending.done():
                await asyncio.wait([ending], timeout=PROGRESS_EVERY)
                if ending.done():
                    break
                await report()
                await asyncio.to_thread(self._session.cut_log)
                if self._session.is_starting:
                    progress.extend()
                if time.monotonic() - looked > _LOOK_EVERY:
                    await self._require_session(ending)
                    looked = time.monotonic()
            return await ending
        finally:
            if not job.done():
                ending.cancel()
                gone.set_result(None)  # first: without a session, there is no job to cancel yet
                await asyncio.to_thread(self._cancel, run, job)

    async def close(self) -> None:
        await asyncio.to_thread(self._session.close)
        await asyncio.to_thread(self._threads.shutdown)

    def _evaluate(
        self, tasks: UnitTasks, about: str, gone: Future[None]
    ) -> list[UnitResult | StoredResult]:
        while due := tasks.next_tasks():
            with self._required_session(tasks.id, about) as spark:
                if gone.done():
                    return []
                try:
                    answers = spark_job.execute_tasks(spark, [*due.values()], tasks.store, tasks.id)
                except Exception as error:  # any error ends the run, and there is no list of them
                    raise self.failure(error) from error
            self.absence, self._has_computed = None, True
            for number, answer in zip(due, answers, strict=True):
                tasks.record(number, answer)
        return tasks.results()

    @contextmanager
    def _required_session(self, run: str, about: str, way: Way = "job") -> Iterator[Any]:
        try:
            with self._session.job(run, about, way) as spark:
                yield spark
        except SessionFailed as error:
            self._note_absence(str(error))
            raise
        finally:
            self._session.cut_log()

    def _note_absence(self, reason: str) -> None:
        since = {} if self.absence is None else {"since": self.absence.since}
        self.absence = SparkAbsence(reason, not self._has_computed, **since)

    def failure(self, error: BaseException) -> Exception:
        """Return the run's error for this one: its class says what is at fault."""
        return self.failure_for(root_cause(error), python_error_name(error))

    def failure_for(self, cause: str, name: str | None) -> Exception:
        ended, about = self._session.end_reason(), "Spark could not complete the run"
        if ended is not None:
            self._note_absence(ended)
            return breakdown(RunFailed, f"{about}: {ended}")
        reason = f"{about}: {cause}"
        if name is None:
            return breakdown(RunFailed, with_remedy(reason))
        return evaluator_error(name, reason)

    async def _require_session(self, ending: "asyncio.Future[Any]") -> None:
        """Raise `SessionFailed` if a run waits in vain and would not learn that by itself."""
        reason = await asyncio.to_thread(self._session.end_reason)
        # A run that notices the end by itself says more, so it has a moment to raise its own error.
        if reason is not None and not (await asyncio.wait([ending], timeout=_CANCEL_GRACE))[0]:
            self._note_absence(reason)
            raise SessionFailed(f"Spark could not complete the run: {reason}")

    def _cancel(self, run: str, job: Future[Any]) -> None:
        give_up = time.monotonic() + _CANCEL_GRACE
        while not job.done() and time.monotonic() < give_up:
            self._session.cancel(run)  # again, lest it had not begun yet
            wait([job], _CANCEL_GRACE / 5)
        self._session.reap()


def _run_id() -> str:
    """Return the name of the run's jobs in Spark, with the run's change set, if any."""
    context = get_contextvars()
    change_set = [str(context[name]) for name in ("workspace", "change_set") if name in context]
    return "-".join(["rebaser", *filter(None, [".".join(change_set)]), uuid4().hex[:12]])


_RUNS = 3


async def train(options: SparkOptions) -> Path:
    """Start Spark, run a few jobs, keep the classes that its JVM has loaded; return the path.

    Takes about a minute. A session that is started meanwhile does not use them.

    Raises:
        SessionFailed: Spark does not start, is not to run here, or left no archive.
        OSError: the archive cannot be written where it shall lie.
    """
    if not options.is_local:
        raise SessionFailed("there is nothing to train: Spark's JVM is not ours")
    options.state_directory.mkdir(parents=True, exist_ok=True)
    java = find_java(options.state_directory, os.environ)
    archive = archive_path(options.archives, java)
    if archive is None:
        raise SessionFailed(f"the Java at {java} does not say its version")
    archive.parent.mkdir(parents=True, exist_ok=True)
    # Java hands the path on to a second JVM, and splits there at what it has of blanks.
    place = plain_directory()
    trained = place / f"new{archive.suffix}"
    new = archive.with_name(f"new-{os.getpid()}{archive.suffix}")
    try:
        executor = SparkExecutor(replace(options, training=trained))
        try:
            for _ in range(_RUNS):
                await executor.start()
        finally:
            await executor.close()
        if not trained.exists():
            raise SessionFailed(f"the Java at {java} wrote no archive (see {options.log})")
        # The copy is renamed once it is complete: a JVM that starts meanwhile finds it whole.
        await asyncio.to_thread(shutil.copyfile, trained, new)
        new.replace(archive)
    finally:
        new.unlink(missing_ok=True)
        shutil.rmtree(place, ignore_errors=True)
    return archive

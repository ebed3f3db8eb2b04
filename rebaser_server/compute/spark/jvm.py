"""A JVM with a Spark session in it, as a child of this process.

The module imports pyspark, so it is imported when the first session starts.
"""

import os
import re
import signal
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from subprocess import Popen, TimeoutExpired
from threading import Thread
from typing import Final

import structlog
from py4j.java_gateway import JavaGateway
from py4j.protocol import Py4JError
from pyspark import SparkConf, SparkContext
from pyspark.java_gateway import launch_gateway
from pyspark.serializers import UTF8Deserializer, read_int
from pyspark.sql import SparkSession

from rebaser_server.compute.errors import SessionFailed
from rebaser_server.compute.spark.launch import CONNECTION, environment, forget_settings
from rebaser_server.compute.spark.options import (
    ScratchDirectory,
    SparkOptions,
    has_name,
    last_log_line,
    root_cause,
    with_remedy,
)

log: Final = structlog.get_logger()

_GRACE: Final = 10.0
"""Seconds that a JVM may take to end by itself."""
_REMEMBERED: Final = (
    (SparkContext, "_gateway"),
    (SparkContext, "_jvm"),
    (SparkSession, "_instantiatedSession"),
    (SparkSession, "_activeSession"),
)
"""Attributes in which pyspark remembers its JVM, and has no way to forget it."""
_CONNECT_WITHIN: Final = 600.0
"""Seconds that a JVM may take to come up; Spark's scripts may download packages first."""
_TRAINING_GRACE: Final = 300.0
"""Seconds that a JVM may take to end while it writes an archive."""
_ENDS_WITHIN: Final = 1.0
"""Seconds after a missing answer within which the JVM's end is known, if that is the reason."""
_EXECUTORS_WITHIN: Final = 60.0
"""Seconds that runs wait for an executor of a standalone cluster. Its master forgets the session if
the executor ends, and the session would wait for ever."""


_TASKS_END_WITHIN: Final = 5.0
"""Seconds for which tasks of a cancelled run may go on."""
_REAPER_LOOKS: Final = 0.25  # seconds between two
_TASK: Final = re.compile(r"Executor task launch worker for task .* in stage (\d+)\..*")
_RUNS_TASK: Final = "Executor$TaskRunner.run("
_SESSIONS: Final = "org.apache.spark.sql.classic.SparkSession"
_SERVERS: Final = "org.apache.spark.api.python.Py4JServer"
_OF_DRIVER: Final = 1
"""Entries of the driver itself in Spark's list of executors."""


@dataclass(frozen=True, slots=True)
class JvmEntrance:
    port: int
    secret: str = field(repr=False)
    environment: Mapping[str, str]
    """Variables that pyspark reads."""

    def enter(self) -> SparkSession:
        os.environ.update(self.environment)
        gateway = _gateway_at(self.port, self.secret)
        java_session = getattr(gateway.jvm, _SESSIONS).getDefaultSession().get()
        java_context = gateway.jvm.JavaSparkContext(java_session.sparkContext())
        settings = SparkConf(_jvm=gateway.jvm, _jconf=java_context.getConf())
        shared = SparkSession(SparkContext(gateway=gateway, jsc=java_context, conf=settings))
        own = shared.newSession()
        SparkSession._instantiatedSession = SparkSession._activeSession = own  # noqa: SLF001
        return own


class JvmSession:
    def __init__(
        self,
        spark: SparkSession,
        gateway: JavaGateway,
        scratch: ScratchDirectory,
        environment: Mapping[str, str],
        grace: float = _GRACE,
    ) -> None:
        self.spark = spark
        self._environment = environment
        self._jobs = 0
        self._alone_since: float | None = None
        """Time of the first look since which the session has had jobs but no executor."""
        self._forgotten: str | None = None
        """Reason why the session is of no more use: it has waited too long for an executor, or is
        held up by what does not end."""
        self.jvm_pid: int | None = gateway.proc.pid
        self._gateway = gateway
        self._scratch = scratch
        self._grace = grace
        # pyspark's own context forgets them when it stops, while a thread may still look.
        self._tracker = spark.sparkContext.statusTracker()
        self._java_context = spark.sparkContext._jsc.sc()  # noqa: SLF001 - what Python lacks

    def end_reason(self) -> str | None:
        """Return the reason why nothing can run in it any more; None if it can."""
        code = self._gateway.proc.poll()
        if code is None:
            try:
                if self._java_context.isStopped():
                    return "its Spark application was ended"
                return self._why_alone()
            except Exception as error:  # noqa: BLE001 - of a JVM that ends: py4j raises many kinds
                try:
                    code = self._gateway.proc.wait(_ENDS_WITHIN)
                except TimeoutExpired:
                    return f"its JVM does not answer: {root_cause(error)}"
        return self._forgotten or f"its JVM ended{_why(code)}"

    def _why_alone(self) -> str | None:
        """Return the reason why it is of no use though its JVM is well: it has no executor."""
        context = self.spark.sparkContext
        if self._forgotten or not (context.master or "").startswith("spark://"):
            return self._forgotten  # other clusters tell a session what becomes of it
        if len(self._tracker.getExecutorInfos()) > _OF_DRIVER or not self._jobs:
            self._alone_since = None
            return None
        now = time.monotonic()
        self._alone_since = self._alone_since or now
        if now - self._alone_since < _EXECUTORS_WITHIN:
            return None
        self._forgotten = (
            f"the master at {context.master} has given it no executor for {_EXECUTORS_WITHIN:g} s; "
            "see that it and its workers run, and have room"
        )
        return self._forgotten

    def slots(self) -> int | None:
        """Tasks that run at a time on the cluster as it is now; None while it has no executor."""
        context = self.spark.sparkContext
        is_ready = len(self._tracker.getExecutorInfos()) > _OF_DRIVER
        return context.defaultParallelism if is_ready else None

    @contextmanager
    def job(self, run: str, about: str) -> Iterator[SparkSession]:
        """Yield the session; work that this thread runs in it meanwhile is of this run."""
        # Not interrupted, a cancelled task has its Python process killed, within 3 s; interrupted,
        # it lets go of one that may never end.
        with self._group(run, about, interrupts=False):
            yield self.spark

    @contextmanager
    def query(self, run: str, about: str) -> Iterator[SparkSession]:
        """Yield a session that the run has alone."""
        with self._group(run, about, interrupts=True):
            yield self.spark.newSession()

    @contextmanager
    def call(self, run: str, about: str) -> Iterator[JvmEntrance]:
        """Yield an entrance for one process; all work that it begins is of this run.

        With the server that it leads to go all objects that the process has left in the JVM.
        """
        try:
            with self._group(run, about, interrupts=False):
                new = getattr(self._gateway.jvm, _SERVERS)
                server = new(self._java_context.conf())
                server.start()  # whose threads inherit the group
                try:
                    yield JvmEntrance(server.getListeningPort(), server.secret(), self._environment)
                finally:
                    self.cancel(run)  # what the process did not wait for
                    with suppress(Py4JError, OSError):  # no JVM, no server
                        server.shutdown()
        finally:
            if not self._jobs:  # all sessions have one cache
                with suppress(Py4JError, OSError):
                    self.spark.catalog.clearCache()

    @contextmanager
    def _group(self, run: str, about: str, *, interrupts: bool) -> Iterator[None]:
        self._jobs += 1
        try:
            self.spark.sparkContext.setJobGroup(run, about, interruptOnCancel=interrupts)
            yield
        finally:
            self._jobs -= 1

    def steps(self, run: str) -> int:
        """Return a number that is another one once more tasks of the run are done."""
        with suppress(Py4JError, OSError):  # no JVM, no tasks
            tracker = self._tracker
            jobs = filter(None, map(tracker.getJobInfo, tracker.getJobIdsForGroup(run)))
            stages = [stage for job in jobs for stage in job.stageIds]
            infos = filter(None, map(tracker.getStageInfo, stages))
            return len(stages) + sum(info.numCompletedTasks for info in infos)
        return 0

    def cancel(self, run: str) -> None:
        """End the run's jobs and any that it would start later. Does not wait for their ends."""
        with suppress(Py4JError, OSError):  # no JVM, no jobs
            self._java_context.cancelJobGroupAndFutureJobs(run)

    def reap(self) -> None:
        """End a JVM that executes if tasks of cancelled runs go on in it. Does not wait for that.

        They keep their slots, some for ever: no loop of generated code looks whether it shall end.
        Of clusters Spark itself ends the executors.
        """
        if (self.spark.sparkContext.master or "").startswith("local"):
            Thread(target=self._reap, name="spark-reaper", daemon=True).start()

    def _reap(self) -> None:
        since: dict[str, float] = {}
        looks_until = time.monotonic() + _TASKS_END_WITHIN  # Spark cancels when it gets to it
        with suppress(Py4JError, OSError):  # no JVM, no tasks
            while since or time.monotonic() < looks_until:
                now = time.monotonic()
                since = {task: since.get(task, now) for task in self._stray_tasks()}
                if any(now - first > _TASKS_END_WITHIN for first in since.values()):
                    self._forgotten = "a cancelled run did not end, so its JVM was ended"
                    self._gateway.proc.kill()
                    return
                time.sleep(_REAPER_LOOKS)

    def _stray_tasks(self) -> list[str]:
        """List the tasks that threads are in and whose stage is over, as the threads are called.

        Spark's scheduler forgets the tasks of a cancelled stage before they end.
        """
        active = {*self._tracker.getActiveStageIds()}
        stacks = self._gateway.jvm.java.lang.Thread.getAllStackTraces()
        strays = []
        for thread in stacks:
            found = _TASK.fullmatch(name := thread.getName())
            if found is None or int(found[1]) in active:
                continue
            if any(_RUNS_TASK in frame.toString() for frame in stacks[thread]):  # or it waits
                strays.append(name)
        return strays

    def stop(self) -> None:
        """Return when the JVM has ended, by itself or by force, and its files are gone."""
        if self.end_reason() is None:
            with suppress(Py4JError, OSError):
                self.spark.stop()
        _end(self._gateway, self._grace)
        self._scratch.close()


def start(
    options: SparkOptions, java: Path, scratch: ScratchDirectory, process: Popen[bytes]
) -> JvmSession:
    """Return a session in the JVM `process`, which is starting.

    Raises:
        SessionFailed: the session did not start; the message ends with Spark's last words. JVM and
            scratch files are gone.
    """
    gateway = None
    try:
        if _active_context() is not None:  # starting another would stop it
            raise SessionFailed("another part of this process has a Spark session")
        settings = SparkConf(loadDefaults=False).setAll(list(options.settings(scratch).items()))
        ours = environment(options, java)
        with _environment(ours):
            gateway = _connect(process, scratch.directory / CONNECTION)
            forget_settings(scratch)
            _log_in(gateway)
            context = SparkContext(conf=settings, gateway=gateway)
        vars(context._accumulatorServer)["handle_error"] = _note_unheard  # noqa: SLF001
        grace = _GRACE if options.training is None else _TRAINING_GRACE
        return JvmSession(SparkSession(context), gateway, scratch, ours, grace)
    except SessionFailed:
        raise
    except Exception as error:  # pyspark may raise anything about a JVM that ends meanwhile
        cause = root_cause(error)
        ended = process.poll()
        if gateway is not None:
            _end(gateway, _GRACE)
        if gateway is None or ended is not None:
            cause = last_log_line(options.log.read_text(errors="replace")) or cause
        cause += "" if ended is None else _why(ended)
        reason = f"Spark did not start: {with_remedy(cause)} (see {options.log})"
        raise SessionFailed(reason) from error
    finally:
        if gateway is None:
            process.kill()
            process.communicate()  # closes its pipe, too
            scratch.close()


def _connect(process: Popen[bytes], connection: Path) -> JavaGateway:
    """Connect pyspark to a JVM that it did not start, as `spark-submit` does."""
    give_up = time.monotonic() + _CONNECT_WITHIN
    while not connection.exists():
        if process.poll() is not None:
            raise OSError("Java ended")
        if time.monotonic() > give_up:
            raise OSError(f"Java has not come up within {_CONNECT_WITHIN:g} s")
        time.sleep(0.01)
    with connection.open("rb") as info:
        port = read_int(info)
        secret = UTF8Deserializer().loads(info)
    gateway = _gateway_at(port, secret)
    gateway.proc = process
    return gateway


def _gateway_at(port: int, secret: str) -> JavaGateway:
    with _environment({"PYSPARK_GATEWAY_PORT": str(port), "PYSPARK_GATEWAY_SECRET": secret}):
        return launch_gateway()


def _log_in(gateway: JavaGateway) -> None:
    """Log in to Hadoop, which would ask the system for a user's name that it lacks."""
    if not has_name():
        users = gateway.jvm.org.apache.hadoop.security.UserGroupInformation
        users.setLoginUser(users.createRemoteUser("rebaser"))


@contextmanager
def _environment(ours: Mapping[str, str]) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in ours}
    os.environ.update(ours)
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value


def _active_context() -> SparkContext | None:
    return SparkContext._active_spark_context  # noqa: SLF001 - there is no other way


def _note_unheard(request: object, address: object) -> None:
    """Log, where PySpark prints a traceback: the JVM, which sends sums of tasks, was killed."""
    del request, address
    log.debug("sums of tasks not heard", reason=repr(sys.exception()))


def _why(code: int) -> str:
    """Return the signal that ended a process, in parentheses; empty if there was none."""
    if code == -signal.SIGKILL:
        return " (killed by SIGKILL, as when the machine is short of memory)"
    return f" (killed by {signal.Signals(-code).name})" if code < 0 else ""


def _end(gateway: JavaGateway, grace: float) -> None:
    """End the JVM, and make pyspark forget it: otherwise it would never start another."""
    context = _active_context()
    if context is not None:
        context._jsc = None  # noqa: SLF001 - or it would ask the JVM that has ended
        with suppress(Exception):  # a half made session must be forgotten, too
            context.stop()
        SparkContext._active_spark_context = None  # noqa: SLF001
    for holder, name in _REMEMBERED:
        setattr(holder, name, None)
    with suppress(Py4JError, OSError):
        gateway.shutdown()
    jvm: Popen[bytes] = gateway.proc
    if jvm.stdin is not None:
        jvm.stdin.close()  # the sign for it to go
    try:
        jvm.wait(grace)
    except TimeoutExpired:
        jvm.kill()
        jvm.wait()

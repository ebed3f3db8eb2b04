"""A JVM with a Spark session in it, as a child of this process.

Imports pyspark, hence is itself imported when the first session starts.
"""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from subprocess import Popen, TimeoutExpired
from typing import Any, Final

import pyspark
from py4j.java_gateway import JavaGateway
from py4j.protocol import Py4JError
from pyspark import SparkConf, SparkContext
from pyspark.errors import PySparkException
from pyspark.java_gateway import launch_gateway
from pyspark.sql import SparkSession

from rebaser_server.dvu.causes import cause_of, last_said
from rebaser_server.dvu.errors import SessionFailed
from rebaser_server.dvu.java import find_java
from rebaser_server.dvu.options import SparkOptions

GRACE: Final = 10.0
"""Seconds that a JVM may take to end by itself."""


class RunningSpark:
    """A session and the JVM that it runs in."""

    def __init__(self, spark: SparkSession, gateway: JavaGateway) -> None:
        self.spark = spark
        self.jvm_pid: int = gateway.proc.pid
        self._gateway = gateway
        self._java_context = spark.sparkContext._jsc.sc()  # noqa: SLF001 - what Python lacks
        # A socket file that pyspark never removes; a host and port if `extra` says so.
        self._address: Any = spark.sparkContext._accumulatorServer.server_address  # noqa: SLF001

    def is_usable(self) -> bool:
        try:
            return self._gateway.proc.poll() is None and not self._java_context.isStopped()
        except (Py4JError, OSError):
            return False

    def cancel(self, group: str) -> None:
        """End the group's jobs and any that it would start later. Does not wait for their ends."""
        with suppress(Py4JError, OSError):  # no JVM, no jobs
            self._java_context.cancelJobGroupAndFutureJobs(group)

    def tasks_done(self, group: str) -> int:
        done = 0
        with suppress(Py4JError, OSError):
            tracker = self.spark.sparkContext.statusTracker()
            for job_id in tracker.getJobIdsForGroup(group):
                job = tracker.getJobInfo(job_id)
                for stage_id in job.stageIds if job else ():
                    stage = tracker.getStageInfo(stage_id)
                    done += stage.numCompletedTasks if stage else 0
        return done

    def stop(self) -> None:
        """Return when the JVM has ended, of itself or by force."""
        if self.is_usable():
            with suppress(Py4JError, OSError):
                self.spark.stop()
        _end(self._gateway)
        if isinstance(self._address, str):
            Path(self._address).unlink(missing_ok=True)


def start(options: SparkOptions) -> RunningSpark:
    """Start a JVM and a session in it.

    Raises:
        SessionFailed: with the last that Spark said.
    """
    if options.remote is not None:
        raise SessionFailed("Spark Connect (sc://) is not supported yet: set a master instead")
    if SparkContext._active_spark_context is not None:  # noqa: SLF001 - starting would stop it
        raise SessionFailed("another part of this process has a Spark session")
    options.state_directory.mkdir(parents=True, exist_ok=True)
    java = find_java(options.state_directory, os.environ)
    with suppress(FileNotFoundError):
        options.log.replace(options.log.with_suffix(".log.1"))  # says why the last one ended
    settings = SparkConf(loadDefaults=False).setAll(list(options.settings().items()))
    gateway = None
    try:
        with _environment(options, java):
            gateway = _launch(settings, options.log)
            context = SparkContext(conf=settings, gateway=gateway)
        return RunningSpark(SparkSession(context), gateway)
    except (Py4JError, PySparkException, OSError, ValueError) as error:
        cause = cause_of(error)
        if gateway is not None:
            _end(gateway)
        else:
            cause = last_said(options.log.read_text(errors="replace")) or cause
        raise SessionFailed(f"Spark did not start: {cause} (see {options.log})") from error


def _launch(settings: SparkConf, log: Path) -> JavaGateway:
    with log.open("wb") as output:
        # Not in our process group: a signal to that would end Spark before what waits for it.
        outside: dict[str, Any] = {"stdout": output, "stderr": output, "start_new_session": True}
        return launch_gateway(settings, outside)  # type: ignore[no-untyped-call]  # not typed there


@contextmanager
def _environment(options: SparkOptions, java: Path) -> Iterator[None]:
    """What pyspark takes from the environment and nowhere else, while it starts."""
    ours = {
        "JAVA_HOME": str(java),
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_HOME": str(Path(pyspark.__file__).parent),
        "PYSPARK_SUBMIT_ARGS": "pyspark-shell",
    }
    if options.is_local:
        ours["SPARK_LOCAL_IP"] = "127.0.0.1"
    before = {name: os.environ.get(name) for name in ours}
    os.environ.update(ours)
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value


def _end(gateway: JavaGateway) -> None:
    """End the JVM, and let pyspark forget it: it would never start another."""
    context = SparkContext._active_spark_context  # noqa: SLF001 - there is no other way
    if context is not None:
        context._jsc = None  # noqa: SLF001 - or it would ask the JVM that has ended
        context.stop()
    SparkContext._gateway = SparkContext._jvm = None  # noqa: SLF001
    SparkSession._instantiatedSession = SparkSession._activeSession = None  # noqa: SLF001
    with suppress(Py4JError, OSError):
        gateway.shutdown()
    jvm: Popen[bytes] = gateway.proc
    if jvm.stdin is not None:
        jvm.stdin.close()  # the sign for it to go
    try:
        jvm.wait(GRACE)
    except TimeoutExpired:
        jvm.kill()
        jvm.wait()

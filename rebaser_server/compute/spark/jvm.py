"""A JVM with a Spark session in it, as a child of this process.

Imports pyspark, hence is itself imported when the first session starts.
"""

import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from subprocess import Popen, TimeoutExpired
from typing import Any, Final

from py4j.java_gateway import JavaGateway
from py4j.protocol import Py4JError
from pyspark import SparkConf, SparkContext
from pyspark.errors import PySparkException
from pyspark.java_gateway import launch_gateway
from pyspark.serializers import UTF8Deserializer, read_int
from pyspark.sql import SparkSession

from rebaser_server.compute.errors import SessionFailed, breakdown
from rebaser_server.compute.spark.error_text import last_log_line, root_cause
from rebaser_server.compute.spark.launch import CONNECTION, environment
from rebaser_server.compute.spark.options import SparkOptions
from rebaser_server.compute.spark.scratch import ScratchDirectory

GRACE: Final = 10.0
"""Seconds that a JVM may take to end by itself."""
_REMEMBERED: Final = (
    (SparkContext, "_gateway"),
    (SparkContext, "_jvm"),
    (SparkSession, "_instantiatedSession"),
    (SparkSession, "_activeSession"),
)
"""Where pyspark remembers the JVM that it has, and has no way to forget it."""
TRAINING_GRACE: Final = 300.0
"""Seconds likewise, while it writes what it has learnt."""


class JvmSession:
    """A session and the JVM that it runs in."""

    def __init__(
        self,
        spark: SparkSession,
        gateway: JavaGateway,
        scratch: ScratchDirectory,
        grace: float = GRACE,
    ) -> None:
        self.spark = spark
        self.jvm_pid: int | None = gateway.proc.pid
        self._gateway = gateway
        self._scratch = scratch
        self._grace = grace
        self._java_context = spark.sparkContext._jsc.sc()  # noqa: SLF001 - what Python lacks

    def is_usable(self) -> bool:
        try:
            return self._gateway.proc.poll() is None and not self._java_context.isStopped()
        except (Py4JError, OSError):
            return False

    @contextmanager
    def job(self, run: str) -> Iterator[SparkSession]:
        """The session; what this thread runs in it meanwhile is of this run."""
        # Not interrupted, a cancelled task has its Python process killed, within 3 s; interrupted,
        # it lets go of one that may never end.
        self.spark.sparkContext.setJobGroup(run, "dependent values update", interruptOnCancel=False)
        yield self.spark

    def cancel(self, run: str) -> None:
        """End the run's jobs and any that it would start later. Does not wait for their ends."""
        with suppress(Py4JError, OSError):  # no JVM, no jobs
            self._java_context.cancelJobGroupAndFutureJobs(run)

    def stop(self) -> None:
        """Return when the JVM has ended, of itself or by force, and its files are gone."""
        if self.is_usable():
            with suppress(Py4JError, OSError):
                self.spark.stop()
        _end(self._gateway, self._grace)
        self._scratch.close()


def start(
    options: SparkOptions, java: Path, scratch: ScratchDirectory, process: Popen[bytes] | None
) -> JvmSession:
    """A session in the JVM `process`, which is starting, or in one that Spark's scripts start.

    Raises:
        SessionFailed: with the last that Spark said; JVM and scratch files are gone.
    """
    gateway = None
    try:
        if _active_context() is not None:  # starting another would stop it
            raise SessionFailed("another part of this process has a Spark session")
        settings = SparkConf(loadDefaults=False).setAll(list(options.settings(scratch).items()))
        with _environment(environment(options, java, scratch)):
            if process is None:
                gateway = _launch(settings, options.log)
            else:
                gateway = _connect(process, scratch.directory / CONNECTION)
            context = SparkContext(conf=settings, gateway=gateway)
        grace = GRACE if options.training is None else TRAINING_GRACE
        return JvmSession(SparkSession(context), gateway, scratch, grace)
    except (Py4JError, PySparkException, OSError, ValueError) as error:
        cause = root_cause(error)
        if gateway is not None:
            _end(gateway, GRACE)
        else:
            cause = last_log_line(options.log.read_text(errors="replace")) or cause
        reason = f"Spark did not start: {cause} (see {options.log})"
        raise breakdown(SessionFailed, reason) from error
    finally:
        if gateway is None:
            if process is not None:
                process.kill()
                process.communicate()  # closes its pipe, too
            scratch.close()


def _launch(settings: SparkConf, log: Path) -> JavaGateway:
    with log.open("wb") as output:
        outside: dict[str, Any] = {"stdout": output, "stderr": output, "start_new_session": True}
        return launch_gateway(settings, outside)


def _connect(process: Popen[bytes], connection: Path) -> JavaGateway:
    """Let pyspark talk to a JVM that it did not start, as `spark-submit` has it do."""
    while not connection.exists():
        if process.poll() is not None:
            raise OSError(f"Java ended with exit code {process.returncode}")
        time.sleep(0.01)
    with connection.open("rb") as info:
        port = read_int(info)
        secret = UTF8Deserializer().loads(info)
    with _environment({"PYSPARK_GATEWAY_PORT": str(port), "PYSPARK_GATEWAY_SECRET": secret}):
        gateway = launch_gateway()
    gateway.proc = process
    return gateway


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


def _end(gateway: JavaGateway, grace: float) -> None:
    """End the JVM, and let pyspark forget it: it would never start another."""
    context = _active_context()
    if context is not None:
        context._jsc = None  # noqa: SLF001 - or it would ask the JVM that has ended
        context.stop()
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

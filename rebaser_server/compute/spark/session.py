"""Starts and stops the one Spark session of this process."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from subprocess import Popen
from threading import Lock
from typing import TYPE_CHECKING, Any

from rebaser_server.compute.errors import SessionFailed, breakdown
from rebaser_server.compute.spark.java import find_java
from rebaser_server.compute.spark.launch import launch
from rebaser_server.compute.spark.options import SparkOptions
from rebaser_server.compute.spark.scratch import ScratchDirectory
from rebaser_server.runtime.failures import EvaluatorAway
from rebaser_server.runtime.tasks import WorkThreads

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from rebaser_server.compute.spark.connect_session import ConnectSession
    from rebaser_server.compute.spark.jvm import JvmSession

    Running = JvmSession | ConnectSession


class SessionHolder:
    """At most one Spark session: started when first needed, and again when it was lost.

    All methods block and may be called from any thread. A JVM that it starts ends with this
    process, whichever way that ends, and Ctrl-C does not reach it.
    """

    def __init__(self, options: SparkOptions) -> None:
        self._options = options
        self._lock = Lock()
        self._running: Running | None = None
        self._starting: Popen[bytes] | None = None
        self._is_closed = False

    @contextmanager
    def job(self, run: str, about: str) -> Iterator["SparkSession"]:
        """The session, for this thread to run something in that is of this run.

        `about`: what Spark's own pages call the run.

        The first takes seconds, in which the session starts.

        Raises:
            SessionFailed: it cannot be started now, the next call tries again; or it is closed.
        """
        spark: Any  # Connect's session has the same methods as the other, and no common type
        with self._get().job(run, about) as spark:
            yield spark

    def _get(self) -> "Running":
        with self._lock:
            if self._is_closed:
                raise SessionFailed("the session is closed")
            if self._running is not None and self._running.end_reason() is not None:
                self._stop()
            if self._running is None:
                # On the main thread, Spark would take Ctrl-C over.
                with WorkThreads(1) as thread:
                    starting = thread.submit(_start, self._options, self._on_launched)
                    try:
                        self._running = starting.result()
                    except EvaluatorAway:
                        raise
                    except Exception as error:  # no place to write, or half installed
                        reason = f"Spark did not start: {error}"
                        raise breakdown(SessionFailed, reason) from error
                self._starting = None
            return self._running

    def _on_launched(self, process: Popen[bytes]) -> None:
        self._starting = process
        if self._is_closed:
            process.kill()

    @property
    def jvm_pid(self) -> int | None:
        running = self._running
        return None if running is None else running.jvm_pid

    def end_reason(self) -> str | None:
        """Why what ran in the session has ended with it; None if it goes on."""
        if self._is_closed:
            return "its session was closed"
        running = self._running
        return None if running is None else running.end_reason()

    def cancel(self, run: str) -> None:
        """End the jobs of this run, those that have not begun yet included.

        Does nothing without a session, and does not wait for the jobs' ends.
        """
        running = self._running
        if running is not None:
            running.cancel(run)

    def close(self) -> None:
        """End the session; whatever runs in it fails, and `job` from now on."""
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


def _start(options: SparkOptions, begun: Callable[[Popen[bytes]], None]) -> "Running":
    # Imported here and not above: pyspark costs most of a second, and many a process never
    # needs it. In this process's own JVM that second passes while the JVM starts.
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

"""Starts and stops the one Spark session of this process, and the JVM that it runs in."""

from concurrent.futures import ThreadPoolExecutor
from threading import Lock
from typing import TYPE_CHECKING

from rebaser_server.dvu.errors import SessionFailed
from rebaser_server.dvu.options import SparkOptions

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from rebaser_server.dvu.jvm import RunningSpark


class Session:
    """At most one Spark session: started when first needed, and again when it was lost.

    All methods block and may be called from any thread. The JVM ends with this process,
    whichever way that ends, and Ctrl-C does not reach it.
    """

    def __init__(self, options: SparkOptions) -> None:
        self._options = options
        self._lock = Lock()
        self._running: RunningSpark | None = None
        self._is_closed = False

    def get(self) -> "SparkSession":
        """The session; seconds later if it has to be started.

        Raises:
            SessionFailed: it cannot be started now, the next call tries again; or it is closed.
        """
        with self._lock:
            if self._is_closed:
                raise SessionFailed("the session is closed")
            if self._running is not None and not self._running.is_usable():
                self._stop()
            if self._running is None:
                # On the main thread, Spark would take Ctrl-C over.
                with ThreadPoolExecutor(1) as thread:
                    self._running = thread.submit(_start, self._options).result()
            return self._running.spark

    @property
    def jvm_pid(self) -> int | None:
        running = self._running
        return None if running is None else running.jvm_pid

    def end(self) -> str | None:
        """Why what ran in the session has ended with it; None if it goes on."""
        if self._is_closed:
            return "its session was closed"
        running = self._running
        return None if running is None or running.is_usable() else "its JVM ended"

    def cancel(self, group: str) -> None:
        """End the jobs of this group, those that have not begun yet included.

        Does nothing without a session, and does not wait for the jobs' ends.
        """
        running = self._running
        if running is not None:
            running.cancel(group)

    def tasks_done(self, group: str) -> int:
        """How many tasks of the group's jobs have succeeded; 0 without a session."""
        running = self._running
        return 0 if running is None else running.tasks_done(group)

    def close(self) -> None:
        """End the JVM; whatever runs in it fails, and `get` from now on."""
        with self._lock:
            self._is_closed = True
            self._stop()

    def _stop(self) -> None:
        if self._running is not None:
            self._running.stop()
            self._running = None


def _start(options: SparkOptions) -> "RunningSpark":
    # Here and not above: pyspark costs most of a second, and many a process never needs it.
    from rebaser_server.dvu import jvm  # noqa: PLC0415

    return jvm.start(options)

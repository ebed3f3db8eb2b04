"""A session on a Spark Connect server: no JVM here, and one cluster for many such processes.

Imports pyspark's Connect client, hence is itself imported when the first session starts.
"""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Final

from grpc import RpcError
from pyspark.errors import PySparkException
from pyspark.sql.connect.session import SparkSession

from rebaser_server.dvu.causes import cause_of
from rebaser_server.dvu.errors import SessionFailed
from rebaser_server.dvu.options import SparkOptions, per_session

_LOST: Final = (PySparkException, RpcError, OSError)


class RemoteSpark:
    """A session of our own on a server that is not ours."""

    jvm_pid: int | None = None

    def __init__(self, spark: SparkSession) -> None:
        self.spark = spark
        self._is_doubtful = False

    def is_usable(self) -> bool:
        if not self._is_doubtful:
            return True
        try:
            self._is_doubtful = not self.spark.version  # asks the server
        except _LOST:
            return False
        return not self._is_doubtful

    @contextmanager
    def job(self, run: str) -> Iterator[SparkSession]:
        """The session; what this thread runs in it meanwhile is of this run."""
        self.spark.addTag(run)
        try:
            yield self.spark
        except _LOST:
            self._is_doubtful = True
            raise
        finally:
            self.spark.removeTag(run)

    def cancel(self, run: str) -> None:
        """End what the run has begun. Does not wait for its end."""
        with suppress(*_LOST):
            self.spark.interruptTag(run)

    def tasks_done(self, _run: str) -> int:
        return 0  # the server tells of operations, not of runs

    def stop(self) -> None:
        """Let the server forget the session, and what runs in it."""
        with suppress(*_LOST):
            self.spark.interruptAll()
        with suppress(*_LOST):
            self.spark.stop()


def start(options: SparkOptions) -> RemoteSpark:
    """Raises `SessionFailed`: nobody there, or not a server that we can use."""
    try:
        spark = SparkSession.builder.remote(options.remote or "").create()
        for name, value in per_session(options).items():
            spark.conf.set(name, value)
    except (*_LOST, ValueError) as error:
        raise SessionFailed(f"no Spark Connect at {options.remote}: {cause_of(error)}") from error
    return RemoteSpark(spark)

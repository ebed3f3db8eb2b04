"""A session on a Spark Connect server: no JVM here, and one cluster for many such processes.

The module imports pyspark's Connect client, so it is imported when the first session starts.
"""

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from tempfile import NamedTemporaryFile
from threading import Thread
from typing import Any, Final

from grpc import RpcError
from pyspark.errors import PySparkException
from pyspark.sql.connect.client import ChannelBuilder, DefaultChannelBuilder
from pyspark.sql.connect.client.retries import DefaultPolicy
from pyspark.sql.connect.session import SparkSession
from pyspark.sql.connect.shell.progress import ProgressHandler, StageInfo

from rebaser_server.compute.errors import SessionFailed
from rebaser_server.compute.spark.options import (
    SparkOptions,
    require_supported,
    root_cause,
    session_settings,
)
from rebaser_server.settings.redaction import redact_url

MAX_ATTEMPTS: Final = 15
"""Maximum number of attempts of a call that the server does not answer: a minute. Spark's own ten
take too long for a waiting update, which another attempt would bring on."""
_MAX_BACKOFF: Final = 5_000  # milliseconds between two

_MODE: Final = "SPARK_CONNECT_MODE_ENABLED"
"""Variable by which `pyspark.sql.functions` makes columns of Connect, in functions of others."""

_LOST: Final = (PySparkException, RpcError, OSError)


class _Steps(ProgressHandler):
    """Tasks of a query that are done, as the server reports now and then."""

    done = 0

    def __call__(
        self,
        stages: Iterable[StageInfo] | None,
        inflight_tasks: int,
        operation_id: str | None,
        done: bool,  # noqa: FBT001 - as pyspark calls it
    ) -> None:
        del inflight_tasks, operation_id, done
        self.done = sum(stage.num_completed_tasks for stage in stages or ())


class _NotedSteps(_Steps):
    """Steps that another process reads, as the size of a file."""

    def __init__(self, file: Path) -> None:
        self._file = file

    def __call__(self, *args: Any, **keywords: Any) -> None:
        before = self.done
        super().__call__(*args, **keywords)
        if self.done != before:
            with suppress(OSError), self._file.open("a") as file:
                file.write(".")


@dataclass(frozen=True, slots=True)
class ConnectEntrance:
    """An `Entrance`: the address of a server, and one session's name there."""

    remote: str = field(repr=False)
    session: str
    steps: Path
    """File that grows while tasks are done."""

    def enter(self) -> SparkSession:
        os.environ[_MODE] = "1"
        own = _connect(self.remote, self.session)
        own.registerProgressHandler(_NotedSteps(self.steps))
        SparkSession._set_default_and_active_session(own)  # noqa: SLF001 - as its builder does
        return own


class ConnectSession:
    jvm_pid: int | None = None

    def __init__(self, spark: SparkSession, settings: Mapping[str, str], remote: str) -> None:
        self.spark = spark
        self._remote = remote
        self._settings = settings
        self._queries: dict[str, SparkSession] = {}
        """Sessions of queries, by their runs."""
        self._steps: dict[str, _Steps | Path] = {}
        """Steps of queries; of calls the files that grow with these."""
        self._is_doubtful = False
        """Whether a run has failed since the server last answered."""
        self._end_reason: str | None = None

    def end_reason(self) -> str | None:
        if self._is_doubtful and self._end_reason is None:
            try:
                self._is_doubtful = not self._has(self._settings)
            except Exception as error:  # noqa: BLE001 - also of a channel that was closed
                self._end_reason = f"its Spark Connect server lost it: {root_cause(error)}"
        return self._end_reason

    def _has(self, settings: Mapping[str, str]) -> bool:
        """Ask the server for these settings; pyspark knows most else by itself, as `version`."""
        if any(self.spark.conf.get(name, None) != value for name, value in settings.items()):
            raise SessionFailed("the session there is another one")
        return True

    @contextmanager
    def job(self, run: str, about: str) -> Iterator[SparkSession]:
        del about  # a server's jobs have tags and no names
        self.spark.addTag(run)
        try:
            yield self.spark
        except Exception:  # the run may raise anything
            self._is_doubtful = True
            raise
        finally:
            self.spark.removeTag(run)

    @contextmanager
    def query(self, run: str, about: str) -> Iterator[SparkSession]:
        del about
        try:
            own = self._queries[run] = _connect(self._remote)
            self._steps[run] = steps = _Steps()
            own.registerProgressHandler(steps)
            yield own
        except Exception:  # the run may raise anything
            self._is_doubtful = True
            raise
        finally:
            self._steps.pop(run, None)
            if (ended := self._queries.pop(run, None)) is not None:
                with suppress(*_LOST):
                    ended.stop()

    @contextmanager
    def call(self, run: str, about: str) -> Iterator[ConnectEntrance]:
        """Yield an entrance to a session that one process and the run have alone."""
        with NamedTemporaryFile() as noted, self.query(run, about) as own:
            self._steps[run] = steps = Path(noted.name)
            yield ConnectEntrance(self._remote, own.session_id, steps)

    def steps(self, run: str) -> int:
        steps = self._steps.get(run)
        if isinstance(steps, Path):
            with suppress(OSError):  # the run has just ended
                return steps.stat().st_size
        return steps.done if isinstance(steps, _Steps) else 0

    def slots(self) -> int | None:
        """Tasks that run at a time on the server's cluster as it is now; None if it does not say.

        Asked in another session: in ours, each row of a table is a task.
        """
        asking = _connect(self._remote)
        try:
            plan = asking.sql("EXPLAIN SELECT * FROM range(1)").toArrow().column(0)[0].as_py()
        finally:
            asking.stop()
        splits = re.search(r"splits=(\d+)", plan)
        return int(splits[1]) if splits else None

    def cancel(self, run: str) -> None:
        """End the work of the run. Does not wait for its end."""
        # Another thread does it, since a call to a lost server is retried for a minute.
        Thread(target=self._interrupt, args=(run,), daemon=True).start()

    def reap(self) -> None:
        """Do nothing: what becomes of tasks that go on is the server's concern."""

    def _interrupt(self, run: str) -> None:
        with suppress(*_LOST, ValueError):  # the channel may be closed meanwhile
            own = self._queries.get(run)
            if own is None:
                self.spark.interruptTag(run)
            else:
                own.interruptAll()

    def stop(self) -> None:
        """Make the server forget the session, and end its work, if the server is there at all."""
        # A server that has lost the session is not called: a call may be retried for a minute.
        if self._end_reason is not None:
            with suppress(*_LOST):
                self.spark.client.close()
            return
        with suppress(*_LOST):
            self.spark.interruptAll()
        with suppress(*_LOST):
            self.spark.stop()


def start(options: SparkOptions) -> ConnectSession:
    """Start a session; raise `SessionFailed` if no server is there, or none that we can use."""
    where = redact_url(options.remote or "")
    try:
        spark = _connect(options.remote or "")
        SparkSession._set_default_and_active_session(spark)  # noqa: SLF001 - as its builder does
        try:
            require_supported(spark.version, f"at {where}", client=version("pyspark"))
        except SessionFailed:
            spark.stop()
            raise
        for name, value in session_settings(options).items():
            spark.conf.set(name, value)
    except (*_LOST, ValueError) as error:
        raise SessionFailed(
            f"no Spark Connect server answers at {where}: {root_cause(error)}; start it, "
            "or set REBASER_SPARK__MASTER to where it is"
        ) from error
    return ConnectSession(spark, session_settings(options), options.remote or "")


def _connect(remote: str, session: str | None = None) -> SparkSession:
    """Return a session there: a new one, or one that another process has named."""
    channel = DefaultChannelBuilder(remote)
    if session is not None:
        channel.set(ChannelBuilder.PARAM_SESSION_ID, session)
    # Without its builder, which would call the server before its patience can be set.
    spark = SparkSession(connection=channel)
    spark.client.set_retry_policies([DefaultPolicy(MAX_ATTEMPTS, max_backoff=_MAX_BACKOFF)])
    return spark

"""The Spark settings of a session, and why each is what it is."""

import os
import pwd
import re
import shlex
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from rebaser_server.compute.errors import SessionFailed
from rebaser_server.compute.spark.cds_archive import default_directory
from rebaser_server.compute.spark.scratch import ScratchDirectory
from rebaser_server.settings.settings import SECRET_NAME

REDACTION: Final = {"spark.redaction.regex": rf"{SECRET_NAME.pattern}|://[^/\s]+@"}
"""What Spark masks on its pages, in event logs and in its own log, by names and values: as we do,
and URLs with a password."""

_HERE = Path(__file__).parent
_OPTION: Final = re.compile(r"""(?:'[^']*'|"(?:[^"\\]|\\.)*"|\\.|[^\s'"\\])+""", re.DOTALL)
_QUOTED: Final = re.compile(r"""'([^']*)'|"((?:[^"\\]|\\.)*)"|\\(.)""", re.DOTALL)
_ESCAPED: Final = re.compile(r"\\(.)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class SparkOptions:
    """Where Spark runs and what it may use."""

    state_directory: Path
    """For the log, scratch files and, if the machine has none, a Java. Ours alone."""
    master: str = "local[*]"
    remote: str | None = None
    """`sc://…`, a Spark Connect server to use instead of `master`."""
    driver_memory: str = "1g"
    extra: Mapping[str, str] = field(default_factory=dict)
    """More Spark settings, stronger than ours."""
    archives: Path = field(default_factory=default_directory)
    """Where archives of loaded classes lie, see `cds_archive`."""
    training: Path | None = None
    """Where to leave a new one when the session ends."""
    slots_override: int | None = None
    """`slots`, if the settings have them."""

    @property
    def is_local(self) -> bool:
        return self.remote is None and self.master.startswith("local")

    @property
    def slots(self) -> int:
        """Units evaluated at a time; for a cluster, whose size may change, a fair guess."""
        if self.slots_override is not None:
            return self.slots_override
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
        threads = re.fullmatch(r"local(?:\[(\d+|\*)(?:,.*)?\])?", self.master)
        if threads is None or self.remote is not None:
            return int(self.extra.get("spark.cores.max", "16"))
        if threads[1] == "*":
            return cores or 1
        return int(threads[1] or 1)

    @property
    def log(self) -> Path:
        """What Spark and the functions that it runs print."""
        return self.state_directory / "spark.log"

    def settings(self, scratch: ScratchDirectory) -> dict[str, str]:
        """What the session is started with. Nothing is written outside `state_directory`."""
        ours = _common(self, scratch) | session_settings(self)
        return ours | (_local(scratch) if self.is_local else {}) | dict(self.extra)


def session_settings(options: SparkOptions) -> dict[str, str]:
    """What a session needs wherever it runs, and can set by itself on a server that is not ours."""
    return {
        # A partition for each row of a local table: each unit is a task.
        "spark.sql.leafNodeDefaultParallelism": "100000",
        **(options.extra if options.remote is not None else {}),
    }


def join_java_options(options: Iterable[str]) -> str:
    """Options of a JVM as one text, which Spark splits into the same options again."""
    return shlex.join(options)


def split_java_options(text: str) -> list[str]:
    """The options that Spark reads in such a text: blanks part them, unless quoted or escaped.

    Raises:
        SessionFailed: a quote is not closed, or the last character is a backslash.
    """
    if _OPTION.sub("", text).strip():
        raise SessionFailed(
            "spark.driver.extraJavaOptions in REBASER_SPARK__CONF ends within quotes or after a "
            "backslash: close the quotes, or write the backslash twice"
        )
    return [_QUOTED.sub(_unquote, option) for option in _OPTION.findall(text)]


def _unquote(quoted: re.Match[str]) -> str:
    single, double, escaped = quoted.groups(default="")
    return single + _ESCAPED.sub(r"\1", double) + escaped


def hadoop_uri(path: Path) -> str:
    """A path of this machine for what Spark gives to Hadoop, which decodes no `%20`."""
    return f"file://{path}"


def has_name() -> bool:
    """Whether the system knows this process's user by a name: Java and Hadoop take that for sure.

    In a container that was given any number to run under, it does not.
    """
    try:
        pwd.getpwuid(os.getuid())
    except KeyError:
        return False
    return True


def _common(options: SparkOptions, scratch: ScratchDirectory) -> dict[str, str]:
    return {
        "spark.app.name": "rebaser",
        "spark.master": options.master,
        "spark.driver.memory": options.driver_memory,
        "spark.driver.extraJavaOptions": join_java_options(_java_options(options, scratch)),
        "spark.ui.enabled": "false",
        **REDACTION,
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.warehouse.dir": hadoop_uri(options.state_directory / "warehouse"),
        "spark.sql.catalogImplementation": "in-memory",
        # Change sets take turns, see the file.
        "spark.scheduler.mode": "FAIR",
        "spark.scheduler.allocation.file": hadoop_uri(_HERE / "fair.xml"),
        # A task carries its unit: MiB, the default 128 is a million values.
        "spark.rpc.message.maxSize": "1024",
        # How long after a cancellation a function that does not return is killed.
        "spark.python.task.killTimeout": "300ms",
        # The first saves 40 ms a job; the second is what makes a job take less than 300.
        "spark.python.unix.domain.socket.enabled": "true",
        "spark.python.worker.reuse": "true",
    }


def _local(scratch: ScratchDirectory) -> dict[str, str]:
    return {
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.local.dir": str(scratch.listable),
        "spark.python.unix.domain.socket.dir": str(scratch.sockets),
        # Forks workers that have imported what they need.
        "spark.python.daemon.module": "rebaser_server.compute.spark.worker_daemon",
    }


def _java_options(options: SparkOptions, scratch: ScratchDirectory) -> list[str]:
    log4j = (_HERE / "log4j2.properties").as_uri()
    # Where a cluster's driver has its sockets, too: what is said of executors' must hold for them.
    temporary = scratch.directory if options.is_local else scratch.sockets
    always = [
        f"-Dlog4j2.configurationFile={log4j}",
        f"-Djava.io.tmpdir={temporary}",
        "-XX:-UsePerfData",  # which lies in /tmp
        *([] if has_name() else ["-Duser.name=rebaser", f"-Duser.home={options.state_directory}"]),
    ]
    # A local JVM mostly hands bytes on: what starts fastest and needs least suits it.
    return [*always, "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"] if options.is_local else always

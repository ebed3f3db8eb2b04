"""The Spark settings of a session, and the reason for each.

`ScratchDirectory` is for temporary files of one JVM and its Python workers.

The JVM's archive of loaded classes more than halves the time that Spark takes to start. It is
trained once, for one Java and one set of jars (JEP 350; from Java 25 on JEP 514). A JVM that it
does not fit starts without it.

`root_cause` finds the one line that says what went wrong, out of the hundred that Spark and Java
print.
"""

import fcntl
import os
import pwd
import re
import shlex
import shutil
import sys
import tempfile
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Final
from uuid import uuid4

from rebaser_server.compute.errors import SessionFailed
from rebaser_server.settings.redaction import SECRET_NAME

OLDEST_SPARK: Final = (4, 0)
NEWEST_SPARK: Final = (4, 3)
"""Minor versions of Spark that Rebaser runs with; the extra `server` has the same."""

_PREFIX: Final = "rebaser-"
_MAX_SOCKET_PATH: Final = 60
"""Maximum bytes of a directory for sockets: an address has 108, and the names in it are long."""
_PLAIN: Final = re.compile(r"[\w./@+=~-]+", re.ASCII)
_TEMPORARY: Final = ("/tmp", "/var/tmp")  # noqa: S108 - a directory that only we may enter is made


def require_supported(spark: str, where: str, client: str | None = None) -> None:
    """Raise `SessionFailed` if Rebaser does not run with this version of Spark.

    `client`: the version installed here, if `spark` is a server's, which reads requests of
    clients of its own minor version and of older ones.
    """
    found = _minor(spark)
    if not OLDEST_SPARK <= found <= NEWEST_SPARK:
        oldest, newest = (".".join(map(str, each)) for each in (OLDEST_SPARK, NEWEST_SPARK))
        raise SessionFailed(
            f"{where} is Spark {spark}, and Rebaser runs with Spark {oldest} to {newest}: "
            "install one of these, or another release of Rebaser"
        )
    if client is not None and found < _minor(client):
        raise SessionFailed(
            f"{where} is Spark {spark}, which does not read all requests of the newer {client} "
            f"that is installed here: install 'pyspark=={found[0]}.{found[1]}.*' here, or a newer "
            "Spark there"
        )


def _minor(spark: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", spark)[:2])


def plain_directory() -> Path:
    """Return a new directory with a short name, which has no special character for any program."""
    for parent in (tempfile.gettempdir(), *_TEMPORARY):
        if _is_plain(Path(parent) / f"{_PREFIX}12345678"):
            with suppress(OSError):
                return Path(tempfile.mkdtemp(prefix=_PREFIX, dir=parent))
    return Path(tempfile.mkdtemp(prefix=_PREFIX))


def _is_plain(path: Path) -> bool:
    return bool(_PLAIN.fullmatch(str(path))) and len(str(path)) <= _MAX_SOCKET_PATH


class ScratchDirectory:
    """A directory that goes with `close`, or else when any process makes the next one beside it.

    The directory of a living process is left alone: it holds a lock.
    """

    def __init__(self, parent: Path) -> None:
        parent.mkdir(parents=True, exist_ok=True)
        for lock in parent.glob("*.lock"):
            _remove_if_dead(lock)
        self.directory: Final = parent / uuid4().hex[:12]
        # The lock comes first: a directory without a lock file would stay if this process died.
        self._lock = _locked(self.directory.with_suffix(".lock"))
        self.directory.mkdir()
        self.sockets: Final = self.directory if _is_plain(self.directory) else plain_directory()
        os.write(self._lock, os.fsencode(self.sockets))  # for a process that has to clear it away

    @property
    def listable(self) -> Path:
        """Directory for settings that take several, with commas between them."""
        return self.sockets if "," in str(self.directory) else self.directory

    def close(self) -> None:
        shutil.rmtree(self.sockets, ignore_errors=True)
        shutil.rmtree(self.directory, ignore_errors=True)
        self.directory.with_suffix(".lock").unlink(missing_ok=True)
        os.close(self._lock)


def _locked(path: Path) -> int:
    lock = os.open(path, os.O_CREAT | os.O_RDWR, 0o600)
    fcntl.flock(lock, fcntl.LOCK_EX)
    if not path.exists():  # taken for one that was left behind, in between
        os.close(lock)
        return _locked(path)
    return lock


def _remove_if_dead(path: Path) -> None:
    with suppress(OSError):  # it is in use, or another process removes it
        lock = os.open(path, os.O_RDWR)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            sockets = Path(os.fsdecode(os.read(lock, 4096)))
            if sockets.name.startswith(_PREFIX):
                shutil.rmtree(sockets, ignore_errors=True)
            shutil.rmtree(path.with_suffix(""), ignore_errors=True)
            path.unlink()
        finally:
            os.close(lock)


_AOT: Final = 25
"""Java version from which the archive also has the results of linking and profiling."""


def default_directory() -> Path:
    """Return the directory beside the installed packages: made for them, and gone with them."""
    return Path(sys.prefix) / "share" / "rebaser"


def archive_path(directory: Path, java: Path) -> Path | None:
    """Return the path of the archive for this Java and this Spark; None for an odd Java."""
    release = _release(java)
    if release is None:
        return None
    ending = "aot" if int(re.split(r"\D", release)[0]) >= _AOT else "jsa"
    return directory / f"spark-{version('pyspark')}-java-{release}.{ending}"


def jvm_options(archive: Path) -> list[str]:
    if not archive.exists():
        return []
    if archive.suffix == ".aot":
        return [f"-XX:AOTCache={archive}", "-Xlog:aot=off,cds=off"]
    return [f"-XX:SharedArchiveFile={archive}", "-Xshare:auto", "-Xlog:cds=off"]


def training_options(archive: Path) -> list[str]:
    """Return options of a JVM that shall write the archive as it ends."""
    if archive.suffix == ".aot":
        return [f"-XX:AOTCacheOutput={archive}", "-Xlog:aot=off,cds=off"]
    return [f"-XX:ArchiveClassesAtExit={archive}", "-Xlog:cds=off", "-Xlog:cds+dynamic=off"]


def _release(java: Path) -> str | None:
    """Return the version of the Java at this home, from the file that every JDK has."""
    try:
        version = re.search(
            r'^JAVA_VERSION="([\w.+-]+)"', (java / "release").read_text(), re.MULTILINE
        )
    except OSError:
        return None
    return version[1] if version else None


REDACTION: Final = {"spark.redaction.regex": rf"{SECRET_NAME.pattern}|://[^/\s]+@"}
"""Settings for what Spark masks on its pages, in event logs and in its own log, by names and
values: as we do, and URLs with a password."""

_HERE = Path(__file__).parent
_OPTION: Final = re.compile(r"""(?:'[^']*'|"(?:[^"\\]|\\.)*"|\\.|[^\s'"\\])+""", re.DOTALL)
_QUOTED: Final = re.compile(r"""'([^']*)'|"((?:[^"\\]|\\.)*)"|\\(.)""", re.DOTALL)
_ESCAPED: Final = re.compile(r"\\(.)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class SparkOptions:
    """Place where Spark runs, and limits of what it may use."""

    state_directory: Path
    """Directory for the log, scratch files and, if the machine has none, a Java. Ours alone."""
    master: str = "local[*]"
    """Master of Spark, or `sc://…`, a Spark Connect server."""
    for_tables: bool = False
    """Whether queries run in it, and not only functions."""
    extra: Mapping[str, str] = field(default_factory=dict)
    """Further Spark settings, which override ours."""
    archives: Path = field(default_factory=default_directory)
    """Directory of archives of loaded classes."""
    training: Path | None = None
    """Path of a new archive to write when the session ends."""

    @property
    def remote(self) -> str | None:
        return self.master if self.master.startswith("sc://") else None

    @property
    def is_local(self) -> bool:
        return self.master.startswith("local")

    @property
    def slots(self) -> int:
        """Number of units evaluated at a time; for a cluster, a guess until its session says it."""
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
        threads = re.fullmatch(r"local(?:\[(\d+|\*)(?:,.*)?\])?", self.master)
        if threads is None:
            return int(self.extra.get("spark.cores.max", "16"))
        if threads[1] == "*":
            return cores or 1
        return int(threads[1] or 1)

    @property
    def heap(self) -> str:
        return self.extra.get("spark.driver.memory") or ("2g" if self.for_tables else "1g")

    @property
    def log(self) -> Path:
        return self.state_directory / "spark.log"

    def settings(self, scratch: ScratchDirectory) -> dict[str, str]:
        """Return the session's settings. Nothing is written outside `state_directory`."""
        ours = _common(self, scratch) | session_settings(self)
        return ours | (_local(scratch) if self.is_local else {}) | dict(self.extra)


def session_settings(options: SparkOptions) -> dict[str, str]:
    """Return settings that a session needs anywhere, and can set on a server that is not ours."""
    return {
        # A partition for each row of a local table: each unit is a task.
        "spark.sql.leafNodeDefaultParallelism": "100000",
        **(options.extra if options.remote is not None else {}),
    }


def join_java_options(options: Iterable[str]) -> str:
    """Return options of a JVM as one text, which Spark splits into these options again."""
    return shlex.join(options)


def split_java_options(text: str) -> list[str]:
    """Return the options in such a text: blanks part them, unless quoted or escaped.

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
    """Return a path of this machine for Spark to give to Hadoop, which decodes no `%20`."""
    return f"file://{path}"


def has_name() -> bool:
    """Whether the system has a name for this process's user, as Java and Hadoop expect.

    In a container that runs under an arbitrary number, it has none.
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
        "spark.driver.memory": options.heap,
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
        # Time after a cancellation at which a function that does not return is killed.
        "spark.python.task.killTimeout": "300ms",
        # What does not heed its cancellation ends its executor: else it would keep a slot for ever.
        # On a local master it does not; `JvmSession.reap` does, after as long.
        "spark.task.reaper.enabled": "true",
        "spark.task.reaper.killTimeout": "5s",
        "spark.task.reaper.pollingInterval": "1s",
        # No query runs a method or a program; tables.judge is the first fence.
        "spark.sql.restrictedMode.enabled": "true",
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
        "-XX:-UsePerfData",  # its data would lie in /tmp
        *([] if has_name() else ["-Duser.name=rebaser", f"-Duser.home={options.state_directory}"]),
    ]
    if not options.is_local:
        return always
    if options.for_tables:  # it computes: code that is compiled best, and a fast collector
        return [*always, "-XX:+UseParallelGC"]
    # It mostly hands bytes on: what starts fastest and needs least suits it.
    return [*always, "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]


_TRACEBACK: Final = "Traceback (most recent call last):"
_ABORTED: Final = re.compile(
    r"Job aborted due to stage failure: (?:.*most recent failure: .*?\): )?(?P<cause>.*)"
)
_CAUSED_BY: Final = re.compile(r"^(?:Caused by)?: (.*)", re.MULTILINE)
_JAVA_CLASS: Final = re.compile(r"^(?:[a-z_]\w*\.)+[A-Z][\w$]*: ?")
_PYTHON_ERROR: Final = re.compile(
    r"^\s*((?!java|org\.)[\w.]+(?:Error|Exception): .*)$", re.MULTILINE
)
_RAISED: Final = re.compile(r"((?!java|org\.)[A-Za-z_][\w.]*)(?::|$)")
"""The last line of a traceback, the first that is not indented."""
_NOISE: Final = re.compile(r"at |\.\.\. |WARNING: |Error: (A fatal|Could not create)|\S+ WARN ")


_RPC: Final = re.compile(
    r"RPC that terminated with:\s+status = StatusCode\.(?P<status>\w+)\s+"
    r'details = "(?P<details>.*)"'
)
_REMEDIES: Final = {
    r"NotFoundException: org\.apache\.spark|Error loading java\.security|Too many open files": (
        "Spark could not open its files, more than 300: raise the limit of open files, which "
        "`ulimit -Hn` shows, to 1024 or more"
    ),
    r"getSubject is": "this Spark needs an older Java: install Java 17 or 21 and set JAVA_HOME",
    (
        r"Invalid \w+ heap|Could not reserve|[Ii]nsufficient (driver )?memory|OutOfMemory|SIGKILL"
        r"|exceeds the max"
    ): (
        "give the machine or the container more memory, or set spark.driver.memory in "
        "REBASER_SPARK__CONF"
    ),
    r"BindException|assign requested address|Service '\w+' failed after": (
        "set spark.driver.port, or spark.driver.bindAddress and spark.driver.host to an address "
        "of this machine, in REBASER_SPARK__CONF"
    ),
    r"No space left|[Qq]uota exceeded": (
        "make room in REBASER_SPARK__STATE_DIRECTORY (on a cluster, in its executors' folders, "
        "too), or set it to another directory"
    ),
    r"UnknownHost|service not known|masters are unresponsive|(Invalid|parse) [Mm]aster URL": (
        "see that a master answers at REBASER_SPARK__MASTER"
    ),
}
"""Pattern of the reason why Spark did not do its work → what to do about it."""


def root_cause(error: BaseException) -> str:
    """Return the cause in an error of pyspark, whose text has all frames of an exception."""
    text = str(error).strip() or type(error).__name__
    if rpc := _RPC.search(text):
        said = rpc["details"].replace('\\"', '"').split("\\n")[0]
        return f"{said} ({rpc['status']})" if said else rpc["status"]
    last = text.splitlines()[-1]
    if _TRACEBACK in text and not _CAUSED_BY.search(text) and not last.lstrip().startswith("at "):
        return last
    if aborted := _ABORTED.search(text):
        cause = _JAVA_CLASS.sub("", aborted["cause"]).strip()
        python_error = _PYTHON_ERROR.search(text, aborted.end())
        return cause if cause or python_error is None else python_error[1]
    causes = _CAUSED_BY.findall(text)
    return _JAVA_CLASS.sub("", causes[-1]) if causes else text.splitlines()[0]


_WORDS_OF_MISTAKE: Final = 600
"""Maximum number of characters of the message about a mistake in a query."""


def query_mistake(error: BaseException) -> str | None:
    """Return what is wrong with a query, its data or a function; None for another kind of error.

    Spark gives each error condition that a query can bring about a name; a lost executor, a full
    disk or an end of the session has none, or one of its own.
    """
    if type(error).__name__ == "PythonException":  # a function of rows raised it, or our own tasks
        name = (python_error_name(error) or "").rpartition(".")[2]
        if name in _OF_STORE:
            return None
        if name in _OF_TABLES:
            return root_cause(error).partition(": ")[2]
        places = [place for place in _PLACES.findall(str(error)) if "/pyspark/" not in place[0]]
        at = ", ".join(f"{file.rpartition('/')[2]}:{line} in {name}" for file, line, name in places)
        return root_cause(error)[:_WORDS_OF_MISTAKE] + (f" (at {at[:_PLACE_LENGTH]})" if at else "")
    condition = getattr(error, "getCondition", lambda: None)()
    message = str(error)
    if condition is None:  # of a query in an expression, PySpark hands on the error around it
        message = root_cause(error)
        named = re.match(r"\[([A-Z][A-Z_.]+)\]", message)
        condition = named and named[1]
    if condition is None or condition.startswith(_NO_MISTAKES):
        return None
    message = message.split("\n== SQL")[0].splitlines()[0]
    return _SETTINGS.sub("", message).rstrip("; ")[:_WORDS_OF_MISTAKE]


_OF_STORE: Final = ("StoreFailed", "DiskFull")
_OF_TABLES: Final = ("TableDamaged", "TableMissing")
"""Errors that `table_tasks` raises."""
_SETTINGS: Final = re.compile(r"\s*SQLSTATE: \w+|\s+[A-Z][^.]*?\bspark(\.\w+)+[^.]*\.")
"""Parts of a message that are of no use: a code, and sentences about settings of Spark, which the
author of a query cannot change."""
_PLACE_LENGTH: Final = 300
_PLACES: Final = re.compile(r'^ *File "(.*)", line (\d+), in (\S+)', re.MULTILINE)
"""Lines of a traceback that name a file."""
_NO_MISTAKES: Final = (
    *("CONNECT", "FAILED_READ_FILE", "INTERNAL_ERROR", "INVALID_HANDLE", "JVM", "OPERATION_"),
    *("SESSION", "SPARK_JOB_CANCELLED", "TASK_WRITE_FAILED", "UNABLE_TO_ACQUIRE_MEMORY"),
)
"""Beginnings of the names of conditions that no query brings about."""


def is_of_spark(error: BaseException) -> bool:
    """Whether an error is one of pyspark's classes, or of what it calls Spark by."""
    return any(
        kind.__module__.startswith(("pyspark.", "py4j.", "grpc")) for kind in type(error).mro()
    )


def python_error_name(error: BaseException) -> str | None:
    """Return the class of the error that a Python worker's code raised; None for another cause."""
    text = str(error)
    lines = text[text.rindex(_TRACEBACK) :].splitlines() if _TRACEBACK in text else []
    matches = filter(None, map(_RAISED.match, lines[1:]))
    raised = next(matches, None)
    return None if raised is None else raised[1]


def with_remedy(cause: str) -> str:
    """Return the reason why Spark did not start or complete a run, and the remedy, if known."""
    remedies = (remedy for pattern, remedy in _REMEDIES.items() if re.search(pattern, cause))
    return "; ".join([cause, *remedies])


def last_log_line(log: str) -> str:
    """Return the last line that an ended JVM has printed; empty if no line matters."""
    lines = [line.strip() for line in log.splitlines()]
    return next((line for line in reversed(lines) if line and not _NOISE.match(line)), "")

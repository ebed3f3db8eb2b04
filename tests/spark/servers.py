"""Spark that is not ours: a standalone cluster and a Connect server, on loopback."""

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from rebaser_server.compute.spark.launch import MODULES, find_java, spark_home
from tests.helpers.graph_builder import children, eventually
from tests.helpers.paths import ROOT

HERE = "127.0.0.1"


async def listening(port: int) -> None:
    def is_listening() -> bool:
        with socket.socket() as probe:
            return probe.connect_ex((HERE, port)) == 0

    await eventually(is_listening, within=300)


class Jvm:
    """One of Spark's, with what its image would have: our packages, and functions if any."""

    def __init__(
        self, directory: Path, name: str, main: str, *arguments: str, **settings: str
    ) -> None:
        self._directory = directory
        self._name = name
        self._home = find_java(directory, os.environ)
        properties = [f"-D{key}={value}" for key, value in settings.items()]
        self._scratch = directory / f"{name}-files"
        self._command = [
            str(self._home / "bin" / "java"), "-cp", f"{spark_home()}/jars/*", "-Xmx512m",
            "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", f"-Djava.io.tmpdir={self._scratch}",
            *properties, *MODULES, main, *arguments,
        ]  # fmt: skip
        self._environment = os.environ | {
            "SPARK_HOME": str(spark_home()), "PYSPARK_PYTHON": sys.executable,
            "SPARK_SCALA_VERSION": "2.13",  # which the scripts say
            "JAVA_HOME": str(self._home), "SPARK_LOCAL_IP": HERE,
            "SPARK_LOCAL_DIRS": str(self._scratch),
            "PYTHONPATH": os.pathsep.join(_paths()), "TMPDIR": str(self._scratch),
        }  # fmt: skip
        self.start()

    def start(self) -> None:
        """Start it, again after a death."""
        self._scratch.mkdir(parents=True, exist_ok=True)
        with (self._directory / f"{self._name}.log").open("ab") as log:
            self.process = subprocess.Popen(
                self._command, stdout=log, stderr=log, cwd=self._scratch, env=self._environment
            )

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


def _paths() -> Sequence[str]:
    return [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]


@contextmanager
def connect_server(directory: Path, port: int) -> Iterator[Jvm]:
    """A Connect server with two slots, see `connect_url`."""
    settings = {
        "spark.master": "local[2]",
        "spark.ui.enabled": "false",
        "spark.connect.grpc.binding.address": HERE,
        "spark.connect.grpc.binding.port": str(port),
        "spark.python.task.killTimeout": "300ms",
        "spark.sql.catalogImplementation": "in-memory",
    }
    main = "org.apache.spark.sql.connect.service.SparkConnectServer"
    server = Jvm(directory, f"connect-{port}", main, **settings)
    try:
        yield server
    finally:
        server.kill()


def connect_url(port: int) -> str:
    return f"sc://{HERE}:{port}"


@dataclass(frozen=True)
class Cluster:
    """A standalone master, and workers of one slot each."""

    url: str
    master: Jvm
    workers: list[Jvm]
    add_worker: Callable[[], None]
    """Start another one."""

    def parts(self) -> list[tuple[str, Jvm]]:
        return [("master", self.master), *(("worker", worker) for worker in self.workers)]

    def kill_executors(self) -> None:
        """Kill the JVMs that execute, whose worker starts others."""
        for worker in self.workers:
            for pid in children(worker.process.pid):
                os.kill(pid, signal.SIGKILL)


@contextmanager
def cluster(directory: Path, port: int, workers: int) -> Iterator[Cluster]:
    """One on loopback, whose executors end with it."""
    url = f"spark://{HERE}:{port}"
    with ExitStack() as stack:

        def started(name: str, main: str, *arguments: str) -> Jvm:
            main = f"org.apache.spark.deploy.{main}"
            jvm = Jvm(directory, name, main, "--host", HERE, "--webui-port", "0", *arguments)
            stack.callback(jvm.kill)
            return jvm

        def add_worker() -> None:
            number, size = len(made.workers), ("--cores", "1", "--memory", "1g")
            work = ("--work-dir", str(directory / f"work-{number}"))
            made.workers.append(started(f"worker-{number}", "worker.Worker", *size, *work, url))

        master = started("master", "master.Master", "--port", str(port))
        made = Cluster(url, master, [], add_worker)
        for _ in range(workers):
            add_worker()
        yield made


def driver_settings() -> dict[str, str]:
    """Of a driver of ours, for such a cluster."""
    return {
        "spark.driver.host": HERE,
        "spark.driver.bindAddress": HERE,
        "spark.executor.memory": "512m",
    }

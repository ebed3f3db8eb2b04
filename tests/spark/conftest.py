"""One JVM for all tests here but those that ask for a cluster, and functions that misbehave."""

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

import pytest

from rebaser_server.compute.spark.options import SparkOptions
from rebaser_server.compute.spark.spark_executor import SparkExecutor
from rebaser_server.files import SharedFiles
from rebaser_server.runtime.ports import free_port
from tests.helpers.batches import new_id
from tests.helpers.dear_functions import install_meeting
from tests.helpers.graph_builder import install
from tests.helpers.s3_server import BUCKET, s3_running
from tests.helpers.spark_functions import install_spark_functions
from tests.helpers.table_sheet import ORDERS, TableSheet
from tests.spark.servers import cluster, driver_settings, listening

FUNCTIONS = """
import os, sys, time

def note(path, text):
    with open(path, "a") as file:
        file.write(text + "\\n")

def hang(path):
    note(path, str(os.getpid()))
    while True:
        pass

def crash(value):
    os.abort()

def fells(value):
    pid = os.getpid()
    while True:
        pid = int(open(f"/proc/{pid}/stat").read().rpartition(")")[2].split()[1])
        if os.readlink(f"/proc/{pid}/exe").endswith("/java"):
            os.kill(pid, 9)
            time.sleep(60)

def slow(value, seconds):
    time.sleep(seconds)
    return value

def interrupts(value):
    raise KeyboardInterrupt

def forks(value):
    os.fork()
    return value

def large(value):
    return "x" * (100 << 20)

def prints_much(size):
    print("first")
    for _ in range(size >> 10):
        print("x" * 1023)
    print("last", flush=True)
    return size

def preloaded(value):
    files = [str(getattr(each, "__file__", "")) for each in list(sys.modules.values())]
    return {"pandas": "pandas" in sys.modules, "archives": [f for f in files if ".zip/" in f]}

def exits(value):
    print("is not an answer")
    raise SystemExit(3)
"""


@pytest.fixture(scope="session")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with `misbehaving`, `meeting` and functions of runtime `pyspark`."""
    directory = tmp_path_factory.mktemp("site")
    names = ("hang", "crash", "slow", "exits", "interrupts", "forks", "large", "fells")
    names += ("prints_much", "preloaded")
    install_meeting(directory)
    install_spark_functions(directory)
    install(directory, "misbehaving", FUNCTIONS, {name: f"misbehaving:{name}" for name in names})
    return directory


@pytest.fixture(scope="module", autouse=True)
def known_to_python(installed: Path) -> Iterator[None]:
    """Have this process and Spark's Python workers know them, as long as a test here runs.

    By module, since a fixture of a module may start the JVM.
    """
    with pytest.MonkeyPatch.context() as patches:
        patches.syspath_prepend(str(installed))
        patches.setenv("PYTHONPATH", str(installed), prepend=os.pathsep)
        yield


class Place(NamedTuple):
    """A Spark, and where the tables that it computes lie."""

    executor: SparkExecutor
    new_store: Callable[[], SharedFiles]
    """Open an empty store."""


ON_A_CLUSTER = "a cluster and S3"
"""Parameter of `place` for tests whose tables are there; else Spark runs here, and all is in
folders."""


@pytest.fixture(scope="session")
def place(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Place]:
    """Spark in a JVM of its own, which starts with the first run; one at a time."""
    directory, master, extra = tmp_path_factory.mktemp("spark"), "local[2]", dict[str, str]()
    with ExitStack() as stack:
        if getattr(request, "param", None) == ON_A_CLUSTER:
            objects, port = stack.enter_context(s3_running()), free_port()
            master = stack.enter_context(cluster(directory, port, workers=2)).url
            asyncio.run(listening(port))
            extra = driver_settings()

            def new_store() -> SharedFiles:
                return SharedFiles(f"s3://{BUCKET}/{new_id()}", objects)

        else:

            def new_store() -> SharedFiles:
                return SharedFiles(str(tmp_path_factory.mktemp("store")))

        options = SparkOptions(directory / "ours", master=master, extra=extra)
        spark = SparkExecutor(options, has_tables=lambda: True)
        yield Place(spark, new_store)
        asyncio.run(spark.close())


@pytest.fixture(scope="session")
def executor(place: Place) -> SparkExecutor:
    return place.executor


@pytest.fixture
async def sheet(place: Place) -> AsyncIterator[TableSheet]:
    """A sheet with a table of orders and a rate."""
    made = TableSheet(place.executor, place.new_store())
    made.upload("orders", ORDERS)
    made.source("rate", 2)
    yield made
    await made.close()

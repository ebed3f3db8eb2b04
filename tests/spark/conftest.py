"""One JVM for all tests here, and Python functions that misbehave."""

import asyncio
import os
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from rebaser_server.compute.spark.options import SparkOptions
from rebaser_server.compute.spark.spark_executor import SparkExecutor
from tests.helpers.dear_functions import install_meeting
from tests.helpers.graph_builder import install
from tests.helpers.spark_functions import install_spark_functions
from tests.helpers.table_sheet import ORDERS, TableSheet

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


@pytest.fixture(scope="session")
def executor(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkExecutor]:
    """Spark in a JVM of its own, which starts with the first run."""
    options = SparkOptions(tmp_path_factory.mktemp("spark"), master="local[2]")
    spark = SparkExecutor(options, has_tables=lambda: True)
    yield spark
    asyncio.run(spark.close())


@pytest.fixture
async def sheet(executor: SparkExecutor, tmp_path: Path) -> AsyncIterator[TableSheet]:
    """A sheet with a table of orders and a rate."""
    made = TableSheet(executor, tmp_path)
    made.upload("orders", ORDERS)
    made.source("rate", 2)
    yield made
    await made.close()

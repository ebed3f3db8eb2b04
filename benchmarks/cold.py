"""Part `cold`: from the start of a process to the first result of Spark in it."""

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.sizes import Sizes
from benchmarks.tables import Cell, Table, median
from rebaser_server.compute.spark.launch import find_java
from rebaser_server.compute.spark.options import archive_path, default_directory

STOCK = """
import pyarrow as pa
from pyspark.sql import SparkSession

def same(batches):
    yield from batches

spark = SparkSession.builder.master("local[*]").getOrCreate()
table = pa.table({"row": pa.array([b""], pa.binary())})
assert spark.createDataFrame(table).mapInArrow(same, "row binary").toArrow().num_rows == 1
print("done", flush=True)
spark.stop()
"""
OURS = """
import asyncio, sys
from pathlib import Path
from rebaser_server.compute.work_unit import WorkUnit
from rebaser_server.compute.spark.spark_executor import SparkExecutor
from rebaser_server.compute.spark.options import SparkOptions

async def main():
    spark = SparkExecutor(SparkOptions(Path(sys.argv[1]), archives=Path(sys.argv[2])))
    await spark.run([WorkUnit()])
    print("done", flush=True)
    await spark.close()

asyncio.run(main())
"""


TRAIN = """
import asyncio, sys
from pathlib import Path
from rebaser_server.compute.spark.options import SparkOptions
from rebaser_server.compute.spark.spark_executor import train

asyncio.run(train(SparkOptions(Path(sys.argv[1]), archives=Path(sys.argv[2]))))
"""


@dataclass(slots=True)
class Way:
    """One way to start, and what it took each time, in seconds."""

    name: str
    java: Path
    script: str
    arguments: Sequence[str]
    elapsed: list[float] = field(default_factory=list)

    def start(self, directory: Path) -> None:
        began = time.perf_counter()
        process = subprocess.Popen(
            [sys.executable, "-c", self.script, *self.arguments], cwd=directory,
            env=_environment(self.java), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        assert process.stdout is not None  # noqa: S101
        with process.stdout:
            said = process.stdout.readline()
        self.elapsed.append(time.perf_counter() - began)
        if said != b"done\n" or process.wait() != 0:
            raise RuntimeError(f"{self.name} did not start")


def _environment(java: Path) -> dict[str, str]:
    ours = {"PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
    return os.environ | ours | {"JAVA_HOME": str(java)}


async def run(directory: Path, sizes: Sizes, say: Callable[[str], None]) -> list[Table]:
    """Start both ways in turns. An archive is trained first where there is none."""
    return [await asyncio.to_thread(_run, directory, sizes, say)]


def _run(directory: Path, sizes: Sizes, say: Callable[[str], None]) -> Table:
    machines = find_java(directory, os.environ)
    packaged = find_java(directory, {"PATH": ""})
    ways = []
    for java in dict.fromkeys([machines, packaged]):
        archive = archive_path(default_directory(), java)
        if archive is None:
            continue
        archives = default_directory()
        if not archive.exists():
            archives = directory / "archives"
            say(f"cold: train {archive.name}")
            command = [sys.executable, "-c", TRAIN, str(directory / "training"), str(archives)]
            subprocess.run(command, env=_environment(java), check=True)
        name = archive.stem.partition("-java-")[2]
        state, none = str(directory / "state"), str(directory / "none")
        ways += [
            Way(f"stock PySpark, Java {name}", java, STOCK, []),
            Way(f"Rebaser, not trained, Java {name}", java, OURS, [state, none]),
            Way(f"Rebaser, trained ({archive.suffix}), Java {name}", java, OURS,
                [state, str(archives)]),
        ]  # fmt: skip
    for number in range(sizes.starts):
        for way in ways if number % 2 else reversed(ways):
            say(f"cold: {way.name}, {number + 1}")
            way.start(directory)
    rows: list[Sequence[Cell]] = []
    for place, way in enumerate(ways):
        stock = ways[place - place % 3]
        ratios = [
            median(way.elapsed) / median(stock.elapsed),
            min(way.elapsed) / min(stock.elapsed),
        ]
        took = [median(way.elapsed), min(way.elapsed), max(way.elapsed)]
        rows.append([way.name, *took, *ratios])
    return Table(
        "From the start of a process to Spark's first result (s)",
        ["", "p50", "fastest", "slowest", "ratio", "ratio of the fastest"],
        rows,
        ["In turns, each in a process of its own. Ratios are to stock PySpark on the same Java."],
    )

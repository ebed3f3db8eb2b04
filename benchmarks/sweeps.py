"""Part `sweeps`: one component whose functions are dear, by one slot and by two."""

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

import numpy as np

from benchmarks.shapes import Graph, made
from benchmarks.sizes import Sizes
from benchmarks.tables import Cell, Table, median
from rebaser_server.compute.cost_model import CostModel
from rebaser_server.compute.level_parallel import LevelParallelExecutor
from rebaser_server.compute.results import UnitResult
from rebaser_server.compute.spark.options import SparkOptions
from rebaser_server.compute.spark.spark_executor import SparkExecutor
from tests.helpers.graph_builder import install

MILLISECONDS: Final = (0, 1, 5)
LEVELS: Final = 4
_SOURCE: Final = """
import time

def dear(a, b, c, milliseconds):
    if milliseconds: time.sleep(milliseconds / 1000)
    return (a * b + c) / 2

def take_0(a, b, c): return dear(a, b, c, 0)
def take_1(a, b, c): return dear(a, b, c, 1)
def take_5(a, b, c): return dear(a, b, c, 5)
"""
_NOTE: Final = """\
{count:,} values in {levels} levels (of 5 ms a fifth), one component, on Spark with two slots, warm;
seconds, medians of {rounds} rounds in turns. The function waits for its time rather than working
for it, so that other work on the machine does not count. One slot: the component as one unit.
Two: by `LevelParallelExecutor`, which learnt the costs in the runs before; `runs` is what it made
of it."""


class _Counting(SparkExecutor):
    runs = 0

    async def run(self, *given: object, **named: object) -> list[UnitResult]:  # type: ignore[override]
        self.runs += 1
        return await super().run(*given, **named)  # type: ignore[arg-type,return-value]


async def run(directory: Path, sizes: Sizes, say: Callable[[str], None]) -> list[Table]:
    """Spark is started for it, and ended."""
    count, rounds = (20_000, 3) if sizes.whole_graph else (20_000, 1)
    names = [f"take_{each}" for each in MILLISECONDS]
    install(directory, "benchmarked_sweeps", _SOURCE,
            {name: f"benchmarked_sweeps:{name}" for name in names})  # fmt: skip
    os.environ["PYTHONPATH"] = str(directory)
    spark = _Counting(SparkOptions(directory / "spark", master="local[2]"))
    table = Table(
        "One component, its levels swept by two slots (s)",
        ["ms a value", "one slot", "two slots", "times faster", "runs", "runs at one"],
        notes=[_NOTE.format(count=count, levels=LEVELS, rounds=rounds)],
    )
    try:
        await spark.start()
        for milliseconds in MILLISECONDS:
            say(f"sweeps: {milliseconds} ms")
            table.rows.append(await _measured(spark, milliseconds, count, rounds))
    finally:
        await spark.close()
        del os.environ["PYTHONPATH"]
    return [table]


async def _measured(spark: _Counting, milliseconds: int, count: int, rounds: int) -> list[Cell]:
    count //= max(milliseconds, 1)
    blob = _layered(count).blob(
        ("python", f"take_{milliseconds}"), [("a", None), ("b", None), ("c", None)]
    ).encode()  # fmt: skip
    book = CostModel()
    one, two = (
        LevelParallelExecutor(spark, lambda: 1, book),
        LevelParallelExecutor(spark, lambda: 2, book),
    )
    seconds: dict[int, list[float]] = {1: [], 2: []}
    runs: dict[int, int] = {}
    for _ in range(rounds):
        for slots, executor in ((1, one), (2, two)):
            before, started = spark.runs, time.perf_counter()
            [outcome] = await executor.run([blob])
            seconds[slots].append(time.perf_counter() - started)
            book.learn(outcome.costs)
            runs[slots] = spark.runs - before
            if len(outcome) != count:
                raise RuntimeError(f"{len(outcome)} results of {count}")
    slow, fast = median(seconds[1]), median(seconds[2])
    return [milliseconds, slow, fast, slow / fast, runs[2], runs[1]]


def _layered(count: int) -> Graph:
    """Levels of equal size, in each of which every value takes three of the one before."""
    base = made("one giant, 100 levels", LEVELS)
    rng = np.random.default_rng(7)
    size = count // LEVELS
    refs = [~rng.integers(0, len(base.constants), (size, 3))]
    refs += [rng.integers((n - 1) * size, n * size, (size, 3)) for n in range(1, LEVELS)]
    return Graph("layers", np.concatenate(refs).astype(np.int32), base.constants)

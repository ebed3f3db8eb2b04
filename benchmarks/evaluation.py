"""Part `evaluation`: units evaluated, beside a loop in Python, on synthetic graphs."""

import asyncio
import itertools
import os
import resource
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa

from benchmarks.shapes import SHAPES, Graph, made
from benchmarks.sizes import Sizes
from benchmarks.tables import Cell, Table, median
from rebaser_server.compute import isolation
from rebaser_server.compute.evaluation import evaluate
from rebaser_server.compute.plan import UNITS_PER_SLOT
from rebaser_server.compute.results import RunStore, decode_result
from rebaser_server.compute.run import Run
from rebaser_server.compute.spark.options import SparkOptions
from rebaser_server.compute.spark.spark_executor import SparkExecutor
from rebaser_server.compute.work_unit import WorkUnit, count_levels_below
from rebaser_server.files import SharedFiles
from tests.helpers.graph_builder import install

CORES: Final = 2
ROUNDS: Final = 3
_SOURCE: Final = """
def by_rows(a, b, c): return (a * b + c) / 2
def at_once(a, b, c): return (a * b + c) / 2
at_once.vectorised = lambda a, b, c: (a * b + c) / 2
"""
_SHAPE: Final[list[tuple[str, int | None]]] = [("a", None), ("b", None), ("c", None)]

_BY_PROCESSOR: Final = """\
{count:,} values of `(a * b + c) / 2`, all recomputed; seconds of processor time, which other work
on the machine changes least; medians of {rounds} rounds in which all take turns, in one run.
Processes, with their children: from encoded units to encoded outcomes, JSON text to JSON text, by
the function's vectorised form; two share the units by component, hence not where there is one, and
the longer time of the two counts. `functions`: the part of `one process` that is the function with
its arguments, by the clock. `by rows`: the same unit without a vectorised form. Python: a loop with
order and dicts of floats kept ready, which reads and writes no text."""
_BY_CLOCK: Final = """\
{count:,} values of `(a * b + c) / 2`, all recomputed, by the clock; medians of {rounds} rounds in
which all take turns, in one run. Spark: `SparkExecutor.run` with two slots (`local[2]`), warm, as a
DVU has it: from units in the driver to files in the store, their contents JSON text; `by rows`
without the function's vectorised form. Python: a loop over dicts in this process that exist
already. A component is one slot's, so of the giant one and of wide, whose largest has nearly all
values, the other slot has nothing."""


async def run(directory: Path, sizes: Sizes, say: Callable[[str], None]) -> list[Table]:
    """Install the functions in `directory`, and start and end Spark for the last table."""
    install(directory, "benchmarked", _SOURCE,
            {name: f"benchmarked:{name}" for name in ("by_rows", "at_once")})  # fmt: skip
    rounds = ROUNDS if sizes.whole_graph else 1
    by_processor = await asyncio.to_thread(_by_processor, directory, sizes.values, rounds, say)
    os.environ["PYTHONPATH"] = str(directory)
    spark = SparkExecutor(SparkOptions(directory / "spark", master=f"local[{CORES}]"))
    try:
        await spark.start()
        files = SharedFiles(str(directory / "store"))
        return [*by_processor, await _by_clock(spark, files, sizes.values, rounds, say)]
    finally:
        await spark.close()
        del os.environ["PYTHONPATH"]


def _by_processor(
    directory: Path, count: int, rounds: int, say: Callable[[str], None]
) -> list[Table]:
    times = Table(
        "All values of a graph recomputed (s of processor time)",
        ["graph", "levels", "two processes", "one process", "functions", "by rows", "Python"],
        notes=[_BY_PROCESSOR.format(count=count, rounds=rounds)],
    )
    ratios = Table(
        "How many times faster than Python, and than rows",
        ["graph", "two processes to Python", "one to Python", "one to by rows"],
    )
    _find(str(directory))
    with ProcessPoolExecutor(CORES, initializer=_find, initargs=(str(directory),)) as pool:
        for name in SHAPES:
            say(f"evaluation: {name}")
            graph = made(name, count)
            levels = 1 + int(count_levels_below(graph.shell()).max())
            two, one, functions, rows, python = _measured(graph, rounds, pool)
            times.rows.append([name, levels, two, one, functions, rows, python])
            ratios.rows.append([name, python / (two or one), python / one, rows / one])
    return [times, ratios]


def _find(directory: str) -> None:
    sys.path.insert(0, directory)


def _measured(
    graph: Graph, rounds: int, pool: ProcessPoolExecutor
) -> tuple[float | None, float, float, float, float]:
    loop = Loop(graph)
    [at_once] = _units([graph], "at_once")
    [by_rows] = _units([graph], "by_rows")
    parts = _units(graph.parts(CORES), "at_once")
    list(pool.map(evaluate, parts))  # imports
    seconds: dict[str, list[float]] = defaultdict(list)
    for _ in range(rounds):
        seconds["two"].append(max(pool.map(_busy, parts)))
        took, outcome = _timed(_processor_time, _evaluate, at_once)
        seconds["one"].append(took)
        found = decode_result(outcome)
        if len(found) != len(graph.refs):
            raise RuntimeError(f"{graph.name}: {len(found)} results")
        seconds["functions"].append(sum(spent for _, spent in found.costs.values()))
        seconds["rows"].append(_timed(_processor_time, _evaluate, by_rows)[0])
        seconds["Python"].append(_timed(time.process_time, loop.run)[0])
    two, one, functions, rows, python = map(median, seconds.values())
    return (two if len(parts) > 1 else None), one, functions, rows, python


def _busy(unit: bytes) -> float:
    return _timed(_processor_time, _evaluate, unit)[0]


def _evaluate(unit: bytes) -> pa.Buffer:
    outcome = evaluate(unit)
    isolation.end_children()  # the kernel tells the time of those alone that are gone
    return outcome


def _processor_time() -> float:
    """Seconds of this process and its children: units are evaluated in children."""
    spent = map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(each.ru_utime + each.ru_stime for each in spent)


async def _by_clock(
    spark: SparkExecutor,
    files: SharedFiles,
    count: int,
    rounds: int,
    say: Callable[[str], None],
) -> Table:
    table = Table(
        "All values of a graph recomputed through Spark, two slots, by the clock (s)",
        ["graph", "Spark", "Spark, by rows", "Python", "times faster than Python",
         "by rows than Python"],
        notes=[_BY_CLOCK.format(count=count, rounds=rounds)],
    )  # fmt: skip
    shelves = itertools.count()
    for name in SHAPES:
        say(f"evaluation: {name}, by the clock")
        graph = await asyncio.to_thread(made, name, count)
        parts = graph.parts(CORES * UNITS_PER_SLOT)
        wide, rows = _units(parts, "at_once"), _units(parts, "by_rows")
        loop = Loop(graph)
        seconds: dict[str, list[float]] = defaultdict(list)
        for _ in range(rounds):
            for what, units in (("at once", wide), ("by rows", rows)):
                shelf = RunStore(files, f"{next(shelves):064x}")
                seconds[what].append(await _on_spark(spark, units, shelf))
            took, _ = await asyncio.to_thread(_timed, time.perf_counter, loop.run)
            seconds["Python"].append(took)
        fast, slow, python = map(median, seconds.values())
        row: list[Cell] = [name, fast, slow, python, python / fast, python / slow]
        table.rows.append(row)
    return table


async def _on_spark(spark: SparkExecutor, units: Sequence[bytes], shelf: RunStore) -> float:
    decoded = list(map(WorkUnit.decode, units))
    started = time.perf_counter()
    outcomes = await spark.run(decoded, Run(store=shelf))
    took = time.perf_counter() - started
    if not all(outcome.recomputed for outcome in outcomes):
        raise RuntimeError("nothing was computed")
    await asyncio.to_thread(shelf.clear)
    return took


class Loop:
    """The same values computed without Rebaser, with all kept ready that can be."""

    def __init__(self, graph: Graph) -> None:
        count = len(graph.refs)
        ids = [f"v{number}" for number in range(count)]
        names = np.array(ids + [f"c{n}" for n in range(len(graph.constants))], object)
        places = np.where(graph.refs >= 0, graph.refs, count + ~graph.refs)
        self._inputs = dict(zip(ids, map(tuple, names[places].tolist()), strict=True))
        self._constants = {f"c{n}": float(c) for n, c in enumerate(graph.constants)}

    def run(self) -> None:
        """Compute all values in their order, into dicts."""
        values = self._constants | dict.fromkeys(self._inputs, 0.0)
        changed = 0
        for value_id, (a, b, c) in self._inputs.items():
            new = _function(values[a], values[b], values[c])
            if new != values[value_id]:
                values[value_id] = new
                changed += 1


def _function(a: float, b: float, c: float) -> float:
    return (a * b + c) / 2


def _units(graphs: Sequence[Graph], function: str) -> list[bytes]:
    return [graph.blob(("python", function), _SHAPE).encode() for graph in graphs]


def _timed(clock: Callable[[], float], work: Callable[..., Any], *given: Any) -> tuple[float, Any]:
    started = clock()
    result = work(*given)
    return clock() - started, result

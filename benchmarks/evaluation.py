"""Part `evaluation`: blobs evaluated, beside what one would take instead, on synthetic graphs."""

import asyncio
import sys
import time
from collections import defaultdict
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any, Final

from benchmarks import evaluation_peers as peers
from benchmarks import evaluation_wall
from benchmarks.evaluation_peers import Ready, mean
from benchmarks.shapes import SHAPES, made
from benchmarks.sizes import Sizes
from benchmarks.tables import Cell, Table
from rebaser_server.compute.evaluation import evaluate
from rebaser_server.compute.results import decode_result
from tests.helpers.graph_builder import install

CORES: Final = 2
FULL_COUNT: Final = 1_000_000
QUICK_COUNT: Final = 20_000
ROUNDS: Final = 3
_SOURCE: Final = """
def by_rows(a, b, c): return (a * b + c) / 2
def at_once(a, b, c): return (a * b + c) / 2
at_once.vectorised = lambda a, b, c: (a * b + c) / 2
"""
_SHAPE: Final[list[tuple[str, int | None]]] = [("a", None), ("b", None), ("c", None)]

_NOTE = """\
{count:,} values of `(a * b + c) / 2`, all recomputed; seconds of processor time, which other work
on the machine changes least; medians of {rounds} rounds in which all take turns, in one run.
Processes: from encoded blobs to encoded outcomes, JSON text to JSON text, by the function's
vectorised form; two share the blobs by component, hence not where there is one, and the longer
time of the two counts. `functions`: the part of `one process` that is the function with its
arguments, by the clock. `by rows`: the same blob without a vectorised form. Python: a loop with
order and dicts of floats kept ready; networkx: topological_sort and a loop; pandas: by level with
a Series; NumPy: by level with arrays of indices kept ready. None of these reads or writes text."""


async def run(directory: Path, sizes: Sizes, say: Callable[[str], None]) -> list[Table]:
    by_processor = await asyncio.to_thread(_tables, directory, sizes, say)
    return [*by_processor, *await evaluation_wall.run(directory, sizes, say)]


def _tables(directory: Path, sizes: Sizes, say: Callable[[str], None]) -> list[Table]:
    count = FULL_COUNT if sizes.whole_graph else QUICK_COUNT
    install(directory, "benchmarked", _SOURCE,
            {name: f"benchmarked:{name}" for name in ("by_rows", "at_once")})  # fmt: skip
    sys.path.insert(0, str(directory))
    times = Table(
        "All values of a graph recomputed (s of processor time)",
        ["graph", "levels", "two processes", "one process", "functions", "by rows",
         "Python", "networkx", "pandas", "NumPy"],
        notes=[_NOTE.format(count=count, rounds=ROUNDS)],
    )  # fmt: skip
    ratios = Table(
        "How many times faster than the peers",
        ["graph", "two processes to Python", "one to Python", "two to networkx", "one to by rows",
         "functions to NumPy", "one process to NumPy"],
        notes=["The last two are how many times slower."],
    )  # fmt: skip
    with ProcessPoolExecutor(CORES, initializer=_find, initargs=(str(directory),)) as pool:
        for name in SHAPES:
            say(f"evaluation: {name}")
            row = _measured(name, count, pool)
            times.rows.append(row)
            ratios.rows.append(_ratios(row))
    return [times, ratios]


def _find(directory: str) -> None:
    sys.path.insert(0, directory)


def _measured(name: str, count: int, pool: ProcessPoolExecutor) -> list[Cell]:
    graph = made(name, count)
    ready = Ready(graph)
    at_once = graph.blob(("python", "at_once"), _SHAPE).encode()
    by_rows = graph.blob(("python", "by_rows"), _SHAPE).encode()
    parts = [part.blob(("python", "at_once"), _SHAPE).encode() for part in graph.parts(CORES)]
    with_networkx = peers.networkx(ready)
    list(pool.map(evaluate, parts))  # imports
    seconds: dict[str, list[float | None]] = defaultdict(list)
    for _ in range(ROUNDS):
        seconds["two"].append(max(pool.map(_busy, parts)))
        took, outcome = _timed(lambda: evaluate(at_once))
        seconds["one"].append(took)
        found = decode_result(outcome)
        seconds["functions"].append(sum(spent for _, spent in found.costs.values()))
        seconds["rows"].append(_timed(lambda: evaluate(by_rows))[0])
        took, values = peers.python(ready)
        seconds["Python"].append(took)
        seconds["networkx"].append(with_networkx()[0])
        seconds["pandas"].append(peers.pandas(ready))
        took, array = peers.numpy(ready)
        seconds["NumPy"].append(took)
        peers.require_same(graph, values, array)
        if len(found) != count:
            raise RuntimeError(f"{name}: {len(found)} results")
    medians = {what: mean(each) for what, each in seconds.items()}
    if len(parts) == 1:
        medians["two"] = None
    order = ("two", "one", "functions", "rows", "Python", "networkx", "pandas", "NumPy")
    return [name, len(ready.by_level), *(medians[what] for what in order)]


def _timed(work: Callable[[], Any]) -> tuple[float, Any]:
    started = time.process_time()
    result = work()
    return time.process_time() - started, result


def _busy(blob: bytes) -> float:
    return _timed(lambda: evaluate(blob))[0]


def _ratios(row: list[Cell]) -> list[Cell]:
    name, _, two, one, functions, rows, python, networkx, _, numpy = row
    two = one if two is None else two

    def over(above: Cell, below: Cell) -> Cell:
        return None if above is None or below is None else float(above) / float(below)

    return [name, over(python, two), over(python, one), over(networkx, two), over(rows, one),
            over(functions, numpy), over(one, numpy)]  # fmt: skip

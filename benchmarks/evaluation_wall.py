"""Tables of part `evaluation` by the clock: Spark's stage beside what one would take otherwise."""

import asyncio
import os
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

from pyspark.sql import SparkSession

from benchmarks import evaluation_peers as peers
from benchmarks import pathway
from benchmarks.debian_peers import Debian
from benchmarks.evaluation_peers import MOST_LEVELS, Ready
from benchmarks.shapes import SHAPES, Graph, made
from benchmarks.sizes import Sizes
from benchmarks.spark_joins import joined
from benchmarks.tables import Cell, Table, median
from rebaser_server.compute.plan import UNITS_PER_SLOT
from rebaser_server.compute.results import RunStore
from rebaser_server.compute.spark.options import SparkOptions
from rebaser_server.compute.spark.spark_executor import SparkExecutor
from rebaser_server.files import SharedFiles

SLOTS: Final = 2
ROUNDS: Final = 3
OTHERS: Final = 10
"""One in so many of the values of a large graph are what slow peers are asked for."""
_LEVELS: Final = 10
"""For peers that take seconds for each level."""
_ARGUMENTS: Final[list[tuple[str, int | None]]] = [("a", None), ("b", None), ("c", None)]

_LARGE: Final = """\
{count:,} values of `(a * b + c) / 2`, all recomputed, by the clock; medians of {rounds} rounds in
which all take turns, in one run. Spark: `SparkExecutor.run` with two slots (`local[2]`), warm, as a
DVU has it: from blobs in the driver to files in the store, their contents JSON text; `by rows`
without the function's vectorised form. Python: a loop over dicts in this process that exist
already; networkx: topological_sort and such a loop. A component is one slot's, so of the giant
one and of wide, whose largest has nearly all values, the other slot has nothing."""
_OTHERS: Final = """\
Graphs of {count:,} values, and Debian's with {debian:,} dependent values by its own functions; by
the clock, medians of {rounds} rounds in turns, once for Spark joins and Pathway. Each result is
compared with Python's. Spark joins: for each level three joins with all values so far, and a local
checkpoint, in the JVM of Rebaser's stage, with a partition for each slot. Pathway ({pathway}): for
each level a `select` with three `ix`, from pandas to pandas, one worker, without its start. A dash:
of more than {levels} levels, or not expressed that way."""


async def run(directory: Path, sizes: Sizes, say: Callable[[str], None]) -> list[Table]:
    """Spark is started for it, and ended. The functions are installed in `directory`."""
    os.environ["PYTHONPATH"] = str(directory)
    executor = SparkExecutor(SparkOptions(directory / "spark", master=f"local[{SLOTS}]"))
    try:
        await executor.start()
        case = _Case(executor, SharedFiles(str(directory / "store")), sizes, say)
        return [await case.large(), await case.others(directory)]
    finally:
        await executor.close()
        del os.environ["PYTHONPATH"]


class _Case:
    def __init__(
        self, executor: SparkExecutor, files: SharedFiles, sizes: Sizes, say: Callable[[str], None]
    ) -> None:
        self._executor = executor
        self._files = files
        self._rounds = ROUNDS if sizes.whole_graph else 1
        self._values = sizes.values
        self._say = say
        self._shelves = 0

    async def large(self) -> Table:
        table = Table(
            "All values of a graph recomputed, two slots beside one process (s)",
            ["graph", "Spark", "Spark, by rows", "Python", "networkx",
             "times faster than Python", "than networkx", "by rows than Python"],
            notes=[_LARGE.format(count=self._values, rounds=self._rounds)],
        )  # fmt: skip
        for name in SHAPES:
            self._say(f"evaluation: {name}, by the clock")
            graph = await asyncio.to_thread(made, name, self._values)
            seconds = await self._graph(graph, is_small=False)
            fast, rows, python, nx = (
                seconds[what] for what in ("Spark", "rows", "Python", "networkx")
            )
            table.rows.append(
                [name, fast, rows, python, nx, python / fast, nx / fast, python / rows]
            )
        return table

    async def others(self, directory: Path) -> Table:
        self._say("evaluation: install Pathway")
        found = await asyncio.to_thread(pathway.installed)
        order = ("Spark", "Python", "networkx", "pandas", "NumPy", "joins", "Pathway")
        count = self._values // OTHERS
        rows: list[Sequence[Cell]] = []
        for name in SHAPES:
            self._say(f"evaluation: {name}, others")
            graph = await asyncio.to_thread(made, name, count)
            seconds = await self._graph(graph, is_small=True)
            ready = Ready(graph)
            if len(ready.by_level) <= _LEVELS:
                spark = SparkSession.builder.getOrCreate()
                seconds["joins"] = await asyncio.to_thread(joined, spark, ready, SLOTS)
                if found.python is not None:
                    seconds["Pathway"] = await asyncio.to_thread(found.measured, ready, directory)
            rows.append([name, *(seconds.get(what) for what in order)])
        self._say("evaluation: Debian, others")
        debian = await asyncio.to_thread(Debian, SLOTS)
        seconds = await self._debian(debian)
        rows.append(["Debian", *(seconds.get(what) for what in order)])
        note = _OTHERS.format(
            count=count, rounds=self._rounds, debian=debian.count,
            pathway=found.word, levels=_LEVELS,
        )  # fmt: skip
        columns = ["graph", "Rebaser, two slots", "Python", "networkx", "pandas", "NumPy",
                   "Spark joins", "Pathway"]  # fmt: skip
        return Table("The same by what one would take otherwise (s)", columns, rows, [note])

    async def _graph(self, graph: Graph, *, is_small: bool) -> dict[str, float]:
        ready = Ready(graph)
        parts = graph.parts(SLOTS * UNITS_PER_SLOT)
        wide = [part.blob(("python", "at_once"), _ARGUMENTS).encode() for part in parts]
        rows = [part.blob(("python", "by_rows"), _ARGUMENTS).encode() for part in parts]
        with_networkx = peers.networkx(ready)
        seconds: dict[str, list[float]] = defaultdict(list)
        for _ in range(self._rounds):
            seconds["Spark"].append(await self._spark(wide))
            if not is_small:
                seconds["rows"].append(await self._spark(rows))
            for what, peer in (
                ("Python", lambda: peers.python(ready)),
                ("networkx", with_networkx),
            ):
                seconds[what].append(await asyncio.to_thread(_clocked, peer))
            if is_small:
                seconds["NumPy"].append(await asyncio.to_thread(_clocked, peers.numpy, ready))
                if len(ready.by_level) <= MOST_LEVELS:
                    took = await asyncio.to_thread(peers.pandas, ready)
                    seconds["pandas"].append(took or 0.0)
        return {what: median(each) for what, each in seconds.items()}

    async def _debian(self, debian: Debian) -> dict[str, float]:
        seconds: dict[str, list[float]] = defaultdict(list)
        for _ in range(self._rounds):
            seconds["Spark"].append(await self._spark(debian.blobs))
            seconds["Python"].append(await asyncio.to_thread(_clocked, debian.python))
            seconds["networkx"].append(await asyncio.to_thread(_clocked, debian.networkx))
        await asyncio.to_thread(debian.require_same)
        return {what: median(each) for what, each in seconds.items()}

    async def _spark(self, blobs: Sequence[bytes]) -> float:
        self._shelves += 1
        shelf = RunStore(self._files, f"{self._shelves:064x}")
        started = time.perf_counter()
        outcomes = await self._executor.run(blobs, store=shelf)
        took = time.perf_counter() - started
        if not all(outcome.recomputed for outcome in outcomes):
            raise RuntimeError("nothing was computed")
        await asyncio.to_thread(shelf.clear)
        return took


def _clocked(peer: Callable[..., Any], *given: Any) -> float:
    started = time.perf_counter()
    peer(*given)
    return time.perf_counter() - started

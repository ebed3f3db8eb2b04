"""Part `small-tables`: small tables of a graph, beside a plain session of Spark and DuckDB."""

import asyncio
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import duckdb
import pyarrow as pa

from benchmarks import processes
from benchmarks.sizes import Sizes
from benchmarks.tables import Cell, Table, median
from rebaser_server.compute.spark.options import SparkOptions
from rebaser_server.compute.spark.spark_executor import SparkExecutor
from tests.helpers.table_sheet import TableSheet

_WARM_UP: Final = 4
_CASES: Final = {
    "one table of 10 rows": (10, (1,)),
    "ten of 1,000 rows in three levels": (1_000, (4, 3, 3)),
    "thirty of 1,000 rows in three levels": (1_000, (10, 10, 10)),
}
"""Rows of the source, and the number of tables of each level."""

_NOTE: Final = """\
A rate changes, and all tables that it reaches are computed: each multiplies a column of one of the
level before. Medians of {rounds} rounds, in turns. CPU: of the JVM, its Python workers, and this
process. Rebaser: from a plan to handles of tables in the store. Spark: the same queries, one after
the other, by `toArrow()` in one warm session, whose results are views. DuckDB: the same in memory.
A level: seconds of Rebaser, by levels."""


class _Graph:
    """The tables of one case, by names; each takes one of the level before."""

    def __init__(self, rows: int, levels: tuple[int, ...]) -> None:
        self.rows = pa.table({"id": range(rows), "amount": [n % 97 for n in range(rows)]})
        self.levels = len(levels)
        self.inputs: dict[str, str] = {}
        before = ["rows_0"]
        for level, count in enumerate(levels):
            names = [f"t_{level}_{number}" for number in range(count)]
            for number, name in enumerate(names):
                self.inputs[name] = before[number % len(before)]
            before = names

    def query(self, name: str, rate: str) -> str:
        source, number = self.inputs[name], name.rpartition("_")[2]  # equal ones are done once
        return f"SELECT id, (amount * {rate} + {number}) % 1009 AS amount FROM {source}"  # noqa: S608


class _Case:
    def __init__(self, executor: SparkExecutor, directory: Path, graph: _Graph) -> None:
        self._executor = executor
        self._graph = graph
        self._sheet = TableSheet(executor, directory)
        self._rate = 1
        self.figures: dict[str, list[float]] = defaultdict(list)
        self._sheet.upload("rows_0", graph.rows)
        self._sheet.source("rate", 1)
        for name, source in graph.inputs.items():
            self._sheet.query(name, graph.query(name, ":rate"), source, "rate")

    async def round(self, *, is_counted: bool) -> None:
        self._rate += 1
        ways: list[tuple[str, Callable[[], Any]]] = [
            ("Rebaser", self._ours),
            ("Spark", lambda: asyncio.to_thread(self._spark)),
            ("DuckDB", lambda: asyncio.to_thread(self._duckdb)),
        ]
        for name, work in ways if self._rate % 2 else reversed(ways):
            began, used = time.perf_counter(), self._used()
            await work()
            if is_counted:
                self.figures[name].append(time.perf_counter() - began)
                self.figures[f"{name}, CPU"].append(self._used() - used)

    def _used(self) -> float:
        pid = self._executor.jvm_pid
        spark = processes.seconds(pid, children=True) if pid else None
        return time.process_time() + (spark or 0.0)

    async def _ours(self) -> None:
        self._sheet.source("rate", self._rate)
        ran = await self._sheet.compute()
        failed = [v.message for v in self._sheet.graph.values.values() if v.message]
        if failed or ran != len(self._graph.inputs):
            raise RuntimeError(f"{ran} queries; {failed}")

    def _queries(self) -> Iterator[tuple[str, str]]:
        for name in self._graph.inputs:
            yield name, self._graph.query(name, str(self._rate))

    def _spark(self) -> None:
        with self._executor._session.job("plain", "plain") as shared:  # noqa: SLF001
            spark = shared.newSession()
            spark.conf.set("spark.sql.leafNodeDefaultParallelism", "2")
            spark.createDataFrame(self._graph.rows).createOrReplaceTempView("rows_0")
            for name, query in self._queries():
                found = spark.sql(query).toArrow()
                spark.createDataFrame(found).createOrReplaceTempView(name)

    def _duckdb(self) -> None:
        with duckdb.connect() as session:
            session.register("rows_0", self._graph.rows)
            for name, query in self._queries():
                session.execute(f"CREATE TABLE {name} AS {query}")

    async def close(self) -> None:
        await self._sheet.close()


async def run(directory: Path, sizes: Sizes, say: Callable[[str], None]) -> list[Table]:
    executor = SparkExecutor(
        SparkOptions(directory / "spark", master="local[2]"), has_tables=lambda: True
    )
    rows: list[list[Cell]] = []
    try:
        for number, (what, (count, levels)) in enumerate(_CASES.items()):
            graph = _Graph(count, levels)
            case = _Case(executor, directory / f"store-{number}", graph)
            for turn in range((_WARM_UP if sizes.whole_graph else 0) + sizes.rounds):
                say(f"small tables: {what}, round {turn}")
                await case.round(is_counted=turn >= (_WARM_UP if sizes.whole_graph else 0))
            await case.close()
            found = {name: median(each) for name, each in case.figures.items()}
            ours, plain, other = (found[f"{n}, CPU"] for n in ("Rebaser", "Spark", "DuckDB"))
            rows.append(
                [what, ours, plain, other, ours / plain, found["Rebaser"], found["Spark"],
                 found["Rebaser"] / graph.levels]
            )  # fmt: skip
    finally:
        await executor.close()
    columns = [
        *("what", "Rebaser CPU", "Spark CPU", "DuckDB CPU", "ratio of CPU to Spark's"),
        *("Rebaser", "Spark", "a level"),
    ]
    note = _NOTE.format(rounds=sizes.rounds)
    return [Table("Small tables beside Spark and DuckDB (s)", columns, rows, [note])]

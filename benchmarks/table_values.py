"""Part `tables`: queries of TPC-H as tables of a graph, beside the same SQL in a plain session."""

import asyncio
import shutil
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Final

import pyarrow.parquet as pq

from benchmarks import processes
from benchmarks.sizes import Sizes
from benchmarks.tables import Cell, Table, median
from examples.tpch import tpch
from rebaser_server.compute.spark.options import SparkOptions
from rebaser_server.compute.spark.spark_executor import SparkExecutor
from tests.helpers.table_sheet import OWNER, TableSheet

_FULL_SCALE: Final = "0.1"
_QUICK_SCALE: Final = "0.01"
_WARM_UP: Final = 2
_TAX: Final = 0.02
_TABLES: Final = ("customer", "lineitem", "nation", "orders", "part", "region", "supplier")
_BY_TAX: Final = (
    *("pricing_summary", "shipping_priority", "local_suppliers", "returned_items"),
    *("supplier_revenue", "best_revenue", "top_suppliers"),
)
"""Queries that depend on the tax, in an order in which they can be computed."""

_NOTE: Final = """\
Twelve queries of TPC-H at scale factor {scale} and two that return a value, computed and written as
Parquet, on two cores in one warm session of Spark; medians of {rounds} rounds, in turns. CPU: of
the JVM, its Python workers, and the process that runs the graph or the plain session. Rebaser: from
a plan to handles, with digests of rows and synced files, four queries at a time. Plain: views over
the same files, `sql`, `write.parquet`, one query after the other. One rate: the tax is another one,
and what depends on it is computed. Set back: the tax is what it was."""


async def run(directory: Path, sizes: Sizes, say: Callable[[str], None]) -> list[Table]:
    scale = _FULL_SCALE if sizes.whole_graph else _QUICK_SCALE
    data = directory / "tpch"
    generate = [Path(sys.executable).with_name("tpchgen-cli"), "parquet", "--scale-factor", scale]
    await asyncio.to_thread(subprocess.run, [*generate, "--output-dir", data], check=True)
    options = SparkOptions(directory / "spark", master="local[2]")
    executor = SparkExecutor(options, has_tables=lambda: True)
    case = _Case(executor, directory)
    try:
        say(f"tables: load scale factor {scale}")
        await case.load(data)
        warm_up = _WARM_UP if sizes.whole_graph else 0
        for number in range(warm_up + sizes.rounds):
            say(f"tables: round {number}")
            await case.round(is_counted=number >= warm_up)
    finally:
        await case.close()
        await executor.close()
    note = _NOTE.format(scale=scale, rounds=sizes.rounds)
    return [case.table(note)]


class _Case:
    """A graph of tables, and a plain session over the files that it has."""

    def __init__(self, executor: SparkExecutor, directory: Path) -> None:
        self._executor = executor
        self._sheet = TableSheet(executor, directory / "store")
        self._results = directory / "store" / "tables" / OWNER
        self._plain_results = directory / "plain"
        self._uploads: set[str] = set()
        self._files: dict[str, str] = {}
        self._tax = _TAX
        self._figures: dict[str, list[float]] = defaultdict(list)

    async def load(self, data: Path) -> None:
        for name in _TABLES:
            self._sheet.upload(name, pq.read_table(data / f"{name}.parquet"))
        self._uploads = {path.name for path in self._results.iterdir()}
        for value in self._sheet.graph.values.values():
            key = value.value["$table"]["upload"]
            manifest = self._sheet.tables.get(OWNER, key)
            [file] = manifest.files
            self._files[value.id] = f"file://{self._results}/{file.path}"
        for name, value in tpch.SCALARS.items():
            self._sheet.source(name, value)
        for name, sign in (("discount_low", "-"), ("discount_high", "+")):
            inputs = {"discount": "discount"}
            self._sheet.dependent(name, f"discount {sign} 0.01", inputs, "cel")
        self._define(_names())

    def _define(self, names: Iterable[str]) -> None:
        inputs = {**tpch.TABLES, **tpch.VALUES}
        for name in names:
            self._sheet.query(name, tpch.query(name), *inputs[name].split())

    async def round(self, *, is_counted: bool) -> None:
        """Measure all, then one rate, then that set back; who is first alternates."""
        figures = self._figures if is_counted else defaultdict[str, list[float]](list)
        self._forget()
        self._define(_names())
        await self._both("all", _names(), len(_names()), figures)
        before, self._tax = self._tax, round(self._tax + 0.01, 2)
        self._sheet.source("tax", self._tax)
        await self._both("one rate", _BY_TAX, len(_BY_TAX), figures)
        self._sheet.source("tax", before)
        await self._measure("set back, Rebaser", self._ours(0), figures)
        self._sheet.source("tax", self._tax)
        await self._ours(0)

    def _forget(self) -> None:
        """Remove all tables but those that were uploaded."""
        for path in self._results.iterdir():
            if path.name not in self._uploads:
                self._sheet.tables.files.delete_directory(f"tables/{OWNER}/{path.name}")

    async def _both(
        self, what: str, names: Iterable[str], queries: int, figures: dict[str, list[float]]
    ) -> None:
        turns = [
            (f"{what}, Rebaser", lambda: self._ours(queries)),
            (f"{what}, plain", lambda: asyncio.to_thread(self._plain, names)),
        ]
        for name, turn in turns if len(figures[f"{what}, plain"]) % 2 else reversed(turns):
            await self._measure(name, turn(), figures)

    async def _measure(self, name: str, work: Any, figures: dict[str, list[float]]) -> None:
        began, used = time.perf_counter(), self._used()
        await work
        figures[name].append(time.perf_counter() - began)
        figures[f"{name}, CPU"].append(self._used() - used)

    def _used(self) -> float:
        pid = self._executor.jvm_pid
        return time.process_time() + (processes.seconds(pid, children=True) or 0.0 if pid else 0.0)

    async def _ours(self, queries: int) -> None:
        ran = await self._sheet.compute()
        failed = [v.message for v in self._sheet.graph.values.values() if v.message]
        if failed or ran != queries:
            raise RuntimeError(f"{ran} queries where {queries} were due; {failed}")

    def _plain(self, names: Iterable[str]) -> None:
        """Compute them as a program that knows Spark alone."""
        with self._executor._session.job("plain", "plain") as shared:  # noqa: SLF001
            spark = shared.newSession()
            spark.conf.set("spark.sql.leafNodeDefaultParallelism", "2")
            for name, uri in self._files.items():
                spark.read.parquet(uri).createOrReplaceTempView(name)
            discount = tpch.SCALARS["discount"]
            values = tpch.SCALARS | {"tax": self._tax}
            values |= {"discount_low": discount - 0.01, "discount_high": discount + 0.01}
            shutil.rmtree(self._plain_results, ignore_errors=True)
            for name in names:
                inputs = {**tpch.TABLES, **tpch.VALUES}[name].split()
                used = {each: values[each] for each in inputs if each in values}
                arguments = {each: _literal(value) for each, value in used.items()}
                frame = spark.sql(tpch.query(name), args=arguments)
                if name in tpch.VALUES:
                    [[found]] = frame.collect()
                    values[name] = float(found)
                    continue
                frame.write.parquet(f"file://{self._plain_results}/{name}")
                written = spark.read.parquet(f"file://{self._plain_results}/{name}")
                written.createOrReplaceTempView(name)

    def table(self, note: str) -> Table:
        rows: list[list[Cell]] = []
        for what, count in (("all", len(_names())), ("one rate", len(_BY_TAX))):
            ours, plain = (self._figures[f"{what}, {who}, CPU"] for who in ("Rebaser", "plain"))
            walls = [median(self._figures[f"{what}, {who}"]) for who in ("Rebaser", "plain")]
            rows.append(
                [what, count, median(ours), median(plain), *walls, median(ours) / median(plain)]
            )
        back = "set back, Rebaser"
        rows.append(
            ["set back", 0, median(self._figures[f"{back}, CPU"]), None,
             median(self._figures[back]), None, None]
        )  # fmt: skip
        columns = [
            "what",
            "queries",
            "Rebaser CPU",
            "plain CPU",
            "Rebaser",
            "plain",
            "ratio of CPU",
        ]
        return Table("Tables of TPC-H beside plain Spark (s)", columns, rows, [note])

    async def close(self) -> None:
        await self._sheet.close()


def _names() -> list[str]:
    """All queries, in an order in which they can be computed."""
    first = [name for name in tpch.TABLES if name not in _BY_TAX]
    return [*first, "forecast", *_BY_TAX]


def _literal(value: Any) -> Any:
    from pyspark.sql import functions  # noqa: PLC0415

    return functions.array(*map(functions.lit, value)) if isinstance(value, list) else value

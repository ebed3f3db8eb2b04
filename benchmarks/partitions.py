"""Part `partitions`: one changed partition of 30, beside the whole and beside a plain session."""

import asyncio
import shutil
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Final

import numpy as np
import pyarrow as pa

from benchmarks import processes
from benchmarks.sizes import Sizes
from benchmarks.tables import Cell, Table, median
from rebaser_core.table_values import upload_of
from rebaser_server.compute.spark.options import SparkOptions
from rebaser_server.compute.spark.spark_executor import SparkExecutor
from tests.helpers.table_sheet import OWNER, TableSheet

_DAYS: Final = 30
_FULL_ROWS: Final = 1_500_000
_QUICK_ROWS: Final = 150_000
_WARM_UP: Final = 2
_QUERY: Final = """\
SELECT day, customer, sum(amount * :rate) AS total, count(*) AS orders, max(id) AS latest
FROM orders GROUP BY day, customer"""
_NOTE: Final = """\
{rows:,} orders of {days} days, grouped by day and customer, on two cores in one warm session of
Spark; medians of {rounds} rounds, in turns. CPU: of the JVM, its Python workers, and the process
that runs the graph or the plain session. Rebaser: from a plan to a handle, with digests, synced
files and the manifest of all parts. Plain: a view over the same files, `sql`, `write.parquet`.
Whole: all days, by Rebaser in one job whose result is split into parts. Whole, not partitioned: the
same query without parts, by Rebaser. One day: the orders of one day have changed; plain reads and
writes that day alone."""


async def run(directory: Path, sizes: Sizes, say: Callable[[str], None]) -> list[Table]:
    rows = _FULL_ROWS if sizes.whole_graph else _QUICK_ROWS
    options = SparkOptions(directory / "spark", master="local[2]")
    executor = SparkExecutor(options, has_tables=lambda: True)
    case = _Case(executor, directory, rows)
    try:
        for number in range(_WARM_UP + sizes.rounds):
            say(f"partitions: round {number}")
            await case.round(number, is_counted=number >= _WARM_UP)
    finally:
        await case.close()
        await executor.close()
    return [case.table(_NOTE.format(rows=rows, days=_DAYS, rounds=sizes.rounds))]


class _Case:
    """A graph with one partitioned table, and a plain session over the files that it has."""

    def __init__(self, executor: SparkExecutor, directory: Path, rows: int) -> None:
        self._executor = executor
        self._sheet = TableSheet(executor, directory / "store")
        self._plain_result = directory / "plain"
        chance = np.random.default_rng(1)
        self._columns = {
            "day": np.sort(np.arange(rows) % _DAYS),
            "id": np.arange(rows),
            "customer": chance.integers(0, max(10, rows // 100), rows),
            "amount": chance.integers(1, 100_000, rows),
        }
        self._sheet.source("rate", 2)
        self._figures: dict[str, list[float]] = defaultdict(list)

    async def round(self, number: int, *, is_counted: bool) -> None:
        """Measure all days, then the one that changes; who is first alternates."""
        figures = self._figures if is_counted else defaultdict[str, list[float]](list)
        all_days = [str(day) for day in range(_DAYS)]
        self._upload()
        for name, first in (("whole", "-- partition by: day\n"), ("whole, not partitioned", "")):
            # Another text each time, so that nothing is found.
            code = f"{first}{_QUERY.replace(':rate', f':rate + {number}')}"
            self._sheet.query("by_day", code, "orders", "rate")
            await self._both(number, name, all_days, figures)
        code = f"-- partition by: day\n{_QUERY.replace(':rate', f':rate + {number}')}"
        self._sheet.query("by_day", code, "orders", "rate")
        await self._sheet.compute()
        changed = number % _DAYS
        self._columns["amount"][self._columns["day"] == changed] += 1
        self._upload()
        await self._both(number, "one day", [str(changed)], figures)

    def _upload(self) -> None:
        self._sheet.upload("orders", pa.table(self._columns), "day")

    async def _both(
        self, number: int, name: str, days: Sequence[str], figures: dict[str, list[float]]
    ) -> None:
        turns: list[tuple[str, Callable[[], Awaitable[object]]]] = [
            (f"{name}, Rebaser", self._ours),
            (f"{name}, plain", lambda: asyncio.to_thread(self._plain, days)),
        ]
        for about, turn in turns if number % 2 else reversed(turns):
            began, used = time.perf_counter(), self._used()
            await turn()
            figures[about].append(time.perf_counter() - began)
            figures[f"{about}, CPU"].append(self._used() - used)

    def _used(self) -> float:
        pid = self._executor.jvm_pid
        return time.process_time() + (processes.seconds(pid, children=True) or 0.0 if pid else 0.0)

    async def _ours(self) -> None:
        ran = await self._sheet.compute()
        if message := self._sheet.graph.values["by_day"].message or ran != 1:
            raise RuntimeError(f"{ran} queries where one was due; {message}")

    def _plain(self, days: Sequence[str]) -> None:
        """Compute it as a program that knows Spark alone, from the files of these days."""
        tables = self._sheet.tables
        key = upload_of(self._sheet.graph.values["orders"].value)
        parts = {part.value: part.key for part in tables.get(OWNER, str(key)).parts}
        files = [file for day in days for file in tables.get(OWNER, parts[day]).files]
        with self._executor._session.job("plain", "plain") as shared:  # noqa: SLF001
            spark = shared.newSession()
            spark.conf.set("spark.sql.leafNodeDefaultParallelism", "2")
            root = f"file://{tables.files.root}/tables/{OWNER}"
            paths = [f"{root}/{file.path}" for file in files]
            spark.read.parquet(*paths).createOrReplaceTempView("orders")
            shutil.rmtree(self._plain_result, ignore_errors=True)
            frame = spark.sql(_QUERY, args={"rate": 2})
            frame.write.parquet(f"file://{self._plain_result}")

    def table(self, note: str) -> Table:
        rows: list[list[Cell]] = []
        found = self._figures
        whole = median(found["whole, Rebaser, CPU"])
        for name in ("whole", "whole, not partitioned", "one day"):
            ours, plain = (median(found[f"{name}, {who}, CPU"]) for who in ("Rebaser", "plain"))
            walls = [median(found[f"{name}, {who}"]) for who in ("Rebaser", "plain")]
            rows.append([name, ours, plain, *walls, ours / plain, ours / whole])
        columns = [
            "what",
            "Rebaser CPU",
            "plain CPU",
            "Rebaser",
            "plain",
            "ratio of CPU",
            "CPU, of the whole",
        ]
        return Table("One changed partition of 30 (s)", columns, rows, [note])

    async def close(self) -> None:
        await self._sheet.close()

"""A graph with tables, computed by queries on real Spark."""

import io
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from blake3 import blake3

from rebaser_core.table_schemas import PARTITION_BY
from rebaser_core.table_values import TableHandle, upload_value
from rebaser_server.compute.executors import ChildProcessExecutor
from rebaser_server.compute.plan import plan
from rebaser_server.compute.results import UnitResult
from rebaser_server.compute.run import Run
from rebaser_server.compute.spark.spark_call import SparkQueries
from rebaser_server.compute.spark.spark_executor import SparkExecutor
from rebaser_server.compute.tables import Query, SparkCall, TableExecutor
from rebaser_server.files import SharedFiles
from rebaser_server.tables import TableFiles
from tests.helpers.graph_builder import Builder

OWNER = "01KAXW1KQW0000000000000000"
ORDERS = pa.table(
    {
        "id": pa.array(range(6), pa.int64()),
        "day": ["mon", "mon", "tue", "tue", "tue", "wed"],
        "amount": pa.array([10, 20, 30, 40, 50, 60], pa.int64()),
    }
)
BY_DAY = "SELECT day, sum(amount) * :rate AS total FROM orders GROUP BY day"


class TableSheet(Builder):
    """A graph whose queries run on Spark, and the tables that they make."""

    def __init__(self, spark: SparkExecutor, directory: Path) -> None:
        super().__init__()
        self.tables = TableFiles(SharedFiles(str(directory)))
        self.asked: Counter[str] = Counter()
        """Queries and calls that ran, by their values."""
        self._queries = SparkQueries(spark)
        self._children = ChildProcessExecutor()
        self.executor = TableExecutor(self._children, self, self.tables)

    async def run_query(self, query: Query | SparkCall, about: str, run: Run) -> Any:
        self.asked[about] += 1
        return await self._queries.run_query(query, about, run)

    def upload(self, name: str, table: pa.Table, partition_by: str | None = None) -> None:
        sink = io.BytesIO()
        with pq.ParquetWriter(sink, table.schema) as writer:
            writer.write_table(table)
            if partition_by is not None:
                writer.add_key_value_metadata({PARTITION_BY: partition_by})
        digest = blake3(sink.getvalue()).hexdigest()
        self.tables.adopt(OWNER, digest, sink.getvalue())
        self.source(name, upload_value(digest))

    def query(self, name: str, code: str, *inputs: str) -> None:
        self.dependent(name, code, {each: each for each in inputs}, "sql")

    def call(self, name: str, function: str, *inputs: str) -> None:
        self.dependent(name, f"spark.{function}", {each: each for each in inputs}, "pyspark")

    async def compute(self) -> int:
        """Compute what is due; return how many queries and calls ran."""
        before = self.asked.total()
        outcomes = await self.executor.run(plan(self.graph, 2).units, Run(OWNER))
        self.apply([outcome for outcome in outcomes if isinstance(outcome, UnitResult)])
        return self.asked.total() - before

    def value(self, name: str) -> Any:
        found = self.graph.values[name]
        return found.value if found.message is None else found.message

    def rows(self, name: str) -> list[dict[str, Any]]:
        handle = TableHandle.of(self.value(name))
        assert handle is not None, self.value(name)
        manifest = self.tables.get(OWNER, handle.key)
        names = [field["name"] for field in manifest.fields]
        batches = self.tables.batches(OWNER, manifest, names)
        rows = [row for batch in batches for row in batch.to_pylist()]
        assert len(rows) == handle.rows
        return sorted(rows, key=lambda row: list(map(str, row.values())))

    async def close(self) -> None:
        await self._children.close()


async def compute_by_day(spark: SparkExecutor, directory: Path) -> list[dict[str, Any]]:
    """Rows that one query, and a function of runtime `pyspark`, make of an uploaded table there."""
    sheet = TableSheet(spark, directory)
    try:
        sheet.upload("orders", ORDERS)
        sheet.source("rate", 2)
        sheet.query("by_day", BY_DAY, "orders", "rate")
        sheet.call("same", "by_day", "orders", "rate")
        sheet.call("doubled", "doubled", "orders")
        sheet.call("unknown", "unknown", "orders")
        sheet.call("ends", "ends", "orders")
        await sheet.compute()
        assert sheet.rows("same") == sheet.rows("by_day")
        assert [row["amount"] for row in sheet.rows("doubled")] == [20, 40, 60, 80, 100, 120]
        assert "`nothing` cannot be resolved" in sheet.value("unknown")
        assert sheet.value("ends").endswith("function 'spark.ends': exit code 7")
        return sheet.rows("by_day")
    finally:
        await sheet.close()

"""A graph with tables, computed by queries on real Spark."""

import io
from collections import Counter
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from blake3 import blake3

from rebaser_core.table_schemas import PARTITION_BY
from rebaser_core.table_values import TableHandle, table_key, upload_value
from rebaser_server.compute.executors import ChildProcessExecutor
from rebaser_server.compute.plan import plan
from rebaser_server.compute.results import UnitResult
from rebaser_server.compute.run import Run
from rebaser_server.compute.spark.spark_call import SparkQueries
from rebaser_server.compute.spark.spark_executor import SparkExecutor
from rebaser_server.compute.tables import Query, SparkCall, TableExecutor
from rebaser_server.files import SharedFiles
from rebaser_server.tables import TableFiles
from rebaser_server.values.column_hashes import ContentDigest
from tests.helpers.graph_builder import Builder

OWNER = "01KAXW1KQW0000000000000000"
ORDERS = pa.table(
    {
        "id": pa.array(range(6), pa.int64()),
        "day": ["mon", "mon", "tue", "tue", "tue", "wed"],
        "amount": pa.array([10, 20, 30, 40, 50, 60], pa.int64()),
    }
)
_INSTANT = datetime(1, 1, 1, tzinfo=UTC)
ODD = pa.table(
    {
        "text": ["", None, "\U0001f600 ä"],
        "bytes": [b"\xff\x00", b"", None],
        "double": [-0.0, float("nan"), None],
        "float": pa.array([0.0, -0.0, float("inf")], pa.float32()),
        "exact": pa.array([Decimal("1.10"), None, Decimal("-99.99")], pa.decimal128(38, 2)),
        "day": [date(1, 1, 1), date(9999, 12, 31), None],
        "at": pa.array([_INSTANT, None, _INSTANT], pa.timestamp("us", "UTC")),
        "here": pa.array([datetime(2026, 1, 1, 1, 2, 3, 4), None, None], pa.timestamp("us")),  # noqa: DTZ001
        "small": pa.array([-128, 127, None], pa.int8()),
        "is_so": [True, None, False],
        "list": [[1, None], [], None],
        "map": pa.array([[("a", 1), ("b", None)], [], None], pa.map_(pa.string(), pa.int64())),
        "inner": [{"a": None, "b": [{"c": -0.0}]}, None, {"a": "x", "b": []}],
    }
)
"""A column of each kind of type, with what is easily lost."""
BY_DAY = "SELECT day, sum(amount) * :rate AS total FROM orders GROUP BY day"


class TableSheet(Builder):
    """A graph whose queries run on Spark, and the tables that they make."""

    def __init__(self, spark: SparkExecutor, store: Path | SharedFiles) -> None:
        super().__init__()
        files = store if isinstance(store, SharedFiles) else SharedFiles(str(store))
        self.tables = TableFiles(files)
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

    def content(self, name: str) -> str:
        """The digest of the rows of a table, uploaded or computed."""
        key = table_key(self.value(name))
        assert key is not None, self.value(name)
        manifest, digest = self.tables.get(OWNER, key), ContentDigest()
        for batch in self.tables.batches(OWNER, manifest, [f["name"] for f in manifest.fields]):
            digest.add(batch)
        return digest.text

    async def close(self) -> None:
        await self._children.close()


async def compute_by_day(spark: SparkExecutor, store: Path | SharedFiles) -> list[dict[str, Any]]:
    """Rows that one query, and a function of runtime `pyspark`, make of an uploaded table there.

    And joins, partitions and odd types come out as they are to.
    """
    sheet = TableSheet(spark, store)
    try:
        sheet.upload("orders", ORDERS)
        sheet.source("rate", 2)
        sheet.query("by_day", BY_DAY, "orders", "rate")
        sheet.call("same", "by_day", "orders", "rate")
        sheet.call("doubled", "doubled", "orders")
        sheet.call("unknown", "unknown", "orders")
        sheet.call("ends", "ends", "orders")
        sheet.upload("odd", ODD)
        sheet.query("as_it_was", "SELECT * FROM odd", "odd")
        sheet.upload("by_id", ORDERS, "day")
        each = (
            "-- key: id\n-- partition by: day\nSELECT id, day, amount * :rate AS twice FROM by_id"
        )
        sheet.query("each", each, "by_id", "rate")
        joined = "SELECT o.id, e.twice FROM orders o LEFT JOIN each e ON o.id = e.id AND e.id > 2"
        sheet.query("joined", joined, "orders", "each")
        await sheet.compute()
        assert sheet.content("as_it_was") == sheet.content("odd")
        assert [row["twice"] for row in sheet.rows("joined")] == [None, None, None, 80, 100, 120]
        assert sheet.rows("same") == sheet.rows("by_day")
        assert [row["amount"] for row in sheet.rows("doubled")] == [20, 40, 60, 80, 100, 120]
        assert "`nothing` cannot be resolved" in sheet.value("unknown")
        assert sheet.value("ends").endswith("function 'spark.ends': exit code 7")
        return sheet.rows("by_day")
    finally:
        await sheet.close()

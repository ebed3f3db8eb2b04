"""The job of a query: what it reads, and what it says of the rows that it has written."""

import asyncio
import io
from itertools import combinations
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rebaser_server.compute.spark.spark_call import SparkQueries
from rebaser_server.compute.spark.spark_executor import SparkExecutor
from rebaser_server.compute.tables import Query, QueryFailed
from rebaser_server.files import SharedFiles
from rebaser_server.tables import TableFiles, Target, View

pytestmark = pytest.mark.spark

KEY = "a" * 64
AS_TABLE = "SELECT * FROM VALUES {} AS t(a, b)"


def target(directory: Path) -> Target:
    tables = TableFiles(SharedFiles(str(directory)))
    return Target(tables.files, tables.begin("shop", KEY))


async def contents(executor: SparkExecutor, directory: Path, *rows: str) -> list[str]:
    """The digest of each table, which has such rows."""
    queries = [Query(AS_TABLE.format(each), {}, {}, target(directory)) for each in rows]
    found = await asyncio.gather(*(SparkQueries(executor).run_query(each, "") for each in queries))
    return [written.content for written in found]


@pytest.mark.parametrize(
    "rows",
    [
        [
            "(CAST(NULL AS INT), 5), (1, NULL)",
            "(5, CAST(NULL AS INT)), (1, NULL)",
            "(5, CAST(NULL AS INT)), (NULL, 1)",
        ],
        ["(ARRAY(1, NULL), 1)", "(ARRAY(NULL, 1), 1)", "(ARRAY(1), 1)"],
        [
            "(MAP('x', TIMESTAMP '2026-01-01 00:00:00.000001'), 1)",
            "(MAP('x', TIMESTAMP '2026-01-01 00:00:00.000002'), 1)",
            "(MAP('x', CAST(NULL AS TIMESTAMP)), 1)",
        ],
        ["(0.0D, -0.0D)", "(-0.0D, 0.0D)", "(0.0D, 0.0D)", "(-0.0D, CAST(NULL AS DOUBLE))"],
        ["(CAST(0 AS FLOAT), 1)", "(CAST(-0.0D AS FLOAT), 1)"],
        ["(ARRAY(0.0D), 1)", "(ARRAY(-0.0D), 1)"],
        [
            "(ARRAY(CAST(X'FF' AS STRING)), 1)",
            "(ARRAY(CAST(X'FE' AS STRING)), 1)",
            "(ARRAY(CAST(X'FFFF' AS STRING)), 1)",
        ],
        [
            "(NAMED_STRUCT('s', MAP('a', CAST(X'FF' AS STRING))), 1)",
            "(NAMED_STRUCT('s', MAP('a', CAST(X'FE' AS STRING))), 1)",
        ],
        ["(MAP(CAST(X'FF' AS STRING), 1), 1)", "(MAP(CAST(X'FE' AS STRING), 1), 1)"],
    ],
)
async def test_other_rows_have_another_digest(
    executor: SparkExecutor, tmp_path: Path, rows: list[str]
) -> None:
    """Also if they differ in nulls, which Spark's hash does not tell apart, or far inside."""
    found = await contents(executor, tmp_path, *rows)

    assert all(one != other for one, other in combinations(found, 2))


async def test_equal_rows_have_one_digest(executor: SparkExecutor, tmp_path: Path) -> None:
    """In any order, and with the entries of a map in any order."""
    first, second = await contents(
        executor,
        tmp_path,
        "(MAP('x', 1, 'y', 2), 1), (MAP('z', 3), NULL)",
        "(MAP('z', 3), NULL), (MAP('y', 2, 'x', 1), 1)",
    )

    assert first == second


async def test_a_mistake_in_a_query_is_not_printed(
    executor: SparkExecutor, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """PySpark prints each, in lines that are none of the log."""
    with pytest.raises(QueryFailed, match="nope"):
        await SparkQueries(executor).run_query(Query("SELECT nope", {}, {}, target(tmp_path)), "")

    assert capfd.readouterr().err == ""


async def test_a_condition_keeps_rows_that_are_not_a_number(
    executor: SparkExecutor, tmp_path: Path
) -> None:
    """Spark takes NaN for the greatest number; an uploaded file has statistics without it."""
    tables, sink = TableFiles(SharedFiles(str(tmp_path))), io.BytesIO()
    pq.write_table(pa.table({"x": [1.0, float("nan")]}), sink)
    manifest = tables.adopt("shop", "ab" * 32, sink.getvalue())
    views = {"t": View(tables.files, "shop", manifest)}

    found = await SparkQueries(executor).run_query(
        Query("SELECT count(*) FROM t WHERE x > 2", views, {}, None), ""
    )

    assert found == 1

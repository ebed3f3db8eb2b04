"""What a query takes: tables of its workspace, none that a function made up; or no inputs.

What is there is not computed.
"""

import io
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from blake3 import blake3

from rebaser_core.table_values import TableHandle
from rebaser_server.compute.executors import ChildProcessExecutor
from rebaser_server.compute.results import UnitResult
from rebaser_server.compute.run import Run
from rebaser_server.compute.tables import Query, TableExecutor, Written
from rebaser_server.files import SharedFiles
from rebaser_server.tables import TableFiles
from tests.helpers.work_units import unit_from_rows

FIELDS = [{"name": "n", "type": "long", "nullable": True, "metadata": {}}]


class Recorded:
    """Queries that all return one value, or an empty table."""

    def __init__(self) -> None:
        self.queries: list[Query] = []

    async def run_query(self, query: Query, *_: object) -> Any:
        self.queries.append(query)
        return 1 if query.target is None else Written(FIELDS, 0, "ab" * 16)


def adopted(tables: TableFiles, workspace: str, numbers: list[int]) -> TableHandle:
    sink = io.BytesIO()
    pq.write_table(pa.table({"n": numbers}), sink)
    key = blake3(sink.getvalue()).hexdigest()
    return tables.adopt(workspace, key, sink.getvalue()).handle(key)


@pytest.mark.parametrize("what", ["of another workspace", "with the content of another"])
async def test_a_query_reads_no_table_by_an_object_that_a_function_made_up(
    tmp_path: Path, what: str
) -> None:
    """Neither that of another workspace, nor one that would be remembered as another's result."""
    tables = TableFiles(SharedFiles(str(tmp_path)))
    theirs, ours = adopted(tables, "theirs", [1]), adopted(tables, "ours", [2])
    forged = {
        "of another workspace": replace(theirs, key=f"../theirs/{theirs.key}"),
        "with the content of another": replace(ours, content=theirs.content),
    }[what]
    unit = unit_from_rows(
        [("sql", "SELECT n FROM t")],
        [(0, [("t", None)])],
        [("it", 0, "pending", None, True, [~0])],
        [("forged", True, {"$table": asdict(forged)})],
    )

    queries = Recorded()
    executor = TableExecutor(ChildProcessExecutor(), queries, tables)
    [result] = await executor.run([unit], Run("ours"))

    assert isinstance(result, UnitResult)
    [(value_id, status, message)] = result.value_results
    assert not queries.queries
    assert (value_id, status) == ("it", "failed")
    assert str(message).startswith("'t' is no table")


async def test_a_query_may_take_nothing(tmp_path: Path) -> None:
    """As one whose inputs were removed."""
    unit = unit_from_rows(
        [("sql", "-- returns: value\nSELECT 1")],
        [(0, [])],
        [("it", 0, "pending", None, True, [])],
    )

    tables = TableFiles(SharedFiles(str(tmp_path)))
    executor = TableExecutor(ChildProcessExecutor(), Recorded(), tables)
    [result] = await executor.run([unit], Run("ours"))

    assert isinstance(result, UnitResult)
    assert result.value_results == [("it", "ok", 1)]


@pytest.mark.parametrize("code", ["SELECT 1 AS n", "-- returns: value\nSELECT 1"])
async def test_what_is_there_does_not_count_as_computed(tmp_path: Path, code: str) -> None:
    """Neither in what is said of the update, nor in what its function costs."""
    unit = unit_from_rows([("sql", code)], [(0, [])], [("it", 0, "pending", None, True, [])])

    queries, tables = Recorded(), TableFiles(SharedFiles(str(tmp_path)))
    executor = TableExecutor(ChildProcessExecutor(), queries, tables)
    [first] = await executor.run([unit], Run("ours"))
    [second] = await executor.run([unit], Run("ours"))

    assert isinstance(first, UnitResult)
    assert isinstance(second, UnitResult)
    assert first.value_results == second.value_results
    assert (first.recomputed, second.recomputed, len(queries.queries)) == (1, 0, 1)
    assert [calls for calls, _ in second.costs.values()] == [0]

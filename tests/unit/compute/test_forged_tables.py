"""Objects that look like a table, as any function can return them, are none."""

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
from rebaser_server.compute.tables import Query, TableExecutor
from rebaser_server.files import SharedFiles
from rebaser_server.tables import TableFiles
from tests.helpers.work_units import unit_from_rows


class NoQueries:
    async def run_query(self, query: Query, about: str, owner: str) -> Any:
        raise AssertionError(query)


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

    executor = TableExecutor(ChildProcessExecutor(), NoQueries(), tables)
    [result] = await executor.run([unit.encode()], owner="ours")

    assert isinstance(result, UnitResult)
    [(value_id, status, message)] = result.value_results
    assert (value_id, status) == ("it", "failed")
    assert str(message).startswith("'t' is no table")

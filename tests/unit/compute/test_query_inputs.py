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

from rebaser_core.table_values import PinnedTable, TableHandle
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


async def computed(executor: TableExecutor, code: str, **given: Any) -> tuple[str, Any]:
    """Compute a value by this query; return its status and result."""
    unit = unit_from_rows(
        [("sql", code)],
        [(0, [(name, None) for name in given])],
        [("it", 0, "pending", None, True, [~place for place in range(len(given))])],
        [(name, True, value) for name, value in given.items()],
    )
    [result] = await executor.run([unit], Run("ours"))
    assert isinstance(result, UnitResult)
    [(_, status, value)] = result.value_results
    return status, value


@pytest.mark.parametrize("declared", ["returns: value", "columns: n bigint", "key: n"])
async def test_what_a_result_is_declared_to_be_makes_it_another(
    tmp_path: Path, declared: str
) -> None:
    """A value does not find the table that it was, nor rows that were held to no contract."""
    queries, tables = Recorded(), TableFiles(SharedFiles(str(tmp_path)))
    executor = TableExecutor(ChildProcessExecutor(), queries, tables)
    plain = "SELECT CAST(1 AS BIGINT) AS n"

    _, before = await computed(executor, plain)
    status, after = await computed(executor, f"-- {declared}\n{plain}")

    assert len(queries.queries) == 2
    assert (status, after == 1) == ("ok", declared == "returns: value")
    assert TableHandle.of(before) is not None


async def test_a_result_is_found_by_its_code_and_by_the_names_of_its_inputs(tmp_path: Path) -> None:
    """Parameters that exchange their values are other inputs."""
    queries, tables = Recorded(), TableFiles(SharedFiles(str(tmp_path)))
    executor = TableExecutor(ChildProcessExecutor(), queries, tables)

    for sign, a, b in (("-", 1, 2), ("-", 2, 1), ("-", 1, 2), ("+", 1, 2)):
        await computed(executor, f"SELECT :a {sign} :b AS n", a=a, b=b)

    found = [(query.parameters["a"], "+" in query.text) for query in queries.queries]
    assert found == [(1, False), (2, False), (1, True)]


async def test_tables_with_equal_rows_and_columns_are_one_input(tmp_path: Path) -> None:
    """Whatever their keys, and by whichever form they are named; other columns make another."""
    queries, tables = Recorded(), TableFiles(SharedFiles(str(tmp_path)))
    executor = TableExecutor(ChildProcessExecutor(), queries, tables)
    pinned = PinnedTable("/lake/orders", 7)
    renamed = [{**FIELDS[0], "name": "m"}]
    a, b, _, other = (
        tables.finish(tables.begin("ours", key), Written(fields, 0, "cd" * 16)).handle(key)
        for key, fields in (
            ("a" * 64, FIELDS),
            ("b" * 64, FIELDS),
            (pinned.key, FIELDS),
            ("c" * 64, renamed),
        )
    )

    results = [
        await computed(executor, "SELECT * FROM t", t=each.to_value())
        for each in (a, b, pinned, other)
    ]

    assert len(queries.queries) == 2
    assert results[0] == results[1] == results[2] != results[3]


@pytest.mark.parametrize(
    ("code", "is_number", "says"),
    [
        ("SELECT n FROM t", True, "'t' is no table: use it as the parameter :t"),
        ("SELECT :t AS n", False, "'t' is a table: use it behind FROM or JOIN, not :t"),
    ],
)
async def test_a_table_is_no_parameter_and_no_parameter_a_table(
    tmp_path: Path, code: str, is_number: bool, says: str
) -> None:
    queries, tables = Recorded(), TableFiles(SharedFiles(str(tmp_path)))
    executor = TableExecutor(ChildProcessExecutor(), queries, tables)
    given = 1 if is_number else adopted(tables, "ours", [1]).to_value()

    assert await computed(executor, code, t=given) == ("failed", says)
    assert not queries.queries

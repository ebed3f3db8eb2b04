"""Values that are tables, computed by queries on real Spark."""

import asyncio
import os
from contextlib import suppress
from functools import partial
from pathlib import Path

import pyarrow as pa
import pytest
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException

from rebaser_server.compute.run import Run
from rebaser_server.compute.spark import table_job
from rebaser_server.compute.spark.spark_call import SparkQueries
from rebaser_server.compute.spark.spark_executor import SparkExecutor
from rebaser_server.compute.tables import Query, QueryFailed
from tests.helpers.arrow_functions import install_arrow_functions
from tests.helpers.eventually import eventually
from tests.helpers.table_sheet import BY_DAY, OWNER, TableSheet

pytestmark = pytest.mark.spark


def plain_query(text: str) -> Query:
    """A query that takes nothing and returns one value."""
    return Query(text, {}, {}, None)


async def test_tables_and_other_values_are_computed_from_each_other(sheet: TableSheet) -> None:
    sheet.query("by_day", BY_DAY, "orders", "rate")
    sheet.query("most", "-- returns: value\nSELECT max(total) FROM by_day", "by_day")
    sheet.dependent("half", "most / 2", {"most": "most"}, "cel")
    sheet.source("days", ["mon", "wed"])
    sheet.query(
        "large", "SELECT day FROM by_day WHERE total > :half OR array_contains(:days, day)",
        *("by_day", "half", "days"),
    )  # fmt: skip

    assert await sheet.compute() == 3

    assert sheet.rows("by_day") == [
        {"day": "mon", "total": 60},
        {"day": "tue", "total": 240},
        {"day": "wed", "total": 120},
    ]
    assert (sheet.value("most"), sheet.value("half")) == (240, 120)
    assert [row["day"] for row in sheet.rows("large")] == ["mon", "tue", "wed"]


async def test_queries_and_functions_of_arrow_take_each_others_tables(
    sheet: TableSheet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each has the rows, with the types, that the other has written; and what is equal is kept."""
    install_arrow_functions(tmp_path / "site")
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "site"), prepend=os.pathsep)
    sheet.source("least", 10)
    sheet.query("dear", "SELECT * FROM orders WHERE amount > :least", "orders", "least")
    sheet.dependent("by_day", "arrow.by_day", {"orders": "dear"}, "arrow")
    sheet.query("most", "-- returns: value\nSELECT max(total) FROM by_day", "by_day")
    sheet.dependent("times", "arrow.times", {"orders": "dear", "rate": "rate"}, "arrow")
    sheet.query("again", "SELECT day, amount FROM times ORDER BY amount", "times")
    sheet.dependent("half", "most / 2", {"most": "most"}, "cel")

    assert await sheet.compute() == 3
    before = {name: sheet.value(name) for name in ("by_day", "times", "again")}

    assert (sheet.value("most"), sheet.value("half")) == (120, 60)
    assert sheet.rows("by_day") == [
        {"day": "mon", "total": 20},
        {"day": "tue", "total": 120},
        {"day": "wed", "total": 60},
    ]
    assert sorted(row["amount"] for row in sheet.rows("again")) == [40, 60, 80, 100, 120]

    sheet.source("least", 10.5)

    assert await sheet.compute() == 1
    assert before == {name: sheet.value(name) for name in before}


async def test_a_table_that_was_computed_before_is_not_computed_again(sheet: TableSheet) -> None:
    """Neither after an input was set back, nor for another value of the same query."""
    sheet.query("by_day", BY_DAY, "orders", "rate")
    await sheet.compute()
    first = sheet.value("by_day")

    sheet.source("rate", 3)
    changed = await sheet.compute()
    sheet.source("rate", 2)
    sheet.query("same", BY_DAY, "orders", "rate")
    again = await sheet.compute()

    assert (changed, again) == (1, 0)
    assert sheet.value("by_day") == sheet.value("same") == first


async def test_equal_rows_keep_their_handle_and_end_the_update_there(sheet: TableSheet) -> None:
    sheet.source("least", 15)
    sheet.query("large", "SELECT * FROM orders WHERE amount > :least", "orders", "least")
    sheet.query("count", "-- returns: value\nSELECT count(*) FROM large", "large")
    await sheet.compute()
    before = sheet.value("large")

    sheet.source("least", 19)
    ran = await sheet.compute()

    assert (ran, sheet.value("large"), sheet.value("count")) == (1, before, 5)


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("SELECT nothing FROM orders", "nothing"),
        ("SELECT id / (amount - amount) AS a FROM orders", "DIVIDE_BY_ZERO"),
        ("-- returns: value\nSELECT id FROM orders", "more than one row"),
        ("-- returns: value\nSELECT id, day FROM orders", "2 columns where one value is wanted"),
        ("-- returns: rows\nSELECT id FROM orders", "neither `table` nor `value`"),
        ("SELECT id, amount AS ID FROM orders", "differ in upper and lower case alone"),
        ("SELECT id, NULL AS nothing FROM orders", "type void, which a table cannot keep"),
        ("SELECT make_interval(id) AS since FROM orders", "interval"),
        ("-- columns: id bigint\nSELECT id, day FROM orders", "'day', which is not declared"),
        ("-- columns: id long, day date\nSELECT id, day FROM orders", "declared as date, and"),
        ("-- columns: id long, x int\nSELECT id FROM orders", "no column 'x', which is declared"),
        ("-- columns: id long not null\nSELECT nullif(id, 1) AS id FROM orders", "in 1 rows"),
        ("-- columns: id long not\nSELECT id FROM orders", "declared as longnot"),
        ("-- days\n-- key: day\nSELECT day, id FROM orders", "rows have the key day="),
        ("-- key: days\nSELECT day FROM orders", "no column 'days', which the key has"),
        ("-- returns: value\n-- key: day\nSELECT max(day) AS day FROM orders", "nor a key"),
    ],
)
async def test_a_mistake_fails_its_value_and_blocks_what_takes_it(
    sheet: TableSheet, code: str, message: str
) -> None:
    sheet.query("it", code, "orders")
    sheet.query("then", "SELECT * FROM it", "it")

    await sheet.compute()

    assert sheet.state()["it"][0] == "failed"
    assert message in sheet.value("it")
    assert "spark." not in sheet.value("it")  # nobody who writes a query can change a setting
    assert sheet.state()["then"] == ("blocked", "it")


async def test_a_table_is_what_was_declared(sheet: TableSheet) -> None:
    """And one that was computed without a declaration is not taken for it."""
    code = "SELECT day, sum(amount) AS total, collect_list(id) AS ids FROM orders GROUP BY day"
    sheet.query("plain", code, "orders")
    await sheet.compute()
    sheet.query(
        "it",
        "-- key: day\n-- columns: ids array<long>, day string not null, `total` BIGINT\n" + code,
        "orders",
    )

    ran = await sheet.compute()

    assert ran == 1
    assert [row["day"] for row in sheet.rows("it")] == ["mon", "tue", "wed"]


async def test_columns_with_any_names_are_in_the_result(sheet: TableSheet) -> None:
    """A name with a point is no field of a column, and one like a count of Spark's is a key."""
    odd = {"s": [{"x": 1}], "s.x": [2], "a.b": [3], "*": [4], "s.*": [5], "count": [6], "c0": [7]}
    sheet.upload("odd", pa.table(odd))
    sheet.query("all", "SELECT * FROM odd", "odd")
    sheet.query("keyed", "-- key: count, `a.b`\nSELECT count, `a.b` FROM odd", "odd")
    sheet.query(
        "apart",
        "-- partition by: `s.x`\nSELECT `s.x`, count(*) AS n FROM odd GROUP BY `s.x`",
        "odd",
    )

    await sheet.compute()

    assert sheet.rows("all") == [{name: cell for name, [cell] in odd.items()}]
    assert sheet.rows("keyed") == [{"count": 6, "a.b": 3}]
    assert sheet.rows("apart") == [{"s.x": 2, "n": 1}]


async def test_one_value_may_be_anything_that_json_has(sheet: TableSheet) -> None:
    codes = {
        "nothing": "SELECT id FROM orders WHERE id < 0",
        "money": "SELECT CAST(12.50 AS DECIMAL(10, 2))",
        "day": "SELECT DATE'2026-01-31'",
        "all": "SELECT collect_list(day) FROM orders",
        "first": "SELECT named_struct('id', id, 'day', day) FROM orders WHERE id = 0",
    }
    for name, code in codes.items():
        sheet.query(name, f"-- returns: value\n{code}", "orders")

    await sheet.compute()

    found = {name: sheet.value(name) for name in codes}
    found["all"] = sorted(found["all"])
    assert found == {
        "nothing": None,
        "money": 12.5,
        "day": "2026-01-31",
        "all": ["mon", "mon", "tue", "tue", "tue", "wed"],
        "first": {"id": 0, "day": "mon"},
    }


async def test_a_table_with_no_rows_is_a_table(sheet: TableSheet) -> None:
    sheet.query("none", "SELECT * FROM orders WHERE id < 0", "orders")
    sheet.query("more", "SELECT day, count(*) AS n FROM none GROUP BY day", "none")

    await sheet.compute()

    assert (sheet.rows("none"), sheet.rows("more")) == ([], [])


async def test_a_query_sees_its_own_inputs_alone(
    executor: SparkExecutor, sheet: TableSheet
) -> None:
    sheet.query("by_day", BY_DAY, "orders", "rate")
    await sheet.compute()

    with pytest.raises(QueryFailed, match="TABLE_OR_VIEW_NOT_FOUND"):
        await SparkQueries(executor).run_query(
            plain_query("SELECT * FROM orders"), "it", Run(OWNER)
        )


@pytest.mark.parametrize(
    "text",
    [
        "SELECT reflect('java.lang.System', 'getProperty', 'user.dir')",
        "SELECT java_method('java.lang.System', 'getenv', 'PATH')",
        "SELECT * FROM text.`/etc/passwd`",
        "SELECT TRANSFORM (1) USING 'cat'",
    ],
)
def test_spark_itself_refuses_what_no_judge_lets_through(
    executor: SparkExecutor, text: str
) -> None:
    with executor._session.job("sql", "unjudged SQL") as spark:
        session = spark.newSession()
        table_job._configure(session)
        with pytest.raises(PySparkException):
            session.sql(text).collect()


async def test_a_cancelled_query_ends_and_leaves_nothing(
    executor: SparkExecutor, sheet: TableSheet
) -> None:
    numbers = "SELECT explode(sequence(1, 1000000)) AS n"
    endless = f"WITH a AS ({numbers}) SELECT sum(a.n * b.n) FROM a JOIN a AS b ON a.n < b.n"  # noqa: S608
    running = asyncio.create_task(
        SparkQueries(executor).run_query(plain_query(endless), "it", Run(OWNER))
    )
    await asyncio.wait([running], timeout=3)
    running.cancel()
    with suppress(asyncio.CancelledError):
        await running

    sheet.query("by_day", BY_DAY, "orders", "rate")
    async with asyncio.timeout(180):
        await sheet.compute()

    assert running.cancelled()
    await eventually(partial(_has_no_strays, executor), within=60)  # or their JVM ends with them


def _has_no_strays(executor: SparkExecutor) -> bool:
    running = executor._session._running
    try:
        return running is None or not running._stray_tasks()  # type: ignore[union-attr]
    except (Py4JError, OSError):
        return True

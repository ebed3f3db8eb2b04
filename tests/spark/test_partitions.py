"""Tables in partitions: what is computed of them, what is taken over, and that it is right."""

import re
from collections.abc import AsyncIterator
from datetime import date
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from rebaser_core import table_schemas
from rebaser_core.table_values import TableHandle
from rebaser_server.compute.run import Run
from rebaser_server.compute.spark.spark_executor import SparkExecutor
from rebaser_server.compute.tables import Query
from rebaser_server.tables import Manifest, Part
from tests.helpers.table_sheet import ORDERS, OWNER, TableSheet

pytestmark = pytest.mark.spark

BY_DAY = "-- partition by: day\nSELECT day, sum(amount) * :rate AS total FROM orders GROUP BY day"


class Sheet(TableSheet):
    """A sheet that knows how many rows its queries took of the table of orders."""

    def __init__(self, spark: SparkExecutor, directory: Path) -> None:
        super().__init__(spark, directory)
        self.files: list[int] = []
        """Numbers of files that each query took of it."""

    async def run_query(self, query: Query, about: str, run: Run) -> Any:
        views = [view for name, view in query.views.items() if name == "orders"]
        self.files += [len(view.manifest.files) for view in views]
        return await super().run_query(query, about, run)

    def manifest(self, name: str) -> Manifest:
        handle = TableHandle.of(self.value(name))
        assert handle is not None, self.value(name)
        return self.tables.get(OWNER, handle.key)

    def parts(self, name: str) -> dict[str | None, Part]:
        return {part.value: part for part in self.manifest(name).parts}


@pytest.fixture
async def sheet(executor: SparkExecutor, tmp_path: Path) -> AsyncIterator[Sheet]:
    made = Sheet(executor, tmp_path)
    made.upload("orders", ORDERS, "day")
    made.source("rate", 2)
    yield made
    await made.close()


def changed(day: str, amount: int) -> pa.Table:
    """The orders, of which those of one day have another amount."""
    is_day = pc.equal(ORDERS["day"], day)
    amounts = pc.if_else(is_day, pa.scalar(amount, pa.int64()), ORDERS["amount"])
    return ORDERS.set_column(2, "amount", amounts)


async def test_of_one_changed_partition_one_part_is_computed(sheet: Sheet) -> None:
    """The others are taken over without a copy, along a chain of tables."""
    sheet.query("by_day", BY_DAY, "orders", "rate")
    sheet.query(
        "dear", "-- partition by: d\nSELECT day AS d FROM by_day WHERE total > 70", "by_day"
    )
    await sheet.compute()
    before, dear = sheet.parts("by_day"), sheet.parts("dear")
    assert sheet.files == [3]

    sheet.upload("orders", changed("tue", 1), "day")
    ran = await sheet.compute()

    assert (ran, sheet.files) == (2, [3, 1])
    assert sheet.rows("by_day") == [
        {"day": "mon", "total": 60},
        {"day": "tue", "total": 6},
        {"day": "wed", "total": 120},
    ]
    assert sheet.rows("dear") == [{"d": "wed"}]
    after = sheet.parts("by_day")
    assert [day for day in before if before[day] != after[day]] == ["tue"]
    assert sheet.parts("dear")["wed"] == dear["wed"]
    assert sheet.manifest("by_day").partition_by == "day"


@pytest.mark.long
async def test_nothing_is_computed_for_a_partition_that_was_there_before(sheet: Sheet) -> None:
    """Changes of two partitions come together, one vanishes, and all is set back."""
    sheet.query("by_day", BY_DAY, "orders", "rate")
    await sheet.compute()
    first = sheet.value("by_day")
    sheet.upload("orders", changed("tue", 1), "day")
    await sheet.compute()
    sheet.upload("orders", changed("wed", 2), "day")
    await sheet.compute()
    tue, wed = changed("tue", 1), changed("wed", 2)

    sheet.upload("orders", pa.concat_tables([tue.slice(2, 3), wed.slice(5)]), "day")
    met = await sheet.compute()
    rows = sheet.rows("by_day")
    sheet.upload("orders", ORDERS, "day")
    back = await sheet.compute()

    assert (met, back) == (0, 0)
    assert rows == [{"day": "tue", "total": 6}, {"day": "wed", "total": 4}]
    assert sheet.value("by_day") == first


@pytest.mark.long
async def test_another_input_that_changes_is_taken_by_all_partitions(sheet: Sheet) -> None:
    """One job computes all, and its result is split; equal rows then have equal content."""
    sheet.query("by_day", BY_DAY, "orders", "rate")
    await sheet.compute()
    sheet.source("rate", 3)
    ran = await sheet.compute()
    before = sheet.manifest("by_day").content

    sheet.query("by_day", BY_DAY.replace("amount)", "amount + 0)"), "orders", "rate")
    again = await sheet.compute()

    assert (ran, again, sheet.files) == (1, 1, [3, 3, 3])
    assert [row["total"] for row in sheet.rows("by_day")] == [90, 360, 180]
    assert sheet.manifest("by_day").content == before


@pytest.mark.long
async def test_a_query_that_takes_partitions_together_is_computed_whole(sheet: Sheet) -> None:
    """Its result is split all the same, so that the next table is computed by its parts."""
    code = "-- partition by: day\nSELECT *, rank() OVER (ORDER BY amount) AS place FROM orders"
    sheet.query("ranked", code, "orders")
    sheet.query("last", "-- partition by: day\nSELECT day, max(place) AS m FROM ranked GROUP BY 1",
                "ranked")  # fmt: skip
    await sheet.compute()
    before = sheet.parts("ranked")

    sheet.upload("orders", changed("wed", 70), "day")
    await sheet.compute()

    assert sheet.files == [3, 3]
    assert [row["m"] for row in sheet.rows("last")] == [2, 5, 6]
    after = sheet.parts("ranked")
    assert [day for day in before if before[day] != after[day]] == ["wed"]
    assert (sheet.asked["ranked"], sheet.asked["last"]) == (2, 2)


ANY: dict[str, tuple[pa.DataType, list[Any]]] = {
    "texts": (pa.string(), ["", "a/b=c", "ä🙂" * 200, None, "null", "None"]),
    "small": (pa.int8(), [-1, 0, 1, None]),
    "large": (pa.int64(), [1 << 40, -(1 << 40), 7, None]),
    "days": (pa.date32(), [date(1, 1, 1), date(2026, 2, 28), None, date(9999, 12, 31)]),
    "flags": (pa.bool_(), [True, False, None]),
}


@pytest.mark.long
async def test_any_value_is_a_partition(sheet: Sheet) -> None:
    """No value, and no text, is taken for another; before and behind Spark."""

    def upload(first: int) -> None:
        for name, (kind, cells) in ANY.items():
            table = pa.table({"cell": pa.array(cells, kind), "n": [first, *range(1, len(cells))]})
            sheet.upload(name, table, "cell")

    upload(0)
    for name in ANY:
        twice, again = f"{name}_twice", f"{name}_again"
        sheet.query(twice, f"-- partition by: cell\nSELECT cell, n * 2 AS n FROM {name}", name)
        sheet.query(again, f"-- partition by: cell\nSELECT cell, n AS m FROM {twice}", twice)
    await sheet.compute()
    upload(9)
    await sheet.compute()

    for name, (_, cells) in ANY.items():
        found = {row["cell"]: row["m"] for row in sheet.rows(f"{name}_again")}
        expected = [18, *(2 * n for n in range(1, len(cells)))]
        assert found == dict(zip(cells, expected, strict=True))
        assert len(sheet.parts(f"{name}_again")) == len(cells)


@pytest.mark.long
async def test_a_table_without_rows_has_no_partition(sheet: Sheet) -> None:
    """And one of which no row is left has none; both are read by what takes them."""
    sheet.upload("orders", ORDERS.slice(0, 0), "day")
    sheet.query("by_day", BY_DAY, "orders", "rate")
    sheet.query("more", "-- partition by: day\nSELECT * FROM by_day", "by_day")
    sheet.query("all", "SELECT count(*) AS n FROM more", "more")
    await sheet.compute()
    assert (sheet.rows("more"), sheet.rows("all")) == ([], [{"n": 0}])
    empty = sheet.value("by_day")

    sheet.upload("orders", ORDERS, "day")
    await sheet.compute()
    assert (len(sheet.rows("more")), sheet.rows("all")) == (3, [{"n": 3}])
    sheet.query("by_day", BY_DAY.replace("GROUP", "WHERE id < 0 GROUP"), "orders", "rate")
    await sheet.compute()

    assert (sheet.rows("more"), sheet.rows("all")) == ([], [{"n": 0}])
    assert TableHandle.of(sheet.value("by_day")).content == TableHandle.of(empty).content  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("-- partition by: days\nSELECT * FROM orders", "no column 'days', by which .* 'day'"),
        ("-- partition by: day\nSELECT id FROM orders", "there is no column 'day'"),
        ("-- partition by: s\nSELECT CAST(id AS double) AS s FROM orders", "'s' is of type double"),
        ("-- partition by: id, day\nSELECT * FROM orders", "partitioned by one column"),
        ("-- returns: value\n-- partition by: day\nSELECT 1", "nor partitions"),
        ("-- partition by: day\n-- key: day\nSELECT * FROM orders", "rows have the key day="),
        ("-- partition by: day\n-- key: amount\nSELECT *, 1 AS x FROM orders",
         "4 rows have the key amount=20"),
        ("-- partition by: day\nSELECT 1 / (amount - 20) AS a, day FROM orders", "DIVIDE_BY_ZERO"),
        ("-- partition by: a\n-- columns: a int not null\nSELECT nullif(1, 1) AS a FROM orders",
         "null in 6 rows"),
    ],
)  # fmt: skip
async def test_a_breach_fails_the_value_by_name(sheet: Sheet, code: str, message: str) -> None:
    sheet.upload("orders", changed("tue", 20), "day")
    sheet.query("it", code, "orders")

    await sheet.compute()

    assert sheet.state()["it"][0] == "failed", sheet.value("it")
    assert re.search(message, sheet.value("it")), sheet.value("it")


async def test_too_many_partitions_are_refused(
    sheet: Sheet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing of them is left."""
    monkeypatch.setattr(table_schemas, "MAX_PARTITIONS", 5)
    sheet.query("it", "-- partition by: id\nSELECT * FROM orders", "orders")
    before = [*sheet.tables.stored()]

    await sheet.compute()

    assert sheet.value("it").startswith("column 'id' makes more than 5 partitions, the most")
    assert [table for table in sheet.tables.stored() if table.attempts] == [
        table for table in before if table.attempts
    ]


async def test_a_key_across_partitions_is_looked_at_when_nothing_is_computed(sheet: Sheet) -> None:
    """Parts that were each right may have one key when they come together."""
    code = "-- partition by: day\n-- key: id\nSELECT * FROM orders"
    sheet.query("it", code, "orders")
    await sheet.compute()
    moved = ORDERS.set_column(0, "id", pa.array([10, 11, 12, 13, 14, 0], pa.int64()))
    sheet.upload("orders", moved, "day")
    await sheet.compute()
    assert sheet.state()["it"][0] == "ok"

    sheet.upload("orders", pa.concat_tables([ORDERS.slice(0, 5), moved.slice(5)]), "day")
    await sheet.compute()

    assert sheet.value("it").startswith("2 rows have the key id=0")


@pytest.mark.long
async def test_a_partition_by_that_is_added_or_taken_away_is_a_change(sheet: Sheet) -> None:
    plain = BY_DAY.partition("\n")[2]
    sheet.query("by_day", plain, "orders", "rate")
    await sheet.compute()
    found = [sheet.manifest("by_day").partition_by]

    for code in (BY_DAY, plain):
        sheet.query("by_day", code, "orders", "rate")
        await sheet.compute()
        found.append(sheet.manifest("by_day").partition_by)

    assert found == [None, "day", None]

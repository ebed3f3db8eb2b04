"""Which rows of a table differ, in words."""

import pytest

from rebaser_client.table_reads import TableDifference
from rebaser_core.ids import RequestId
from rebaser_core.queries import (
    ColumnTotal,
    RowDifference,
    TableColumn,
    TableDifferenceReplyV1,
    TableSnapshot,
)
from tests.helpers.checkpoint_writer import ulid

VALUE = ulid(1)


def table(*columns: tuple[str, str, bool]) -> TableSnapshot:
    made = [TableColumn(name=name, type=kind, nullable=null) for name, kind, null in columns]
    return TableSnapshot(id=VALUE, name="orders", columns=made, rows=3, size=1, files=1)


ORDERS = table(("id", "bigint", True))


def difference(
    rows: RowDifference, before: TableSnapshot = ORDERS, after: TableSnapshot = ORDERS
) -> TableDifference:
    where = {"id": RequestId(), "commit": 7, "since": 5}
    tables = TableDifferenceReplyV1(**where, before=before, after=after, more=True)
    return TableDifference("orders", [tables, TableDifferenceReplyV1(**where, rows=rows)])


def total(before: str | None, after: str | None) -> ColumnTotal:
    return ColumnTotal(name="total", before=before, after=after)


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        (RowDifference(key=["id"], compared=["id"], changed=0), "no row differs"),
        (RowDifference(key=[], compared=["id"]), "no row differs"),
        (
            RowDifference(
                key=["id"],
                compared=["id"],
                changed=1204,
                added=3,
                totals=[total("10500000.00", "10900000.00"), total("1", "1")],
            ),
            "1,204 rows changed, 3 added, 0 removed; sum(total) 10.5M → 10.9M",
        ),
        (
            RowDifference(key=[], compared=["id"], added=1, totals=[total("1000001", "1000002")]),
            "1 row added, 0 removed; sum(total) 1000001 → 1000002",
        ),
        (
            RowDifference(
                key=[], compared=["id"], added=1, totals=[total(None, "-0.25"), total("nan", "inf")]
            ),
            "1 row added, 0 removed; sum(total) 0 → -0.25; sum(total) nan → inf",
        ),
    ],
)
def test_a_summary_is_one_line(rows: RowDifference, words: str) -> None:
    assert difference(rows).summary() == words
    assert bool(difference(rows)) == (words != "no row differs")


def test_columns_that_differ_are_named_first() -> None:
    """Also if no row differs."""
    before = table(("id", "bigint", True), ("old", "string", True), ("net", "int", False))
    after = table(("id", "bigint", True), ("net", "int", True), ("tax", "double", True))

    found = difference(RowDifference(key=[], compared=["id"]), before, after)

    assert found
    assert found.summary() == (
        "0 rows added, 0 removed; column net was int not null, is int; column tax is new: double; "
        "column old is gone"
    )

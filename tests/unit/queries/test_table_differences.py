"""Rows in which two tables differ, beside a plain comparison of dicts and multisets of rows."""

import math
from collections import Counter
from collections.abc import Sequence
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from blake3 import blake3
from hypothesis import given
from hypothesis import strategies as st

from rebaser_core.queries import RowDifference
from rebaser_core.table_schemas import decode_rows, kept_schema, spark_fields
from rebaser_server import tables as table_files
from rebaser_server.files import SharedFiles, table_directory
from rebaser_server.queries import table_differences
from rebaser_server.queries.table_differences import NotComparable, Side, compare
from rebaser_server.tables import DataFile, Manifest, TableFiles
from tests.helpers.random_batches import examples

CELLS: dict[pa.DataType, Sequence[Any]] = {
    pa.int64(): [0, 1, -1, 2**63 - 1, -(2**63)],
    pa.int8(): [0, 1, -128],
    pa.bool_(): [True, False],
    pa.float64(): [0.0, -0.0, 1.5, math.nan, 1e300],
    pa.float32(): [0.0, -0.0, 0.5, math.nan],
    pa.decimal128(38, 2): [Decimal("0.00"), Decimal("0.01"), Decimal("9" * 36 + ".99")],
    pa.string(): ["", "a", "a\0", "abcdefgh", "abcdefghi", "é", "x" * 1000, "x" * 999 + "y"],
    pa.binary(): [b"", b"\0", b"\0" * 8, b"\0" * 9],
    pa.date32(): [date(2026, 1, 1), date(1, 1, 1)],
    pa.timestamp("us", "UTC"): [datetime(2026, 1, 1, tzinfo=UTC), datetime(1, 1, 1, tzinfo=UTC)],
    pa.list_(pa.string()): [[], [""], ["", ""], [None], ["a", "b"], ["b", "a"], ["ab"]],
    pa.list_(pa.list_(pa.int64())): [[], [[]], [[], []], [[1], [2]], [[1, 2]], [None, [1]]],
    pa.struct([("a", pa.int64()), ("b", pa.int64())]): [
        {"a": 1, "b": None},
        {"a": None, "b": 1},
        {"a": None, "b": None},
        {"a": 1, "b": 2},
        {"a": 2, "b": 1},
    ],
    pa.map_(pa.string(), pa.float64()): [
        [],
        [("a", 0.0)],
        [("a", -0.0)],
        [("a", None)],
        [("a", 1.0), ("b", 2.0)],
        [("b", 2.0), ("a", 1.0)],
        [("b", 1.0), ("a", 2.0)],
    ],
}
"""Cells of each type that are easily taken for each other."""


def plain(cell: Any, kind: pa.DataType) -> Any:
    """The cell, for a comparison: equal if SQL takes it for equal."""
    if cell is None:
        return None
    if pa.types.is_floating(kind):
        return "NaN" if math.isnan(cell) else cell + 0.0
    if pa.types.is_map(kind):
        return frozenset((key, plain(item, kind.item_type)) for key, item in cell)
    if pa.types.is_list(kind):
        return tuple(plain(each, kind.value_type) for each in cell)
    if pa.types.is_struct(kind):
        return tuple(plain(cell[field.name], field.type) for field in kind)
    return cell


def plain_rows(table: pa.Table | pa.RecordBatch, names: Sequence[str]) -> list[tuple[Any, ...]]:
    kinds = {field.name: field.type for field in table.schema}
    return [tuple(plain(row[n], kinds[n]) for n in names) for row in table.to_pylist()]


def side(tables: TableFiles, table: pa.Table, about: str) -> Side:
    """A table in two files, which are not synced."""
    key = blake3(repr((table.schema, table.to_pylist())).encode()).hexdigest()
    folder = Path(tables.files.root) / table_directory("shop", key)
    folder.mkdir(parents=True, exist_ok=True)
    files = []
    for name, part in (("a.parquet", table.slice(0, 7)), ("b.parquet", table.slice(7))):
        pq.write_table(part, folder / name, row_group_size=5)
        data = (folder / name).read_bytes()
        files.append(DataFile(f"{key}/{name}", len(data), blake3(data).hexdigest()))
    fields = spark_fields(kept_schema(table.schema))
    return Side(about, "shop", key, Manifest(fields, files, table.num_rows, key))


def run(tables: TableFiles, before: Side, after: Side, *key: str) -> RowDifference:
    steps = compare(tables, before, after, key)
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return end.value


def difference(before: pa.Table, after: pa.Table, *key: str) -> RowDifference:
    with TemporaryDirectory() as folder:
        tables = TableFiles(SharedFiles(folder))
        return run(tables, side(tables, before, "head"), side(tables, after, "it"), *key)


def rows_in(text: str | None, names: Sequence[str]) -> list[tuple[Any, ...]]:
    return [] if text is None else plain_rows(decode_rows(text), names)


@pytest.fixture(autouse=True)
def _small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table_files, "_READ_ROWS", 3)


@st.composite
def pairs(draw: st.DrawFn) -> tuple[pa.Table, pa.Table]:
    """Two tables with a column `id` and others: the second has the first's rows, edited."""
    kinds = draw(st.lists(st.sampled_from(list(CELLS)), min_size=1, max_size=4))
    cells = [st.none() | st.sampled_from(CELLS[kind]) for kind in kinds]
    row = st.tuples(st.integers(0, 30) | st.none(), *cells)
    before = draw(st.lists(row, max_size=25))
    after = draw(st.permutations([each for each in before if draw(st.integers(0, 4))]))
    edited = [
        (number, *draw(st.tuples(*cells))) if draw(st.booleans()) else (number, *others)
        for number, *others in after
    ]
    edited += draw(st.lists(row, max_size=5))
    schema = pa.schema([("id", pa.int64()), *((f"c{n}", kind) for n, kind in enumerate(kinds))])
    return tuple(
        pa.Table.from_pylist(
            [dict(zip(schema.names, each, strict=True)) for each in rows], schema=schema
        )
        for rows in (before, edited)
    )  # type: ignore[return-value]


@examples(60)
@given(pairs())
def test_whole_rows_are_compared_as_multisets(both: tuple[pa.Table, pa.Table]) -> None:
    names = both[0].column_names
    before, after = (Counter(plain_rows(table, names)) for table in both)

    found = difference(*both)

    assert (found.added, found.removed) == ((after - before).total(), (before - after).total())
    assert found.changed is None
    added, removed = rows_in(found.added_rows, names), rows_in(found.removed_rows, names)
    assert Counter(added) <= after - before
    assert Counter(removed) <= before - after
    assert (len(added), len(removed)) == (min(found.added, 20), min(found.removed, 20))


@examples(60)
@given(pairs())
def test_rows_are_told_apart_by_a_key(both: tuple[pa.Table, pa.Table]) -> None:
    """A null is a key like any other; a key that stands twice is refused."""
    names = both[0].column_names
    rows = [plain_rows(table, names) for table in both]
    before, after = ({row[0]: row for row in each} for each in rows)
    if repr(both[0].to_pylist()) != repr(both[1].to_pylist()) and (len(before), len(after)) != (
        len(rows[0]),
        len(rows[1]),
    ):
        with pytest.raises(NotComparable, match="does not tell the rows of"):
            difference(*both, "id")
        return

    found = difference(*both, "id")

    changed = {key for key in before.keys() & after.keys() if before[key] != after[key]}
    assert (found.added, found.removed, found.changed) == (
        len(after.keys() - before.keys()),
        len(before.keys() - after.keys()),
        len(changed),
    )
    pairs = zip(
        rows_in(found.changed_before, names), rows_in(found.changed_after, names), strict=True
    )
    shown = list(pairs)
    assert len(shown) == min(len(changed), 20)
    assert all(
        one[0] in changed and (one, other) == (before[one[0]], after[one[0]])
        for one, other in shown
    )
    assert all(row[0] not in before for row in rows_in(found.added_rows, names))
    assert all(row[0] not in after for row in rows_in(found.removed_rows, names))


def test_totals_are_exact() -> None:
    """Those of integers and decimals are, beyond what 64 bits or 28 digits hold."""
    money = pa.decimal128(38, 2)
    before = pa.table(
        {
            "id": [1, 2, 3],
            "large": pa.array([2**63 - 1, 2**63 - 1, None], pa.int64()),
            "net": pa.array([Decimal("9" * 36 + ".99"), Decimal("0.02"), None], money),
            "share": [0.5, 0.25, None],
        }
    )
    after = before.slice(1)

    found = difference(before, after, "id")

    assert [(each.name, each.before, each.after) for each in found.totals] == [
        ("large", str(2 * (2**63 - 1)), str(2**63 - 1)),
        ("net", "1" + "0" * 36 + ".01", "0.02"),
        ("share", "0.75", "0.25"),
    ]
    assert (found.added, found.removed, found.changed) == (0, 1, 0)


def test_equal_tables_are_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tables = TableFiles(SharedFiles(str(tmp_path)))
    one = side(tables, pa.table({"id": [1, 1]}), "head")
    monkeypatch.setattr(TableFiles, "batches", None)

    found = run(tables, one, one, "id")

    assert (found.added, found.removed, found.changed, found.totals) == (0, 0, 0, [])


def test_columns_of_one_type_in_both_are_compared() -> None:
    before = pa.table({"id": [1, 2], "net": [1, 2], "old": ["x", "y"], "sum": [1, 2]})
    after = pa.table({"new": [0.5, 0.5], "net": [1, 3], "id": [1, 2], "sum": [1.0, 2.5]})

    found = difference(before, after, "id")

    assert sorted(found.compared) == ["id", "net"]
    assert (found.added, found.removed, found.changed) == (0, 0, 1)
    assert rows_in(found.changed_before, ["id", "old"]) == [(2, "y")]
    assert rows_in(found.changed_after, ["id", "new"]) == [(2, 0.5)]
    assert {each.name: (each.before, each.after) for each in found.totals} == {
        "new": (None, "1.0"),
        "net": ("3", "4"),
        "sum": ("3", "3.5"),
    }


def test_without_a_common_column_all_rows_differ() -> None:
    found = difference(pa.table({"a": ["x", "x"]}), pa.table({"a": [1], "b": [1]}))

    assert (found.compared, found.added, found.removed) == ([], 1, 2)
    assert rows_in(found.removed_rows, ["a"]) == [("x",), ("x",)]


@pytest.mark.parametrize(
    ("key", "message"),
    [
        (["idd"], r"column 'idd' is in none of them; there is 'id'"),
        (["old"], r"column 'old' is in one of them"),
        (["net"], r"column 'net' was bigint and is double"),
        (["day"], r"key \(day\) does not tell the rows of head apart: 2 have day = mon; name more"),
        (["id", "day"], r"does not tell the rows of it apart: 3 have id = None, day = tue"),
    ],
)
def test_a_key_that_is_none_is_refused(key: list[str], message: str) -> None:
    before = pa.table({"id": [1, 2], "day": ["mon", "mon"], "net": [1, 2], "old": [1, 1]})
    ids = pa.array([None] * 3, pa.int64())
    after = pa.table({"id": ids, "day": ["tue"] * 3, "net": [0.5] * 3})

    with pytest.raises(NotComparable, match=message):
        difference(before, after, *key)


def test_tables_with_too_many_rows_are_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table_differences, "MAX_ROWS", 2)

    with pytest.raises(NotComparable, match="it has 3 rows, and at most 2 are compared"):
        difference(pa.table({"id": [1]}), pa.table({"id": [1, 2, 3]}))


def test_rows_that_are_shown_are_few_and_small() -> None:
    """In the order of the table; a row that is too large is left out with those behind it."""
    after = pa.table({"id": range(100), "text": ["x"] * 3 + ["y" * 300_000] + ["z"] * 96})

    found = difference(after.slice(0, 0), after, "id")

    assert found.added == 100
    assert [row[0] for row in rows_in(found.added_rows, ["id"])] == [0, 1, 2]

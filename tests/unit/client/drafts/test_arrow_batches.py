"""Frames and Parquet files are read exactly, or refused by the column's name."""

import datetime as dt
import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rebaser_client import InvalidDraft
from rebaser_client.arrow_batches import read_parquet
from rebaser_client.draft import rows_of
from rebaser_client.row_files import read_rows
from rebaser_client.table_uploads import written
from rebaser_client.tables import read_updates
from rebaser_core.errors import MalformedMessage
from tests.helpers.random_batches import examples
from tests.wire.samples import ONE, TWO

TWO_ROWS = {"x": [1, 2]}


def rows_in(table: Any) -> list[dict[str, Any]]:
    return pq.read_table(io.BytesIO(written(table).read())).to_pylist()


KEPT = {
    "rows": pd.DataFrame(TWO_ROWS),
    "a slice": pd.DataFrame({"x": [9, 1, 2]})[1:],
    "the numbers of rows": pd.DataFrame(TWO_ROWS, index=pd.Index([0, 1], dtype="uint64")),
    "a column that is called so": pd.DataFrame({**TWO_ROWS, "__index_level_0__": ["a", "b"]}),
    "a named index": pd.DataFrame(TWO_ROWS, index=pd.Index([0, 1], name="day")),
    "an index that is called so": pd.DataFrame(
        TWO_ROWS, index=pd.Index([0, 1], name="__index_level_0__")
    ),
    "named levels": pd.DataFrame(
        TWO_ROWS, index=pd.MultiIndex.from_tuples([("a", 1), ("b", 2)], names=["k", "l"])
    ),
}
REFUSED = {
    "labels": pd.DataFrame(TWO_ROWS, index=["USD", "GBP"]),
    "days": pd.DataFrame(TWO_ROWS, index=pd.date_range("2026-01-01", periods=2)),
    "categories": pd.DataFrame(TWO_ROWS, index=pd.CategoricalIndex(["a", "b"])),
    "years": pd.DataFrame(TWO_ROWS, index=[2025, 2026]),
    "a filtered frame": pd.DataFrame({"x": [1, 9, 2]}).query("x < 9"),
    "rows that were put in another order": pd.DataFrame(TWO_ROWS, index=[1, 0]),
    "booleans": pd.DataFrame(TWO_ROWS, index=[False, True]),
    "fractions": pd.DataFrame(TWO_ROWS, index=[0.0, 1.0]),
    "levels": pd.DataFrame(TWO_ROWS, index=pd.MultiIndex.from_tuples([("a", 1), ("b", 2)])),
    "a name that a column has": pd.DataFrame(TWO_ROWS, index=pd.Index(["a", "b"], name="x")),
    "describe": pd.DataFrame(TWO_ROWS).describe(),
}


@pytest.mark.parametrize("frame", KEPT.values(), ids=KEPT)
def test_names_of_an_index_are_columns_and_the_numbers_of_rows_are_none(
    frame: pd.DataFrame, tmp_path: Path
) -> None:
    """In a table, in its file, and as rows, by what the index holds, whatever it is called."""
    named = frame.index.names if frame.index.names[0] is not None else []
    expected = (frame.reset_index() if named else frame).to_dict("records")
    frame.to_parquet(tmp_path / "frame.parquet")

    for rows in (
        rows_in(frame),
        rows_in(tmp_path / "frame.parquet"),
        read_rows(tmp_path / "frame.parquet"),
        rows_of(frame),
    ):
        assert [sorted(row.items()) for row in rows] == [sorted(row.items()) for row in expected]


@pytest.mark.parametrize("frame", REFUSED.values(), ids=REFUSED)
def test_another_index_is_refused_with_what_to_do(frame: pd.DataFrame, tmp_path: Path) -> None:
    """Nothing else says whether its labels count."""
    frame.to_parquet(tmp_path / "frame.parquet")
    updates = frame.assign(id=[ONE] * len(frame))

    for read in (written, rows_of):
        with pytest.raises(InvalidDraft, match=r"index of the frame .* frame\.reset_index\(\)"):
            read(frame)
    for read in (written, read_rows):
        with pytest.raises(InvalidDraft, match=r"frame\.parquet: column '__index_level_\d__'"):
            read(tmp_path / "frame.parquet")
    with pytest.raises(MalformedMessage, match="index of the frame"):
        read_updates(updates)


def test_an_index_is_a_numbering_through_all_batches(tmp_path: Path) -> None:
    frame = pd.DataFrame({"x": range(5)}, index=[0, 1, 2, 3, 4])
    frame.to_parquet(tmp_path / "frame.parquet")

    assert read_parquet(tmp_path / "frame.parquet", 2).read_all().num_rows == 5


def test_a_named_range_of_which_arrow_makes_no_column_is_refused() -> None:
    frame = pd.DataFrame(TWO_ROWS, index=pd.RangeIndex(1, 3, name="id"))

    with pytest.raises(InvalidDraft, match="index 'id': it is no column"):
        written(frame)
    assert rows_of(frame) == [{"id": 1, "x": 1}, {"id": 2, "x": 2}]


def test_updates_of_a_filtered_frame_have_no_index() -> None:
    frame = pd.DataFrame({"id": [ONE, TWO], "value": [1, 2]}, index=[1, 0]).sort_index()

    assert len(read_updates(frame)) == 2


COLUMNS = st.fixed_dictionaries(
    {},
    optional={
        "n": st.just(st.integers(-(2**63), 2**63 - 1)),
        "large": st.just(st.integers(0, 2**64)),
        "x": st.just(st.floats(allow_nan=False)),
        "t": st.just(st.text(st.characters(codec="utf-8"), max_size=3)),
        "b": st.just(st.booleans()),
        "mixed": st.just(st.sampled_from([1, "1"])),
        "at": st.just(st.datetimes(pd.Timestamp(1700, 1, 1), pd.Timestamp(2200, 1, 1))),
        "opt": st.just(st.none() | st.text("ab", max_size=2)),
        "list": st.just(st.lists(st.integers(0, 3), max_size=2)),
    },
).filter(bool)


@examples(500)
@given(
    columns=COLUMNS,
    data=st.data(),
    size=st.integers(1, 4),
    kind=st.sampled_from(["rows", "labels", "days", "levels", "numbers", "named", "polars"]),
)
def test_a_drawn_frame_is_read_back_as_it_is_or_refused_by_name(
    columns: dict[str, Any], data: st.DataObject, size: int, kind: str
) -> None:
    """Every index and column of pandas and Polars, each cell with its type."""
    cells = {
        name: data.draw(st.lists(each, min_size=size, max_size=size))
        for name, each in columns.items()
    }
    index: Any = {
        "labels": [f"l{n}" for n in range(size)],
        "days": pd.date_range("2026-01-01", periods=size),
        "levels": pd.MultiIndex.from_tuples([("a", n) for n in range(size)]),
        "numbers": pd.Index(data.draw(st.permutations(range(size)))),
        "named": pd.Index([f"l{n}" for n in range(size)], name="key"),
    }.get(kind)
    if kind == "polars":
        try:
            frame: Any = pl.DataFrame(cells, strict=True)
        except (TypeError, OverflowError):  # no frame
            return
    else:
        frame = pd.DataFrame(cells, index=index, copy=True)
    expected = [dict(zip(cells, row, strict=True)) for row in zip(*cells.values(), strict=True)]
    if kind == "named":
        expected = [{**row, "key": f"l{n}"} for n, row in enumerate(expected)]

    try:
        rows = rows_in(frame)
    except InvalidDraft as error:
        said = str(error)
        is_index = kind in ("labels", "days", "levels", "numbers")
        assert any(f"'{name}'" in said or f"column {name} " in said for name in cells) or (
            is_index and "index of the frame" in said
        )
    else:
        assert rows == expected
        assert kind not in ("labels", "days", "levels")


@pytest.mark.parametrize(
    ("frame", "column"),
    [
        (pd.DataFrame({"ok": [1, 2], "s": pd.arrays.SparseArray([0, 1])}), "s"),
        (pd.DataFrame({"ok": [1, 2], "n": [2**70, 1]}), "n"),
        (pd.DataFrame({"ok": [1, 2], "c": [1j, 2]}), "c"),
        (pl.DataFrame({"ok": [1, 2], "n": [2**70, 1]}), "n"),
        (pl.DataFrame({"ok": [1], "o": pl.Series([object()], dtype=pl.Object)}), "o"),
        (pa.table({"o": pa.array([{"a": 1}]).cast(pa.struct([("a", pa.int8())]))}), None),
        (pa.table({"d": pa.array([1], pa.decimal256(60, 0))}), "d"),
        (pa.table({"s": pa.StructArray.from_arrays([[1], [2]], ["a", "a"])}), "s"),
        (pl.DataFrame({"e": pl.Series(["a"], dtype=pl.Enum(["a", "b"]))}), None),
        (pa.table({"u": pa.array([2**64 - 1], pa.uint64())}), None),
    ],
)
def test_what_arrow_cannot_hold_is_refused_by_its_column(frame: Any, column: str | None) -> None:
    """Errors of Python, too; what it can hold is kept."""
    if column is None:
        assert len(rows_in(frame)) == 1
        return

    with pytest.raises(InvalidDraft, match=f"column '{column}'"):
        written(frame)


@pytest.mark.parametrize("make", [pa.table, pl.DataFrame, pd.DataFrame])
@pytest.mark.parametrize(
    "columns", [{"a\0b": [1]}, {"a": [{"b\0c": 1}]}, {"a": [[{"b\0c": 1}]]}], ids=str
)
def test_a_name_with_the_character_nul_is_refused(
    make: Callable[..., Any], columns: dict[str, Any], tmp_path: Path
) -> None:
    """Arrow would cut it, and Polars end the process."""
    frame = make(columns)
    pq.write_table(pa.table(columns), tmp_path / "rows.parquet")

    for read in (written, lambda _: written(tmp_path / "rows.parquet")):
        with pytest.raises(InvalidDraft, match=r"column 'a.*: a name with the character NUL"):
            read(frame)
    with pytest.raises(MalformedMessage, match=r"column 'a.*: a name with the character NUL"):
        read_updates(frame)


def test_a_series_is_a_table_if_it_is_of_structs() -> None:
    assert rows_in(pl.Series("all", [{"a": 1}, {"a": 2}])) == [{"a": 1}, {"a": 2}]
    for series in (pl.Series("a\0b", [1]), pl.Series("a\0b", [{"a": 1}])):
        with pytest.raises(InvalidDraft, match="NUL"):
            written(series)


def test_rows_of_columns_that_have_one_name_are_refused() -> None:
    for names in (["a", "a"], [1, "1"]):
        with pytest.raises(InvalidDraft, match="columns 1 and 2 are both called"):
            rows_of(pd.DataFrame([[1, 2]], columns=names))


def test_times_of_int96_are_those_that_were_written(tmp_path: Path) -> None:
    """Arrow reads them as nanoseconds, in which far ones are others without a word."""
    path = tmp_path / "old.parquet"
    texts = ["9999-12-31T01:00", "0001-01-01", "2026-01-01"]
    times = [*map(dt.datetime.fromisoformat, texts), None]
    table = pa.table({"n": range(4), "at": pa.array(times, pa.timestamp("us"))})
    pq.write_table(table, path, use_deprecated_int96_timestamps=True, row_group_size=3)

    assert rows_in(path) == read_rows(path) == table.to_pylist()

    fine = pa.table({"at": pa.array([1_000, 1], pa.timestamp("ns"))})
    pq.write_table(fine, path, use_deprecated_int96_timestamps=True)
    for read in (written, read_rows):
        with pytest.raises(InvalidDraft, match="column 'at': times of INT96 with parts of a mic"):
            read(path)


def test_intervals_in_parquet_are_refused(tmp_path: Path) -> None:
    """Arrow reads their bytes."""
    path = tmp_path / "spans.parquet"
    duckdb.sql("SELECT 1 AS n, INTERVAL '1 day' AS span").write_parquet(str(path))

    for read in (written, read_rows):
        with pytest.raises(InvalidDraft, match="column 'span' is of type Interval"):
            read(path)

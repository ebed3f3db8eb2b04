"""Rows of files are all that the file says, or the file is refused with the place of the fault."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rebaser_client import InvalidDraft, read_csv
from rebaser_client.row_files import read_rows


def test_csv_has_quotes_breaks_and_commas_in_cells(tmp_path: Path) -> None:
    """Lines end in each of three ways; one without any cell is no row."""
    path = tmp_path / "rows.csv"
    path.write_bytes(b'a,b\r\n"1,\r\n""2""",x\n\n,""\r"",y')

    assert read_csv(path) == [
        {"a": '1,\r\n"2"', "b": "x"},
        {"a": None, "b": None},
        {"a": None, "b": "y"},
    ]


def test_cells_of_csv_stay_what_they_are(tmp_path: Path) -> None:
    """A cell may be as large as a value, and an integer beside fractions loses no digit."""
    path = tmp_path / "rows.csv"
    large = "x" * 1_000_000
    path.write_text(f"n,t,d\n1234567890123456789,{large},1\n0.5,,{'9' * 5000}\n3,,1\n")

    rows = read_csv(path)

    assert [row["n"] for row in rows] == [1234567890123456789, 0.5, 3.0]
    assert [type(row["n"]) for row in rows] == [int, float, float]
    assert (rows[0]["t"], rows[1]["d"]) == (large, "9" * 5000)


@pytest.mark.parametrize(
    ("column", "message"),
    [
        (pa.array([2**62], pa.timestamp("us")), "column 'value' of type timestamp.*; cast it to"),
        (pa.array([b"\xff"]).view(pa.string()), "column 'value' of type string: .*utf-8"),
    ],
)
def test_cells_of_parquet_that_python_has_not_are_named(
    column: pa.Array, message: str, tmp_path: Path
) -> None:
    """A date beyond the year 9999, text that is no UTF-8."""
    path = tmp_path / "rows.parquet"
    pq.write_table(pa.table({"value": column}), path)

    with pytest.raises(InvalidDraft, match=f"rows.parquet: {message}"):
        read_rows(path)


def test_damaged_parquet_is_named_with_its_fault(tmp_path: Path) -> None:
    """Wherever octets are gone."""
    path = tmp_path / "rows.parquet"
    pq.write_table(pa.table({"name": ["a", "b"], "value": [1, 2]}), path)
    sound = path.read_bytes()

    for cut in (0, 8, 40, len(sound) // 2, len(sound) - 9):
        path.write_bytes(sound[:cut] + sound[cut + 7 :])
        try:
            rows = read_rows(path)
        except InvalidDraft as error:
            assert str(error).startswith(f"{path}: not a whole file in Parquet: "), cut  # noqa: PT017
        else:
            assert len(rows) == 2


def test_columns_of_parquet_that_have_one_name_are_refused(tmp_path: Path) -> None:
    """Instead of the last one being taken for both."""
    path = tmp_path / "rows.parquet"
    columns = [pa.array([1]), pa.array([2])]
    pq.write_table(pa.Table.from_arrays(columns, names=["a", "a"]), path)

    with pytest.raises(InvalidDraft, match="columns 1 and 2 are both called 'a'"):
        read_rows(path)

"""Tables of several libraries become rows of plain data."""

import io
import json
from pathlib import Path

import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rebaser_client import InvalidDraft, read_csv
from rebaser_client.draft import name_in, rows_of
from rebaser_client.table_uploads import written

ROWS = [{"sku": "A1", "net": 10, "rate": 0.5}, {"sku": "B2", "net": 20, "rate": None}]

FAR = pa.array([10_000_000], pa.int32()).cast(pa.date32())
"""A day that Python does not have."""
NO_TEXT = pa.array([b"\xff"]).view(pa.string())


@pytest.mark.parametrize(
    "table",
    [ROWS, pd.DataFrame(ROWS), pa.Table.from_pylist(ROWS), pl.DataFrame(ROWS)],
    ids=["dicts", "pandas", "arrow", "polars"],
)
def test_each_kind_of_table_gives_the_same_plain_rows(table: object) -> None:
    """With Python's own numbers, and None for what is missing."""
    rows = rows_of(table)

    assert rows == ROWS
    assert {type(cell) for row in rows for cell in row.values()} == {str, int, float, type(None)}


def test_columns_of_a_csv_file_are_numbers_if_all_cells_are(tmp_path: Path) -> None:
    """In rows and in tables: text that only looks like a number in parts stays as it is."""
    path = tmp_path / "products.csv"
    path.write_text("﻿sku,code,net,note,large\n1,007,19.90,,9223372036854775808\n2,8,-3,x,1\n")

    first, second = read_csv(path)

    assert first == {
        "sku": 1,
        "code": "007",
        "net": 19.9,
        "note": None,
        "large": "9223372036854775808",
    }
    assert (second["code"], second["net"]) == ("8", -3.0)
    assert (type(second["net"]), type(second["sku"])) == (float, int)
    assert read_csv(path, text=["sku"])[0]["sku"] == "1"
    assert rows_of(str(path)) == [first, second]
    for text in ([], ["sku"]):
        table = pq.read_table(io.BytesIO(written(path, text).read()))
        assert table.to_pylist() == read_csv(path, text=text)


@pytest.mark.parametrize("name", ["rows.parquet", "rows.jsonl"])
def test_files_of_other_formats_have_the_same_rows(name: str, tmp_path: Path) -> None:
    """Which of them it is, the suffix says."""
    path = tmp_path / name
    pq.write_table(pa.Table.from_pylist(ROWS), path)
    if path.suffix == ".jsonl":
        path.write_text("".join(f"{json.dumps(row)}\n" for row in ROWS))

    assert rows_of(path) == ROWS


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ([1], "row 1 is 1; a row has a name for each column"),
        (None, "NoneType is no table; give rows"),
        (pl.LazyFrame(ROWS), "LazyFrame is no table; give rows"),
        (pa.table([[1], [2]], ["a", "a"]), "columns 1 and 2 are both called 'a'"),
        (pa.table({"d": FAR}), r"column 'd' of type date32\[day\]: date value out of range; cast"),
        (pa.table({"t": NO_TEXT}), "column 't' of type string: 'utf-8' codec can't decode"),
        ("more.parquet", "more.parquet: not a whole file in Parquet"),
        ("cut.jsonl", "cut.jsonl: line 3, column 7: not JSON: Expecting value"),
        ("list.jsonl", "list.jsonl: line 1: a row is an object"),
    ],
)
def test_what_is_no_table_is_refused(
    table: object, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the place of the fault."""
    monkeypatch.chdir(tmp_path)
    Path("more.parquet").write_text("a,b")
    Path("cut.jsonl").write_text('{"a": 1}\n\n{"a": ')
    Path("list.jsonl").write_text("[1]")

    with pytest.raises(InvalidDraft, match=message):
        rows_of(table)


def test_names_are_made_of_cells() -> None:
    """Of texts and numbers alone, and never of anything behind them."""
    row = {"sku": "A 1", "n": 7, "none": None}

    assert name_in("net/{sku}/{n}", row) == "net/A 1/7"
    for pattern, message in {
        "{suk}": "no column 'suk', only 'sku', 'n', 'none'",
        "{none}": "None in column 'none' makes no name",
        "{sku.__class__}": "no column",
    }.items():
        with pytest.raises(InvalidDraft, match=message):
            name_in(pattern, row)

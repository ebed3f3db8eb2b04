"""CSV is read as RFC 4180 has it, in parts of any size: as rows, as tables and as seeds."""

import csv
import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rebaser_client import InvalidDraft, csv_files, read_csv
from rebaser_client.csv_files import read_csv_table
from rebaser_client.graph_files import read_graph_file
from rebaser_client.table_uploads import written
from tests.helpers.random_batches import examples


@pytest.fixture(autouse=True, scope="module")
def _small_parts() -> Iterator[None]:
    """Parts so small that each border between two of them comes up."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(csv_files, "_BLOCK", 7)
        yield


def as_text(_: str) -> pa.DataType:
    return pa.string()


FRAGMENTS = [
    "a",
    "é",
    ",",
    ",",
    '"',
    '"',
    '""',
    "\n",
    "\n",
    "\r\n",
    "\r",
    "NA",
    " ",
    "x,y\n",
    '"b"',
]


@examples(2_500)
@given(text=st.lists(st.sampled_from(FRAGMENTS), max_size=14).map("".join), block=st.integers(1, 9))
def test_a_file_says_what_it_says_to_another_strict_reader_or_is_refused(
    text: str, block: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Python's own, where it is strict; it takes a quote in a cell that begins with none."""
    path = tmp_path_factory.getbasetemp() / "drawn.csv"
    path.write_bytes(f"c,d\n{text}".encode())
    vars(csv_files)["_BLOCK"] = block  # `_small_parts` puts it back
    lines = [line for line in csv_lines(path) or [["c", "d"], []][:1] if line]

    try:
        rows = read_csv(path, text=["c", "d"])
    except InvalidDraft as error:
        with pytest.raises(InvalidDraft) as other:
            read_csv_table(path, as_text)
        assert str(other.value) == str(error)  # noqa: PT017 - which text is refused, is drawn
        if "a quote in a cell that does not begin with one" in str(error):
            assert csv_lines(path) is None or any('"' in cell for line in lines for cell in line)
        elif "cells than columns" in str(error):
            assert csv_lines(path) is None or {len(line) for line in lines} != {2}
        else:
            assert csv_lines(path) is None
    else:
        assert rows == [{"c": c or None, "d": d or None} for c, d in lines[1:]]
        assert read_csv_table(path, as_text).read_all().to_pylist() == rows


def csv_lines(path: Path) -> list[list[str]] | None:
    """The lines, as Python reads them; None if it refuses them."""
    text = path.read_bytes().decode()
    try:
        return list(csv.reader(io.StringIO(text, newline=""), strict=True))
    except csv.Error:
        return None


NUMBERS = [
    "", "0", "-0", "1", "-7", "007", "+49", "1.5", "1e3", "1E-2", "1e400", "nan", "NA", "null",
    ".5", "5.", "9007199254740993", "1152921504606846976", "9223372036854775807",
    "9223372036854775808", "-9223372036854775808", "0x10", "1_000", " 1", "\u0661", "true", "0.1",
]  # fmt: skip


@examples(500)
@given(cells=st.lists(st.sampled_from(NUMBERS), min_size=1, max_size=4))
def test_cells_are_numbers_in_tables_where_they_are_in_rows(
    cells: list[str], tmp_path_factory: pytest.TempPathFactory
) -> None:
    """A column of a table has one type: it is text where that type cannot hold each number."""
    path = tmp_path_factory.getbasetemp() / "numbers.csv"
    path.write_text("".join(f"{cell},\n" for cell in ["n", *cells]).replace("n,", "n,m", 1))

    in_rows = [row["n"] for row in read_csv(path)]
    [column, _] = read_csv_table(path, lambda _: None).read_all().columns

    kinds = {type(value) for value in in_rows} - {type(None)}
    if len(kinds) > 1:
        assert column.to_pylist() == [cell or None for cell in cells]
    else:
        assert column.to_pylist() == in_rows
        assert {type(value) for value in column.to_pylist()} == {type(value) for value in in_rows}


def test_a_whole_number_that_no_float_equals_stays_whole(tmp_path: Path) -> None:
    path = tmp_path / "numbers.csv"
    path.write_text("n\n9007199254740993\n1.5\n")

    assert [row["n"] for row in read_csv(path)] == [2**53 + 1, 1.5]


@pytest.mark.parametrize(
    ("octets", "message"),
    [
        (b"\xff\xfea\x00", r"line 1: not UTF-8 \(byte 0\)"),
        (b"a\r\rb\r\n\xc3\xa9\xc3", r"line 4: not UTF-8 \(byte 8\)"),
        (b"a\n1\n\x002\n", "line 3: the character NUL"),
        (b"\xef\xbb\xbf", "it is empty"),
        (b"\n\r\n", "it is empty"),
        (b"a,b\n1,2\n\n3,4\n5\n", "line 5: fewer cells than columns"),
        (b'a,b\n1,"2\n\n', "line 2, column 'b': the quote that opens here is never closed"),
        (b'"a', "line 1: the quote that opens here is never closed"),
        (b'a,b\na,1\n"b,2\nc,3\nd,4', "line 3, column 'a': the quote that opens here is never"),
        (b'a,b\n"a\nb",1\nc,"1"2\n', "line 4, column 'b': text behind the quote that closes"),
        (b'a,b\n"a\nb","1"2\n', "line 3, column 'b': text behind the quote that closes"),
        (b'a,b\na,12" pipe\n', "line 2, column 'b': a quote in a cell that does not"),
        (b"a,b,b\na,1,2\n", "columns 2 and 3 are both called 'b'"),
        (b"a,b\na\n", "line 2: fewer cells than columns: 1, and the first line has 2"),
        (b"a,b\na,1,\n", "line 2: more cells than columns: 3, and the first line has 2"),
        (b"a\ncaf\xe9\n", r"line 2: not UTF-8 \(byte 5\)"),
        (b"", "it is empty; a table without rows has a line with its columns"),
        (b"a;b\n1,5;2\n", "its one column is called 'a;b'; cells have ',' between them"),
        (b"a\tb\n1\t2\n", r"its one column is called 'a\\tb'"),
    ],
)
def test_rows_and_tables_are_refused_in_the_same_words(
    octets: bytes, message: str, tmp_path: Path
) -> None:
    path = tmp_path / "rows.csv"
    path.write_bytes(octets)

    for read in (read_csv, written):
        with pytest.raises(InvalidDraft, match=rf"rows\.csv: {message}"):
            read(path)


def test_columns_that_no_table_has_are_refused_before_the_rows_are_read(tmp_path: Path) -> None:
    path = tmp_path / "turned.csv"
    columns = ",".join(f"day{number}" for number in range(300_000))

    for names, message in (
        (columns, "300,000 columns; a table has at most 2,000"),
        (f"{columns},day7", "columns 8 and 300001 are both called 'day7'"),
        ("a,A", "'a' and 'A' differ in upper and lower case alone"),
        ("a,", "a column without a name"),
    ):
        path.write_text(f"{names}\nthis line is too short\n")
        with pytest.raises(InvalidDraft, match=f"turned.csv: .*{message}"):
            written(path)


def test_a_large_cell_with_breaks_stays_whole_on_any_border(tmp_path: Path) -> None:
    cell = "-\r\n" * 100
    (tmp_path / "rows.csv").write_bytes(f'n,story\r\n1,"{cell}"\r\n2,short'.encode())

    table = read_csv_table(tmp_path / "rows.csv", as_text).read_all()

    assert table.to_pylist() == [{"n": "1", "story": cell}, {"n": "2", "story": "short"}]


def seed(tmp_path: Path, text: str, adapter: str = "duckdb", **config: Any) -> pa.Table:
    """The table of a seed `lands`, as it is uploaded."""
    (tmp_path / "target").mkdir(exist_ok=True)
    (tmp_path / "lands.csv").write_text(text)
    node = {
        "resource_type": "seed",
        "name": "lands",
        "unique_id": "seed.p.lands",
        "original_file_path": "lands.csv",
        "config": config,
        "depends_on": {"nodes": []},
    }
    metadata = {"dbt_schema_version": "v12", "adapter_type": adapter}
    manifest = {"metadata": metadata, "nodes": {"seed.p.lands": node}, "sources": {}}
    path = tmp_path / "target" / "manifest.json"
    path.write_text(json.dumps(manifest))
    [upload] = read_graph_file(path).uploads.values()
    return pq.read_table(io.BytesIO(upload.read()))


@pytest.mark.parametrize(
    ("adapter", "kind"), [("duckdb", "decimal128(18, 3)"), ("spark", "decimal128(10, 0)")]
)
def test_a_decimal_of_a_seed_has_the_digits_of_its_engine(
    adapter: str, kind: str, tmp_path: Path
) -> None:
    """Fractions are not rounded where the engine would."""
    as_decimal = {"column_types": {"a": "decimal"}}

    assert str(seed(tmp_path, "a\n7\n", adapter, **as_decimal).schema.types[0]) == kind
    if adapter == "spark":
        with pytest.raises(InvalidDraft, match=r"line 2, column 'a': '12\.50' is no decimal128"):
            seed(tmp_path, "a\n12.50\n", adapter, **as_decimal)


def test_a_seed_has_its_texts_and_types(tmp_path: Path) -> None:
    """Its columns are those of any CSV, and dates, times and booleans, as dbt reads them."""
    table = seed(
        tmp_path,
        "code;phone;none;opens;Since;day;at;zoned;open;note\n"
        "NA;+49;;12:30:00;1;2026-01-05;2026-01-05 10:00:00;2026-01-05T10:00+01:00;true;null\n"
        "DE;+1;;09:00:00;2;;;;FALSE;\n",
        delimiter=";",
        quote_columns=True,
        column_types={"CODE": "varchar(2)", "since": "decimal(10,2)", "elsewhere": "int"},
    )

    assert [str(kind) for kind in table.schema.types] == [
        "string", "string", "string", "string", "decimal128(10, 2)", "date32[day]",
        "timestamp[us]", "timestamp[us, tz=UTC]", "bool", "string",
    ]  # fmt: skip
    first = table.to_pylist()[0]
    assert (first["code"], first["phone"], first["none"], first["note"]) == (
        "NA", "+49", None, "null",
    )  # fmt: skip
    assert (str(first["Since"]), first["opens"], first["zoned"].hour) == ("1.00", "12:30:00", 9)


@pytest.mark.parametrize(
    ("text", "config", "message"),
    [
        (
            "a,b\n\n1,x\n2,y\n",
            {"column_types": {"B": "int"}},
            "line 3, column 'b': 'x' is no int64",
        ),
        ('a\n"1\n\n"\n1.005\n', {"column_types": {"a": "decimal(9,2)"}}, "line 2, column 'a': "),
        ('a,b\n1,"x\n', {}, "line 2, column 'b': the quote that opens here"),
        ("a,A\n1,2\n", {}, "columns 'a' and 'A' differ in upper and lower case"),
        ("a\n1\n", {"delimiter": "||"}, r"'\|\|' separates no cells"),
    ],
)
def test_a_seed_is_refused_by_name_file_line_and_column(
    text: str, config: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(InvalidDraft, match=rf"seed lands: .*lands\.csv: {message}"):
        seed(tmp_path, text, **config)

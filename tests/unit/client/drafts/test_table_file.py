"""Tables whose rows are values: each format says the same, and each mistake has its place."""

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rebaser_client import Draft, InvalidDraft, builtin
from rebaser_client.graph_files import read_table_file

CSV = """\
sku,price,function,inputs,note
1,10,,,a
2,2.5,,,b
sum,,sum,"[""1"", ""2""]",c
less,,less,"{""left"": ""1"", ""right"": ""2""}",
"""
ROWS: list[dict[str, Any]] = [
    {"sku": "1", "price": 10.0, "note": "a"},
    {"sku": "2", "price": 2.5, "note": "b"},
    {"sku": "sum", "function": "sum", "inputs": {"values": ["1", "2"]}, "note": "c"},
    {"sku": "less", "function": "less", "inputs": {"left": "1", "right": "2"}},
]
COLUMNS_OF_FILE = ("sku", "price", "function", "inputs", "note")
COLUMNS = {"sku": "name", "price": "value", "note": ""}


def written() -> Draft:
    g = Draft()
    g.source("1", 10.0)
    g.source("2", 2.5)
    g.value("sum", builtin("sum"), "1", "2")
    g.value("less", builtin("less"), "1", "2")
    return g


def write(path: Path) -> None:
    match path.suffix:
        case ".csv":
            path.write_text(CSV)
        case ".jsonl":
            path.write_text("".join(f"{json.dumps(row)}\n" for row in ROWS) + "\n")
        case _:
            columns = {column: [row.get(column) for row in ROWS] for column in COLUMNS_OF_FILE}
            pq.write_table(pa.table(columns), path)


@pytest.mark.parametrize("suffix", ["csv", "jsonl", "parquet"])
def test_each_format_says_what_a_program_says(suffix: str, tmp_path: Path) -> None:
    """With names that stay text, and columns that are renamed or left out."""
    path = tmp_path / f"prices.{suffix}"
    write(path)

    assert read_table_file(path, COLUMNS).definitions == written().definitions


def test_values_of_several_kinds_are_json(tmp_path: Path) -> None:
    path = tmp_path / "values.csv"
    path.write_text('name,json\na,1\nb,"""1"""\nc,"[1, {}]"\nd,\n')

    draft = read_table_file(path)

    values = {name: json.dumps(each.value) for name, each in draft.definitions.items()}
    assert values == {"a": "1", "b": '"1"', "c": "[1, {}]", "d": "null"}


@pytest.mark.parametrize(
    ("text", "columns", "message"),
    [
        ("sku,net\na,1\n", {}, "has no column 'name'; it has 'sku', 'net': --map COLUMN=name"),
        ("name,net\na,1\n", {}, "'net' means nothing: --map net=value says .* --map net= leaves"),
        ("name,value\n", {}, "it has no rows"),
        ("name\na\n", {}, "no column 'value', 'json' or 'function'"),
        ("name,value,json\na,1,1\n", {}, "both 'value' and 'json'"),
        ("name,value\na,1\n", {"skuu": "name"}, "no column 'skuu'; it has 'name', 'value'"),
        ("sku,name,value\na,b,1\n", {"sku": "name"}, "two columns for 'name'"),
        ("name,value\na,1\n,2\n", {}, "row 2, column 'name': None names no value"),
        ("sku,value\n,2\n", {"sku": "name"}, "row 1, column 'sku': None names no value"),
        ("name,json\na,1\nb,{\n", {}, "row 2, column 'json': not JSON"),
        ("name,json\na,NaN\n", {}, "row 1, column 'json': not JSON: NaN"),
        ("name,value\na,1\na,2\n", {}, "row 2: two values are called 'a'"),
        ("name,function,inputs\na,sum,b\n", {}, "row 1, column 'inputs': not JSON"),
        ("name,function,inputs\na,sum,1\n", {}, "row 1, column 'inputs': 1 is no object of names"),
        ("name,function,inputs\na,not,[true]\n", {}, "row 1, column 'inputs': True names no value"),
        ('name,function,inputs\na,not,"[""b"",""c""]"\n', {}, "row 1: 'a': 2 inputs"),
        ("name,value,function\na,1,sum\n", {}, "row 1: 'a' has a value and a function"),
        ('name,value,inputs\na,1,"[""b""]"\n', {}, "row 1: 'a' has inputs and no function"),
    ],
)  # fmt: skip
def test_a_mistake_is_named_with_its_place(
    text: str, columns: dict[str, str], message: str, tmp_path: Path
) -> None:
    """Row, column, and what to do."""
    path = tmp_path / "prices.csv"
    path.write_text(text)

    with pytest.raises(InvalidDraft, match=message):
        read_table_file(path, columns)


def test_a_cell_that_names_no_function_is_named_with_its_place(tmp_path: Path) -> None:
    path = tmp_path / "prices.jsonl"
    path.write_text('{"name": "a", "function": 7}')

    with pytest.raises(InvalidDraft, match="row 1, column 'function': 7 names no function"):
        read_table_file(path)


def test_a_cell_that_is_no_json_is_named_with_its_place(tmp_path: Path) -> None:
    """Decimals, for instance, which have to be cast."""
    path = tmp_path / "prices.parquet"
    days = pa.array([1, 2], pa.decimal128(9, 2))
    pq.write_table(pa.table({"name": ["a", "b"], "value": days}), path)

    with pytest.raises(InvalidDraft, match=r"row 1: source 'a': .*Decimal"):
        read_table_file(path)

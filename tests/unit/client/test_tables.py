"""Tables of several makes become updates; what cannot is refused by the name of its column."""

import datetime as dt
import subprocess
import sys

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rebaser_client.tables import as_table, read_updates
from rebaser_core.errors import MalformedMessage
from rebaser_core.updates import PutFunc, PutValue, RemoveValue, SetInputs, SetValue
from tests.wire.samples import FUNC, ONE, SUM, TWO

IDS = [ONE, TWO]
PUTS = [PutValue(value_id=ONE, name="one", value=1), PutValue(value_id=TWO, name="two", value=2)]
COLUMNS = {"id": IDS, "name": ["one", "two"], "value": [1, 2]}
SUM_OF = PutFunc(func_id=FUNC, name="sum", runtime="builtin", code="sum")


@pytest.mark.parametrize("make", [pa.table, pl.DataFrame, pd.DataFrame, pa.RecordBatch.from_pydict])
def test_tables_of_any_make_are_read(make):
    assert read_updates(make(COLUMNS)) == PUTS


def test_a_parquet_file_is_read_by_its_path_and_by_its_uri(tmp_path):
    path = tmp_path / "values.parquet"
    pq.write_table(pa.table(COLUMNS), path, row_group_size=1)

    assert read_updates(path) == read_updates(str(path)) == read_updates(path.as_uri()) == PUTS


def test_a_missing_file_is_an_os_error(tmp_path):
    with pytest.raises(OSError, match=r"none\.parquet"):
        read_updates(tmp_path / "none.parquet")


def test_functions_come_first():
    plain = {"putFunc": {"funcId": FUNC, "name": "sum", "runtime": "builtin", "code": "sum"}}

    assert read_updates(pa.table(COLUMNS), [plain]) == [SUM_OF, *PUTS]
    assert read_updates(pa.table({"id": pa.array([], pa.string())}), [SUM_OF]) == [SUM_OF]


@pytest.mark.parametrize(
    ("values", "read"),
    [
        (pa.array([1, 2], pa.uint8()), [1, 2]),
        (pa.array([0.5, None], pa.float32()), [0.5, None]),
        (pa.array(["a", "b"], pa.large_string()), ["a", "b"]),
        (pa.array(["a", "b"]).dictionary_encode(), ["a", "b"]),
        (pa.array([[1], None]), [[1], None]),
        (pa.array([{"a": 1}, {"a": None}]), [{"a": 1}, {"a": None}]),
        (pa.nulls(2), [None, None]),
        (pa.chunked_array([[True], [False]]), [True, False]),
        (pa.array(np.array([1.5, 2])), [1.5, 2.0]),
    ],
    ids=str,
)
def test_values_of_many_types_are_read(values, read):
    assert [put.value for put in read_updates(pa.table({"id": IDS, "value": values}))] == read


def test_inputs_of_many_types_are_read():
    kind = pa.struct([("values", pa.large_list(pa.large_string())), ("rate", pa.string())])
    inputs = pa.array([{"values": [TWO], "rate": TWO}, None], kind)
    functions = pa.array([FUNC, None]).dictionary_encode()

    [first, second] = read_updates(pa.table({"id": IDS, "inputs": inputs, "function": functions}))

    assert first.inputs == {"values": [TWO], "rate": TWO}
    assert (second.func_id, second.inputs) == (None, None)


@pytest.mark.parametrize(
    ("column", "cells"),
    [
        ("value", [dt.timedelta(1)] * 2),
        ("value", pa.array([2**63, 1], pa.uint64())),
        ("value", [{"span": dt.timedelta(1)}] * 2),
        ("value", pa.array([b"\xff", b"x"]).view(pa.string())),
        ("value", pa.array([1, 2], pa.timestamp("us", "Mars/Olympus"))),
        ("inputs", [[ONE], [ONE]]),
        ("set", ["yes", "no"]),
        ("colour", ["red", "blue"]),
    ],
)
def test_a_column_that_no_update_has_is_refused_by_its_name(column, cells):
    with pytest.raises(MalformedMessage, match=f"{column}"):
        read_updates(pa.table({"id": IDS, column: cells}))


def test_what_is_no_table_is_refused():
    with pytest.raises(MalformedMessage, match="no table"):
        read_updates(7)


def test_a_folder_with_other_files_is_refused(tmp_path):
    (tmp_path / "notes.txt").write_text("notes")

    with pytest.raises(MalformedMessage, match=r"no table: .*Is this a 'parquet' file\?"):
        read_updates(tmp_path)


LISTED = {"values": [ONE]}
SINGLE = {"values": ONE}
UNTOLD = {
    "nothing": [],
    "no put": [SUM_OF, RemoveValue(value_id=ONE)],
    "inputs that are set": [*PUTS, SetInputs(value_id=ONE, inputs=LISTED)],
    "a function behind a put": [*PUTS, SUM_OF],
    "an argument that is a list, and is none": [
        PutValue(value_id=ONE, func_id=FUNC, inputs=LISTED),
        PutValue(value_id=TWO, func_id=FUNC, inputs=SINGLE),
    ],
    "arguments in two orders": [
        PutValue(value_id=ONE, func_id=FUNC, inputs={"a": SUM, "b": SUM}),
        PutValue(value_id=TWO, func_id=FUNC, inputs={"b": SUM, "a": SUM}),
    ],
    "too many arguments": [
        PutValue(value_id=ONE, func_id=FUNC, inputs={f"a{n}": SUM for n in range(65)})
    ],
}


@pytest.mark.parametrize("updates", UNTOLD.values(), ids=UNTOLD)
def test_what_a_table_cannot_say_stays_rows(updates):
    assert as_table(updates) is None


def test_updates_become_a_table():
    mixed = [RemoveValue(value_id=SUM), SUM_OF, *PUTS, SetValue(value_id=SUM, value="x")]

    assert as_table(mixed) == mixed


def test_without_pyarrow_the_extra_is_named():
    script = """\
import asyncio, sys
sys.modules["pyarrow"] = None
from rebaser_client import ChangeSetHandle, MissingPackage
try:
    asyncio.run(ChangeSetHandle.enqueue_table(None, []))
except MissingPackage as error:
    print(error)
"""
    done = subprocess.run(
        [sys.executable, "-c", script], check=False, capture_output=True, text=True
    )

    assert done.stdout == "pyarrow is not installed: pip install 'rebaser[arrow]'\n", done.stderr

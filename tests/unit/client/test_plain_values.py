"""What Python's libraries have at hand is taken, or refused with what to write instead."""

import datetime as dt
from decimal import Decimal

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rebaser_client import Draft, InvalidDraft
from rebaser_client.draft import Source, rows_of
from rebaser_client.plain_values import plain
from rebaser_client.requests import validate
from rebaser_client.tables import read_updates
from rebaser_core.codecs import json_equal
from rebaser_core.errors import MalformedMessage
from tests.wire.samples import ONE, TWO

TAKEN = [
    (np.float64(2), 2.0),
    (np.int64(3), 3),
    (np.bool_(True), True),
    (np.str_("a"), "a"),
    (np.array([[1, 2], [3, 4]]), [[1, 2], [3, 4]]),
    (np.array(["2026-01-02"], "M8[ns]"), ["2026-01-02T00:00:00.000000000"]),
    (pd.DataFrame({"net": [1.0, 2.0]}).net.mean(), 1.5),
    (pd.Series([1.5, None]), [1.5, None]),
    (pd.Series(["a"], dtype="category"), ["a"]),
    (float("nan"), None),
    (np.float32("nan"), None),
    (pd.NA, None),
    (pd.NaT, None),
    (np.datetime64("NaT", "s"), None),
    (pd.Timestamp("2026-01-02T03:04"), "2026-01-02T03:04:00"),
    (dt.datetime(2026, 1, 2, tzinfo=dt.UTC), "2026-01-02T00:00:00+00:00"),
    (dt.date(2026, 1, 2), "2026-01-02"),
    ((1, {"a": np.int8(2)}), [1, {"a": 2}]),
]


class TensorOfOthers:
    """An array of a library whose types are not NumPy's, as PyTorch's are."""

    shape = (1,)
    dtype = "float32"

    def tolist(self) -> list[float]:
        return [1.0]


REFUSED = [
    (float("inf"), "write null or text"),
    (np.float64("-inf"), "write null or text"),
    (Decimal("1.10"), r"float\(x\) for a number, or str\(x\)"),
    (dt.timedelta(1), "total_seconds"),
    ({1, 2}, "write a list"),
    (b"a", "write text"),
    (memoryview(b"a"), "write text"),
    (TensorOfOthers(), "is not JSON"),
]


@pytest.mark.parametrize(("value", "read"), TAKEN, ids=repr)
def test_drafts_and_batches_take_the_same(value: object, read: object) -> None:
    """One rule, also inside of lists and objects."""
    g = Draft()
    g.source("x", value)
    g.sources("{n}", [{"n": 1, "x": value}], "x")
    given = {"valueId": ONE, "value": {"deep": [value]}}
    [update] = validate([{"putValue": given}])

    assert g.definitions["x"] == g.definitions["1"] == Source(read)
    assert json_equal(update.value, {"deep": [read]})


@pytest.mark.parametrize(
    ("value", "message"), REFUSED, ids=[type(value).__name__ for value, _ in REFUSED]
)
def test_drafts_and_batches_refuse_the_same_and_say_what_to_write(
    value: object, message: str
) -> None:
    with pytest.raises(InvalidDraft, match=message):
        Draft().source("x", value)
    with pytest.raises(MalformedMessage, match=message):
        validate([{"setValue": {"valueId": ONE, "value": [value]}}])


CELLS = st.sampled_from(
    [st.floats(allow_infinity=False), st.datetimes(), st.dates(), st.text(), st.booleans()]
)


@given(CELLS.flatmap(lambda cell: st.lists(st.none() | cell, min_size=2, max_size=2)))
def test_all_tables_read_what_drafts_read(cells: list[object]) -> None:
    """Arrow's and those of Polars, by rows and by columns."""
    expected = [plain(cell) for cell in cells]
    table = pa.table({"id": [ONE, TWO], "value": pa.array(cells)})
    for made in (table, pl.from_arrow(table)):
        assert all(map(json_equal, [put.value for put in read_updates(made)], expected))
        assert all(map(json_equal, [row["value"] for row in rows_of(made)], expected))


@pytest.mark.parametrize("kind", [pl.Categorical, pl.Enum(["a", "b"])], ids=str)
def test_categories_of_polars_are_text(kind: object) -> None:
    columns = {"id": [ONE, TWO], "name": ["a", "b"], "value": ["b", None]}
    frame = pl.DataFrame(columns, schema={"id": pl.String, "name": kind, "value": kind})

    assert [(put.name, put.value) for put in read_updates(frame)] == [("a", "b"), ("b", None)]


def test_a_filtered_frame_is_a_table() -> None:
    """Its index, which pandas adds as a column, means nothing; NaN is what is missing."""
    frame = pd.DataFrame({"id": [ONE, TWO], "value": [1.5, float("nan")]})
    not_a_number = pa.table({"id": [ONE], "value": [float("nan")]})

    assert [put.value for put in read_updates(frame[frame.value > 1])] == [1.5]
    assert [put.value for put in read_updates(frame)] == [1.5, None]
    assert [put.value for put in read_updates(not_a_number)] == [None]


def test_what_holds_itself_is_refused() -> None:
    """In a moment, however often it does."""
    loop: list[object] = []
    loop += [loop, loop]

    with pytest.raises(InvalidDraft, match="nested deeper"):
        Draft().source("x", loop)

"""Hashes of the items of Arrow columns of each type that a table can have."""

import datetime as dt
import math
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from rebaser_server.values.column_hashes import column_hashes, row_hashes

MAP = pa.map_(pa.string(), pa.int64())
STRUCT = pa.struct({"a": pa.int64(), "b": pa.list_(pa.string())})
NOON = dt.datetime(2026, 1, 1, 12, tzinfo=dt.UTC)

COLUMNS: list[tuple[pa.DataType, list[Any]]] = [
    (pa.bool_(), [True, False]),
    (pa.int8(), [0, 1, -1]),
    (pa.int64(), [0, 1, -1, 1 << 62]),
    (pa.float32(), [0.0, -0.0, 1.5, math.nan, math.inf]),
    (pa.float64(), [0.0, -0.0, 1.5, math.nan, math.inf]),
    (pa.decimal128(38, 2), [Decimal(0), Decimal("0.01"), Decimal(1 << 62) * 4, Decimal(-1)]),
    (pa.string(), ["", "a", "b", "ab" * 3000]),
    (pa.binary(), [b"", b"\0", b"\0\0"]),
    (pa.date32(), [dt.date(2026, 1, 1), dt.date(1, 1, 1)]),
    (pa.timestamp("us"), [NOON.replace(tzinfo=None), dt.datetime(1, 1, 1)]),  # noqa: DTZ001
    (pa.timestamp("us", "UTC"), [NOON, NOON.replace(hour=11)]),
    (pa.list_(pa.int64()), [[], [None], [0], [0, 0], [1, 2], [2, 1]]),
    (pa.list_(pa.list_(pa.int64())), [[], [[]], [[], []], [[1], [2]], [[1, 2]], [[], [1, 2]]]),
    (MAP, [[], [("a", None)], [("a", 1)], [("b", 1)], [("a", 1), ("b", 2)], [("a", 2), ("b", 1)]]),
    (STRUCT, [{"a": None, "b": None}, {"a": 1, "b": []}, {"a": 1, "b": ["x"]}]),
]


@pytest.mark.parametrize(("kind", "items"), COLUMNS, ids=lambda each: str(each)[:20])
def test_items_have_equal_hashes_if_they_are_equal(kind: pa.DataType, items: list[Any]) -> None:
    """Neither their place, nor what is before them in memory, nor the nulls beside them count."""
    given = [*items, None]

    hashes = column_hashes(pa.array(given, kind), 1).tolist()
    again = column_hashes(pa.array([None, *given, *given], kind).slice(1 + len(given)), 1).tolist()

    assert hashes == again
    assert len(set(hashes)) == len(given)


def test_the_entries_of_a_map_count_in_any_order() -> None:
    column = pa.array([[("a", 1), ("b", 2)], [("b", 2), ("a", 1)]], MAP)

    one, other = column_hashes(column, 1).tolist()

    assert one == other


def test_rows_differ_where_cells_are_exchanged() -> None:
    columns = [["a", "b", None, None], ["b", "a", "a", None]]

    hashes = row_hashes([pa.array(each) for each in columns], 4).tolist()

    assert len(set(hashes)) == 4


def test_with_a_secret_both_zeros_are_one_item() -> None:
    """As in SQL; hashes that are stored tell them apart."""
    column = pa.array([0.0, -0.0])

    for secret, different in ((0, 2), (5, 1)):
        assert len(set(column_hashes(column, 1, secret=secret).tolist())) == different


def test_all_forms_of_nan_are_one_item() -> None:
    forms = np.array([0x7FF8 << 48, (0x7FF8 << 48) + 1, 0xFFF8 << 48], np.uint64).view(np.float64)

    assert len(set(column_hashes(pa.array(forms), 1).tolist())) == 1

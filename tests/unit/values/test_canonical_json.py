"""One text for each value: equal texts if and only if the same JSON; and nothing is lost."""

import json
import struct
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rebaser_core.codecs import json_equal
from rebaser_server.values.canonical_json import (
    dumps,
    dumps_numbers,
    loads,
    loads_many,
)
from tests.helpers.random_batches import examples

FLOATS = st.floats(allow_nan=False, allow_infinity=False)
INTEGERS = st.integers(-(2**63), 2**63 - 1)
JSON = st.recursive(
    st.none() | st.booleans() | INTEGERS | FLOATS | st.sampled_from([0, 0.0, -0.0, 1, 1.0, True])
    | st.text(st.characters(exclude_categories=["Cs"]), max_size=4),
    lambda inner: st.lists(inner, max_size=3)
    | st.dictionaries(st.sampled_from(["", "a", "é", "\0", "😀", "￿"]), inner, max_size=3),
    max_leaves=8,
)  # fmt: skip


def reordered(data: Any) -> Any:
    if isinstance(data, dict):
        return {key: reordered(data[key]) for key in reversed(data)}
    return [reordered(item) for item in data] if isinstance(data, list) else data


@given(JSON)
@examples(300)
def test_nothing_is_lost(data: Any) -> None:
    text = dumps(data)

    assert json_equal(loads(text), data)
    assert json_equal(json.loads(text), data), "any other reader of JSON reads the same"
    assert dumps(reordered(data)) == dumps(loads(text)) == text


@given(JSON, JSON)
@examples(300)
def test_texts_are_equal_where_values_are_the_same(one: Any, other: Any) -> None:
    assert (dumps(one) == dumps(other)) is json_equal(one, other)


@given(st.lists(JSON, max_size=5))
@examples(50)
def test_a_column_of_texts_is_read_as_the_texts_are(data: list[Any]) -> None:
    texts = pa.array(list(map(dumps, data)), pa.large_string())

    assert all(map(json_equal, loads_many(texts), data))


@pytest.mark.parametrize("kind", [np.int64, np.float64, np.bool_])
@given(data=st.data())
@examples(100)
def test_numbers_have_the_texts_that_values_have(kind: Any, data: st.DataObject) -> None:
    one = {np.int64: INTEGERS, np.float64: FLOATS, np.bool_: st.booleans()}[kind]
    numbers = data.draw(st.lists(one, max_size=20))

    assert dumps_numbers(np.array(numbers, kind)).to_pylist() == list(map(dumps, numbers))


@given(st.binary(min_size=8, max_size=8))
@examples(300)
def test_every_float_reads_back_bit_by_bit(octets: bytes) -> None:
    (number,) = struct.unpack("<d", octets)
    if np.isfinite(number):
        assert struct.pack("<d", loads(dumps(number))) == octets


def test_more_numbers_than_are_written_at_once_stay_in_order() -> None:
    count = 2**17 + 3

    texts = dumps_numbers(np.arange(count) - 5)

    assert texts.to_pylist() == [str(number - 5) for number in range(count)]

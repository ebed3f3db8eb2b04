"""Texts of JSON in a column become what they would be in a message, or are refused as there."""

import re

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rebaser_core import codecs
from rebaser_core.errors import MalformedMessage
from rebaser_core.ids import CANONICAL
from rebaser_core.table_updates import are_ids, canonical_texts
from rebaser_server.values.canonical_json import dumps
from tests.wire.strategies import json_values, unhurried

NEARLY_IDS = st.one_of(
    st.text("0789AHIJLUZ:@[`az\0\u00e9", min_size=25, max_size=27),
    st.from_regex(CANONICAL, fullmatch=True),
    st.none(),
)


@unhurried
@given(st.lists(NEARLY_IDS, max_size=5), st.integers(0, 5), st.integers(0, 5))
def test_ids_are_those_that_each_text_by_itself_is(cells, start, count):
    """Also in a part of an array."""
    part = pa.array(cells, pa.string()).slice(min(start, len(cells)), count)

    wanted = all(
        each is not None and re.fullmatch(CANONICAL[:-1], each) for each in part.to_pylist()
    )
    assert are_ids(part) == wanted


@unhurried
@given(st.lists(json_values, max_size=4), st.booleans())
def test_texts_become_canonical(values, is_spaced):
    cells = [codecs.dumps(codecs.JSON, value).decode() for value in values]
    if is_spaced:
        cells = [f" {cell}\n" for cell in cells]

    texts = canonical_texts(pa.array([*cells, None], pa.string()))

    assert texts.to_pylist() == [*map(dumps, values), "null"]


ODD = [
    "",
    "1,2",
    "[1",
    "NaN",
    "1e999",
    "9223372036854775808",
    '{"a":1,"a":2}',
    r'"\ud800"',
    "[" * 65,
]


@pytest.mark.parametrize("cell", [*ODD, "[" * 65 + "]" * 65])
def test_a_text_that_no_message_could_say_is_refused(cell):
    with pytest.raises(MalformedMessage):
        canonical_texts(pa.array(["1", cell], pa.string()))


def test_two_cells_do_not_make_up_for_one_another():
    with pytest.raises(MalformedMessage):
        canonical_texts(pa.array(["[1", "2]"], pa.string()))

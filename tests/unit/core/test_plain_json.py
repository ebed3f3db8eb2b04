"""When two JSON values are the same."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rebaser_core.codecs import INT_MAX, INT_MIN, json_equal

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=5)
LEAVES = (
    st.none()
    | st.booleans()
    | st.integers(INT_MIN, INT_MAX)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.sampled_from([0, 0.0, -0.0, 1, 1.0])
    | TEXT
)
JSON = st.recursive(
    LEAVES, lambda item: st.lists(item, max_size=3) | st.dictionaries(TEXT, item, max_size=3)
)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"a": 1, "b": 2}, {"b": 2, "a": 1}),
        ([{"x": {"p": 1, "q": [None]}}], [{"x": {"q": [None], "p": 1}}]),
        (0.1 + 0.2, 0.30000000000000004),
        ("é", "\u00e9"),
        ({}, {}),
    ],
)
def test_the_order_of_keys_does_not_matter(one, other):
    assert json_equal(one, other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (1, 1.0),
        (1, True),
        (1.0, True),
        (0, False),
        (0.0, -0.0),
        (None, False),
        ([], {}),
        ("1", 1),
        ("é", "e\u0301"),
        ([1, 2], [2, 1]),
        ({"a": None}, {}),
        ([[1]], [[1.0]]),
        (2**53, float(2**53)),
    ],
)
def test_values_that_python_takes_for_equal_are_told_apart(one, other):
    """Else a change from 1 to true would be none, and what depends on it stay wrong."""
    assert not json_equal(one, other)
    assert not json_equal(other, one)


@given(JSON, JSON)
def test_two_values_are_the_same_if_their_sorted_texts_are(one, other):
    """The standard library writes a different text for each different value."""
    texts = [json.dumps(value, sort_keys=True) for value in (one, other)]

    assert json_equal(one, other) == (texts[0] == texts[1])
    assert json_equal(one, json.loads(texts[0]))

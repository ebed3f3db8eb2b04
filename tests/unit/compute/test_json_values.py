"""What may be a value, and when two are the same."""

import copy
import json
import pickle
from typing import Any

import cbor2
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rebaser_core.codecs import MAX_DEPTH, json_equal
from rebaser_server.compute.json_values import (
    NotJson,
    ReadOnlyList,
    as_result,
    read_only,
)
from tests.helpers.graph_builder import UNHURRIED

SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"]))
)
JSON = st.recursive(
    SCALARS, lambda inner: st.lists(inner) | st.dictionaries(st.text("abc"), inner), max_leaves=20
)


def nested(depth: int) -> Any:
    data: Any = []
    for level in range(depth - 1):
        data = {"in": data} if level % 2 else [data]
    return data


@settings(UNHURRIED, max_examples=50)
@given(JSON)
def test_all_json_is_kept(data: Any) -> None:
    """And so is every copy of it, on paper, in bytes and in memory."""
    kept = read_only(data)

    assert json_equal(kept, data)
    assert json_equal(json.loads(json.dumps(kept)), data)
    assert json_equal(cbor2.loads(cbor2.dumps(kept)), data)
    assert json_equal(copy.deepcopy(kept), data)
    assert json_equal(pickle.loads(pickle.dumps(kept)), data)  # noqa: S301 - our own bytes


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (float("nan"), "nan is not JSON"),
        (2**63, "an integer of more than 64 bits"),
        ("\ud800", "a string with a lone surrogate is not JSON"),
        ((1, 2), "tuple is not JSON"),
        ({1: 2}, "the key 1 is not a string"),
        ({"\ud800": 2}, "a string with a lone surrogate is not JSON"),
        ([0, {"a": [b"x"]}], "[1]['a'][0]: bytes is not JSON"),
    ],
    ids=["nan", "integer", "surrogate", "tuple", "key", "surrogate key", "inside"],
)
def test_a_value_that_is_not_json_is_named(data: Any, message: str) -> None:
    with pytest.raises(NotJson) as error:
        read_only(data)

    assert str(error.value) == message


def test_depth_has_a_limit() -> None:
    read_only(nested(MAX_DEPTH))

    with pytest.raises(NotJson, match="nested more than 64 deep"):
        read_only(nested(MAX_DEPTH + 1))
    with pytest.raises(NotJson, match="nested more than 64 deep"):
        read_only(nested(100_000))


def test_depth_counts_what_is_read_only_already() -> None:
    inner = read_only(nested(MAX_DEPTH))

    with pytest.raises(NotJson, match="nested more than 64 deep"):
        read_only([inner])


def test_what_is_read_only_is_not_copied() -> None:
    inner = read_only([1, [2]])

    assert read_only({"it": inner})["it"] is inner


@pytest.mark.parametrize(
    "change",
    [
        lambda data: data["list"].append(1),
        lambda data: data["list"].__setitem__(0, 1),
        lambda data: data["list"].sort(),
        lambda data: data.update(a=1),
        lambda data: data.pop("list"),
        lambda data: data.setdefault("b", 1),
    ],
)
def test_changes_are_refused(change: Any) -> None:
    data = read_only({"list": [2, 1]})

    with pytest.raises(TypeError, match="read-only"):
        change(data)
    assert data == {"list": [2, 1]}


def test_copies_can_be_changed() -> None:
    data = read_only({"list": [2, 1]})

    for made in (data.copy(), copy.copy(data), dict(data), data | {}, copy.deepcopy(data)):
        made["more"] = 1
    for made in (data["list"].copy(), data["list"][:], data["list"] + [], [*data["list"]]):
        made.append(1)
    assert not isinstance(copy.deepcopy(data)["list"], ReadOnlyList)


@pytest.mark.parametrize("around", [lambda x: x, lambda x: [1, x], lambda x: {"a": [{"b": x}]}])
def test_a_function_passes_tables_on_and_makes_none(around: Any) -> None:
    """At any depth of its result; what it was given is read-only."""
    table = {"$table": {"key": "0" * 64}}
    given_one = read_only(table)

    with pytest.raises(NotJson, match=r"an object with the key \$table: only queries make tables"):
        as_result(around(table))

    assert as_result(around(given_one)) == around(table)

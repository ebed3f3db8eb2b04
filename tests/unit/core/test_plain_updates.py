"""Many updates read at once are what they are read one by one; what is none is left to that."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from rebaser_core import codecs
from rebaser_core.codecs import MAX_DEPTH
from rebaser_core.ids import RequestId
from rebaser_core.messages import UpdatesBatch, UpdatesBatchV1
from rebaser_core.updates import (
    MANY,
    PlainUpdates,
    PutFunc,
    PutValue,
    RemoveValue,
    SetValue,
    UpdateList,
)
from rebaser_core.versioning import first_error
from tests.wire.samples import EVERY_UPDATE, FUNC, ONE, TWO
from tests.wire.strategies import json_values, unhurried, updates

LIST = TypeAdapter(UpdateList)
COLUMNAR = PutFunc, PutValue, SetValue
EITHER = pytest.mark.parametrize("content_type", sorted(codecs.CONTENT_TYPES))


def nested(depth):
    value = 1
    for _ in range(depth):
        value = [value]
    return value


@unhurried
@given(st.lists(updates, max_size=6))
def test_puts_and_sets_are_read_at_once(batch):
    plain = [update.to_wire() for update in batch]

    read = PlainUpdates.read(plain)

    if all(isinstance(update, COLUMNAR) for update in batch):
        assert read == batch
        assert read.to_wire() == plain
    else:
        assert read is None


_parts = ["valueId", "name", "value", "funcId", "inputs", "runtime", "code", "x", ONE, TWO, "ü"]
_odd = st.one_of(
    json_values,
    st.sampled_from([ONE.lower(), ONE[:-1], ONE + "0", "8" + ONE[1:], [ONE, TWO], [[ONE]]]),
    st.sampled_from(
        [{"a": ONE}, {"": ONE}, {"a": [ONE, 1]}, {"a" * 129: ONE}, {1: ONE}, "", "\ud800"]
    ),
    st.sampled_from([float("nan"), 2**63, -(2**63) - 1, "a" * 513, b"", (1,), {"\ud800": 1}]),
    st.just(nested(MAX_DEPTH + 1)),
)


@unhurried
@given(st.lists(updates, min_size=1, max_size=4), st.data())
def test_whatever_is_read_at_once_is_valid(batch, data):
    """Also if something about it is changed: else it is left to the classes, and their errors."""
    plain = [update.to_wire() for update in batch]
    changed = data.draw(st.sampled_from(plain))
    [(kind, body)] = changed.items()
    for key in data.draw(st.lists(st.sampled_from(_parts), max_size=2)):
        if data.draw(st.booleans()):
            body.pop(key, None)
        else:
            body[key] = data.draw(_odd)
    if data.draw(st.integers(0, 9)) == 0:
        changed["putValue" if kind != "putValue" else "setValue"] = data.draw(st.just(body) | _odd)

    read = PlainUpdates.read(plain)

    if read is not None:
        assert read == LIST.validate_python(plain)


@pytest.mark.parametrize(
    "odd",
    [
        None,
        [],
        {},
        {"putValue": None},
        {"putValue": {}},
        {"setValue": {"valueId": ONE}},
        {"putFunc": {"funcId": ONE, "name": "f"}},
        {"no such": {}},
        {"putValue": {"valueId": ONE, "inputs": [ONE]}},
        {"putValue": {"valueId": ONE, "value": nested(MAX_DEPTH + 1)}},
    ],
    ids=str,
)
def test_what_is_no_update_is_refused_as_by_itself(odd):
    valid = [{"setValue": {"valueId": ONE, "value": 1}}] * MANY
    with pytest.raises(ValidationError) as by_itself:
        LIST.validate_python([*valid, odd])
    with pytest.raises(ValidationError) as in_a_batch:
        UpdatesBatchV1(id=RequestId(), updates=[*valid, odd])

    said = first_error(in_a_batch.value).removeprefix("updates.")
    assert said == first_error(by_itself.value)


def test_a_value_may_be_as_deep_as_ever():
    deepest = {"setValue": {"valueId": ONE, "value": nested(MAX_DEPTH)}}

    assert PlainUpdates.read([deepest]) is not None


@EITHER
@pytest.mark.parametrize("count", [1, MANY - 1, MANY, 3 * MANY])
def test_a_batch_of_any_size_reads_as_it_was_written(content_type, count):
    chosen = random.Random(1).choices([u for u in EVERY_UPDATE if isinstance(u, COLUMNAR)], k=count)
    batch = UpdatesBatchV1(id=RequestId(), updates=chosen)
    _, payload = UpdatesBatch.encode(batch, content_type)

    read = UpdatesBatch.decode_stored(payload)

    assert isinstance(read.updates, PlainUpdates) == (count >= MANY)
    assert read == batch
    assert UpdatesBatch.encode(read, content_type)[1] == payload


def test_a_dump_by_pydantic_says_the_same():
    chosen = [update for update in EVERY_UPDATE if isinstance(update, COLUMNAR)] * MANY
    batch = UpdatesBatchV1(id=RequestId(), updates=chosen)
    plain = batch.model_copy(update={"updates": PlainUpdates.read(batch.to_wire()["updates"])})

    assert plain.model_dump(mode="json", by_alias=True) == batch.model_dump(
        mode="json", by_alias=True
    )


@EITHER
def test_a_batch_with_other_updates_reads_as_it_was_written(content_type):
    batch = UpdatesBatchV1(
        id=RequestId(), updates=[RemoveValue(value_id=ONE), *EVERY_UPDATE] * MANY
    )

    payload = UpdatesBatch.encode(batch, content_type)[1]

    assert UpdatesBatch.decode_stored(payload) == batch


def test_columns_say_what_the_updates_do():
    read = PlainUpdates.read(
        [
            {"putFunc": {"funcId": FUNC, "name": "f", "runtime": "builtin"}},
            {"putValue": {"valueId": ONE, "name": "one", "value": 1}},
            {"putValue": {"valueId": TWO, "funcId": FUNC, "inputs": {"a": ONE, "b": [ONE, TWO]}}},
            {"setValue": {"valueId": ONE, "value": None}},
        ]
    )

    columns = read.columns
    assert columns.ids == [ONE, TWO, ONE]
    assert columns.names == ["one", None, None]
    assert columns.values == [1, None, None]
    assert columns.func_ids == [None, FUNC, None]
    assert columns.is_put == [True, True, False]
    assert columns.input_ids == [ONE, ONE, TWO]
    assert [list(columns.known_signatures)[s] for s in columns.signatures] == [
        (),
        (("a", None), ("b", 2)),
        (),
    ]
    assert [func.func_id for func in columns.funcs] == [FUNC]

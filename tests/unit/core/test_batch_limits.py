"""What is too large is told before it is sent, and by whose limit."""

import pytest

from rebaser_core.updates import PutFunc, PutValue, RemoveValue, SetInputs, SetValue
from tests.helpers.batches import limits
from tests.helpers.checkpoint_writer import ulid

ONE, MANY = ulid(1), {"values": [ulid(2), ulid(3)], "more": ulid(4)}
SMALL = limits(batch_updates=2, value_bytes=8, inputs=3, name_depth=2)


@pytest.mark.parametrize(
    "update",
    [
        SetValue(value_id=ONE, value="123456"),
        SetValue(value_id=ONE, value=[1, 2, 3]),
        SetValue(value_id=ONE, value=10**18),
        PutValue(value_id=ONE, name="a/b", func_id=ONE, inputs=MANY),
        PutFunc(func_id=ONE, name="a/b", runtime="builtin", code="/" * 100),
        RemoveValue(value_id=ONE),
    ],
    ids=str,
)
def test_a_batch_that_just_fits_is_accepted(update):
    assert SMALL.violation([update], 1) is None


@pytest.mark.parametrize(
    ("update", "complaint"),
    [
        (SetValue(value_id=ONE, value="1234567"), "a value of more than 8 bytes"),
        (SetValue(value_id=ONE, value="ääää"), "a value of more than 8 bytes"),
        (PutValue(value_id=ONE, value={"k": "vv"}), "a value of more than 8 bytes"),
        (SetInputs(value_id=ONE, inputs={**MANY, "and": ONE}), "4 inputs; at most 3"),
        (PutValue(value_id=ONE, name="a/b/c"), "a name of 3 parts; at most 2"),
        (PutFunc(func_id=ONE, name="/a/", runtime="cel"), "a name of 3 parts; at most 2"),
    ],
    ids=str,
)
def test_an_update_that_is_too_large_is_named(update, complaint):
    told = SMALL.violation([RemoveValue(value_id=ONE), update], 2)

    assert told is not None
    name = getattr(update, "name", None) or getattr(update, "value_id", None)
    assert told.startswith(f"update 1, {name!r}: {complaint}")


def test_a_batch_has_a_limit_of_its_own():
    batch = [RemoveValue(value_id=ONE)] * 3

    assert SMALL.violation(batch, len(batch)) == "a batch of 3 updates; at most 2 are allowed"

"""The inputs of many values are written as JSON at once, as they would be one by one."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rebaser_server.store.graph_loader import inputs_texts
from rebaser_server.values.columns import ID_BYTES, Signatures
from tests.wire.strategies import unhurried

SIGNATURES = (
    (),
    (("left", None), ("right", None)),
    (("values", 3),),
    (("values", 0),),
    (("of", 1), ("at", None)),
)
ROWS = st.lists(st.integers(0, len(SIGNATURES) - 1), max_size=30)


@pytest.mark.parametrize("length", [ID_BYTES, 5], ids=["ULIDs", "shorter ids"])
@unhurried
@given(rows=ROWS)
def test_inputs_of_any_mixture_of_signatures_are_written_in_order(length, rows):
    signatures = Signatures()
    indices = np.array([signatures.intern(SIGNATURES[row]) for row in rows], np.int32)
    widths = np.array([signatures.widths[index] for index in indices], np.int64)
    ids = [f"{number:0{length}}" for number in range(int(widths.sum()))]

    texts = inputs_texts(signatures, indices, np.array(ids, f"S{ID_BYTES}"), widths)

    remaining = iter(ids)
    expected = [expected_inputs(SIGNATURES[row], remaining) for row in rows]
    texts.validate(full=True)
    assert [text and json.loads(text) for text in texts.to_pylist()] == expected


def expected_inputs(signature, ids):
    """None for none."""
    inputs = {
        argument: next(ids) if count is None else [next(ids) for _ in range(count)]
        for argument, count in signature
    }
    return inputs or None

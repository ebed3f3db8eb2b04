"""A table becomes the arrays that its rows become."""

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rebaser_client.tables import as_table
from rebaser_core.updates import LazyUpdates, PlainUpdates, PutFunc, PutValue, RemoveValue, SetValue
from rebaser_server.values.bulk_rebase import BatchArrays
from rebaser_server.values.rebase import functions_in
from tests.wire.strategies import unhurried, updates

kinds = PutFunc, PutValue, SetValue
functions_first = st.lists(updates, max_size=16).map(
    lambda batch: sorted(
        (update for update in batch if isinstance(update, kinds)),
        key=lambda update: not isinstance(update, PutFunc),
    )
)


def inputs_of(arrays):
    bounds = np.cumsum(arrays.widths)[:-1]
    return [part.tolist() for part in np.split(arrays.raw_inputs, bounds)]


@unhurried
@given(functions_first)
def test_a_table_becomes_the_arrays_of_its_rows(batch):
    table = as_table(batch)
    if table is None:
        return
    of_rows = BatchArrays.of(PlainUpdates.read([update.to_wire() for update in batch]))

    arrays = BatchArrays.of(table)

    assert arrays.funcs == of_rows.funcs
    assert arrays.raw_ids.tolist() == of_rows.raw_ids.tolist()
    assert arrays.names.equals(of_rows.names)
    every = np.ones(table.row_count, np.bool_)
    assert arrays.texts_of(every).equals(of_rows.texts_of(every))
    assert arrays.has_value.tolist() == of_rows.has_value.tolist()
    assert arrays.is_put.tolist() == of_rows.is_put.tolist()
    for one in (arrays, of_rows):
        assert one.known_signatures[0] == ()
    assert [arrays.known_signatures[place] for place in arrays.signatures] == [
        of_rows.known_signatures[place] for place in of_rows.signatures
    ]
    assert inputs_of(arrays) == inputs_of(of_rows)
    assert [place if place < 0 else arrays.func_ids[place] for place in arrays.funcs_used] == [
        place if place < 0 else of_rows.func_ids[place] for place in of_rows.funcs_used
    ]


@unhurried
@given(functions_first)
def test_functions_are_found_in_each_form_of_a_batch(batch):
    """As objects, plain data and a table."""
    wanted = [update for update in batch if isinstance(update, PutFunc)]
    forms = [batch, PlainUpdates.read([update.to_wire() for update in batch]), as_table(batch)]

    assert all(list(functions_in(form)) == wanted for form in forms if form is not None)


@pytest.mark.parametrize("kind", [pa.int64(), pa.float64(), pa.string()])
def test_typed_values_become_their_texts(kind):
    values = {pa.int64(): [1, -(2**63)], pa.float64(): [1.0, -0.0, 1e300]}.get(kind, ["", 'ä"\n'])
    batch = [PutValue(value_id=f"{n:026}", value=value) for n, value in enumerate([*values, None])]
    plain = PlainUpdates.read([update.to_wire() for update in batch])
    every = np.ones(len(batch), np.bool_)

    texts = BatchArrays.of(as_table(batch)).texts_of(every)

    assert texts.equals(BatchArrays.of(plain).texts_of(every))


def test_what_arrays_cannot_hold_is_left_to_rows():
    class Others(LazyUpdates):
        def to_wire(self):
            return []

        def __len__(self):
            return 0

    removal = RemoveValue(value_id="0" * 26)

    assert BatchArrays.of(as_table([removal, PutValue(value_id="0" * 26)])) is None
    assert BatchArrays.of(Others()) is None

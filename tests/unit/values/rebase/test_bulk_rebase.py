"""A batch that is applied at once does what it does row by row; odd ones are left to that."""

from collections import Counter
from copy import deepcopy

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rebaser_client.tables import as_table
from rebaser_core.updates import (
    PlainUpdates,
    PutFunc,
    PutValue,
    RemoveValue,
    SetComputed,
    SetInputs,
    SetValue,
)
from rebaser_server.values.bulk_rebase import rebase_in_bulk
from rebaser_server.values.graph import Graph
from rebaser_server.values.rebase import rebase
from tests.helpers.checkpoint_writer import ulid
from tests.helpers.random_batches import (
    FUNCS,
    contents,
    data,
    definitions,
    edits,
    examples,
    functions,
    made,
    require_consistent,
)
from tests.helpers.replay import after, encoded

VALUES = [ulid(number) for number in range(4, 14)]
"""The first three are also those of `random_batches`."""
known = st.sampled_from(VALUES)
histories = st.tuples(definitions, st.lists(edits, max_size=3))
free = st.none() | st.integers(0, 40).map("n{}".format)
dependents = made(
    PutValue,
    value_id=known,
    name=free,
    func_id=st.sampled_from(FUNCS),
    inputs=st.none()
    | st.dictionaries(
        st.sampled_from(["values", "left"]), known | st.lists(known, max_size=3), max_size=2
    ),
)
rows = st.one_of(
    made(PutValue, value_id=known, name=free, value=data),
    dependents,
    dependents,
    made(SetValue, value_id=known, value=data),
)
batches = st.builds(
    lambda functions, rows, defined: [
        *functions,
        *[PutValue(value_id=i, value=1) for i in VALUES if i in defined],
        *[row for row in rows if row.value_id not in defined],
    ],
    st.lists(functions, max_size=2),
    st.lists(rows, max_size=8, unique_by=lambda row: row.value_id),
    st.sets(known, min_size=3),
)
"""Many of them regular: each defines some of the values that it may take."""

odd_batches = st.builds(
    lambda functions, rows: [*functions, *rows],
    st.lists(functions | made(RemoveValue, value_id=known), max_size=2),
    st.lists(rows.filter(lambda row: getattr(row, "inputs", None) != {}), max_size=8),
)
"""Whose rows may meet in any way."""


def plain(updates):
    read = PlainUpdates.read([update.to_wire() for update in updates])
    assert read is not None
    return read


def apply_both(graph, batch):
    """The batch at once, on a copy, and row by row; None where that is left to rows."""
    copied = deepcopy(graph)
    in_bulk = rebase_in_bulk(copied, 99, plain(batch))
    by_rows = rebase(graph, 99, batch)
    if in_bulk is not None:
        assert contents(copied) == contents(graph)
        assert not by_rows.corrections
        assert not in_bulk.corrections
        assert encoded(list(in_bulk.updates)) == encoded(by_rows.updates)
        assert in_bulk.dirty == by_rows.dirty
        assert set(copied.touched) == set(graph.touched)
        assert copied.touched_funcs == graph.touched_funcs
        require_consistent(copied)
    return copied if in_bulk is not None else None


@given(histories, batches, st.lists(edits, max_size=6))
@examples(100)
def test_a_batch_at_once_does_what_it_does_row_by_row(history, batch, later):
    """So does what comes after it, whose order and edges begin with what it left."""
    graph = after(history)

    copied = apply_both(graph, batch)

    if copied is not None:
        rebase(graph, 100, later)
        rebase(copied, 100, later)
        assert contents(copied) == contents(graph)
        require_consistent(copied)


@given(histories, batches)
@examples(40)
def test_what_is_left_to_rows_has_changed_nothing(history, batch):
    graph = after(history)
    before = contents(graph), set(graph.touched)

    if rebase_in_bulk(graph, 99, plain(batch)) is None:
        assert (contents(graph), set(graph.touched)) == before
        require_consistent(graph)


@given(histories, batches | odd_batches)
@examples(60)
def test_any_table_does_what_its_rows_do(history, batch):
    """With the same corrections, and the same batch as performed, which is what the log keeps."""
    table = as_table(batch)
    if table is None:
        return
    graph = after(history)
    copied = deepcopy(graph)

    by_rows, at_once = rebase(graph, 99, batch), rebase(copied, 99, table)

    assert contents(copied) == contents(graph)
    assert at_once.corrections == by_rows.corrections
    assert at_once.dirty == by_rows.dirty
    assert [update.to_wire() for update in at_once.updates] == [
        update.to_wire() for update in by_rows.updates
    ]
    assert set(copied.touched) == set(graph.touched)
    require_consistent(copied)


def test_many_random_batches_are_applied_at_once():
    """Else the tests above would show nothing."""
    seen = Counter()

    @given(histories, batches)
    @examples(60, database=None, derandomize=True)
    def count(history, batch):
        done = rebase_in_bulk(after(history), 99, plain(batch))
        seen[done is not None] += 1

    count()

    assert seen[True] > 5
    assert seen[False] > 5


def source(number, **more):
    return PutValue(value_id=ulid(number), value=number, **more)


def dependent(number, *taken, **more):
    inputs = {"values": [ulid(each) for each in taken]}
    return PutValue(value_id=ulid(number), func_id=FUNCS[0], inputs=inputs, **more)


REGULAR = {
    "sources": [source(1), source(2, name="two")],
    "dependents first": [dependent(3, 2, 1), dependent(2, 1), source(1)],
    "inputs that were there": [dependent(3, 101, 102, 101)],
    "sources that are there": [SetValue(value_id=ulid(101), value=5), source(102)],
    "a function": [PutFunc(func_id=FUNCS[0], name="f", runtime="builtin", code="sum"), source(1)],
    "a name as it was": [source(103, name="three")],
    "nothing": [],
}
ODD = {
    "an id twice": [source(1), source(1)],
    "a name twice": [source(1, name="one"), source(2, name="one")],
    "a name that is taken": [source(1, name="three")],
    "another name": [source(103, name="four")],
    "a missing input": [dependent(1, 2)],
    "itself": [dependent(1, 1)],
    "a cycle": [dependent(1, 2), dependent(2, 3), dependent(3, 1)],
    "a source with inputs": [PutValue(value_id=ulid(1), inputs={"a": ulid(101)})],
    "a computed value with a value": [dependent(1, 101, value=1)],
    "a source that is computed from now on": [dependent(101, 102)],
    "a computed value that is there": [dependent(104, 101)],
    "a computed value that is set": [SetValue(value_id=ulid(104), value=1)],
    "a missing value": [SetValue(value_id=ulid(1), value=1)],
    "a value that was removed": [source(105)],
    "an input that was removed": [dependent(1, 105)],
}


def there():
    graph = Graph()
    first = [*map(source, [101, 102]), source(103, name="three"), dependent(104, 101), source(105)]
    rebase(graph, 1, first)
    rebase(graph, 2, [RemoveValue(value_id=ulid(105))])
    return graph


@pytest.mark.parametrize("batch", REGULAR.values(), ids=REGULAR)
def test_a_regular_batch_is_applied_at_once(batch):
    assert apply_both(there(), batch) is not None


@pytest.mark.parametrize("batch", ODD.values(), ids=ODD)
def test_an_odd_batch_is_left_to_rows(batch):
    assert apply_both(there(), batch) is None


@pytest.mark.parametrize("name", [*REGULAR, *ODD])
def test_a_table_is_regular_where_its_rows_are(name):
    table = as_table({**REGULAR, **ODD}[name])
    done = table is not None and rebase_in_bulk(there(), 99, table)

    assert (done is None) == (name in ODD)


def test_many_values_and_edges_at_once():
    """So many that edges are compacted, and names are in the index rather than in the memory."""
    count = 12_000
    batch = [source(number, name=f"n{number}") for number in range(1000, 1100)]
    batch += [dependent(n, n - 1, n - 99, n - 98, name=f"n{n}") for n in range(1100, count)]
    graph = there()

    assert apply_both(graph, batch[::-1]) is not None
    assert apply_both(graph, [source(count, name="n1007")]) is None
    assert apply_both(graph, [dependent(count + 1, 1007, count - 1, name="last")]) is not None


def test_a_set_among_many_new_inputs_reaches_only_what_takes_it():
    graph = there()
    rebase(graph, 3, [SetInputs(value_id=ulid(104), inputs={"values": [ulid(102)]})])
    rebase(graph, 0, [SetComputed(value_id=ulid(104), value=1)], 3)
    graph.clear_roots(3)

    copied = apply_both(graph, [SetValue(value_id=ulid(101), value=9), dependent(1, 102)])

    assert dict(copied.roots) == {ulid(1): 99}

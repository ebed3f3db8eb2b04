"""A snapshot stays what its graph was, whatever becomes of the graph."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from rebaser_server.store.table_schema import SealedRows, rows_for, rows_of, select_rows
from rebaser_server.values.graph import Graph, GraphSnapshot, ValuesById
from rebaser_server.values.rebase import rebase
from tests.helpers.checkpoint_writer import ulid
from tests.helpers.random_batches import batches, contents, examples, histories
from tests.helpers.replay import after
from tests.unit.values.graph.test_graph import as_if_large, planned

__all__ = ["as_if_large"]


def seen(values: ValuesById) -> dict[str, tuple[object, ...]]:
    """All that a value shows, found by its id."""
    shown = {}
    for value_id in values:
        value = values[value_id]
        texts = (value.name, value.text, value.message, value.func_id, value.status)
        shown[value.id] = (*texts, value.inputs, value.dependents)
    assert len(shown) == len(values)
    return shown


@given(histories, batches, st.booleans())
@examples(100)
def test_a_snapshot_is_what_the_graph_was(history, batch, tidy):
    """Whatever comes after it; and what reads it does nothing to the graph."""
    graph, other = after(history), after(history)
    wanted = planned(after(history)), rows_of(after(history), {}, 1, whole=True)
    before = seen(graph.values)
    snapshot, everything = GraphSnapshot(graph), select_rows(graph, whole=True)
    for each in (graph, other):
        rebase(each, 99, batch)
        each.clear_roots(98)
        if tidy:
            each.compact()
            each.adjacency.compact()
            each.names.compact()

    assert seen(ValuesById(snapshot)) == before
    assert planned(snapshot) == wanted[0]
    rows = SealedRows(rows_for(snapshot, everything, 1), b"{}", 1)
    assert rows.reader().read_all() == wanted[1]
    assert contents(graph) == contents(other)
    assert planned(graph) == planned(other)


def test_a_snapshot_knows_nothing_of_what_came_later():
    """Ids and contents stay as they were, although both look ids up in one table."""
    graph = Graph()
    one = graph.add(ulid(1))
    graph.assign(one, 1)
    snapshot = GraphSnapshot(graph)

    graph.assign(one, 2)
    graph.add(ulid(2))
    GraphSnapshot(graph)

    assert snapshot.index_of(ulid(2)) == -1
    assert snapshot.texts_of(np.array([0])).to_pylist() == ["1"]

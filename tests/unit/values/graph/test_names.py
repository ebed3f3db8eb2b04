"""Names are found by their hashes, which are the same one by one and all at once."""

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from rebaser_core.updates import MAX_NAME
from rebaser_server.values.graph import Graph
from rebaser_server.values.indexes import NameIndex, are_distinct
from tests.wire.strategies import unhurried

CHARACTERS = st.characters(codec="utf-8")
LONG = st.builds(lambda end: "\N{GRINNING FACE}" * (MAX_NAME - 1) + end, CHARACTERS)
NAMES = st.lists(st.text(CHARACTERS, min_size=1, max_size=20) | LONG, unique=True, min_size=1)


@unhurried
@given(NAMES)
def test_a_name_is_found_among_those_that_were_assigned_at_once(names):
    """By `find` alone, and with others; however long it is, and after the texts were compacted."""
    index = index_of(names)

    assert [index.find(name) for name in names] == [*range(len(names))]
    index.compact()
    assert [index.find(name) for name in names] == [*range(len(names))]
    assert not index.are_free(pa.array([names[-1]], pa.large_string()))
    others = [f"{name[:-1]}\0" for name in names]
    assert index.are_free(pa.array(others, pa.large_string())) == {*others}.isdisjoint(names)


@unhurried
@given(NAMES, st.booleans())
def test_names_are_distinct_if_none_comes_twice(names, again):
    """Also where only a NUL at the end tells them apart, which the hash does not see."""
    short = names[0][:20]
    names = [*{*names, short, f"{short}\0"}, *names[: int(again)]]

    assert are_distinct(pa.array(names, pa.large_string())) != again


def index_of(names: list[str]) -> NameIndex:
    graph = Graph()
    raw = np.array([f"{number:026}" for number in range(len(names))], "S26")
    indices = graph.add_all(raw, np.arange(len(names)))
    graph.names.assign_all(indices, pa.array(names, pa.large_string()))
    return graph.names

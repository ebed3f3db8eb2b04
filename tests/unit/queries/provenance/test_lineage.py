"""What a value is computed from: the shortest ways, and the failures behind it."""

from rebaser_core.updates import PutFunc, PutValue, SetComputed
from rebaser_server.queries import provenance
from rebaser_server.queries.provenance import Lineage
from rebaser_server.values.graph import Graph
from rebaser_server.values.rebase import rebase
from tests.helpers.checkpoint_writer import ulid

A, B, C, D, END, F = (ulid(number) for number in range(6))


def computed(value_id: str, name: str | None, *inputs: str) -> PutValue:
    return PutValue(value_id=value_id, name=name, func_id=F, inputs={"values": [*inputs]})


def example() -> Graph:
    """END takes D, and A by B and C."""
    graph = Graph()
    updates = [
        PutFunc(func_id=F, name="sum", runtime="builtin", code="sum"),
        PutValue(value_id=A, name="a", value=1),
        computed(B, "b", A),
        computed(C, "c", A, B),
        computed(D, None),
        computed(END, "end", D, C),
    ]
    rebase(graph, 7, updates)
    return graph


def test_ways_are_the_shortest_and_go_by_names_or_ids() -> None:
    known = Lineage(example(), END)

    assert {*known.values} == {A, B, C, D, END}
    assert [*known.path(A)] == ["a", "c", "end"]
    assert [*known.path(B)] == ["b", "c", "end"]
    assert [*known.path(D)] == [D, "end"]
    assert [*known.path_of_function(F)] == ["sum", "end"]
    assert known.roots == dict.fromkeys([B, C, D, END], 7)
    assert known.is_whole


def test_what_is_beyond_a_bound_is_left_out(monkeypatch) -> None:
    monkeypatch.setattr(provenance, "MAX_VALUES", 3)

    known = Lineage(example(), END)

    assert {*known.values} == {D, C, END}
    assert not known.is_whole


def test_failures_are_those_that_block_the_value() -> None:
    graph = example()
    results = [
        SetComputed(value_id=B, failed="no"),
        SetComputed(value_id=D, failed="not this"),
        SetComputed(value_id=C, blocked_by=B),
        SetComputed(value_id=END, value=1),
    ]
    rebase(graph, 0, results, covers=7)

    assert Lineage(graph, END).failures == {}
    assert Lineage(graph, C).failures == {B: "no"}

    rebase(graph, 0, [SetComputed(value_id=END, blocked_by=D)], covers=7)
    assert Lineage(graph, END).failures == {B: "no", D: "not this"}

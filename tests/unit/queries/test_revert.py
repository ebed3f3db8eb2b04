"""What a commit did is undone, all of it, and nothing that others did."""

import copy

from hypothesis import given
from hypothesis import strategies as st

from rebaser_core.updates import PutFunc, PutValue, RemoveValue, SetInputs, SetValue
from rebaser_server.queries.reverts import DefinitionSnapshot, invert, touched_ids
from rebaser_server.values.edits import func_definition, value_definition
from rebaser_server.values.graph import Graph
from rebaser_server.values.rebase import rebase
from tests.helpers.checkpoint_writer import ulid
from tests.helpers.random_batches import batches, computable, examples

A, B, C, D, E, F, G = (ulid(number) for number in range(7))


def definitions(graph):
    values = {value_id: value_definition(graph, value_id) for value_id in graph.values}
    return values, {func_id: func_definition(graph, func_id) for func_id in graph.funcs}


def reverted(graph, batch, later=(), *, force=False):
    """Apply `batch`, then `later`, then what undoes the batch; what was left."""
    ids = touched_ids(graph, rebase(copy.deepcopy(graph), 1, batch).updates)
    before = DefinitionSnapshot.of(graph, *ids)
    rebase(graph, 1, batch)
    after = DefinitionSnapshot.of(graph, *ids)
    rebase(graph, 2, later)
    now = DefinitionSnapshot.of(graph, *ids, before.names())
    updates, left = invert(before, after, now, force=force)
    done = rebase(graph, 3, updates)
    assert not done.corrections
    return left


@given(computable, st.lists(batches, max_size=2), batches)
@examples(60)
def test_an_immediate_revert_restores_the_state_before(base, earlier, batch):
    graph = Graph()
    for one in (base, *earlier):
        rebase(graph, 1, one)
    known = definitions(graph)

    assert reverted(graph, batch) == []

    assert definitions(graph) == known


def start():
    graph = Graph()
    values = [
        PutFunc(func_id=F, name="f", runtime="builtin", code="sum"),
        PutValue(value_id=A, name="a", value=1),
        PutValue(value_id=B, name="b", value=2),
        PutValue(value_id=C, func_id=F, inputs={"values": [A, B]}),
    ]
    rebase(graph, 1, values)
    return graph


def test_a_removed_value_comes_back_with_those_who_took_it():
    graph = start()
    known = definitions(graph)

    reverted(graph, [RemoveValue(value_id=A)], [SetValue(value_id=B, value=5)])

    known[0][B] = PutValue(value_id=B, name="b", value=5)
    assert definitions(graph) == known


def test_later_changes_are_kept_and_named():
    graph = start()

    left = reverted(graph, [SetValue(value_id=A, value=9)], [SetValue(value_id=A, value=10)])

    assert left == [A]
    assert graph.values[A].value == 10


def test_a_function_that_was_changed_again_is_left_and_named():
    graph = start()
    changes = [
        [PutFunc(func_id=F, name="f", runtime="builtin", code=code)] for code in ("max", "min")
    ]

    assert reverted(graph, *changes) == [F]
    assert graph.funcs[F].code == "min"


def test_a_function_of_later_values_is_left_and_named():
    later = PutValue(value_id=E, func_id=G, inputs={"values": [A]})
    first = [
        PutFunc(func_id=G, name="g", runtime="builtin", code="max"),
        PutValue(value_id=D, func_id=G, inputs={"values": [A]}),
    ]
    graph, forced = start(), start()

    assert reverted(graph, first, [later]) == [G]
    assert reverted(forced, first, [later], force=True) == []

    assert (D in graph.values, E in graph.values, graph.funcs[G].code) == (False, True, "max")
    assert G not in forced.funcs


def test_only_the_field_that_the_commit_changed_goes_back():
    graph = start()
    renamed = PutValue(value_id=A, name="renamed", value=9)

    left = reverted(graph, [SetValue(value_id=A, value=9)], [renamed])

    assert left == []
    assert (graph.values[A].name, graph.values[A].value) == ("renamed", 1)


def test_inputs_wired_anew_since_are_left():
    graph = start()
    wirings = [[SetInputs(value_id=C, inputs={"values": [v]})] for v in (A, B)]

    assert reverted(graph, *wirings) == [C]
    assert graph.values[C].inputs == {"values": [B]}


def test_values_removed_since_do_not_come_back():
    graph = start()

    left = reverted(graph, [SetValue(value_id=A, value=9)], [RemoveValue(value_id=A)])

    assert left == [A]
    assert A not in graph.values


def test_force_takes_back_what_was_changed_since():
    graph = start()

    left = reverted(
        graph, [SetValue(value_id=A, value=9)], [SetValue(value_id=A, value=10)], force=True
    )

    assert left == []
    assert graph.values[A].value == 1


def test_names_that_were_swapped_are_swapped_back():
    graph = start()
    swap = [
        PutValue(value_id=A, value=1),
        PutValue(value_id=B, name="a", value=2),
        PutValue(value_id=A, name="b", value=1),
    ]

    reverted(graph, swap)

    assert (graph.values[A].name, graph.values[B].name) == ("a", "b")


def test_a_name_that_another_value_has_by_now_does_not_go_back():
    """The value keeps the one that it has; in a chain of names, so do those behind it."""
    graph = start()
    renaming = [
        PutValue(value_id=A, name="renamed", value=9),
        PutValue(value_id=B, name="a", value=2),
        PutValue(value_id=D, name="b", value=3),
    ]

    left = reverted(graph, renaming[:1], renaming[1:])
    left_of_chain = reverted(graph, [PutValue(value_id=B, name="c", value=2)], [
        PutValue(value_id=E, name="a", value=4),
    ])  # fmt: skip

    assert (left, left_of_chain) == ([A], [B])
    assert (graph.values[A].name, graph.values[A].value) == ("renamed", 1)
    assert (graph.values[B].name, graph.values[E].name) == ("c", "a")


def test_a_name_goes_back_although_the_value_was_set_since():
    graph = start()
    renaming = [PutValue(value_id=A, name="renamed", value=1)]

    left = reverted(graph, renaming, [SetValue(value_id=A, value=9)])

    assert left == []
    assert (graph.values[A].name, graph.values[A].value) == ("a", 9)


def test_a_name_goes_back_although_the_value_is_computed_since():
    graph = start()
    renaming = [PutValue(value_id=B, name="renamed", value=2)]
    computed = PutValue(value_id=B, name="renamed", func_id=F, inputs={"values": [A]})

    reverted(graph, renaming, [computed])

    assert (graph.values[B].name, graph.values[B].func_id) == ("b", F)

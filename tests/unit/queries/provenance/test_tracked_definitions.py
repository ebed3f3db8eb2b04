"""The edits that made a value: without each of them it would be another, without others the same.

The oracles go through a history again without one of its edits. Each batch is the smallest one
that did the same, so that an update which repeats what is there is none. One oracle leaves what
the others did as it was performed; the other is the real graph, which corrects what does not fit.
"""

from typing import Any

from hypothesis import example, given
from hypothesis import strategies as st

from rebaser_core.updates import (
    AnyUpdate,
    PutFunc,
    PutValue,
    RemoveFunc,
    RemoveValue,
    SetInputs,
    SetValue,
)
from rebaser_server.queries.definition_history import TrackedDefinitions
from rebaser_server.queries.provenance import Lineage
from rebaser_server.queries.reverts import DefinitionSnapshot
from rebaser_server.values.canonical_json import dumps
from rebaser_server.values.columns import ids_in, without
from rebaser_server.values.edits import DefinitionView, difference
from rebaser_server.values.graph import Graph
from rebaser_server.values.rebase import rebase
from tests.helpers.checkpoint_writer import ulid
from tests.helpers.in_memory_change_set import recomputed
from tests.helpers.random_batches import FUNCS, VALUES, batches, computable, examples

A, B, V, W, F, G = (ulid(number) for number in range(6))
UNFIT = {"cycle", "missing-input"}
"""Corrections of an edit that needed another one: that made room for it, or made its input."""


class History:
    """Batches as they were performed, and the smallest that do the same."""

    def __init__(self, sent: list[list[AnyUpdate]]) -> None:
        self.graph = Graph()
        self.performed: list[list[AnyUpdate]] = []
        self.smallest: list[list[AnyUpdate]] = []
        for number, batch in enumerate(sent, 1):
            values, funcs = {*VALUES, A, B, V, W}, {*FUNCS, F, G}
            before = DefinitionSnapshot.of(self.graph, values, funcs).view()
            done = rebase(self.graph, number, [unnamed(update) for update in batch])
            self.performed.append(done.updates)
            after = DefinitionView.of(self.graph)
            self.smallest.append(difference(before, after, values, funcs))

    def edits_of(self, value_id: str) -> dict[int, list[Any]]:
        """The edits that made the value, by their numbers from 0."""
        lineage = Lineage(self.graph, value_id)
        tracked = TrackedDefinitions[int](lineage.values, lineage.func_names)
        for number, batch in enumerate(self.performed):
            tracked.apply(batch, number)
        assert not [*tracked.older()]
        edits: dict[int, list[Any]] = {}
        for part in tracked.attributions():
            edits.setdefault(part.edit, []).append(part)
        return edits

    def without(self, edit: int) -> "AsPerformed":
        """The definitions without that edit, and with all that the others did."""
        definitions = AsPerformed()
        for number, batch in enumerate(self.smallest):
            if number != edit:
                definitions.apply(batch)
        return definitions

    def applied_without(self, edit: int) -> tuple[Graph, bool]:
        """The graph without that edit, and whether all the others fit without it."""
        graph, corrections = Graph(), set[str]()
        for number, batch in enumerate(self.smallest):
            if number != edit:
                done = rebase(graph, number + 1, batch)
                corrections.update(each.code for each in done.corrections)
        return graph, corrections.isdisjoint(UNFIT)


class AsPerformed:
    """Definitions whose inputs may be missing, or depend on the value that takes them."""

    def __init__(self) -> None:
        self._values: dict[str, Any] = {}
        self._funcs: dict[str, Any] = {}

    def apply(self, batch: list[AnyUpdate]) -> None:
        for update in batch:
            match update:
                case PutFunc():
                    self._funcs[update.func_id] = update.runtime, update.code
                case RemoveFunc():
                    self._funcs.pop(update.func_id, None)
                case RemoveValue():
                    self._remove(update.value_id)
                case PutValue(func_id=None):
                    self._values[update.value_id] = dumps(update.value)
                case SetValue() if isinstance(self._values.get(update.value_id), str):
                    self._values[update.value_id] = dumps(update.value)
                case PutValue():
                    self._values[update.value_id] = update.func_id, [*(update.inputs or {}).items()]
                case SetInputs() if isinstance(self._values.get(update.value_id), tuple):
                    func_id, _ = self._values[update.value_id]
                    self._values[update.value_id] = func_id, [*update.inputs.items()]

    def _remove(self, value_id: str) -> None:
        self._values.pop(value_id, None)
        for taker, known in self._values.items():
            if isinstance(known, tuple):
                func_id, inputs = known
                self._values[taker] = func_id, [*without(dict(inputs), {value_id}).items()]

    def definition(self, value_id: str) -> dict[str, Any]:
        parts: dict[str, Any] = {}
        ways = [value_id]
        while ways:
            key = ways.pop()
            if key in parts:
                continue
            known = parts[key] = self._values.get(key)
            if isinstance(known, tuple):
                func_id, inputs = known
                parts[key] = func_id, self._funcs.get(func_id), inputs
                ways += ids_in(dict(inputs))
        return parts


def unnamed(update: AnyUpdate) -> AnyUpdate:
    """Names are no part of what makes a value."""
    if isinstance(update, PutFunc):
        return update.model_copy(update={"name": "f"})
    return update.model_copy(update={"name": None}) if isinstance(update, PutValue) else update


def definition(graph: Graph, value_id: str) -> dict[str, Any]:
    """All that a value is made of."""
    parts: dict[str, Any] = {}
    ways = [value_id]
    while ways:
        key = ways.pop()
        if key in parts:
            continue
        value = graph.values.get(key)
        parts[key] = None
        if value is None:
            continue
        if value.func_id is None:
            parts[key] = value.text
            continue
        func = graph.funcs.get(value.func_id)
        code = None if func is None else (func.runtime, func.code)
        parts[key] = value.func_id, code, [*value.inputs.items()]
        ways += value.input_ids()
    return parts


@given(computable, st.lists(batches, max_size=5))
@example(
    [
        PutFunc(func_id=FUNCS[0], name="f", runtime="builtin", code="sum"),
        PutValue(value_id=VALUES[0], value=1),
        PutValue(value_id=VALUES[1], func_id=FUNCS[0], inputs={"values": [VALUES[0]]}),
    ],
    [
        [RemoveValue(value_id=VALUES[0])],
        [PutValue(value_id=VALUES[0], value=1)],
        [RemoveValue(value_id=VALUES[0])],
    ],
)
@examples(60)
def test_the_named_edits_and_no_others_made_the_value(base, later):
    history = History([[update] for update in base] + later)

    for value_id in history.graph.values:
        edits = history.edits_of(value_id)
        is_now = definition(history.graph, value_id)
        for edit in range(len(history.smallest)):
            is_other = history.without(edit).definition(value_id) != is_now
            assert is_other == (edit in edits), (edit, edits.get(edit))


@given(computable, st.lists(batches, max_size=5))
@examples(30)
def test_where_all_others_fit_the_graph_agrees(base, later):
    history = History([[update] for update in base] + later)
    results = recomputed(history.graph)
    edits = {value_id: history.edits_of(value_id) for value_id in history.graph.values}
    for edit in range(len(history.smallest)):
        graph, all_fit = history.applied_without(edit)
        if not all_fit:
            continue
        others = recomputed(graph)
        for value_id, named_edits in edits.items():
            is_same = definition(graph, value_id) == definition(history.graph, value_id)
            assert is_same != (edit in named_edits)
            if is_same:
                assert others.get(value_id) == results.get(value_id)


def named(*sent: AnyUpdate) -> list[tuple[int, str]]:
    """The number of each edit that made V, and the part that it changed."""
    edits = History([[update] for update in sent]).edits_of(V)
    return sorted((edit, part.part) for edit, parts in edits.items() for part in parts)


def put(value_id: str, value: Any) -> PutValue:
    return PutValue(value_id=value_id, value=value)


def computed(value_id: str, *inputs: str, func: str = F) -> PutValue:
    return PutValue(value_id=value_id, func_id=func, inputs={"values": [*inputs]})


def func(code: str, func_id: str = F) -> PutFunc:
    return PutFunc(func_id=func_id, name=code, runtime="builtin", code=code)


def test_the_last_change_counts_and_a_repetition_is_none():
    assert named(put(V, 1)) == [(0, "definition")]
    assert named(put(V, 1), SetValue(value_id=V, value=2)) == [(0, "definition"), (1, "value")]
    assert named(put(V, 1), put(V, 1), put(V, 2), put(V, 2)) == [(0, "definition"), (2, "value")]
    assert named(put(V, 1), put(V, 2), put(V, 1)) == [(0, "definition"), (2, "value")]


def test_a_value_is_made_by_its_function_its_inputs_and_all_behind_them():
    sent = func("sum"), put(A, 1), put(B, 2), computed(W, A), computed(V, W), put(B, 3)

    assert named(*sent) == [
        (0, "function"),
        (1, "definition"),
        (3, "definition"),
        (4, "definition"),
    ]
    assert named(*sent, func("max"))[-1] == (6, "function")
    assert (6, "function") in named(*sent, RemoveFunc(func_id=F))
    assert (6, "inputs") in named(*sent, SetInputs(value_id=V, inputs={"values": [B]}))


def test_another_function_defines_the_value_anew():
    sent = (
        func("sum"),
        func("max", G),
        put(A, 1),
        computed(V),
        computed(V, A),
        computed(V, A, func=G),
    )

    assert named(*sent) == [(1, "function"), (2, "definition"), (5, "definition")]


def test_the_removal_of_an_input_is_named_beside_what_set_the_inputs():
    sent = (
        func("sum"),
        put(A, 1),
        put(B, 2),
        computed(V),
        computed(V, A, B),
        RemoveValue(value_id=A),
    )

    assert named(*sent)[-2:] == [(4, "inputs"), (5, "input")]
    [cut] = History([[update] for update in sent]).edits_of(V)[5]
    tracked = TrackedDefinitions[int]([V], [F])
    tracked.apply([PutValue(value_id=A, name="a", value=1), *sent[3:]], 0)
    assert tracked.names == {A: "a"}
    assert (cut.lost, cut.after.inputs) == (A, {"values": [B]})
    again = computed(V, B)  # as it is
    assert named(*sent, again) == named(*sent)


def test_inputs_that_two_edits_took_out_are_owed_to_neither():
    """Without the first the second would have taken it out, and the other way round."""
    sent = func("sum"), put(A, 1), put(B, 2), computed(V, B, A)
    twice = SetInputs(value_id=V, inputs={"values": [B]}), RemoveValue(value_id=A)

    assert named(*sent, *twice) == [(0, "function"), (2, "definition"), (3, "definition")]


def test_an_input_that_was_removed_twice_is_owed_to_neither_removal():
    sent = func("sum"), put(A, 1), computed(V, A), RemoveValue(value_id=A)
    whole = [(0, "function"), (2, "definition")]

    assert named(*sent) == [*whole, (3, "input")]
    assert named(*sent, put(A, 1)) == [*whole, (3, "input")]
    assert named(*sent, put(A, 1), RemoveValue(value_id=A)) == whole


def test_an_input_that_a_batch_puts_and_removes_is_owed_to_the_removal_before_it():
    """Without that removal, what is there already would only be put and removed again."""
    history = History([
        [func("sum"), put(A, 1), computed(V, A)],
        [RemoveValue(value_id=A)],
        [put(A, 2), RemoveValue(value_id=A)],
    ])  # fmt: skip

    assert [*history.edits_of(V)] == [0, 1]


def test_an_input_that_is_removed_and_put_again_stays_out():
    again = [RemoveValue(value_id=A), put(A, 1)]
    history = History([
        [func("sum"), put(A, 1), put(B, 2), computed(V, B)],
        [SetInputs(value_id=V, inputs={"values": [A, B, B]})],
        again,
    ])  # fmt: skip

    assert [*history.edits_of(V)] == [0, 2]


def test_what_a_batch_takes_back_is_no_edit():
    history = History([
        [func("sum"), put(A, 1), computed(V, A)],
        [SetValue(value_id=A, value=2), func("max"), SetValue(value_id=A, value=1), func("sum")],
        [RemoveValue(value_id=A), put(A, 1), computed(V, A)],
    ])  # fmt: skip

    assert [*history.edits_of(V)] == [0]


def test_what_the_history_begins_with_is_older():
    graph = History([[func("sum"), put(A, 1), put(B, 1), computed(V, A, B)]]).graph
    lineage = Lineage(graph, V)
    tracked = TrackedDefinitions[int](lineage.values, lineage.func_names)
    tracked.begin(graph)
    tracked.apply([put(A, 2)], 1)

    assert {*tracked.older()} == {F, A, B, V}
    assert [(each.edit, each.part) for each in tracked.attributions()] == [(1, "value")]

    tracked.apply([func("max"), computed(V, B, func=G)], 2)
    assert {*tracked.older()} == {A, B}


def test_of_an_unknown_beginning_each_change_counts():
    tracked = TrackedDefinitions[int]([A, V], [F])
    tracked.begin_unknown()
    tracked.apply([SetValue(value_id=A, value=2), SetInputs(value_id=V, inputs={"values": [A]})], 1)

    assert {*tracked.older()} == {F, A, V}
    parts = [(each.id, each.part) for each in tracked.attributions()]
    assert parts == [(A, "value"), (V, "inputs")]

"""Rebase does what the rules say, always the same, and leaves a sound graph."""

import itertools
import json
import random
import subprocess
import sys
import time
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given

from rebaser_core.table_updates import TableUpdates
from rebaser_core.table_values import TableHandle, upload_value
from rebaser_core.updates import (
    AnyUpdate,
    PlainUpdates,
    PutFunc,
    PutValue,
    RemoveFunc,
    RemoveValue,
    SetValue,
)
from rebaser_server.store.table_schema import rows_of
from rebaser_server.values.graph import Graph
from rebaser_server.values.rebase import rebase
from tests.helpers.checkpoint_writer import ulid
from tests.helpers.paths import ROOT
from tests.helpers.random_batches import (
    FUNCS,
    batches,
    contents,
    examples,
    histories,
    require_consistent,
)
from tests.helpers.reference_model import Model, plain
from tests.helpers.replay import after, bytes_of_history, dump, encoded
from tests.helpers.table_rows import graph_from_table

HANDLE = TableHandle("0" * 64, "1" * 32, "2" * 32, 3, 4).to_value()
UPLOAD, ONE, TWO, THREE = upload_value("0" * 64), ulid(1), ulid(2), ulid(3)
FORGED = {
    "a handle": HANDLE,
    "in a list": [1, HANDLE],
    "in an object": {"a": HANDLE},
    "deep": {"a": [[{"b": [HANDLE]}]]},
    "an upload in a list": [UPLOAD],
    "more than an upload": UPLOAD | {"a": 1},
    "an upload twice": {"$table": UPLOAD},
    "no table": {"a": {"$table": None}},
}


def table_of(*, is_set: bool, values: list[Any]) -> TableUpdates:
    ids = pa.array([ONE, TWO][: len(values)])
    columns = {"id": ids, "json": pa.array(map(json.dumps, values))}
    return TableUpdates([], pa.record_batch(columns | {"set": pa.array([is_set] * len(values))}))


@pytest.mark.parametrize("value", FORGED.values(), ids=FORGED)
@pytest.mark.parametrize("kind", ["put", "set"])
@pytest.mark.parametrize("form", ["objects", "rows", "table"])
def test_only_rebasers_make_handles(form: str, kind: str, value: Any) -> None:
    """One at any depth is corrected in each form that a batch has, and another value is kept."""
    graph = Graph()
    rebase(graph, 1, [PutValue(value_id=ONE, value=1), PutValue(value_id=TWO, value=2)])
    made = PutValue if kind == "put" else SetValue
    updates: Any = [made(value_id=ONE, value=value), made(value_id=TWO, value=UPLOAD)]
    if form == "rows":
        updates = PlainUpdates.read([each.to_wire() for each in updates])
        assert updates is not None
    elif form == "table":
        updates = table_of(is_set=kind == "set", values=[value, UPLOAD])

    done = rebase(graph, 2, updates)

    assert [(each.index, each.code) for each in done.corrections] == [(0, "not-a-table")]
    assert graph.values[ONE].value == (None if kind == "put" else 1)
    assert graph.values[TWO].value == UPLOAD


def put(value_id: str, *inputs: str, name: str | None = None) -> PutValue:
    taken = {"values": list(inputs)}
    return PutValue(value_id=value_id, name=name, func_id=FUNCS[0], inputs=taken)


def one_and_two() -> Graph:
    """A source and a value computed from it, up to date."""
    graph = Graph()
    func = PutFunc(func_id=FUNCS[0], name="sum", runtime="builtin", code="sum")
    one = PutValue(value_id=ONE, name="one", value=1)
    rebase(graph, 1, [func, one, put(TWO, ONE, name="two")])
    graph.clear_roots(1)
    return graph


@pytest.mark.parametrize(
    ("batch", "codes", "value_id", "expected", "is_root"),
    [
        ([PutValue(value_id=THREE, name="one", value=1)], ["name-taken"], THREE, (None, []), False),
        ([RemoveValue(value_id=TWO), put(THREE, name="two")], [], THREE, ("two", []), True),
        (
            [PutValue(value_id=THREE, inputs={"a": ONE})],
            ["inputs-of-source"],
            THREE,
            (None, []),
            False,
        ),
        ([put(TWO, THREE), put(THREE, ONE, TWO)], ["cycle"], THREE, (None, [ONE]), True),
        (
            [RemoveValue(value_id=ONE), put(THREE, ONE), PutValue(value_id=ONE, value=5)],
            [],
            THREE,
            (None, [ONE]),
            True,
        ),
        ([RemoveValue(value_id=ONE)], [], TWO, ("two", []), True),
        ([SetValue(value_id=ONE, value=2), RemoveValue(value_id=ONE)], [], ONE, None, False),
        ([SetValue(value_id=TWO, value=1)], ["controlled-value"], TWO, ("two", [ONE]), False),
        ([SetValue(value_id=ONE, value=1)], [], ONE, ("one", []), False),
        ([SetValue(value_id=ONE, value=2)], [], ONE, ("one", []), True),
        ([RemoveFunc(func_id=FUNCS[0])], [], TWO, ("two", [ONE]), True),
    ],
)
def test_a_batch_is_corrected_and_makes_due_what_it_changes(
    batch: list[AnyUpdate],
    codes: list[str],
    value_id: str,
    expected: tuple[str | None, list[str]] | None,
    is_root: bool,
) -> None:
    """The batch as performed needs no correction."""
    graph = one_and_two()

    done = rebase(graph, 2, batch)

    value = graph.values.get(value_id)
    assert [each.code for each in done.corrections] == codes
    assert (value and (value.name, value.input_ids())) == expected
    assert (value_id in graph.roots) == is_root
    assert not rebase(one_and_two(), 2, done.updates).corrections


@given(histories)
@examples(150)
def test_a_rebase_does_what_the_reference_model_does(history):
    """State, batch as performed and corrections, of any batch after any others."""
    graph, model = Graph(), Model()
    for sequence, batch in enumerate(history, 1):
        done = rebase(graph, sequence, batch)
        performed, corrections = model.apply(sequence, batch)

        assert list(map(as_plain, done.updates)) == list(map(as_plain, performed))
        assert [(c.index, c.code) for c in done.corrections] == [c[:2] for c in corrections]
        for correction, (*_, named) in zip(done.corrections, corrections, strict=True):
            assert named in correction.detail
        assert contents(graph) == model.contents()
        require_consistent(graph)


def as_plain(update):
    return update.KIND, plain(update.model_dump())


@given(histories, batches)
@examples(100)
def test_a_batch_as_performed_needs_no_correction_and_does_the_same_again(history, batch):
    """So a log is replayed; also on a graph that was loaded, whose order is another."""
    done = rebase(live := after(history), 99, batch)

    replayed = rebase(again := loaded(after(history)), 99, done.updates)

    assert replayed.corrections == []
    assert replayed.dirty == done.dirty
    assert encoded(replayed.updates) == encoded(done.updates)
    assert contents(again) == contents(live)
    require_consistent(again)


def loaded(graph):
    """As from a store, which knows neither dependents nor ranks, and gives rows in any order."""
    rows = rows_of(graph, {}, 1, whole=True)
    order = list(range(len(rows)))
    random.Random(1).shuffle(order)
    return graph_from_table(rows.take(order))


@given(histories, batches)
@examples(100)
def test_changed_values_are_touched(history, batch):
    """Only what is touched reaches the next checkpoint."""
    graph = after(history)
    before = contents(graph)
    graph.touched.clear()
    graph.touched_funcs.clear()

    rebase(graph, 99, batch)

    now = contents(graph)
    for part, touched in (("values", graph.touched), ("funcs", graph.touched_funcs)):
        one, other = before[part], now[part]
        assert touched >= {i for i in one.keys() | other.keys() if one.get(i) != other.get(i)}
    roots = before["roots"].items() ^ now["roots"].items()
    assert graph.touched >= {value_id for value_id, _ in roots}


def test_a_rebase_is_the_same_in_every_process(tmp_path):
    """Byte for byte: a commit must not depend on where, or under which seed, it was made."""
    known = []

    @given(histories)
    @examples(60, database=None)
    def collect(history):
        known.append(history)

    collect()
    dump(tmp_path / "histories", known)

    program = [sys.executable, "-m", "tests.helpers.replay", tmp_path / "histories"]
    children = [
        subprocess.Popen(
            program,
            env={"PYTHONPATH": str(ROOT), "PYTHONHASHSEED": seed},
            stdout=subprocess.PIPE,
        )
        for seed in ("1", "2")
    ]

    outputs = {child.communicate()[0] for child in children}
    assert outputs == {b"".join(map(bytes_of_history, known))}


@pytest.mark.parametrize("order", ["inputs first", "inputs last", "shuffled"])
def test_a_deep_chain_costs_about_the_same_in_any_order(order):
    """A client need not sort: moved one by one, a chain put last to first would be quadratic."""
    ids = [ulid(number) for number in range(10_000)]
    chain = [PutValue(value_id=ids[0], value=1)] + [
        PutValue(value_id=this, func_id=FUNCS[0], inputs={"values": [before]})
        for before, this in itertools.pairwise(ids)
    ]
    if order == "inputs last":
        chain.reverse()
    elif order == "shuffled":
        random.Random(1).shuffle(chain)
    graph = Graph()

    began = time.process_time()
    done = rebase(graph, 1, chain)

    assert not done.corrections
    assert time.process_time() - began < 5.0  # half a second; quadratic it was twenty
    require_consistent(graph)

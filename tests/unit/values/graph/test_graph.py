"""The graph is the same whichever way its edits lie in its columns; small tables stand for large.

`tests/unit/values/rebase/test_rebase.py` says what a graph must do; here it does so with every
threshold at its least, so that a graph of a few values goes through what is made for millions.
"""

import random
import tracemalloc
from contextlib import ExitStack
from copy import deepcopy
from unittest import mock

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rebaser_core.commits import ControlState
from rebaser_core.table_values import upload_value
from rebaser_core.updates import PutValue, RemoveValue, SetInputs
from rebaser_server.compute import affected
from rebaser_server.compute.plan import plan
from rebaser_server.graph_application.content import GraphContent
from rebaser_server.store import graph_loader, table_schema
from rebaser_server.store.table_schema import rows_of
from rebaser_server.values import adjacency, columns, indexes
from rebaser_server.values.canonical_json import dumps
from rebaser_server.values.columns import STATUSES, Signatures, TextColumn, ValueStatus
from rebaser_server.values.graph import Graph
from rebaser_server.values.indexes import NameIndex, arrow_ids, hash_of, hashes_of, padded_ids
from rebaser_server.values.rebase import rebase
from tests.helpers.checkpoint_writer import function, ulid
from tests.helpers.random_batches import (
    FUNCS,
    VALUES,
    batches,
    contents,
    examples,
    histories,
    require_consistent,
)
from tests.helpers.replay import after, bytes_of
from tests.helpers.table_rows import graph_from_table

THRESHOLDS = [
    (indexes, "_RECENT", 2),
    (indexes, "_RECENT", 2),
    (indexes, "_CHUNK", 2),
    (columns, "_FEW", 0),
    (columns, "_SPARE", 1),
    (adjacency, "_MIN_DELTA", 1),
    (adjacency, "_CHUNK", 1),
    (adjacency, "_NARROW", 0),
    (affected, "_SCALAR_UP_TO", 0),
    (table_schema, "_CHUNK", 3),
    (table_schema, "_MAX_COLUMN_BYTES", 100),
]


@pytest.fixture(autouse=True)
def as_if_large():
    with ExitStack() as stack:
        for module, name, value in THRESHOLDS:
            stack.enter_context(mock.patch.object(module, name, value))
        yield


@given(histories, st.lists(st.booleans(), min_size=5, max_size=5))
@examples(100)
def test_compaction_changes_nothing_that_can_be_seen(history, when):
    """Batches as performed, corrections, the graph, and what is planned on it."""
    graph, tidied = Graph(), Graph()
    for sequence, (batch, tidy) in enumerate(zip(history, when, strict=False), 1):
        done = rebase(graph, sequence, batch)
        if tidy:
            tidied.compact()
            tidied.adjacency.compact()
            tidied.names.compact()
        again = rebase(tidied, sequence, batch)

        assert bytes_of(again) == bytes_of(done)
        plans = planned(tidied), planned(graph)  # before anything else looks at the inputs
        assert plans[0] == plans[1]
        assert plans[0].keys() >= {v for v in graph.roots if graph.values[v].func_id is not None}
        assert contents(tidied) == contents(graph)
        assert set(tidied.touched) == set(graph.touched)
        require_consistent(tidied)


@given(histories, batches)
@examples(100)
def test_what_was_saved_and_loaded_goes_on_as_what_was_not(history, batch):
    """Also the names, ids and roots that are looked up in columns from then on."""
    live = after(history)
    loaded = graph_from_table(rows_of(live, {}, 1, whole=True))
    assert contents(loaded) == contents(live)

    assert bytes_of(rebase(loaded, 99, batch)) == bytes_of(rebase(live, 99, batch))
    assert contents(loaded) == contents(live)
    require_consistent(loaded)
    loaded.clear_roots(98)
    live.clear_roots(98)
    assert dict(loaded.roots) == dict(live.roots)
    assert contents(deepcopy(loaded)) == contents(live)


@given(histories)
@examples(50)
def test_rows_of_what_was_touched_bring_a_table_to_the_present(history):
    """Rows in any order, so many of an id as there were checkpoints."""
    graph, tables = Graph(), []
    for commit, batch in enumerate(history, 1):
        rebase(graph, commit, batch)
        tables.append(rows_of(graph, {}, commit, whole=False))
        graph.touched.clear()
        graph.touched_funcs.clear()
        if commit % 2:
            graph.compact()
    table = pa.concat_tables(reversed(tables))

    assert contents(graph_from_table(table)) == contents(graph)


def planned(graph):
    """By value the whole call, as far as it depends on no order."""
    found = {}
    for blob in plan(graph, slots=2, small=0).units:
        value_ids, constants = blob.ids.to_pylist(), blob.constant_ids.to_pylist()
        ends = np.cumsum(blob.widths()).tolist()
        for place, value_id in enumerate(value_ids):
            refs = blob.refs[ends[place] - blob.widths()[place] : ends[place]].tolist()
            function, shape = blob.signatures[blob.signature_indices[place]]
            assert all(ref < place for ref in refs)
            found[value_id] = (
                blob.functions[function],
                shape,
                [value_ids[ref] if ref >= 0 else constants[~ref] for ref in refs],
                STATUSES[blob.statuses[place]],
                blob.texts[place].as_py(),
                bool(blob.must_compute[place]),
            )
    return found


@given(
    histories,
    st.lists(st.tuples(st.sampled_from(VALUES), st.integers(0, 2)), max_size=8),
    st.integers(1, 6),
    st.lists(st.sampled_from(VALUES), max_size=3),
)
@examples(100)
def test_results_in_columns_are_taken_as_results_one_by_one(history, results, covers, edited):
    """And what comes after them finds neither their messages nor their values in its way."""
    graph, other = after(history), after(history)
    results = list(dict(results).items())
    wanted = []
    for value_id, status in results:
        value = other.values.get(value_id)
        wanted.append(
            value is not None
            and value.func_id is not None
            and other.roots.get(value_id, 0) <= covers
        )
        if wanted[-1] and status == 0:
            other.assign(value, {"n": status})
        elif wanted[-1]:
            other.assign(value, None, STATUSES[status], "why")
        if wanted[-1]:
            other.mark_root(value, covers)

    taken = graph.assign_many(
        pa.chunked_array([[value_id] for value_id, _ in results], pa.string()),
        np.array([status for _, status in results], np.uint8),
        pa.chunked_array([['{"n":0}' if s == 0 else "why"] for _, s in results], pa.string()),
        covers,
    )

    assert taken.tolist() == wanted
    assert contents(graph) == contents(other)
    assert set(graph.touched) == set(other.touched)
    batch = [SetInputs(value_id=value_id, inputs={}) for value_id in edited]
    rebase(graph, 99, batch)
    rebase(other, 99, batch)
    assert contents(graph) == contents(other)


def test_a_table_from_before_is_loaded_by_its_inputs():
    """And one whose columns for loading do not say what its inputs do."""
    graph = Graph()
    rebase(graph, 1, [function(FUNCS[0], "sum"), PutValue(value_id=VALUES[0], value=1)])
    rebase(
        graph,
        2,
        [PutValue(value_id=VALUES[1], func_id=FUNCS[0], inputs={"values": [VALUES[0]] * 2})],
    )
    table = rows_of(graph, {}, 2, whole=True)
    without = table.drop_columns(["arguments", "input_hashes"])

    assert contents(graph_from_table(without)) == contents(graph)
    with pytest.raises(graph_loader.InputsNeeded):
        graph_from_table(without.drop_columns("inputs"))

    place = table.schema.get_field_index("input_hashes")
    wrong = pa.array([None if h is None else b"x" * len(h) for h in table[place].to_pylist()])
    assert contents(
        graph_from_table(table.set_column(place, table.field(place), wrong))
    ) == contents(graph)


def test_ids_whose_hashes_collide_are_told_apart():
    """However unlikely: somebody may look for them."""
    graph = Graph()
    puts = [PutValue(value_id=ulid(n), value=n) for n in range(20)]
    dependent = PutValue(value_id=ulid(20), func_id=FUNCS[0], inputs={"values": [ulid(7)]})
    with (
        mock.patch.object(indexes, "hashes_of", lambda found: np.zeros(len(found), np.uint64)),
        mock.patch.object(indexes, "hash_of", return_value=0),
        mock.patch.object(graph_loader, "hashes_of", lambda found: np.zeros(len(found), np.uint64)),
    ):
        rebase(graph, 1, [*puts, dependent])
        table = rows_of(graph, {}, 1, whole=True)
        loaded = graph_from_table(table)

        assert contents(loaded) == contents(graph)
        assert loaded.values[ulid(13)].value == 13
        with pytest.raises(graph_loader.InputsNeeded):
            graph_from_table(table.drop_columns("inputs"))


@given(st.lists(st.text("0123456789ABCZ.", min_size=1, max_size=26), unique=True, max_size=20))
@examples(50)
def test_ids_are_the_same_as_text_and_as_columns(known):
    raw = padded_ids(pa.array(["unused", *known], pa.string())[1:])

    assert arrow_ids(raw).to_pylist() == known
    assert hashes_of(raw).tolist() == [hash_of(i.encode().ljust(26, b"\0")) for i in known]
    assert padded_ids(pa.array(["more than twenty-six characters"])).tolist() == [b"\xff"]


@given(
    st.lists(
        st.tuples(st.sampled_from(["add", "all", "take", "compact"]), st.text(max_size=3)),
        max_size=20,
    )
)
@examples(100)
def test_texts_stay_at_their_rows(steps):
    kept, texts_ = [], TextColumn()
    for step, text in steps:
        if step == "add":
            assert texts_.add(text) == len(kept)
            kept.append(text)
        elif step == "all":
            assert texts_.add_all(pa.array([text, "x"])) == len(kept)
            kept += [text, "x"]
        elif step == "take":
            order = random.Random(len(kept)).sample(range(len(kept)), len(kept))
            assert texts_.take(np.array(order, np.int32)).to_pylist() == [kept[i] for i in order]
        else:
            chosen = list(range(0, len(kept), 2))
            texts_.compact(np.array(chosen, np.int32))
            kept = [kept[i] for i in chosen]
        assert [texts_.get(row) for row in range(len(kept))] == kept


@given(
    st.lists(st.tuples(st.integers(0, 6), st.none() | st.sampled_from("abcdefäöü")), max_size=30),
    st.integers(0, 30),
)
@examples(100)
def test_names_lead_to_who_has_them(steps, loaded_after):
    graph, model = Graph(), {}
    for number in range(7):
        graph.add(str(number))
    for count, (index, name) in enumerate(steps):
        if count == loaded_after:
            graph = graph_from_table(rows_of(graph, {}, 1, whole=True))
        if name is not None and name in model.values():
            assert graph.names[name] == str(next(i for i in model if model[i] == name))
            continue
        graph.rename(graph.values[str(index)], name)
        model[index] = name
        held = {held: str(i) for i, held in model.items() if held is not None}
        assert dict(graph.names) == held
        assert len(graph.names) == len(held)
        assert [graph.names.get(each) for each in "abcdefäöü"] == [
            held.get(each) for each in "abcdefäöü"
        ]


def test_texts_of_several_chunks_come_in_the_order_that_is_asked_for():
    texts = [str(number) for number in range(140)]
    column = TextColumn(*(pa.array(part, pa.large_string()) for part in (texts[:100], texts[100:])))

    assert column.take(np.arange(140)[::-1]).to_pylist() == texts[::-1]


def test_removing_all_inputs_of_a_value_looks_at_them_once():
    """Each removal by itself went through all that were left: quadratic."""
    puts = [PutValue(value_id=ulid(n), value=n) for n in range(2_000)]
    graph = Graph()
    dependent = PutValue(
        value_id=ulid(5_000), func_id=FUNCS[0], inputs={"values": [p.value_id for p in puts]}
    )
    rebase(graph, 1, [*puts, dependent])

    with mock.patch.object(
        Signatures, "without", autospec=True, side_effect=Signatures.without
    ) as asked:
        rebase(graph, 2, [RemoveValue(value_id=put.value_id) for put in puts[1:]])
        assert graph.values[ulid(5_000)].inputs == {"values": [ulid(0)]}

    assert asked.call_count == 1
    require_consistent(graph)


def test_an_id_that_is_used_again_brings_nothing_back():
    graph = Graph()
    rebase(
        graph,
        1,
        [
            PutValue(value_id=VALUES[0], name="a", value=1),
            PutValue(value_id=VALUES[1], func_id=FUNCS[0], inputs={"values": [VALUES[0]]}),
        ],
    )
    graph.compact()

    rebase(graph, 2, [RemoveValue(value_id=VALUES[0]), PutValue(value_id=VALUES[0])])

    value = graph.values[VALUES[0]]
    assert (value.name, value.value, value.dependents, value.status) == (None, None, set(), "ok")
    assert graph.values[VALUES[1]].inputs == {"values": []}
    require_consistent(graph)


def test_an_empty_graph_is_small():
    """There may be ten thousand of them in one daemon."""
    Graph()
    tracemalloc.start()
    graphs = [Graph() for _ in range(100)]
    size, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert size / len(graphs) < 10_000


def test_a_value_says_what_it_is():
    graph = Graph()
    rebase(graph, 1, [PutValue(value_id=VALUES[0], name="n", value={"b": 1, "a": [1.0]})])
    value = graph.values[VALUES[0]]

    assert (value.text, value.value, value.status) == (
        '{"a":[1.0],"b":1}',
        value.value,
        ValueStatus.OK,
    )
    assert value == graph.values.get(VALUES[0])
    assert VALUES[0] in repr(value)
    assert isinstance(graph.names, NameIndex)
    with pytest.raises(ValueError, match="is not the id"):
        graph.add("more than twenty-six characters")


@pytest.mark.parametrize("at_once", [False, True])
def test_files_that_values_name_are_found_until_none_names_them(at_once):
    """A graph from a checkpoint that lists them finds them, too."""
    graph = Graph()
    one = graph.add(ulid(1))
    if at_once:
        graph.assign_texts(
            np.array([0], np.int32), pa.array([dumps(upload_value("0" * 64))], pa.large_string())
        )
    else:
        graph.assign(one, upload_value("0" * 64))
    metadata = GraphContent(graph).metadata(ControlState())

    found = [graph.referred_keys() for _ in range(2)]
    graph.texts.may_refer = False
    again = GraphContent.from_checkpoint(graph, metadata).graph.referred_keys()
    graph.assign(one, 1)

    assert len(again) == 1
    assert found == [again, again]
    assert graph.referred_keys() == []


def test_what_changes_after_it_was_saved_is_saved_again():
    graph = Graph()
    one = graph.add(ulid(1))
    graph.touched.clear()

    graph.assign(one, 1)

    assert [*graph.touched] == [ulid(1)]

"""The store keeps what it was given, whole, whoever else writes and whenever a writer dies."""

import random
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from deltalake import DeltaTable, write_deltalake
from hypothesis import given
from hypothesis import strategies as st

from rebaser_core.codecs import MAX_DEPTH
from rebaser_core.updates import PutValue, RemoveFunc, RemoveValue, SetComputed, SetValue
from rebaser_server.runtime.failures import StoreDamaged, StoreFailed
from rebaser_server.store import compaction
from rebaser_server.store.checkpoints import Checkpoints, take_changes
from rebaser_server.values.graph import Graph
from rebaser_server.values.rebase import rebase
from tests.helpers.checkpoint_writer import CHANGE_SET, function, graph_of, saved, ulid
from tests.helpers.paths import ROOT
from tests.helpers.random_batches import (
    batches,
    computable,
    contents,
    examples,
    made,
    require_consistent,
)

A, B, C = ulid(0), ulid(1), ulid(2)


@pytest.fixture
def checkpoints(tmp_path):
    return Checkpoints(str(tmp_path))


def table_of(checkpoints):
    return DeltaTable(checkpoints.uri(CHANGE_SET))


def require_loads(checkpoints, graph, commit):
    loaded = checkpoints.load(CHANGE_SET)
    assert (loaded.commit, loaded.metadata) == (commit, {"n": commit})
    assert contents(loaded.graph) == contents(graph)
    assert not loaded.graph.touched
    assert not loaded.graph.touched_funcs
    require_consistent(loaded.graph)


anything = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(st.characters(codec="utf-8")), inner),
    max_leaves=5,
)


@given(
    computable,
    st.lists(
        batches
        | st.lists(
            st.one_of(
                made(PutValue, value_id=st.sampled_from([A, B]), value=anything),
                made(SetComputed, value_id=st.just(C), value=anything),
                made(
                    SetComputed, value_id=st.just(C), failed=st.text(st.characters(codec="utf-8"))
                ),
            ),
            max_size=3,
        ),
        min_size=2,
        max_size=3,
    ),
)
@examples(20)
def test_a_loaded_graph_equals_the_saved_one(tmp_path_factory, first, later):
    """Values, functions, names, roots and what was removed: appended, then written whole."""
    checkpoints = Checkpoints(str(tmp_path_factory.mktemp("store")))
    graph = Graph()
    for commit, batch in enumerate([first, *later], 1):
        results = all(isinstance(update, SetComputed) for update in batch)
        rebase(graph, commit, batch, covers=commit if results else None)
        saved(checkpoints, graph, commit)

        require_loads(checkpoints, graph, commit)

    saved(checkpoints, graph, 99, whole=True)

    require_loads(checkpoints, graph, 99)


def test_a_change_set_without_checkpoint_loads_nothing(checkpoints):
    assert checkpoints.load(CHANGE_SET) is None

    checkpoints._create(CHANGE_SET)  # as by one who died right after

    assert checkpoints.load(CHANGE_SET) is None
    saved(checkpoints, graph_of(3), 3)
    require_loads(checkpoints, graph_of(3), 3)


def test_values_as_deep_as_they_may_be_are_kept(checkpoints):
    deep = "bottom"
    for _ in range(MAX_DEPTH // 2):
        deep = {"k": [deep]}
    graph = Graph()
    rebase(graph, 1, [PutValue(value_id=A, value=deep)])

    saved(checkpoints, graph, 1)

    require_loads(checkpoints, graph, 1)


def test_a_value_and_a_function_of_the_same_id_are_kept_apart(checkpoints):
    """Ids are clients' own; nothing keeps them from using one twice."""
    graph = Graph()
    rebase(graph, 1, [PutValue(value_id=A, value=1), function(A, "sum")])
    saved(checkpoints, graph, 1, whole=True)
    require_loads(checkpoints, graph, 1)

    rebase(graph, 2, [RemoveValue(value_id=A), function(A, "max")])
    saved(checkpoints, graph, 2)
    require_loads(checkpoints, graph, 2)

    rebase(graph, 3, [PutValue(value_id=A, value=2), RemoveFunc(func_id=A)])
    saved(checkpoints, graph, 3)
    require_loads(checkpoints, graph, 3)


def test_saving_twice_writes_once(checkpoints):
    """A save whose end was not seen is repeated."""
    graph = graph_of(1)
    changes = saved(checkpoints, graph, 1)
    version = table_of(checkpoints).version()

    checkpoints.save(CHANGE_SET, changes)

    assert table_of(checkpoints).version() == version
    require_loads(checkpoints, graph, 1)


@pytest.mark.parametrize("whole", [False, True], ids=["appended", "whole"])
def test_an_older_writer_cannot_turn_the_table_back(checkpoints, whole):
    """A Rebaser that was overtaken may still be about to save what it knew."""
    old = take_changes(graph_of(5), 5, {"n": 5}, whole=whole)
    graph = graph_of(5)
    rebase(graph, 6, [RemoveValue(value_id=A)])
    saved(checkpoints, graph, 6, whole=True)

    checkpoints.save(CHANGE_SET, old)

    require_loads(checkpoints, graph, 6)


class Interrupted(Checkpoints):
    """Between its look at the table and its write, another one saves."""

    def __init__(self, root, other):
        super().__init__(root)
        self._root_of_other = root
        self._others = [other]

    def open(self, change_set):
        table = super().open(change_set)
        while self._others:
            Checkpoints(self._root_of_other).save(change_set, self._others.pop())
        return table


@pytest.mark.parametrize("whole", [False, True], ids=["appended", "whole"])
@pytest.mark.parametrize("other_whole", [False, True], ids=["after an append", "after a whole one"])
@pytest.mark.parametrize("first", [False, True], ids=["later", "at first"])
def test_a_save_that_another_came_before_is_not_lost(tmp_path, whole, other_whole, first):
    """What it says is nowhere else: from now on only what changes afterwards is saved."""
    graph, other = graph_of(1), graph_of(1)
    for one in (graph, other):
        if not first:
            saved(Checkpoints(str(tmp_path)), one, 1, whole=True)
        rebase(one, 2, [RemoveValue(value_id=A)])
    earlier = take_changes(other, 2, {"n": 2}, whole=other_whole)
    rebase(graph, 3, [SetValue(value_id=B, value=3)])

    saved(Interrupted(str(tmp_path), earlier), graph, 3, whole=whole)

    require_loads(Checkpoints(str(tmp_path)), graph, 3)


@pytest.mark.parametrize("whole", [False, True], ids=["appended", "whole"])
def test_a_save_that_a_later_one_came_before_changes_nothing(tmp_path, whole):
    """Least of all does it bring back what was removed."""
    graph, stale = graph_of(1), graph_of(1)
    rebase(graph, 2, [RemoveValue(value_id=A)])
    later = take_changes(graph, 2, {"n": 2}, whole=True)

    saved(Interrupted(str(tmp_path), later), stale, 1, whole=whole)

    require_loads(Checkpoints(str(tmp_path)), graph, 2)


HISTORY = 24


def history():
    """The changes of each commit, and what the graph was then."""
    graph = Graph()
    known = []
    chance = random.Random(1)
    for commit in range(1, HISTORY + 1):
        removed = [RemoveValue(value_id=ulid(chance.randrange(9)))] if commit % 3 == 0 else []
        puts = [PutValue(value_id=ulid(chance.randrange(9)), value=commit) for _ in range(3)]
        rebase(graph, commit, [*puts, *removed])
        changes = take_changes(graph, commit, {"n": commit}, whole=commit % 7 == 1)
        known.append((changes, contents(graph)))
    return known


@pytest.mark.parametrize("ahead", [0, 3], ids=["from the start", "one of them later"])
def test_of_two_writers_at_once_the_later_state_wins(tmp_path, ahead):
    """One is the owner; the other was overtaken and does not know it. Neither is in the way."""
    known = history()
    saves = [changes for changes, _ in known]
    barrier = threading.Barrier(2)

    def write(part):
        checkpoints = Checkpoints(str(tmp_path))
        for changes in part:
            barrier.wait()
            checkpoints.save(CHANGE_SET, changes)

    owner, other = saves[ahead:], [saves[0]] * 3 + saves[: HISTORY - ahead - 3]
    for changes in saves[:ahead]:
        Checkpoints(str(tmp_path)).save(CHANGE_SET, changes)
    with ThreadPoolExecutor(2) as pool:
        for future in [pool.submit(write, owner), pool.submit(write, other[: len(owner)])]:
            future.result()

    loaded = Checkpoints(str(tmp_path)).load(CHANGE_SET)
    assert loaded.commit == HISTORY
    assert contents(loaded.graph) == known[-1][1]


def test_a_writer_killed_at_any_moment_leaves_a_whole_checkpoint(tmp_path):
    """And the next one goes on from there."""
    chance = random.Random(2)
    checkpoints = Checkpoints(str(tmp_path))
    commit = 0
    for _ in range(3):
        with subprocess.Popen(
            [sys.executable, "-m", "tests.helpers.checkpoint_writer", str(tmp_path), str(commit)],
            env={"PYTHONPATH": str(ROOT)},
            stdout=subprocess.PIPE,
        ) as writer:
            for _ in range(chance.randrange(2, 5)):
                said = int(writer.stdout.readline())
            time.sleep(chance.uniform(0, 0.05))  # to any moment of its work
            writer.send_signal(signal.SIGKILL)

        commit = checkpoints.load(CHANGE_SET).commit

        assert commit >= said
        require_loads(checkpoints, graph_of(commit), commit)
    saved(checkpoints, graph_of(commit + 1), commit + 1)
    require_loads(checkpoints, graph_of(commit + 1), commit + 1)


def test_the_tables_log_says_nothing_again_that_is_in_the_files(tmp_path, monkeypatch):
    """However many ids a head remembers, and however long texts are, its entries stay short."""
    monkeypatch.setattr(compaction, "MAX_FILES", 2)
    checkpoints, graph, long = Checkpoints(str(tmp_path)), Graph(), "x" * 50_000
    for commit in range(1, 4):
        values = [PutValue(value_id=number, value=long) for number in (A, B)]
        rebase(graph, commit, [function(C, long), *values])
        changes = take_changes(graph, commit, {"n": commit, "remembered": long}, whole=False)
        checkpoints.save(CHANGE_SET, changes)
    assert compaction.compact(checkpoints, CHANGE_SET, 0, 0)
    checkpoints.open(CHANGE_SET).create_checkpoint()

    files = [path for path in tmp_path.rglob("_delta_log/*") if path.is_file()]

    assert [path.name for path in files if path.stat().st_size > 40_000] == []
    assert checkpoints.load(CHANGE_SET).metadata["n"] == 3


def test_any_engine_reads_the_present_values(checkpoints):
    """As `store/table_schema.py` tells people: the latest row of each id, less the removed."""
    graph = graph_of(1)
    saved(checkpoints, graph, 1)
    rebase(graph, 2, [RemoveValue(value_id=A), PutValue(value_id=B, name="b", value=[1.0])])
    saved(checkpoints, graph, 2)

    rows = table_of(checkpoints).to_pyarrow_table()
    values = rows.filter(pc.equal(rows["kind"], "value"))
    last = values.group_by("id").aggregate([("commit", "max")]).rename_columns(["id", "commit"])
    present = last.join(values, ["id", "commit"]).filter(pc.invert(pc.field("removed")))

    found = {row["id"]: (row["name"], row["value"]) for row in present.to_pylist()}
    assert A not in found
    assert found[B] == ("b", "[1.0]")
    assert found[C] == (None, "1")
    assert len(found) == 299


def test_a_store_that_fails_says_so_as_an_operating_system_does(tmp_path):
    """Whoever saves goes on without: the log has everything."""
    (tmp_path / "change_sets").write_text("in the way")

    with pytest.raises(StoreFailed):
        saved(Checkpoints(str(tmp_path)), graph_of(1), 1)

    assert issubclass(StoreFailed, OSError)


def test_a_table_of_others_is_refused(checkpoints):
    """Not overwritten: somebody put it there."""
    write_deltalake(checkpoints.uri(CHANGE_SET), pa.table({"a": [1]}))

    with pytest.raises(StoreFailed):
        saved(checkpoints, graph_of(1), 1)


@pytest.mark.parametrize("how", ["gone", "cut short", "overwritten", "log overwritten"])
def test_damage_differs_from_a_store_that_is_away(tmp_path, how):
    """Waiting helps against one and not against the other."""
    saved(Checkpoints(str(tmp_path)), graph_of(1), 1)
    [file] = tmp_path.rglob("*.parquet")
    match how:
        case "gone":
            file.unlink()
        case "cut short":
            file.write_bytes(file.read_bytes()[:500])
        case "overwritten":
            file.write_bytes(file.read_bytes()[:100].ljust(3_000, b"x") + file.read_bytes()[3_000:])
        case _:
            max(tmp_path.rglob("*.json")).write_text("{nonsense")

    with pytest.raises(StoreDamaged) as raised:
        Checkpoints(str(tmp_path)).load(CHANGE_SET)

    assert "\n" not in str(raised.value)

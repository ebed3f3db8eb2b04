"""Results are remembered: the same call is not made twice, and no value is wrong for that."""

import os
from datetime import UTC, datetime, timedelta
from importlib import import_module
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rebaser_server.compute import memo as memos
from rebaser_server.compute import recall
from rebaser_server.compute.cost_model import CostModel
from rebaser_server.compute.evaluation import evaluate
from rebaser_server.compute.memo import MAX_FILES, ImpureFunctions, Memo, WorkspaceMemo
from rebaser_server.compute.plan import plan
from rebaser_server.compute.results import REMEMBERED, UnitResult, decode_result
from rebaser_server.files import SharedFiles, memo_directory
from tests.helpers.graph_builder import Builder, install
from tests.helpers.random_batches import examples
from tests.helpers.work_units import evaluated

SOURCE = """
CALLS = []

def double(value):
    CALLS.append(value)
    return 2 * value if isinstance(value, int) else value + value

def most(left, right):
    CALLS.append((left, right))
    return max(left, right)

def fails(value):
    CALLS.append(value)
    raise ValueError("no")

def grows(value):
    CALLS.append(value)
    value.append(1)

def counts(value):
    CALLS.append(value)
    return len(CALLS)
"""
LARGE = 100 << 20
WORKSPACE = "01J00000000000000000000000"


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("site")
    names = ("double", "most", "fails", "grows", "counts")
    install(directory, "counted", SOURCE, {name: f"counted:{name}" for name in names})
    return directory


@pytest.fixture
def calls(directory: Path, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What functions were called with; of the results that are known the first are not checked."""
    recall._FOUND[0] = 0
    monkeypatch.syspath_prepend(directory)
    called: list[Any] = import_module("counted").CALLS
    called.clear()
    return called


@pytest.fixture
def memo(tmp_path: Path) -> WorkspaceMemo:
    return memo_in(tmp_path)


def memo_in(root: Path, workspace: str = WORKSPACE, max_bytes: int = LARGE) -> WorkspaceMemo:
    found = Memo(SharedFiles(str(root)), max_bytes).of(workspace)
    assert found is not None
    return found


def compute(build: Builder, memo: WorkspaceMemo | None, seconds: float = 0.0) -> list[UnitResult]:
    """One update; its calls are said to have taken so long."""
    planned = plan(build.graph, 2, memo=memo)
    units = planned.units
    outcomes = [evaluated(unit) for unit in units]
    build.apply(outcomes)
    if memo is not None:
        memo.record(
            pa.concat_tables([REMEMBERED.empty_table(), *(each.remembered for each in outcomes)]),
            seconds,
        )
    return outcomes


def many(count: int, code: str = "double") -> Builder:
    """So many values of one source."""
    build = Builder()
    build.source("source", 1)
    for n in range(count):
        build.dependent(f"{n}", code, {"value": "source"}, "python")
    return build


@pytest.mark.parametrize("count", [3, 300])
def test_a_source_that_is_set_back_costs_no_call(
    calls: list[Any], memo: WorkspaceMemo, count: int
) -> None:
    """One by one, and many of one function at once."""
    build = many(count)
    for value in (1, 5, 1, 5, 1):
        build.source("source", value)
        compute(build, memo)

        assert {build.graph.values[f"{n}"].value for n in range(count)} == {2 * value}
    assert calls == [1] * count + [5] * count


def test_what_builds_on_a_known_result_is_known_too(calls: list[Any], memo: WorkspaceMemo) -> None:
    """Also through values that a builtin function computes, and where one comes out as it was."""
    build = Builder()
    build.source("one", 1)
    build.source("two", 7)
    build.dependent("a", "double", {"value": "one"}, "python")
    build.dependent("b", "sum", {"values": ["a", "two"]})
    build.dependent("c", "most", {"left": "b", "right": "two"}, "python")
    build.dependent("d", "double", {"value": "c"}, "python")
    for value in (1, 2, 1, 2):
        build.source("one", value)
        compute(build, memo)

    assert build.state()["d"] == ("ok", 22)
    assert len(calls) == 6


def test_another_branch_with_the_same_inputs_costs_no_call(
    calls: list[Any], memo: WorkspaceMemo
) -> None:
    """A branch has the values of head by their ids; another workspace's results are its own."""
    compute(many(5), memo)
    compute(many(5), memo)
    compute(many(5), memo_in(Path(memo.memo._files.root), "01J00000000000000000000001"))

    assert calls == [1] * 10


def test_the_same_bytes_under_other_arguments_are_another_call(
    calls: list[Any], memo: WorkspaceMemo
) -> None:
    build = Builder()
    build.source("one", 1)
    build.source("two", 2)
    for names, left, right in (
        (("left", "right"), "one", "two"),
        (("left", "right"), "two", "one"),
        (("left", "right"), "one", "one"),
        (("right", "left"), "one", "two"),
    ):
        build.dependent("it", "most", dict(zip(names, (left, right), strict=True)), "python")
        compute(build, memo)

    assert calls == [(1, 2), (2, 1), (1, 1), (2, 1)]


@pytest.mark.parametrize("again", [("double", ["one"]), ("counts", "one")])
def test_a_list_of_the_input_and_another_function_are_other_calls(
    calls: list[Any], memo: WorkspaceMemo, again: tuple[str, Any]
) -> None:
    build = Builder()
    build.source("one", 1)
    for code, taken in (("double", "one"), again):
        build.dependent("it", code, {"value": taken}, "python")
        compute(build, memo)

    assert len(calls) == 2


@pytest.mark.parametrize("pair", [(1, 1.0), (0.0, -0.0), (True, 1), ("1", 1), ([1], [1.0])])
def test_values_that_json_tells_apart_are_other_inputs(
    calls: list[Any], memo: WorkspaceMemo, pair: tuple[Any, Any]
) -> None:
    build = many(1)
    for value in pair:
        build.source("source", value)
        compute(build, memo)

    assert len(calls) == 2


def test_a_known_result_cannot_be_changed_by_what_takes_it(
    calls: list[Any], memo: WorkspaceMemo
) -> None:
    states = []
    for _ in range(2):
        build = Builder()
        build.source("one", [1])
        build.dependent("list", "double", {"value": "one"}, "python")
        build.dependent("grown", "grows", {"value": "list"}, "python")
        compute(build, memo)
        states.append(build.state())

    assert states[0] == states[1]
    assert len(calls) == 3


def test_a_failure_is_not_remembered(calls: list[Any], memo: WorkspaceMemo) -> None:
    """What it failed of may be over."""
    for _ in range(2):
        build = many(1, "fails")
        compute(build, memo)

    assert calls == [1, 1]
    assert build.state()["0"][0] == "failed"


def test_a_large_result_is_not_remembered(calls: list[Any], memo: WorkspaceMemo) -> None:
    for _ in range(2):
        build = many(1)
        build.source("source", "x" * (600 << 10))
        compute(build, memo)

    assert len(calls) == 2


def test_cheap_and_builtin_functions_are_not_remembered(memo: WorkspaceMemo) -> None:
    costs = CostModel({("python", "cheap"): 1e-6, ("python", "dear"): 1.0, ("builtin", "sum"): 1.0})

    assert memo.seconds("builtin", "sum", costs) == 0
    assert memo.seconds("python", "cheap", costs) == 0
    assert memo.seconds("python", "dear", costs) > 0


def test_a_forgotten_value_is_computed(calls: list[Any], memo: WorkspaceMemo) -> None:
    """As when a person asks for it to be computed again."""
    compute(many(2), memo)
    memo.forget(["1"])
    compute(many(2), memo)

    assert calls == [1, 1, 1]


def test_a_forgotten_value_is_not_answered_by_another_process(
    calls: list[Any], tmp_path: Path
) -> None:
    """Its results lie in the store, and this process has not read them yet."""
    memo = memo_in(tmp_path)
    compute(many(60), memo_in(tmp_path), 1.0)
    calls.clear()

    memo.forget(["7"])
    compute(many(60), memo)

    assert calls == [1]


@pytest.mark.parametrize("merges", [False, True])
def test_what_is_forgotten_stays_forgotten_in_other_processes(
    calls: list[Any], tmp_path: Path, *, merges: bool
) -> None:
    """Also what the value had come to from other inputs, which only the store remembers."""
    build = many(60)
    for value in (1, 5):
        build.source("source", value)
        compute(build, memo_in(tmp_path), 1.0)
    calls.clear()

    memo_in(tmp_path).forget(["7"])
    if merges:
        memo = memo_in(tmp_path)
        for n in range(MAX_FILES):
            memo.record(results(100 + n, 1), 1.0)
        memo.memo.tidy()
    for value in (1, 5):
        build.source("source", value)
        compute(build, memo_in(tmp_path), 0.0)

    assert calls == [1, 5]


def test_a_function_that_is_not_pure_is_found_within_5_000_calls(
    calls: list[Any], memo: WorkspaceMemo
) -> None:
    """Each thousandth result that is known is computed all the same."""
    differences: list[Any] = []
    for _ in range(5):
        for outcome in compute(many(1_000, "counts"), memo):
            former = outcome.remembered.column("former")
            differences += outcome.remembered.filter(former.is_valid()).to_pylist()

    assert differences
    assert differences[0]["text"] != differences[0]["former"]


def test_results_that_were_known_cost_no_call(calls: list[Any], memo: WorkspaceMemo) -> None:
    compute(many(1), memo)

    [outcome] = compute(many(1), memo)

    assert outcome.costs == {("python", "double"): (0, 0.0)}


def test_a_function_that_comes_to_the_same_is_not_taken_for_impure(
    calls: list[Any], memo: WorkspaceMemo
) -> None:
    compute(many(1), memo)
    recall._FOUND[0] = 999

    [outcome] = compute(many(1), memo)

    assert len(calls) == 2
    assert outcome.remembered.column("former").to_pylist() == [None]


def test_results_that_children_find_count_for_their_parent(
    calls: list[Any], memo: WorkspaceMemo
) -> None:
    """Else no child would come to the thousandth, which is computed all the same."""
    for build in (many(10), many(10)):
        [unit] = plan(build.graph, 1, memo=memo).units
        outcome = decode_result(evaluate(unit.encode()))
        memo.record(outcome.remembered, 0.0)

    assert recall._FOUND[0] == 10
    assert calls == []


def test_results_of_dear_calls_outlast_the_process(calls: list[Any], tmp_path: Path) -> None:
    """Those of calls that took a moment do not."""
    for seconds, expected in ((0.001, [1, 1]), (1.0, [1])):
        calls.clear()
        root = tmp_path / str(seconds)
        for _ in range(2):
            build = many(60)
            compute(build, memo_in(root), seconds)

        assert calls == [each for each in expected for _ in range(60)]


@pytest.mark.parametrize("harm", ["cut", "changed", "deleted", "foreign"])
def test_damage_costs_calls_and_nothing_else(calls: list[Any], tmp_path: Path, harm: str) -> None:
    compute(many(60), memo_in(tmp_path), 1.0)
    [path] = (tmp_path / memo_directory(WORKSPACE)).iterdir()
    data = path.read_bytes()
    if harm == "deleted":
        path.unlink()
    elif harm == "foreign":
        path.with_name("notes.txt").write_text("not ours")
        path.write_bytes(os.urandom(100))
    else:
        path.write_bytes(data[:-9] if harm == "cut" else data.replace(b"2", b"3"))

    build = many(60)
    compute(build, memo_in(tmp_path), 1.0)

    assert build.state()["7"] == ("ok", 2)
    assert len(calls) == 120


def results(first: int, count: int, size: int = 10) -> Any:
    rows = [
        {"id": f"{n}", "key": n.to_bytes(16), "text": "1" * size, "former": None}
        for n in range(first, first + count)
    ]

    return pa.Table.from_pylist(rows, REMEMBERED)


def files_of(memo: WorkspaceMemo) -> list[Path]:
    return sorted(Path(memo.memo._files.root, memo_directory(WORKSPACE)).iterdir())


def test_files_are_merged_and_lose_nothing(tmp_path: Path) -> None:
    memo = memo_in(tmp_path)
    for n in range(2 * MAX_FILES):
        memo.record(results(n, 1), 1.0)

    again = memo_in(tmp_path)
    again.prepare(1.0)
    known = again.known(results(0, 2 * MAX_FILES).column("id").combine_chunks())

    assert len(files_of(memo)) < MAX_FILES
    assert all(len(each) == 1 for each in known.to_pylist())


def test_large_files_are_not_merged(tmp_path: Path) -> None:
    memo = memo_in(tmp_path)
    memo.record(results(0, 1, 2 << 20), 1.0)
    [large] = files_of(memo)
    for n in range(MAX_FILES + 1):
        memo.record(results(1 + n, 1), 1.0)
    memo.memo.tidy()

    assert large in files_of(memo)
    assert len(files_of(memo)) < MAX_FILES


def test_no_more_is_read_than_there_is_room_for(tmp_path: Path) -> None:
    large, small = memo_in(tmp_path), memo_in(tmp_path, max_bytes=16 << 20)
    for n in range(20):
        large.record(results(n, 1, 100_000), 1.0)

    small.prepare(1.0)

    assert len(small.memo._read[WORKSPACE]) == 10


def test_the_oldest_files_go_beyond_the_limit(tmp_path: Path) -> None:
    memo = memo_in(tmp_path, max_bytes=1 << 20)
    for n in range(48):
        memo.record(results(n, 1, 100_000), 1.0)
    memo.memo.tidy()

    assert sum(path.stat().st_size for path in files_of(memo)) <= 1 << 20
    again = memo_in(tmp_path, max_bytes=64 << 20)
    again.prepare(1.0)
    known = again.known(results(0, 48).column("id").combine_chunks()).to_pylist()
    assert known[0] is None
    assert known[47] is not None


def test_nothing_stays_of_workspaces_that_are_deleted(tmp_path: Path) -> None:
    memo = memo_in(tmp_path).memo
    for n in range(10):
        memo.put(f"deleted-{n}", results(n, 1))
        memo._files.delete_directory(memo_directory(f"deleted-{n}"))
    memo.put(WORKSPACE, results(0, 1))

    memo.tidy()

    assert list(memo._read) == [WORKSPACE]


def test_memory_is_bounded_and_the_least_lately_used_goes(tmp_path: Path) -> None:
    memo = memo_in(tmp_path, max_bytes=16 << 20)
    for n in range(0, 1_000, 10):
        memo.record(results(n, 10, 10_000), 0.0)
        memo.known(results(0, 1).column("id").combine_chunks())

    known = memo.known(results(0, 1_000).column("id").combine_chunks()).to_pylist()
    assert memo.memo._size <= 1 << 20
    assert (known[0] is None, known[1], known[999] is None) == (False, None, False)


def test_results_that_are_computed_again_take_no_more_room(tmp_path: Path) -> None:
    memo = memo_in(tmp_path, max_bytes=16 << 20)
    for n in [0, *[1] * 200]:
        memo.record(results(n, 1, 10_000), 0.0)

    assert memo.known(results(0, 1).column("id").combine_chunks()).is_valid().to_pylist() == [True]


def test_the_four_latest_results_of_a_value_are_kept(memo: WorkspaceMemo) -> None:
    ids = pa.array(["it"], pa.large_string())
    for n in (0, 1, 2, 3, 0, 4):
        memo.record(results(n, 1).set_column(0, "id", ids), 0.0)

    [known] = memo.known(ids).to_pylist()
    assert [each["key"][-1] for each in known] == [2, 3, 0, 4]


def test_only_what_is_used_and_old_is_written_again_and_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    memo = memo_in(tmp_path)

    def rows() -> list[int]:
        return sorted(memo.memo._get(WORKSPACE, each.name).num_rows for each in files_of(memo))

    memo.record(results(0, 1), 1.0)
    memo.known(results(0, 1).column("id").combine_chunks())
    memo.record(results(1, 1), 1.0)
    assert rows() == [1, 1]

    monkeypatch.setattr(memos, "_REWRITTEN_AFTER", -1.0)
    WorkspaceMemo(memo.memo, "01J00000000000000000000001").record(results(2, 1), 1.0)
    for n in (3, 4):
        memo.record(results(n, 1), 1.0)
    assert rows() == [1, 1, 1, 2]


def test_what_is_used_is_written_again_before_it_is_old(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    memo = memo_in(tmp_path)
    memo.record(results(0, 1), 1.0)
    memo.known(results(0, 1).column("id").combine_chunks())
    monkeypatch.setattr(memos, "_REWRITTEN_AFTER", -1.0)
    memo.record(results(1, 1), 1.0)
    files_of(memo)[0].unlink()

    again = memo_in(tmp_path)
    again.prepare(1.0)
    known = again.known(results(0, 2).column("id").combine_chunks())

    assert [len(each) for each in known.to_pylist()] == [1, 1]


VALUES = st.sampled_from([0, 1, 1.0, True, "x", "", [1, {"a": 2}], [1, {"a": 2.0}]])


@examples(100)
@given(steps=st.lists(st.tuples(st.integers(0, 3), VALUES), min_size=1, max_size=12))
def test_values_are_what_they_are_without_a_memo(
    directory: Path, tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[int, Any]]
) -> None:
    """Whatever is set, set back, and fails on the way."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(directory)
        memo = memo_in(tmp_path_factory.mktemp("memo"))
        with_memo, without = Builder(), Builder()
        for build in (with_memo, without):
            for n in range(4):
                build.source(f"s{n}", n)
                build.dependent(f"d{n}", "double", {"value": f"s{n}"}, "python")
            build.dependent("m0", "most", {"left": "d0", "right": "d1"}, "python")
            build.dependent("m1", "most", {"left": "d2", "right": "d3"}, "python")
            build.dependent("top", "double", {"value": "m0"}, "python")
            build.dependent("all", "collect", {"values": ["m0", "m1", "top"]})
        for source, value in steps:
            for build, given_memo in ((with_memo, memo), (without, None)):
                build.source(f"s{source}", value)
                compute(build, given_memo)

            assert with_memo.state() == without.state()


def test_functions_that_are_not_pure_are_noted_for_a_while(tmp_path: Path) -> None:
    """The latest ten of a workspace, each once, for 30 days; other workspaces keep theirs."""
    impure = ImpureFunctions(SharedFiles(str(tmp_path)))

    def note(workspace: str, code: str, days: float = 0.0) -> None:
        at = datetime.now(UTC) - timedelta(days=days)
        impure.add(workspace, "python", code, {"at": at.isoformat(), "function": code})

    note("other", "theirs")
    for number in range(12):
        note(WORKSPACE, f"f{number}")
    note(WORKSPACE, "f11")
    note("old", "forgotten", days=31)
    (tmp_path / "impure" / "other" / "damaged.json").write_text("{")
    impure.look()

    named = [each["function"] for each in impure.latest]
    assert sorted(named) == sorted(["theirs", *(f"f{number}" for number in range(2, 12))])
    assert impure.of_function(WORKSPACE, "python", "f0") is None
    assert impure.of_function("old", "python", "forgotten") is None
    found = impure.of_function("other", "python", "theirs")
    assert found is not None
    assert found["function"] == "theirs"

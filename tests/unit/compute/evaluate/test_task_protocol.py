"""What a worker does with a unit: what is much lies in the run store, and is not repeated."""

from dataclasses import replace
from pathlib import Path

import cbor2
import pytest

from rebaser_server.compute import evaluation, task_protocol
from rebaser_server.compute.evaluation import evaluate
from rebaser_server.compute.executors import UnitTasks
from rebaser_server.compute.plan import plan
from rebaser_server.compute.results import (
    RunStore,
    StoredResult,
    UnitResult,
    contiguous_parts,
    decode_result,
    total_costs,
)
from rebaser_server.compute.work_unit import IncrementalSplit, WorkUnit, digest_of
from rebaser_server.files import SharedFiles
from tests.helpers.graph_builder import Builder, install


@pytest.fixture
def store(tmp_path: Path) -> RunStore:
    return RunStore(SharedFiles(str(tmp_path / "store")), "ab" * 32)


def chain(count: int) -> WorkUnit:
    build = Builder()
    build.source("one", 1)
    for n in range(count):
        build.dependent(f"{n}", "sum", {"values": ["one", f"{n - 1}" if n % 100 else "one"]})
    [unit] = plan(build.graph, slots=1).units
    return unit


def run(store: RunStore | None, *units: WorkUnit) -> list[UnitResult | StoredResult]:
    return completed(UnitTasks("run", units, store))[0]


def completed(it: UnitTasks) -> tuple[list[UnitResult | StoredResult], int]:
    """What a run comes to, and in how many rounds."""
    rounds = 0
    while orders := it.next_tasks():
        rounds += 1
        for number, order in orders.items():
            it.record(number, task_protocol.execute(order, it.store, it.id))
    return it.results(), rounds


def rows(store: RunStore, outcome: UnitResult | StoredResult) -> list[object]:
    if isinstance(outcome, UnitResult):
        return outcome.value_results
    return [row for name, _ in outcome.files for row in store.get_part(name).value_results]


def test_small_results_are_returned_inline(store: RunStore) -> None:
    unit = chain(10)

    [outcome] = run(store, unit)

    assert isinstance(outcome, UnitResult)
    assert outcome.value_results == decode_result(evaluate(unit.encode())).value_results
    assert store.names() == []


def test_large_results_are_stored_in_the_run_store(store: RunStore) -> None:
    small, large = chain(10), chain(20_000)

    outcomes = run(store, large, small)

    assert [type(outcome) for outcome in outcomes] == [StoredResult, UnitResult]
    assert len(outcomes[0]) == outcomes[0].recomputed == 20_000
    expected = [decode_result(evaluate(unit.encode())).value_results for unit in (large, small)]
    assert [rows(store, outcome) for outcome in outcomes] == expected


def test_a_blob_that_is_done_is_not_asked_for_again(store: RunStore) -> None:
    done, new = chain(20_000), chain(10)
    [before] = run(store, done)

    again = UnitTasks("again", [new, done], store)

    assert len(again.next_tasks()) == 1
    again.record(
        0, task_protocol.execute(task_protocol.encode_task("", new.encode(), ()), None, "")
    )
    first, second = again.results()
    assert len(first) == 10
    assert isinstance(second, StoredResult)
    assert second.files == before.files  # type: ignore[union-attr]
    assert second.recomputed == 20_000


def test_a_blob_goes_on_from_where_it_was_left(
    store: RunStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever evaluated its first half may have died since; calls show that it is not repeated."""
    log = tmp_path / "calls"
    code = (
        "def note(value):\n"
        f"    with open({str(log)!r}, 'a') as file:\n        file.write('.')\n"
        "    return value\n"
    )
    install(tmp_path, "noting", code, {"note": "noting:note"})
    monkeypatch.syspath_prepend(str(tmp_path))
    build = Builder()
    build.source("one", 1)
    for n in range(100):
        build.dependent(f"{n}", "note", {"value": f"{n - 1}" if n else "one"}, runtime="python")
    [unit] = plan(build.graph, slots=1).units
    half = decode_result(evaluate(IncrementalSplit(unit).next(50).encode()))
    store.put_part(digest_of(unit.encode()), 0, 50, half)
    log.unlink()

    [outcome] = run(store, unit)

    assert len(log.read_text()) == 50
    assert rows(store, outcome) == [(f"{n}", "ok", 1) for n in range(100)]
    assert outcome.recomputed == 100


def test_two_attempts_never_write_the_same_file(store: RunStore) -> None:
    """What a commit refers to stays as it was, even if a function is not quite pure."""
    unit = chain(20_000)
    order = task_protocol.encode_task(digest_of(unit.encode()), unit.encode(), ())

    for _ in range(2):
        task_protocol.execute(order, store, "run")

    assert len(store.names()) == 2


def test_a_torn_chain_is_taken_up_to_the_gap(store: RunStore) -> None:
    unit = chain(20_000)
    later = decode_result(evaluate(unit.encode()))
    store.put_part(digest_of(unit.encode()), 15_000, 20_000, later)

    [outcome] = run(store, unit)

    assert rows(store, outcome) == later.value_results


def test_of_files_the_longest_are_taken_up_to_a_gap() -> None:
    names = ["a-0-3-x", "a-0-5-x", "a-0-4-x", "a-5-7-x", "a-9-12-x", "b-7-9-x"]

    assert [part.name for part in contiguous_parts(names, "a")] == ["a-0-5-x", "a-5-7-x"]


def test_costs_of_a_function_are_added() -> None:
    outcome = replace(decode_result(evaluate(chain(1).encode())), costs={("cel", "1"): (2, 0.5)})

    assert total_costs([outcome, outcome]) == {("cel", "1"): (4, 1.0)}


def test_clearing_keeps_what_is_referred_to_and_the_batch_that_does(store: RunStore) -> None:
    outcome = decode_result(evaluate(chain(10).encode()))
    kept, gone = (store.put_part(digest, 0, 10, outcome) for digest in ("a", "b"))
    store.files.put(f"results/{store.key}/{'c' * 64}.batch", b"")
    store.put_progress("run", "a", 3)

    store.clear([kept])

    assert gone not in store.names()
    assert store.names() == sorted([kept, f"{'c' * 64}.batch"])
    store.clear()
    assert store.names() == []
    store.clear()  # once more


@pytest.fixture
def _time_slices_are_short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evaluation, "_MIN_START_RATIO", 0)


@pytest.mark.usefixtures("_time_slices_are_short")
def test_what_takes_long_gives_way_and_is_asked_for_again(store: RunStore) -> None:
    unit = chain(300)

    [outcome], rounds = completed(UnitTasks("run", [unit], store, time_slice=0.0))

    assert rounds > 1
    assert rows(store, outcome) == decode_result(evaluate(unit.encode())).value_results
    assert outcome.recomputed == 300


def test_a_small_unit_goes_on_where_its_task_gave_way(store: RunStore) -> None:
    """As a task does once a value has ended its child and its time is over."""
    unit = chain(6)
    whole = decode_result(evaluate(unit.encode()))
    it = UnitTasks("run", [unit], store)
    assert list(it.next_tasks()) == [0]

    store.put_part(digest_of(unit.encode()), 0, 4, UnitResult(4, whole.table.slice(0, 4)))
    it.record(0, cbor2.dumps([None, None]))

    assert list(it.next_tasks()) == [0]
    assert it.values_done() == 4
    [outcome], _ = completed(it)
    assert rows(store, outcome) == whole.value_results


@pytest.mark.usefixtures("_time_slices_are_short")
def test_progress_counts_what_is_kept_and_what_workers_tell(store: RunStore) -> None:
    large, small = chain(300), chain(10)
    it = UnitTasks("run", [large, small], store, time_slice=0.0)
    assert it.values_done() == 0

    orders = it.next_tasks()
    it.record(0, task_protocol.execute(orders[0], store, it.id))
    it.record(1, task_protocol.execute(orders[1], store, it.id))
    it.next_tasks()
    kept = it.values_done()
    store.put_progress(it.id, digest_of(large.encode()), 200)
    store.put_progress("another", digest_of(small.encode()), 9)

    assert 10 < kept < 210 == it.values_done()
    completed(it)
    assert it.values_done() == 310

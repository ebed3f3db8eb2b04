"""What a worker does with a blob: what is much lies on the shelf, and is not repeated."""

from pathlib import Path

import pytest

from rebaser_server.compute.evaluate import task_protocol
from rebaser_server.compute.evaluate.evaluator import evaluate
from rebaser_server.compute.plan.plan import plan
from rebaser_server.compute.runs.run import Run
from rebaser_server.compute.units.culprits import prefix
from rebaser_server.compute.units.run_store import Shelf, Stored
from rebaser_server.compute.units.unit_result import Outcome, decode_outcome
from rebaser_server.compute.units.work_unit import Blob, digest_of
from rebaser_server.files.shared_files import Files
from tests.helpers.graph_builder import Builder, install


@pytest.fixture
def shelf(tmp_path: Path) -> Shelf:
    return Shelf(Files(str(tmp_path / "store")), "ab" * 32)


def chain(count: int) -> bytes:
    build = Builder()
    build.source("one", 1)
    for n in range(count):
        build.dependent(f"{n}", "sum", {"values": ["one", f"{n - 1}" if n % 100 else "one"]})
    [blob] = plan(build.graph, slots=1).blobs
    return blob


def run(shelf: Shelf | None, *blobs: bytes) -> list[Outcome | Stored]:
    return completed(Run("run", blobs, shelf))[0]


def completed(it: Run) -> tuple[list[Outcome | Stored], int]:
    """What a run comes to, and in how many rounds."""
    rounds = 0
    while orders := it.orders():
        rounds += 1
        for number, order in orders.items():
            it.answered(number, task_protocol.done(order, it.shelf, it.id))
    return it.outcomes(), rounds


def rows(shelf: Shelf, outcome: Outcome | Stored) -> list[object]:
    if isinstance(outcome, Outcome):
        return outcome.results
    return [row for name, _ in outcome.files for row in shelf.read(name).results]


def test_little_travels_and_leaves_nothing_behind(shelf: Shelf) -> None:
    blob = chain(10)

    [outcome] = run(shelf, blob)

    assert isinstance(outcome, Outcome)
    assert outcome.results == decode_outcome(evaluate(blob)).results
    assert shelf.names() == []


def test_much_lies_on_the_shelf(shelf: Shelf) -> None:
    small, large = chain(10), chain(20_000)

    outcomes = run(shelf, large, small)

    assert [type(outcome) for outcome in outcomes] == [Stored, Outcome]
    assert len(outcomes[0]) == outcomes[0].recomputed == 20_000
    expected = [decode_outcome(evaluate(blob)).results for blob in (large, small)]
    assert [rows(shelf, outcome) for outcome in outcomes] == expected


def test_a_blob_that_is_done_is_not_asked_for_again(shelf: Shelf) -> None:
    done, new = chain(20_000), chain(10)
    [before] = run(shelf, done)

    again = Run("again", [new, done], shelf)

    assert len(again.orders()) == 1
    again.answered(0, task_protocol.done(task_protocol.order("", new, ()), None, ""))
    first, second = again.outcomes()
    assert len(first) == 10
    assert isinstance(second, Stored)
    assert second.files == before.files  # type: ignore[union-attr]
    assert second.recomputed == 20_000


def test_a_blob_goes_on_from_where_it_was_left(
    shelf: Shelf, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
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
    [blob] = plan(build.graph, slots=1).blobs
    half = decode_outcome(evaluate(_first(blob, 50)))
    shelf.save(digest_of(blob), 0, 50, half)
    log.unlink()

    [outcome] = run(shelf, blob)

    assert len(log.read_text()) == 50
    assert rows(shelf, outcome) == [(f"{n}", "ok", 1) for n in range(100)]
    assert outcome.recomputed == 100


def _first(blob: bytes, count: int) -> bytes:
    return prefix(Blob.decode(blob), count).encode()


def test_two_attempts_never_write_the_same_file(shelf: Shelf) -> None:
    """What a commit refers to stays as it was, even if a function is not quite pure."""
    blob = chain(20_000)
    order = task_protocol.order(digest_of(blob), blob, ())

    for _ in range(2):
        task_protocol.done(order, shelf, "run")

    assert len(shelf.names()) == 2


def test_a_torn_chain_is_taken_up_to_the_gap(shelf: Shelf) -> None:
    blob = chain(20_000)
    later = decode_outcome(evaluate(blob))
    shelf.save(digest_of(blob), 15_000, 20_000, later)

    [outcome] = run(shelf, blob)

    assert rows(shelf, outcome) == later.results


def test_clearing_keeps_what_is_referred_to_and_the_batch_that_does(shelf: Shelf) -> None:
    outcome = decode_outcome(evaluate(chain(10)))
    kept, gone = (shelf.save(digest, 0, 10, outcome) for digest in ("a", "b"))
    shelf.files.put(f"results/{shelf.key}/{'c' * 64}.batch", b"")
    shelf.tell_progress("run", "a", 3)

    shelf.clear([kept])

    assert gone not in shelf.names()
    assert shelf.names() == sorted([kept, f"{'c' * 64}.batch"])
    shelf.clear()
    assert shelf.names() == []
    shelf.clear()  # once more


@pytest.fixture
def _turns_are_short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(task_protocol, "_WORTH", 0)


@pytest.mark.usefixtures("_turns_are_short")
def test_what_takes_long_gives_way_and_is_asked_for_again(shelf: Shelf) -> None:
    blob = chain(300)

    [outcome], rounds = completed(Run("run", [blob], shelf, turn=0.0))

    assert rounds > 1
    assert rows(shelf, outcome) == decode_outcome(evaluate(blob)).results
    assert outcome.recomputed == 300


@pytest.mark.usefixtures("_turns_are_short")
def test_progress_counts_what_is_kept_and_what_workers_tell(shelf: Shelf) -> None:
    large, small = chain(300), chain(10)
    it = Run("run", [large, small], shelf, turn=0.0)
    assert it.done() == 0

    orders = it.orders()
    it.answered(0, task_protocol.done(orders[0], shelf, it.id))
    it.answered(1, task_protocol.done(orders[1], shelf, it.id))
    it.orders()
    kept = it.done()
    shelf.tell_progress(it.id, digest_of(large), 200)
    shelf.tell_progress("another", digest_of(small), 9)

    assert 10 < kept < 210 == it.done()
    completed(it)
    assert it.done() == 310

"""What is on the shelf is kept when an update is given up; all else of it fails."""

from pathlib import Path

import pytest

from rebaser_server.compute.evaluate.evaluator import evaluate
from rebaser_server.compute.plan.plan import plan
from rebaser_server.compute.runs.salvage import salvaged
from rebaser_server.compute.units.culprits import prefix
from rebaser_server.compute.units.run_store import Shelf, Stored
from rebaser_server.compute.units.unit_result import Outcome, decode_outcome
from rebaser_server.compute.units.work_unit import Blob, Limits, digest_of, limited
from rebaser_server.files.shared_files import Files
from tests.helpers.graph_builder import Builder


@pytest.fixture
def shelf(tmp_path: Path) -> Shelf:
    return Shelf(Files(str(tmp_path / "store")), "ab" * 32)


def chain(count: int) -> bytes | memoryview:
    build = Builder()
    build.source("one", 1)
    for n in range(count):
        build.dependent(f"{n}", "sum", {"values": ["one", f"{n - 1}" if n else "one"]})
    [blob] = plan(build.graph, slots=1).blobs
    return blob


async def test_the_first_values_of_a_blob_are_kept_whatever_limits_they_were_computed_under(
    shelf: Shelf,
) -> None:
    blob = chain(10)
    half = prefix(Blob.decode(blob), 6).encode()
    shelf.save(digest_of(blob), 0, 6, decode_outcome(evaluate(half)))
    guarded = limited(blob, Limits(seconds=5, is_guarded=True))

    [outcome] = await salvaged([guarded], "why", shelf, 2)

    assert isinstance(outcome, Outcome)
    kept = [(f"{n}", "ok", n + 2) for n in range(6)]
    assert outcome.results == kept + [(f"{n}", "failed", "why") for n in range(6, 10)]
    assert outcome.recomputed == 6


async def test_a_blob_that_was_done_stays_where_it_lies(shelf: Shelf) -> None:
    blob = chain(10)
    name = shelf.save(digest_of(blob), 0, 10, decode_outcome(evaluate(blob)))

    [outcome] = await salvaged([blob], "why", shelf, 2)

    assert isinstance(outcome, Stored)
    assert outcome.files == [(name, 10)]
    assert shelf.names() == [name], "no failure lies there as if it was computed"


async def test_a_blob_of_which_there_is_nothing_fails(shelf: Shelf) -> None:
    [outcome] = await salvaged([chain(3)], "why", shelf, 2)

    assert isinstance(outcome, Outcome)
    assert outcome.results == [(f"{n}", "failed", "why") for n in range(3)]

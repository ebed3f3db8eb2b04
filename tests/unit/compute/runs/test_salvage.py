"""What is in the run store is kept when an update is given up; all else of it fails."""

from dataclasses import replace
from pathlib import Path

import pytest

from rebaser_server.compute.evaluation import evaluate
from rebaser_server.compute.plan import plan
from rebaser_server.compute.rescue import salvage
from rebaser_server.compute.results import RunStore, StoredResult, UnitResult, decode_result
from rebaser_server.compute.work_unit import (
    CallLimits,
    IncrementalSplit,
    WorkUnit,
    digest_of,
)
from rebaser_server.files import SharedFiles
from tests.helpers.graph_builder import Builder


@pytest.fixture
def store(tmp_path: Path) -> RunStore:
    return RunStore(SharedFiles(str(tmp_path / "store")), "ab" * 32)


def chain(count: int) -> WorkUnit:
    build = Builder()
    build.source("one", 1)
    for n in range(count):
        build.dependent(f"{n}", "sum", {"values": ["one", f"{n - 1}" if n else "one"]})
    [unit] = plan(build.graph, slots=1).units
    return unit


async def test_the_first_values_of_a_blob_are_kept_whatever_limits_they_were_computed_under(
    store: RunStore,
) -> None:
    unit = chain(10)
    half = IncrementalSplit(unit).next(6).encode()
    store.put_part(digest_of(unit.encode()), 0, 6, decode_result(evaluate(half)))
    guarded = replace(unit, limits=CallLimits(seconds=5, is_forked=True))

    [outcome] = await salvage([guarded], "why", store, 2)

    assert isinstance(outcome, UnitResult)
    kept = [(f"{n}", "ok", n + 2) for n in range(6)]
    assert outcome.value_results == kept + [(f"{n}", "failed", "why") for n in range(6, 10)]
    assert outcome.recomputed == 6


async def test_a_blob_that_was_done_stays_where_it_lies(store: RunStore) -> None:
    unit = chain(10)
    name = store.put_part(digest_of(unit.encode()), 0, 10, decode_result(evaluate(unit.encode())))

    [outcome] = await salvage([unit], "why", store, 2)

    assert isinstance(outcome, StoredResult)
    assert outcome.files == [(name, 10)]
    assert store.names() == [name], "no failure lies there as if it was computed"


async def test_a_blob_of_which_there_is_nothing_fails(store: RunStore) -> None:
    [outcome] = await salvage([chain(3)], "why", store, 2)

    assert isinstance(outcome, UnitResult)
    assert outcome.value_results == [(f"{n}", "failed", "why") for n in range(3)]

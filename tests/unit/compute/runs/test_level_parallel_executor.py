"""A dear unit is computed level by level by all slots, where that wins, and comes to the same."""

import random
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from rebaser_server.compute.cost_model import CostModel
from rebaser_server.compute.evaluation import evaluate
from rebaser_server.compute.level_parallel import LeveledRun
from rebaser_server.compute.results import StoredResult, UnitResult, decode_result
from rebaser_server.compute.run import Run
from rebaser_server.compute.work_unit import CallLimits, WorkUnit
from tests.helpers.noted_progress import NotedProgress
from tests.helpers.work_units import evaluated
from tests.unit.compute.functions.test_builtin_vectorised import random_blob, rows_of


class Inline:
    """A `Place` that evaluates here, and remembers what it was given."""

    slots = 2

    def __init__(self) -> None:
        self.runs: list[list[WorkUnit]] = []

    async def start(self) -> None:
        """There is nothing to start."""

    async def close(self) -> None:
        """There is nothing to end."""

    async def run(
        self, units: Sequence[WorkUnit], run: Run = Run()
    ) -> list[UnitResult | StoredResult]:
        self.runs.append([*units])
        outcomes: list[UnitResult | StoredResult] = [
            decode_result(evaluate(unit.encode())) for unit in units
        ]
        run.progress.record(run.progress.total)
        return outcomes


def dear(seconds: float) -> CostModel:
    class All(CostModel):
        def estimate(self, unit: WorkUnit) -> np.ndarray:
            return np.full(len(unit), seconds)

        def snapshot(self) -> CostModel:
            return self

    return All()


@pytest.mark.parametrize("seed", range(10))
async def test_sweeps_come_to_what_the_blob_comes_to(seed: int) -> None:
    unit = random_blob(random.Random(seed))
    inner = Inline()
    progress = NotedProgress(len(unit))

    [found] = await LeveledRun(inner, dear(0.05), Run(progress=progress)).results([unit])

    whole = evaluated(unit)
    assert isinstance(found, UnitResult)
    assert rows_of(found) == rows_of(whole)
    assert found.recomputed == whole.recomputed
    assert len(inner.runs) > 1
    assert progress.seen == sorted(progress.seen)


async def test_cheap_functions_are_not_split() -> None:
    unit = random_blob(random.Random(1))
    inner = Inline()

    await LeveledRun(inner, CostModel(), Run()).results([unit])

    assert [len(run) for run in inner.runs] == [1]


async def test_the_others_of_a_run_go_on_beside_the_one_that_is_split() -> None:
    units = [random_blob(random.Random(seed), groups) for seed, groups in [(1, 9), (2, 1)]]
    inner = Inline()

    found = await LeveledRun(inner, dear(0.05), Run()).results(units)

    for outcome, unit in zip(found, units, strict=True):
        assert isinstance(outcome, UnitResult)
        assert rows_of(outcome) == rows_of(decode_result(evaluate(unit.encode())))


async def test_the_parts_of_a_unit_have_its_limits() -> None:
    inner = Inline()
    unit = replace(random_blob(random.Random(1)), limits=CallLimits(seconds=5.0, memory=10**9))

    await LeveledRun(inner, dear(0.05), Run()).results([unit])

    assert len(inner.runs) > 1
    assert {part.limits for run in inner.runs for part in run} == {unit.limits}

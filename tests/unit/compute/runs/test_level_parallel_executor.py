"""A dear unit is computed level by level by all slots, where that wins, and comes to the same."""

import random
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from rebaser_server.compute.evaluate.call_watchdog import CallWatchdog
from rebaser_server.compute.evaluate.evaluation import evaluate_unit
from rebaser_server.compute.evaluate.evaluator import evaluate
from rebaser_server.compute.plan.cost_model import STAGE_SECONDS, CostModel, Stage, plan_stages
from rebaser_server.compute.runs.executor import OnProgress
from rebaser_server.compute.runs.level_parallel_executor import LevelParallelExecutor
from rebaser_server.compute.units.run_store import RunStore, StoredResult
from rebaser_server.compute.units.unit_result import SCHEMA, UnitResult, decode_result
from rebaser_server.compute.units.work_unit import CallLimits, WorkUnit, count_values
from tests.unit.compute.functions.test_builtin_vectorised import random_blob, rows_of


class Inline:
    """An `Executor` that evaluates here, and remembers what it was given."""

    def __init__(self) -> None:
        self.runs: list[list[WorkUnit]] = []

    async def start(self) -> None:
        """There is nothing to start."""

    async def close(self) -> None:
        """There is nothing to end."""

    async def run(
        self,
        units: Sequence[bytes],
        *,
        store: RunStore | None = None,
        on_progress: OnProgress | None = None,
    ) -> list[UnitResult | StoredResult]:
        self.runs.append([WorkUnit.decode(unit) for unit in units])
        outcomes: list[UnitResult | StoredResult] = [
            decode_result(evaluate(unit)) for unit in units
        ]
        if on_progress is not None:
            on_progress(sum(map(count_values, units)), sum(map(count_values, units)))
        return outcomes


def dear(seconds: float) -> CostModel:
    class All(CostModel):
        def estimate(self, unit: WorkUnit) -> np.ndarray:
            return np.full(len(unit), seconds)

    return All()


@pytest.mark.parametrize("seed", range(10))
async def test_sweeps_come_to_what_the_blob_comes_to(seed: int) -> None:
    unit = random_blob(random.Random(seed))
    inner = Inline()
    told: list[tuple[int, int]] = []
    sweeping = LevelParallelExecutor(inner, 2, costs=dear(0.05))

    [found] = await sweeping.run([unit.encode()], on_progress=lambda *done: told.append(done))

    whole = evaluate_unit(unit, CallWatchdog(CallLimits()))
    assert isinstance(found, UnitResult)
    assert rows_of(found) == rows_of(whole)
    assert found.recomputed == whole.recomputed
    assert len(inner.runs) > 1
    assert told == sorted(told)


async def test_cheap_functions_are_not_split() -> None:
    unit = random_blob(random.Random(1))
    inner = Inline()

    await LevelParallelExecutor(inner, 2).run([unit.encode()])

    assert [len(run) for run in inner.runs] == [1]


async def test_the_others_of_a_run_go_on_beside_the_one_that_is_split() -> None:
    units = [random_blob(random.Random(seed), groups).encode() for seed, groups in [(1, 9), (2, 1)]]
    inner = Inline()

    found = await LevelParallelExecutor(inner, 2, costs=dear(0.05)).run(units)

    for outcome, unit in zip(found, units, strict=True):
        assert isinstance(outcome, UnitResult)
        assert rows_of(outcome) == rows_of(decode_result(evaluate(unit)))


async def test_the_parts_of_a_unit_have_its_limits() -> None:
    inner = Inline()
    unit = replace(random_blob(random.Random(1)), limits=CallLimits(seconds=5.0, memory=10**9))

    await LevelParallelExecutor(inner, 2, costs=dear(0.05)).run([unit.encode()])

    assert len(inner.runs) > 1
    assert {part.limits for run in inner.runs for part in run} == {unit.limits}


def test_what_functions_took_is_learnt() -> None:
    book = CostModel()

    book.learn({("python", "f"): (10, 1.0)})
    book.learn({("python", "f"): (10, 2.0)})

    assert 0.1 < book.seconds["python", "f"] < 0.2


@pytest.mark.parametrize(("work", "seconds", "is_learnt"), [(0.1, 0.6, True), (20.0, 25.0, False)])
def test_what_a_run_costs_is_learnt_from_those_that_do_little_else(
    work: float, seconds: float, is_learnt: bool
) -> None:
    """A busy machine makes a long run longer by more than a run of its own ever costs."""
    book = CostModel()
    outcome = UnitResult(0, SCHEMA.empty_table(), {("python", "f"): (10, work)})

    book.learn_run(seconds, [outcome], slots=2)

    assert (book.stage_seconds > STAGE_SECONDS) is is_learnt


@pytest.mark.parametrize(
    ("sizes", "seconds", "expected"),
    [
        ([1000, 1000], 1e-3, [(0, 1000, True), (1000, 2000, True)]),
        ([1] * 50, 1e-3, [(0, 50, False)]),
        ([1] * 5 + [1000] + [1] * 5, 1e-3, [(0, 5, False), (5, 1005, True), (1005, 1010, False)]),
        ([1000, 1, 1000], 1e-3, [(0, 1000, True), (1000, 1001, False), (1001, 2001, True)]),
        ([100_000, 100_000], 1e-7, [(0, 200_000, False)]),
    ],
)
def test_levels_are_split_where_that_is_shorter(
    sizes: list[int], seconds: float, expected: list[tuple[int, int, bool]]
) -> None:
    ends = np.cumsum(sizes).tolist()

    found, _ = plan_stages(np.full(ends[-1], seconds), ends, slots=2)

    if sizes == [1000, 1, 1000]:  # a lone value may as well be a level that is split
        expected = [Stage(start, stop, found[1].is_split) if start == 1000 else Stage(start, stop, how) for start, stop, how in expected]  # noqa: E501  # fmt: skip
        assert found == expected
    else:
        assert found == [Stage(*band) for band in expected]


def test_two_slots_promise_almost_twice_the_speed_for_dear_functions() -> None:
    ends = [10_000, 20_000, 30_000]

    _, seconds = plan_stages(np.full(30_000, 1e-3), ends, slots=2)

    assert 30 / seconds > 1.9

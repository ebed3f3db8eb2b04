"""What functions cost is learnt from what they took, and decides how levels are computed."""

import numpy as np
import pytest

from rebaser_server.compute import cost_model
from rebaser_server.compute.cost_model import STAGE_SECONDS, CostModel, Stage, plan_stages
from rebaser_server.compute.results import SCHEMA, UnitResult


def test_a_snapshot_stays_as_it_was() -> None:
    """An update is planned again as it was, whatever others learn meanwhile."""
    costs = CostModel({("python", "f"): 0.1})
    snapshot = costs.snapshot()

    costs.learn({("python", "f"): (1, 1.0), ("python", "g"): (1, 1.0)})

    assert snapshot.seconds == {("python", "f"): 0.1}


def test_a_few_functions_are_told_apart_from_all_that_is_known() -> None:
    """An update leaves in the store what it needs itself, and no other change set's functions."""
    costs = CostModel({("python", "f"): 0.1, ("python", "g"): 0.2})
    costs.learn_overhead(0.2, [], slots=2)

    known = costs.known([("python", "f"), ("cel", "f"), (None, "missing")])

    assert known["python", "f"] == 0.1
    assert ("python", "g") not in known
    assert CostModel(known).stage_seconds == costs.stage_seconds > STAGE_SECONDS


def test_the_functions_measured_least_lately_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process lives for months, and sees functions of change sets that are long gone."""
    monkeypatch.setattr(cost_model, "_MAX_FUNCTIONS", 2)
    costs = CostModel()

    for code in ("f", "g", "f", "h"):
        costs.learn({("python", code): (1, 1.0)})

    assert list(costs.seconds) == [("python", "f"), ("python", "h")]


def test_what_functions_took_is_learnt() -> None:
    costs = CostModel()

    costs.learn({("python", "f"): (10, 1.0)})
    costs.learn({("python", "f"): (10, 2.0)})

    assert 0.1 < costs.seconds["python", "f"] < 0.2


@pytest.mark.parametrize(("work", "seconds", "is_learnt"), [(0.1, 0.6, True), (20.0, 25.0, False)])
def test_what_a_run_costs_is_learnt_from_those_that_do_little_else(
    work: float, seconds: float, is_learnt: bool
) -> None:
    """A busy machine makes a long run longer by more than a run of its own ever costs."""
    costs = CostModel()
    outcome = UnitResult(0, SCHEMA.empty_table(), {("python", "f"): (10, work)})

    costs.learn_overhead(seconds, [outcome], slots=2)

    assert (costs.stage_seconds > STAGE_SECONDS) is is_learnt


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

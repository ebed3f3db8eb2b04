"""All attempts at one update are planned alike; the next one by what was learnt since."""

from pathlib import Path
from typing import Any

import pytest

from rebaser_server.compute.cost_model import CostModel
from rebaser_server.compute.memo import Memo
from rebaser_server.compute.plan import UnitLimits, UpdatePlanner
from rebaser_server.compute.results import RunStore
from rebaser_server.files import SharedFiles
from tests.helpers.graph_builder import Builder
from tests.unit.compute.plan.test_partitioning import spread

DEAR = CostModel({("builtin", "max"): 0.1})
CHEAP = CostModel({("builtin", "max"): 1e-7})


@pytest.fixture
def store(tmp_path: Path) -> RunStore:
    return RunStore(SharedFiles(str(tmp_path)), "ab" * 32)


def planner(costs: CostModel) -> UpdatePlanner:
    return UpdatePlanner(2, UnitLimits(), costs)


def planned(of: UpdatePlanner, *what: Any, is_repeated: bool) -> list[bytes]:
    rounds = of.prepare(*what, is_repeated=is_repeated)
    return [unit.encode() for unit in (rounds() if callable(rounds) else rounds).units]


def test_an_update_that_is_repeated_here_has_the_same_units(store: RunStore) -> None:
    """Even if another change set's update has learnt of the functions meanwhile."""
    costs = DEAR.snapshot()
    here = planner(costs)
    units = planned(here, spread(50).graph, 1, store, is_repeated=False)
    for _ in range(50):
        costs.learn({("builtin", "max"): (1000, 1e-4)})

    assert planned(here, spread(50).graph, 1, store, is_repeated=True) == units
    assert len(planned(here, spread(50).graph, 2, store, is_repeated=False)) == 1
    assert len(units) > 1


def test_an_update_that_is_repeated_elsewhere_has_the_same_units(store: RunStore) -> None:
    """The other process knows other costs, and takes those that the first one has left."""
    units = planned(planner(DEAR), spread(50).graph, 1, store, is_repeated=False)

    assert planned(planner(CHEAP), spread(50).graph, 1, store, is_repeated=True) == units


def test_an_earlier_attempt_that_left_nothing_knew_nothing(store: RunStore) -> None:
    """What this process knows is no reason to plan it otherwise."""
    units = planned(planner(CostModel()), spread(50).graph, 1, store, is_repeated=False)

    assert planned(planner(DEAR), spread(50).graph, 1, store, is_repeated=True) == units
    assert len(units) == 1


def test_an_update_leaves_the_costs_of_its_own_functions(store: RunStore) -> None:
    """Not those of other change sets, which the process knows as well."""
    costs = CostModel({("builtin", "max"): 0.1, ("python", "secret"): 1.0})

    planned(planner(costs), spread(50).graph, 1, store, is_repeated=False)

    assert store.costs() == {("builtin", "max"): 0.1}


@pytest.mark.parametrize(("code", "is_dear"), [("dear", True), ("cheap", False)])
def test_no_results_are_read_from_the_store_while_the_graph_is_held(
    store: RunStore, code: str, *, is_dear: bool
) -> None:
    """Requests wait for who holds it; what is worth a look into the store is planned behind."""
    costs = CostModel({("python", "dear"): 1.0, ("python", "cheap"): 0.001})
    memo = Memo(store.files, 1 << 20).of("workspace")
    build = Builder()
    build.source("one", 1)
    build.dependent("it", code, {"value": "one"}, "python")

    of_one = UpdatePlanner(2, UnitLimits(), costs, memo)
    plan = of_one.prepare(build.graph, 1, store, is_repeated=False)

    assert callable(plan) == is_dear
    assert (plan() if callable(plan) else plan).affected == 1

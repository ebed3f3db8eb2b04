"""Small runs go one way and large ones another."""

from collections.abc import Sequence

import pytest

from rebaser_core.updates import PlainUpdates
from rebaser_server.compute.cost_model import CostModel
from rebaser_server.compute.executors import ChildProcessExecutor, RoutingExecutor
from rebaser_server.compute.plan import plan
from rebaser_server.compute.results import StoredResult, UnitResult
from rebaser_server.compute.run import Run
from rebaser_server.compute.work_unit import WorkUnit
from rebaser_server.values.graph import Graph
from rebaser_server.values.rebase import rebase
from tests.helpers.checkpoint_writer import ulid
from tests.helpers.graph_builder import Builder


class Counting(ChildProcessExecutor):
    def __init__(self) -> None:
        super().__init__()
        self.runs = 0

    async def run(
        self, units: Sequence[WorkUnit], run: Run = Run()
    ) -> list[UnitResult | StoredResult]:
        self.runs += 1
        return await super().run(units, run)


@pytest.mark.parametrize(
    ("large_from", "to_small", "to_large"), [(0, 0, 1), (10, 0, 1), (11, 1, 0)]
)
async def test_the_affected_values_decide(large_from: int, to_small: int, to_large: int) -> None:
    small, large = Counting(), Counting()
    executor = RoutingExecutor(small, large, CostModel(), large_from=large_from)
    build = Builder()
    build.source("one", 1)
    for n in range(10):
        build.dependent(f"{n}", "identity", {"value": "one"})

    await executor.run(plan(build.graph, slots=2, small=0).units)
    await executor.close()

    assert (small.runs, large.runs) == (to_small, to_large)


@pytest.mark.parametrize(
    ("values", "seconds", "is_large"), [(10, 1e-6, False), (10, 0.1, True), (200_000, 1e-6, True)]
)
async def test_the_expected_time_decides_unless_a_number_is_set(
    values: int, seconds: float, *, is_large: bool
) -> None:
    """What functions were measured to cost; however cheap they are, very many are a large run."""
    small, large = Counting(), Counting()
    costs = CostModel({("cel", "value + 0"): seconds})
    executor = RoutingExecutor(small, large, costs, large_from=None)
    code, runtime = ("value + 0", "cel") if values == 10 else ("identity", "builtin")
    one, func, graph = ulid(0), ulid(1), Graph()
    put = {"funcId": func, "inputs": {"value": one}}
    many = PlainUpdates.read(
        [
            {"putFunc": {"funcId": func, "name": "f", "runtime": runtime, "code": code}},
            {"putValue": {"valueId": one, "value": 1}},
            *({"putValue": {"valueId": ulid(2 + n), **put}} for n in range(values)),
        ]
    )
    assert many is not None
    rebase(graph, 1, many)

    await executor.run(plan(graph, slots=2, small=0).units)
    await executor.close()

    assert (large.runs, small.runs) == ((1, 0) if is_large else (0, 1))

"""Small runs go one way and large ones another."""

from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest

from rebaser_server.compute.plan.cost_model import CostModel
from rebaser_server.compute.plan.plan import plan
from rebaser_server.compute.runs.child_process_executor import ChildProcessExecutor
from rebaser_server.compute.runs.executor import OnProgress
from rebaser_server.compute.runs.level_parallel_executor import LevelParallelExecutor
from rebaser_server.compute.runs.routing_executor import RoutingExecutor, SideBySideExecutor
from rebaser_server.compute.units.run_store import RunStore, StoredResult
from rebaser_server.compute.units.unit_result import UnitResult
from tests.helpers.dear_functions import as_result, install_meeting, meetings, most_at_once
from tests.helpers.graph_builder import Builder


class Counting(ChildProcessExecutor):
    def __init__(self) -> None:
        super().__init__()
        self.runs = 0

    async def run(
        self,
        units: Sequence[bytes],
        *,
        store: RunStore | None = None,
        on_progress: OnProgress | None = None,
    ) -> list[UnitResult | StoredResult]:
        self.runs += 1
        return await super().run(units, store=store, on_progress=on_progress)


@pytest.mark.parametrize(
    ("large_from", "to_small", "to_large"), [(0, 0, 1), (10, 0, 1), (11, 1, 0)]
)
async def test_the_affected_values_decide(large_from: int, to_small: int, to_large: int) -> None:
    small, large = Counting(), Counting()
    executor = RoutingExecutor(small, large, large_from=large_from)
    build = Builder()
    build.source("one", 1)
    for n in range(10):
        build.dependent(f"{n}", "identity", {"value": "one"})

    await executor.run(plan(build.graph, slots=2, small=0).units)
    await executor.close()

    assert (small.runs, large.runs) == (to_small, to_large)


@pytest.fixture
async def children(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[LevelParallelExecutor]:
    """What runs small updates in a daemon on two cores."""
    install_meeting(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    beside = SideBySideExecutor([ChildProcessExecutor(), ChildProcessExecutor()])
    executor = LevelParallelExecutor(beside, 2, CostModel().beside())
    yield executor
    await executor.close()


@pytest.mark.parametrize("joined", [False, True])
async def test_dear_values_are_computed_by_all_cores(
    children: LevelParallelExecutor, tmp_path: Path, *, joined: bool
) -> None:
    """Also if their function was never measured, and if something takes all of them."""
    (tmp_path / "here").mkdir()

    assert await most_at_once(children, meetings(tmp_path / "here", 8, joined=joined)) == 2


async def test_units_that_are_cheap_start_one_child() -> None:
    """Another would take longer to start than they do."""
    first, second = Counting(), Counting()
    executor = SideBySideExecutor([first, second])
    build = Builder()
    build.source("one", 1)
    for n in range(10):
        build.dependent(f"{n}", "identity", {"value": "one"})
    await executor.start()
    units = plan(build.graph, slots=2, small=0).units

    build.apply([as_result(each) for each in await executor.run(units)])
    await executor.close()

    assert len(units) > 1
    assert {value.value for value in build.graph.values.values()} == {1}
    assert (first.runs, second.runs) == (1 + len(units), 0)

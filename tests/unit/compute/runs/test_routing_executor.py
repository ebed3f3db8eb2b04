"""Small runs go one way and large ones another."""

from collections.abc import Sequence

import pytest

from rebaser_server.compute.executors import ChildProcessExecutor, OnProgress, RoutingExecutor
from rebaser_server.compute.plan import plan
from rebaser_server.compute.results import RunStore, StoredResult, UnitResult
from tests.helpers.graph_builder import Builder


class Counting(ChildProcessExecutor):
    def __init__(self) -> None:
        super().__init__()
        self.runs = 0

    async def run(
        self,
        units: Sequence[bytes],
        *,
        owner: str = "",
        store: RunStore | None = None,
        on_progress: OnProgress | None = None,
    ) -> list[UnitResult | StoredResult]:
        self.runs += 1
        return await super().run(units, owner=owner, store=store, on_progress=on_progress)


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

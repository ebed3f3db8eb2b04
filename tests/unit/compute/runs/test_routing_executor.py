"""Small runs go one way and large ones another."""

from collections.abc import Sequence

import pytest

from rebaser_server.compute.evaluate.evaluator import Outcome
from rebaser_server.compute.plan.plan import plan
from rebaser_server.compute.runs.child_process_executor import InProcessExecutor
from rebaser_server.compute.runs.executor import OnProgress
from rebaser_server.compute.runs.routing_executor import BySizeExecutor
from rebaser_server.compute.units.run_store import Shelf, Stored
from tests.helpers.graph_builder import Builder


class Counting(InProcessExecutor):
    def __init__(self) -> None:
        super().__init__()
        self.runs = 0

    async def run(
        self,
        blobs: Sequence[bytes],
        *,
        shelf: Shelf | None = None,
        on_progress: OnProgress | None = None,
    ) -> list[Outcome | Stored]:
        self.runs += 1
        return await super().run(blobs, shelf=shelf, on_progress=on_progress)


@pytest.mark.parametrize(
    ("large_from", "to_small", "to_large"), [(0, 0, 1), (10, 0, 1), (11, 1, 0)]
)
async def test_the_affected_values_decide(large_from: int, to_small: int, to_large: int) -> None:
    small, large = Counting(), Counting()
    executor = BySizeExecutor(small, large, large_from=large_from)
    build = Builder()
    build.source("one", 1)
    for n in range(10):
        build.dependent(f"{n}", "identity", {"value": "one"})

    await executor.run(plan(build.graph, slots=2, small=0).blobs)
    await executor.close()

    assert (small.runs, large.runs) == (to_small, to_large)

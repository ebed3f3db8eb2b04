"""A run that fails below the sweeps fails as it would without them."""

import pytest

from rebaser_server.compute.cost_model import CostModel
from rebaser_server.compute.errors import RunFailed
from rebaser_server.compute.level_parallel import LevelParallelExecutor
from rebaser_server.compute.work_unit import WorkUnit


class Failing:
    """An `Executor` whose evaluator ends."""

    async def run(self, units, *, owner="", store=None, progress=None):
        raise RunFailed("the evaluator ended")


async def test_an_evaluator_that_ends_is_a_failed_update_and_not_an_unforeseen_error():
    """D6: else it is neither counted nor put off, and one that always ends is tried for ever."""
    executor = LevelParallelExecutor(Failing(), slots=lambda: 2, costs=CostModel())

    with pytest.raises(RunFailed):
        await executor.run([WorkUnit().encode()])

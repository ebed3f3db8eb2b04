"""A run that fails below the sweeps fails as it would without them."""

import pytest

from rebaser_server.compute.cost_model import CostModel
from rebaser_server.compute.errors import RunFailed
from rebaser_server.compute.level_parallel import LeveledRun
from rebaser_server.compute.run import Run
from rebaser_server.compute.work_unit import WorkUnit


class Failing:
    """A `Place` whose evaluator ends."""

    slots = 2

    async def run(self, units, run):
        raise RunFailed("the evaluator ended")


async def test_an_evaluator_that_ends_is_a_failed_update_and_not_an_unforeseen_error():
    """D6: else it is neither counted nor put off, and one that always ends is tried for ever."""
    run = LeveledRun(Failing(), CostModel(), Run())

    with pytest.raises(RunFailed):
        await run.results([WorkUnit()])

"""A job of several rounds: its progress is of all values that are known by then."""

from datetime import timedelta
from pathlib import Path

import pytest

from rebaser_server.compute.cost_model import CostModel
from rebaser_server.compute.executors import ChildProcessExecutor
from rebaser_server.compute.plan import UnitLimits
from rebaser_server.compute.results import RunStore
from rebaser_server.files import SharedFiles
from rebaser_server.graph_application.dvu import DvuJob, DvuServices, ResultTarget
from rebaser_server.processor.application import JobResult
from rebaser_server.processor.outcomes import Notifier
from tests.helpers.deployment import new_change_sets
from tests.helpers.noted_progress import NotedProgress
from tests.unit.compute.plan.test_rounds import LENGTH, chain, rounds_of


@pytest.mark.parametrize("is_suspect", [False, True])
async def test_progress_never_goes_back_and_its_total_grows_with_the_rounds(
    tmp_path: Path, *, is_suspect: bool
) -> None:
    """Whether or not a value may have ended what computes."""
    executor, store = ChildProcessExecutor(), RunStore(SharedFiles(str(tmp_path)), "ab" * 32)
    notifier, [change_set] = Notifier(streams=None), new_change_sets(1)  # type: ignore[arg-type]
    services = DvuServices(
        *(executor, lambda: 2, CostModel(), UnitLimits(), timedelta(minutes=1)),
        *(None, None, notifier),  # type: ignore[arg-type] # neither batches nor memo
    )
    rounds = rounds_of(chain(ends_at=LENGTH), store)
    job = DvuJob(services, change_set, rounds, ResultTarget(None, store), None)  # type: ignore[arg-type]
    first, progress = job.affected, NotedProgress(job.affected)

    async def commit_part(_: JobResult) -> bool:
        raise AssertionError("children hand on no results before the others")

    result = await job.run(is_suspect=is_suspect, progress=progress, commit_part=commit_part)
    await executor.close()

    assert len(result) == LENGTH
    assert progress.seen == sorted(progress.seen)
    assert [done for done, total in progress.seen if done > total] == []
    assert progress.seen[0][1] == first < LENGTH / 2
    assert progress.seen[-1] == (LENGTH, LENGTH)

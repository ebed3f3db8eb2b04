"""The tasks of a Rebaser that died are made anew: at once if its connection is gone."""

import asyncio

import pytest

from rebaser_core.jetstream import PullConsumer
from rebaser_core.subjects import TASKS_CONSUMER
from rebaser_server.cluster import takeover
from rebaser_server.cluster.membership import Membership
from rebaser_server.cluster.presence import present
from rebaser_server.cluster.takeover import Takeover
from rebaser_server.processor.ownership.acquisition import acquire_ownership
from tests.helpers.batches import ExampleGraph
from tests.helpers.deployment import Deployment, new_change_sets
from tests.helpers.eventually import eventually


async def test_a_starting_rebaser_asks_the_owners_that_the_logs_name(
    deployment: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It replaces the tasks of the absent one at once, and none of the one that answers (F6)."""
    monkeypatch.setattr(takeover, "PRESUMED_DEAD", 1e6)
    js, nc, subjects = deployment.js, deployment.nc, deployment.subjects
    orphaned, owned, unowned = new_change_sets(3)
    for change_set in (orphaned, owned, unowned):
        await deployment.client.enqueue_updates(*change_set, ExampleGraph().define(1, 2))
    async with (
        PullConsumer(js, subjects.tasks_stream, TASKS_CONSUMER) as tasks,
        present(nc, subjects, "living/1") as living,
    ):
        for _ in range(3):
            assert await tasks.take(1) is not None
        await acquire_ownership(deployment.archive(orphaned), "dead/2-p")
        await acquire_ownership(deployment.archive(owned), living)
        before = await _tasks(deployment)

        starting = Takeover(js, subjects, Membership(nc, subjects, "starting/3"))
        running = asyncio.create_task(starting.run())

        async def replaced() -> set[str]:
            after = await _tasks(deployment)
            return {subject for subject in before if after.get(subject, 0) > before[subject]}

        async def is_replaced() -> bool:
            return bool(await replaced())

        await eventually(is_replaced)
        assert await replaced() == {subjects.task(orphaned)}
        running.cancel()
        await asyncio.wait([running])


async def _tasks(deployment: Deployment) -> dict[str, int]:
    """Sequence of each change set's task."""
    stream = deployment.subjects.tasks_stream
    found = {}
    for subject in await deployment.js.stream_subjects(stream):
        task = await deployment.js.get_message(stream, last_by_subject=subject)
        if task is not None:
            found[subject] = task.sequence
    return found

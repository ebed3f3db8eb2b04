"""The tasks of a Rebaser that died are made anew: at once if its connection is gone."""

import asyncio

import pytest

from rebaser_client.request_publisher import ensure_task
from rebaser_core.ids import ChangeSet
from rebaser_core.jetstream import PullConsumer
from rebaser_core.subjects import TASKS_CONSUMER
from rebaser_server.cluster import takeover
from rebaser_server.cluster.membership import Membership
from rebaser_server.cluster.presence import present
from rebaser_server.cluster.takeover import Takeover
from rebaser_server.processor.ownership.acquisition import acquire_ownership
from rebaser_server.runtime.concurrency import background
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


async def test_an_owner_that_is_not_heard_loses_its_tasks_after_a_while(
    deployment: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    """F3: also one whose name does not say that it can be asked."""
    monkeypatch.setattr(takeover, "PRESUMED_DEAD", 0.2)
    js, nc, subjects = deployment.js, deployment.nc, deployment.subjects
    change_set = await _held_by(deployment, "silent/1")
    async with PullConsumer(js, subjects.tasks_stream, TASKS_CONSUMER) as tasks:
        assert await tasks.take(1) is not None
        before, members = await _tasks(deployment), Membership(nc, subjects, "starting/2")

        async with (
            background(members.heartbeat()),
            background(Takeover(js, subjects, members).run()),
        ):

            async def is_replaced() -> bool:
                subject = subjects.task(change_set)
                return (await _tasks(deployment)).get(subject, 0) > before[subject]

            await eventually(is_replaced)


async def test_of_the_dead_alone_are_tasks_republished(deployment: Deployment) -> None:
    """F2: the control record says whose a task is; its successor is there at once."""
    dead, living = await _held_by(deployment, "dead"), await _held_by(deployment, "living")
    subjects, before = deployment.subjects, await _tasks(deployment)

    assert await _republished(deployment, up_to=1_000) == 1

    after = await _tasks(deployment)
    assert after[subjects.task(living)] == before[subjects.task(living)]
    assert after[subjects.task(dead)] > before[subjects.task(living)]


async def test_only_tasks_from_before_the_silence_are_republished(deployment: Deployment) -> None:
    """F1: a later one is a healthy successor's, which has not made its first commit yet."""
    await _held_by(deployment, "dead")
    before = await _tasks(deployment)
    [last] = before.values()

    assert await _republished(deployment, up_to=last - 1) == 0
    assert await _tasks(deployment) == before
    assert await _republished(deployment, up_to=last) == 1


async def test_a_task_that_is_taken_while_its_owner_is_checked_is_not_republished(
    deployment: Deployment,
) -> None:
    """By this process, which knows that it holds it, or by another one, which owns the log then."""
    here, elsewhere = await _held_by(deployment, "dead"), await _held_by(deployment, "dead")
    before, held = await _tasks(deployment), set[ChangeSet]()

    async def is_dead(owner: str) -> bool:
        assert owner == "dead"
        held.add(here)
        await acquire_ownership(deployment.archive(elsewhere), "living")
        return True

    members = Membership(deployment.nc, deployment.subjects, "a")
    takeover = Takeover(deployment.js, deployment.subjects, members)
    republished = await takeover.republish_tasks(1_000, is_dead, except_for=held.__contains__)

    assert republished == 0
    assert await _tasks(deployment) == before


async def _held_by(deployment: Deployment, owner: str) -> ChangeSet:
    """Return a change set that has a task, and this owner."""
    [change_set] = new_change_sets(1)
    await ensure_task(deployment.js, deployment.subjects, change_set)
    await acquire_ownership(deployment.archive(change_set), owner)
    return change_set


async def _republished(deployment: Deployment, up_to: int) -> int:
    """Return how many tasks of "dead" were published anew."""

    async def is_dead(owner: str) -> bool:
        return owner == "dead"

    members = Membership(deployment.nc, deployment.subjects, "survivor/1")
    return await Takeover(deployment.js, deployment.subjects, members).republish_tasks(
        up_to, is_dead
    )


async def _tasks(deployment: Deployment) -> dict[str, int]:
    """Sequence of each change set's task."""
    stream = deployment.subjects.tasks_stream
    found = {}
    for subject in await deployment.js.stream_subjects(stream):
        task = await deployment.js.get_message(stream, last_by_subject=subject)
        if task is not None:
            found[subject] = task.sequence
    return found

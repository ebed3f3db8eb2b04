"""The tasks of a Rebaser that died are made anew: at once if its connection is gone."""

import asyncio
import signal
from typing import Any, Never

import pytest

from rebaser_core.ids import ChangeSet
from rebaser_core.jetstream import JetStream, NatsUnreachable, PubAck, PullConsumer
from rebaser_core.requests import ensure_task
from rebaser_core.streams import Streams
from rebaser_core.subjects import TASKS_CONSUMER
from rebaser_server.cluster import membership, takeover
from rebaser_server.cluster.membership import Membership, present
from rebaser_server.cluster.takeover import Takeover
from rebaser_server.processor.ownership import acquire_ownership
from rebaser_server.runtime.tasks import background
from rebaser_server.service.composition import PULL_EXPIRES
from tests.helpers.batches import ExampleGraph
from tests.helpers.deployment import Deployment, new_change_sets
from tests.helpers.eventually import eventually


@pytest.fixture(autouse=True)
def _patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """A check that a busy machine answers late is not given up."""
    monkeypatch.setattr(membership, "CHECK_TIMEOUT", 2.0)


async def test_a_starting_rebaser_asks_the_owners_that_the_logs_name(
    deployment: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It replaces the tasks of the absent one at once, and none of the one that answers (F6)."""
    monkeypatch.setattr(takeover, "PRESUMED_DEAD", 1e6)
    js, streams = deployment.js, deployment.streams
    orphaned, owned, unowned = new_change_sets(3)
    for change_set in (orphaned, owned, unowned):
        await deployment.client.enqueue_updates(*change_set, ExampleGraph().define(1, 2))
    async with (
        PullConsumer(js, streams.tasks_stream, TASKS_CONSUMER) as tasks,
        present(streams, "living/1") as living,
    ):
        for _ in range(3):
            assert await tasks.take(1) is not None
        await acquire_ownership(deployment.archive(orphaned), "dead/2-p")
        await acquire_ownership(deployment.archive(owned), living)
        before = await _tasks(deployment)

        starting = Takeover(streams, Membership(streams, "starting/3"))
        running = asyncio.create_task(starting.run())

        async def replaced() -> set[str]:
            after = await _tasks(deployment)
            return {subject for subject in before if after.get(subject, 0) > before[subject]}

        async def is_replaced() -> bool:
            return bool(await replaced())

        await eventually(is_replaced)
        assert await replaced() == {streams.task(orphaned)}
        running.cancel()
        await asyncio.wait([running])


async def test_an_owner_that_is_not_heard_loses_its_tasks_after_a_while(
    deployment: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    """F3: also one whose name does not say that it can be asked."""
    monkeypatch.setattr(takeover, "PRESUMED_DEAD", 0.2)
    js, streams = deployment.js, deployment.streams
    change_set = await _held_by(deployment, "silent/1")
    async with PullConsumer(js, streams.tasks_stream, TASKS_CONSUMER) as tasks:
        assert await tasks.take(1) is not None
        before, members = await _tasks(deployment), Membership(streams, "starting/2")

        async with (
            background(members.heartbeat()),
            background(Takeover(streams, members).run()),
        ):
            await eventually(lambda: _is_replaced(deployment, change_set, before))


async def test_only_what_was_delivered_before_a_start_is_looked_at_and_once(
    deployment: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    """F3: what is delivered later is in the hands of one that lives, and may have no owner yet."""
    monkeypatch.setattr(takeover, "PRESUMED_DEAD", 0.2)
    js, streams = deployment.js, deployment.streams
    absent, silent = await _held_by(deployment, "dead/2-p"), await _held_by(deployment, "silent/1")
    async with PullConsumer(js, streams.tasks_stream, TASKS_CONSUMER) as tasks:
        await _taken(tasks, 2)
        first, members = await _tasks(deployment), Membership(streams, "starting/3")
        looking = asyncio.create_task(Takeover(streams, members)._reclaim_orphans())
        await eventually(lambda: _is_replaced(deployment, absent, first))  # it has begun
        await _held_by(deployment, "silent/1")
        await _taken(tasks, 2)
        before = await _tasks(deployment)

        async with background(members.heartbeat()):
            await eventually(looking.done)

        after = await _tasks(deployment)
    assert {each for each in before if after[each] != before[each]} == {streams.task(silent)}


async def test_a_presumption_is_acted_on_once_each_time_that_it_arises(
    deployment: Deployment,
) -> None:
    """F1: else a successor that has not committed yet would lose its task, time after time."""
    js, streams = deployment.js, deployment.streams
    survivor = Membership(streams, "survivor/1-p")
    surviving = Takeover(streams, survivor)
    change_set = await _held_by(deployment, "dead/2-p")

    async with (
        PullConsumer(js, streams.tasks_stream, TASKS_CONSUMER) as tasks,
        background(survivor.heartbeat()),
        background(survivor.check_presence()),
    ):
        await _taken(tasks, 1)
        for _ in range(2):  # it came back meanwhile, and fell silent again
            async with background(_heard(deployment, "dead/2-p")):
                await eventually(lambda: survivor.is_alive("dead/2-p"))
                await surviving._check()
                before = await _tasks(deployment)
            await eventually(lambda: "dead/2-p" in survivor.suspected())
            await surviving._check()
            assert await _is_replaced(deployment, change_set, before)

            await _taken(tasks, 1)
            successors = await _tasks(deployment)
            await surviving._check()
            assert await _tasks(deployment) == successors


async def test_tasks_of_an_absent_rebaser_are_replaced_at_once(
    deployment: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    """F6: not when it is looked next whether a member is silent for long."""
    monkeypatch.setattr(takeover, "PRESUMED_DEAD", 1e6)  # nothing is left from before its start
    monkeypatch.setattr(takeover, "CHECK_EVERY", 1e6)
    js, streams = deployment.js, deployment.streams
    survivor = Membership(streams, "survivor/1-p")
    async with (
        PullConsumer(js, streams.tasks_stream, TASKS_CONSUMER) as tasks,
        background(survivor.heartbeat()),
        background(survivor.check_presence()),
        background(Takeover(streams, survivor).run()),
    ):
        change_set = await _held_by(deployment, "dead/2-p")
        assert await tasks.take(1) is not None
        before = await _tasks(deployment)
        await eventually(survivor.hears_itself)

        await deployment.nc.publish(streams.join("rebaser.members.dead/2-p"), b"0")

        await eventually(lambda: _is_replaced(deployment, change_set, before))


async def test_tasks_that_a_dead_rebaser_had_not_begun_with_are_republished_by_the_eldest(
    deployment: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    """F7: the log does not name it yet, so it might be any delivered task without an owner."""
    monkeypatch.setattr(takeover, "PRESUMED_DEAD", 1e6)  # nothing is left from before its start
    monkeypatch.setattr(membership, "PRESUMED_DEAD", 2.0)
    js, streams = deployment.js, deployment.streams
    unclaimed, of_earlier_dead, undelivered = new_change_sets(3)
    eldest = Membership(streams, "eldest/1")
    younger = Membership(streams, "younger/2")
    held = set[ChangeSet]()
    async with (
        background(eldest.heartbeat()),
        background(younger.heartbeat()),
        PullConsumer(js, streams.tasks_stream, TASKS_CONSUMER) as tasks,
    ):
        await eventually(lambda: eldest.alive() == younger.alive() == 2)
        acting = (
            Takeover(streams, younger),
            Takeover(streams, eldest, held.__contains__),
        )
        async with background(acting[0].run()), background(acting[1].run()):
            async with background(_heard(deployment, "dead/3")):
                mine = await _held_by(deployment, "")
                held.add(mine)
                await _held_by(deployment, younger.instance)
                await ensure_task(streams, unclaimed)
                await ensure_task(streams, of_earlier_dead)
                await acquire_ownership(deployment.archive(of_earlier_dead), "earlier/0")
                await _taken(tasks, 4)
                await tasks.close()
                await ensure_task(streams, undelivered)
                before = await _tasks(deployment)

            async def replaced() -> set[str]:
                after = await _tasks(deployment)
                return {subject for subject in before if after.get(subject, 0) > before[subject]}

            await eventually(lambda: all("dead/3" in each._done for each in acting))
            assert await replaced() == {streams.task(unclaimed), streams.task(of_earlier_dead)}


async def test_at_a_start_the_eldest_alone_takes_tasks_without_an_owner_and_none_of_its_own(
    deployment: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    """F5: to the others they may have been given, and the log does not name them yet."""
    monkeypatch.setattr(takeover, "PRESUMED_DEAD", 0.2)
    js, streams = deployment.js, deployment.streams
    eldest, younger = (Membership(streams, each) for each in ("eldest/1", "younger/2"))
    mine, given_back = await _held_by(deployment, ""), await _held_by(deployment, "")
    async with (
        PullConsumer(js, streams.tasks_stream, TASKS_CONSUMER) as tasks,
        background(eldest.heartbeat()),
        background(younger.heartbeat()),
    ):
        await _taken(tasks, 2)
        await eventually(lambda: eldest.alive() == younger.alive() == 2)
        before = await _tasks(deployment)

        await Takeover(streams, younger)._reclaim_orphans()
        assert await _tasks(deployment) == before
        await Takeover(streams, eldest, mine.__eq__)._reclaim_orphans()

        after = await _tasks(deployment)
    assert {each for each in before if after[each] != before[each]} == {streams.task(given_back)}


async def test_what_comes_while_a_rebaser_is_frozen_waits_for_no_lease(
    deployment: Deployment,
) -> None:
    """The server delivers to its pull until that expires; the log never names it as the owner."""
    js, streams = deployment.js, deployment.streams
    await js.delete_consumer(streams.tasks_stream, TASKS_CONSUMER)  # made anew with a long lease
    lease = {"ACK_WAIT": "600"}
    await deployment.start("living", **lease)
    frozen = await deployment.start("frozen", **lease)

    async def both_pull() -> bool:
        info = await js.consumer_info(streams.tasks_stream, TASKS_CONSUMER)
        return info.num_waiting == 2

    await eventually(both_pull)
    frozen.send(signal.SIGSTOP)
    for change_set in new_change_sets(8):
        await deployment.client.enqueue_updates(*change_set, ExampleGraph().define(1, 2))

    await deployment.at_rest()


def test_pulls_end_before_a_frozen_rebaser_is_presumed_dead() -> None:
    """F7: so nothing that is made anew is delivered to it."""
    shortest_freeze = membership.PRESUMED_DEAD - membership.HEARTBEAT_EVERY
    assert shortest_freeze > PULL_EXPIRES


async def test_of_the_dead_alone_are_tasks_republished(deployment: Deployment) -> None:
    """F2: the control record says whose a task is; its successor is there at once."""
    dead, living = await _held_by(deployment, "dead"), await _held_by(deployment, "living")
    streams, before = deployment.streams, await _tasks(deployment)

    assert await _republished(deployment, up_to=1_000) == 1

    after = await _tasks(deployment)
    assert after[streams.task(living)] == before[streams.task(living)]
    assert after[streams.task(dead)] > before[streams.task(living)]


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

    members = Membership(deployment.streams, "a")
    takeover = Takeover(deployment.streams, members)
    republished = await takeover.republish_tasks(1_000, is_dead, except_for=held.__contains__)

    assert republished == 0
    assert await _tasks(deployment) == before


class LatePublishes(JetStream):
    """Publishes only once it has waited a while."""

    async def publish(self, *args: Any, **options: Any) -> PubAck:
        await asyncio.sleep(0.1)  # time in which the other's error would end this
        return await super().publish(*args, **options)


async def test_a_deleted_task_is_followed_by_the_next_though_another_one_cannot_be_republished(
    deployment: Deployment,
) -> None:
    """Else the change set would stand until the reconciler comes."""
    task = deployment.streams.task(await _held_by(deployment, "dead"))
    await _held_by(deployment, "another")

    async def is_deleted() -> bool:
        return task not in await _tasks(deployment)

    async def is_dead(owner: str) -> bool:
        if owner == "dead":
            return True
        await eventually(is_deleted)
        raise NatsUnreachable("no answer")

    members = Membership(deployment.streams, "a")
    late = Streams(js=LatePublishes(deployment.nc))
    with pytest.raises(NatsUnreachable):
        await Takeover(late, members).republish_tasks(1_000, is_dead)

    assert task in await _tasks(deployment)


async def _heard(deployment: Deployment, member: str) -> Never:
    """Send heartbeats of a member until cancelled."""
    subject = deployment.streams.join(f"rebaser.members.{member}")
    while True:
        await deployment.nc.publish(subject, b"0")
        await asyncio.sleep(0.05)


async def _held_by(deployment: Deployment, owner: str) -> ChangeSet:
    """Return a change set that has a task, and this owner."""
    [change_set] = new_change_sets(1)
    await ensure_task(deployment.streams, change_set)
    await acquire_ownership(deployment.archive(change_set), owner)
    return change_set


async def _taken(tasks: PullConsumer, count: int) -> None:
    for _ in range(count):
        assert await tasks.take(1) is not None


async def _is_replaced(
    deployment: Deployment, change_set: ChangeSet, before: dict[str, int]
) -> bool:
    task = deployment.streams.task(change_set)
    return (await _tasks(deployment)).get(task, 0) > before[task]


async def _republished(deployment: Deployment, up_to: int) -> int:
    """Return how many tasks of "dead" were published anew."""

    async def is_dead(owner: str) -> bool:
        return owner == "dead"

    members = Membership(deployment.streams, "survivor/1")
    return await Takeover(deployment.streams, members).republish_tasks(up_to, is_dead)


async def _tasks(deployment: Deployment) -> dict[str, int]:
    """Sequence of each change set's task."""
    stream = deployment.streams.tasks_stream
    found = {}
    for subject in await deployment.js.stream_subjects(stream):
        task = await deployment.js.get_message(stream, last_by_subject=subject)
        if task is not None:
            found[subject] = task.sequence
    return found

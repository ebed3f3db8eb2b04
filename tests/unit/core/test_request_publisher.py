"""Who shares the publish of a task."""

import asyncio

import pytest

from rebaser_core.ids import ChangeSet, ChangeSetId, WorkspaceId
from rebaser_core.requests import TaskPublisher


class Publishes:
    """Publishes of tasks that are under way until they are answered."""

    def __init__(self):
        self.begun = []

    async def __call__(self, change_set):
        answer = asyncio.get_running_loop().create_future()
        self.begun.append(answer)
        return await answer


@pytest.fixture
def publishes():
    return Publishes()


@pytest.fixture
async def ask(publishes):
    """Have somebody ask for a task, as far as they get by themselves."""
    tasks, everyone = TaskPublisher(publishes), []
    one = ChangeSet(WorkspaceId(), ChangeSetId())

    async def ask(change_set=one):
        everyone.append(asyncio.create_task(tasks.ensure(change_set)))
        await settled()
        return everyone[-1]

    yield ask
    for task in everyone:
        task.cancel()
    await asyncio.wait(everyone)


async def settled():
    for _ in range(5):  # turns of the loop, more than anything takes that waits for nothing else
        await asyncio.sleep(0)


async def test_a_caller_during_a_publish_shares_the_next_one(ask, publishes):
    """That one may have been refused before their request was stored (C2)."""
    first, second, third = await ask(), await ask(), await ask()
    publishes.begun[0].set_result(True)
    await settled()

    assert first.result() is True
    assert not second.done()
    assert not third.done()

    publishes.begun[1].set_result(True)
    await settled()

    assert second.result() is third.result() is True
    assert len(publishes.begun) == 2


async def test_a_failure_is_raised_to_all_that_share_the_publish(ask, publishes):
    await ask()
    second, third = await ask(), await ask()
    publishes.begun[0].set_result(True)
    await settled()
    publishes.begun[1].set_result(False)
    await settled()

    assert second.result() is third.result() is False


async def test_a_cancelled_caller_fails_no_other(ask, publishes):
    first, second = await ask(), await ask()
    first.cancel()
    await settled()
    publishes.begun[1].set_result(True)
    await settled()

    assert second.result() is True


async def test_a_cancelled_publisher_hands_the_shared_publish_on(ask, publishes):
    await ask()
    second, third = await ask(), await ask()
    publishes.begun[0].set_result(True)
    await settled()
    second.cancel()
    await settled()
    publishes.begun[2].set_result(True)
    await settled()

    assert third.result() is True


async def test_change_sets_do_not_wait_for_each_other(ask, publishes):
    await ask()
    await ask(ChangeSet(WorkspaceId(), ChangeSetId()))

    assert len(publishes.begun) == 2


async def test_a_later_caller_publishes_anew(ask, publishes):
    await ask()
    publishes.begun[0].set_result(True)
    await settled()
    later = await ask()

    assert not later.done()
    assert len(publishes.begun) == 2

"""Who gets a slot, and what is asked of those who have one."""

import asyncio
from contextlib import suppress

import pytest

from rebaser_core.ids import ChangeSet, ChangeSetId, WorkspaceId
from rebaser_server.cluster.slots import Fairness, SlotPool
from rebaser_server.errors import Preempted
from rebaser_server.runtime.tasks import background
from tests.helpers.eventually import eventually

BUSY, OTHER, NEWCOMER = WorkspaceId(), WorkspaceId(), WorkspaceId()


def slots(count, **fairness):
    return SlotPool(None, count, Fairness(**fairness))


def one_of(workspace):
    return ChangeSet(workspace, ChangeSetId())


def taken(slots, workspace, wanted=1_000):
    """How many of the slots that it wants a workspace gets."""
    return sum(slots.acquire(one_of(workspace)) is not None for _ in range(wanted))


@pytest.mark.parametrize(("count", "most"), [(1, 1), (2, 1), (5, 4), (10, 8), (100, 80)])
async def test_one_busy_workspace_leaves_slots_free(count, most):
    assert taken(slots(count), BUSY) == most


async def test_two_busy_workspaces_get_as_many_each_and_a_newcomer_still_finds_one():
    process = slots(100)
    first = taken(process, BUSY, 40), taken(process, OTHER), taken(process, BUSY)

    assert abs(first[0] + first[2] - first[1]) <= 8
    assert process.free > 0
    assert taken(process, NEWCOMER, 1) == 1


async def test_a_workspace_may_always_have_one_slot_if_any_is_free():
    process = slots(3, weights={OTHER: 0.001})
    taken(process, BUSY)

    assert taken(process, OTHER) == 1
    assert process.free == 0
    assert taken(process, NEWCOMER) == 0


async def test_weights_multiply_a_share():
    light, heavy = slots(100, weights={BUSY: 0.25}), slots(100, weights={BUSY: 4.0})

    assert taken(light, BUSY) == 50  # 1 to 1
    assert taken(heavy, BUSY) == 94  # 16 to 1


async def test_a_slot_given_back_can_be_taken_again():
    process = slots(2)
    turn = process.acquire(one_of(BUSY))

    process.release(turn)
    process.release(turn)

    assert process.free == 2
    assert taken(process, BUSY) == 1


async def test_the_slots_that_a_workspace_leaves_to_others_are_not_spare_while_its_tasks_wait():
    """X2b: else its checkpoints would take its turns, a fifth of all slots' worth at a time."""
    process, [first, second] = slots(10), [one_of(BUSY) for _ in range(2)]
    assert process.spare == 10
    turns = [process.acquire(one_of(BUSY)) for _ in range(8)]
    assert process.spare == process.free == 2

    process.deferrals.defer(first, delivered=2)
    waits = asyncio.create_task(process.acquire_vacated(second))
    await asyncio.sleep(0)
    assert process.spare == 0

    process.release(turns.pop())
    assert await waits
    assert process.spare == 0
    process.release(turns.pop())
    assert process.acquire(first)
    assert process.spare == process.free == 2


async def test_in_a_workspace_the_idle_give_way_and_then_those_whose_turn_is_over(monkeypatch):
    monkeypatch.setattr("rebaser_server.cluster.slots.MAX_HOLD", 0.0)
    process = slots(10)
    idle, working = process.acquire(one_of(BUSY)), process.acquire(one_of(BUSY))
    elsewhere = process.acquire(one_of(OTHER))
    process.deferrals.defer(one_of(BUSY), delivered=2)
    process.deferrals.defer(one_of(BUSY), delivered=2)

    async with background(process.preempt()):
        with pytest.raises(Preempted):
            async with idle.wait_for_work(lambda: False):
                await asyncio.Event().wait()

    assert working.expired
    assert not idle.expired
    assert not elsewhere.expired


async def test_however_often_it_looks_it_asks_one_to_go_for_each_task_that_was_put_off():
    looks = []
    process = SlotPool(None, 10, Fairness(), in_handover=lambda: not looks.append(1))
    idle = [process.acquire(one_of(BUSY)) for _ in range(8)]
    waits = [asyncio.create_task(idle_until_asked(turn)) for turn in idle]
    refused = [one_of(BUSY) for _ in range(3)]
    for change_set in refused * 2:  # they came again before anybody had gone
        process.deferrals.defer(change_set, delivered=2)

    async with background(process.preempt()):
        await eventually(lambda: any(turn.is_set for turn in idle))
        seen = len(looks)
        await eventually(lambda: len(looks) >= seen + 3)

    assert sum(turn.is_set for turn in idle) == 3
    for wait in waits:
        wait.cancel()
    await asyncio.wait(waits)


async def idle_until_asked(turn):
    with suppress(Preempted):
        async with turn.wait_for_work(lambda: False):
            await asyncio.Event().wait()


async def test_a_task_of_a_workspace_with_its_share_gets_the_slot_of_its_idle_change_set():
    process = slots(5)
    idle = [process.acquire(one_of(BUSY)) for _ in range(4)]
    assert process.acquire(one_of(BUSY)) is None

    async def be_idle(slot):
        await idle_until_asked(slot)
        process.release(slot)

    stays = [asyncio.create_task(be_idle(slot)) for slot in idle]
    taken_slot = await process.acquire_vacated(one_of(BUSY))

    assert taken_slot is not None
    assert taken_slot not in idle
    assert sum(stay.done() for stay in stays) == 1
    assert process.in_hand == process.busy == 4
    for stay in stays:
        stay.cancel()
    await asyncio.wait(stays)


async def test_no_more_tasks_wait_for_slots_than_may_become_free():
    process = slots(2)
    process.acquire(one_of(BUSY))
    assert process.acquire(one_of(BUSY)) is None

    waits = [asyncio.create_task(process.acquire_vacated(one_of(BUSY))) for _ in range(3)]
    done, _ = await asyncio.wait(waits)

    assert [task.result() for task in done] == [None, None, None]
    assert process.in_hand == 1


async def test_a_slot_that_is_given_to_a_task_that_is_gone_is_free_again():
    process = slots(2)
    busy = process.acquire(one_of(BUSY))
    waiting = asyncio.create_task(process.acquire_vacated(one_of(BUSY)))
    await asyncio.sleep(0)

    process.release(busy)
    waiting.cancel()
    await asyncio.wait([waiting])

    assert waiting.cancelled()
    assert process.in_hand == 0

"""A deadline is a TimeoutError, whatever happened in its task before, on each Python."""

import asyncio
from contextlib import suppress

import pytest

from rebaser_core.jetstream import deadlines


async def forever():
    await asyncio.Event().wait()


async def fail_in_a_group():
    """A group whose task fails while the group is waited for: so Spark's runs fail."""

    async def fails():
        await asyncio.sleep(0)
        raise ValueError("one of the tasks")

    with suppress(ExceptionGroup):
        async with asyncio.TaskGroup() as group:
            group.create_task(fails())


@pytest.mark.parametrize("failed", range(3))
async def test_a_deadline_passes_in_a_task_whose_groups_failed_before(failed):
    for _ in range(failed):
        await fail_in_a_group()

    with pytest.raises(TimeoutError):
        async with deadlines.within(0.001):
            await forever()


async def test_a_deadline_passes_in_the_cleanup_of_a_cancelled_task():
    cleaned = []

    async def cleans_up():
        try:
            await forever()
        finally:
            with suppress(TimeoutError):
                async with deadlines.within(0.001):
                    await forever()
            cleaned.append(True)

    task = asyncio.create_task(cleans_up())
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait([task])

    assert task.cancelled()
    assert cleaned


async def test_a_body_in_time_is_left_alone():
    async with deadlines.within(60):
        await asyncio.sleep(0)
    async with deadlines.within(None):
        await asyncio.sleep(0)

    task = asyncio.current_task()
    assert task is not None
    assert not task.cancelling()


@pytest.mark.parametrize("seconds", [0, -1])
async def test_a_passed_deadline_ends_the_body_at_its_next_wait(seconds):
    with pytest.raises(TimeoutError):
        async with deadlines.within(seconds):
            await forever()


async def test_a_deadline_can_be_moved():
    loop = asyncio.get_running_loop()
    async with deadlines.until(loop.time() + 0.001) as deadline:
        deadline.reschedule(loop.time() + 60)
        await asyncio.sleep(0.01)  # longer than the first deadline

    async def brought_forward():
        async with deadlines.until(None) as deadline:
            deadline.reschedule(loop.time() + 0.001)
            await forever()

    with pytest.raises(TimeoutError):
        await brought_forward()


async def test_of_two_deadlines_the_one_that_passed_is_named():
    async def the_outer_one_first():
        async with deadlines.within(0.001):
            with suppress(TimeoutError):  # the outer one's is none of the inner one's
                async with deadlines.within(60):
                    await forever()

    with pytest.raises(TimeoutError):
        await the_outer_one_first()
    async with deadlines.within(60):
        with pytest.raises(TimeoutError):
            async with deadlines.within(0.001):
                await forever()


async def test_a_cancellation_at_the_deadline_is_a_cancellation():
    async def both():
        async with deadlines.until(asyncio.get_running_loop().time()):
            asyncio.get_running_loop().call_soon(task.cancel)
            await forever()

    task = asyncio.create_task(both())

    with pytest.raises(asyncio.CancelledError):
        await task


async def test_another_error_of_a_body_that_is_late_is_its_own():
    async def fails_late():
        async with deadlines.within(0):
            try:
                await forever()
            finally:
                raise LookupError

    with pytest.raises(LookupError):
        await fails_late()


async def test_outside_of_a_task_there_is_none():
    coroutine = deadlines.Deadline(None).__aenter__()
    raised = []

    def step():
        try:
            coroutine.send(None)
        except RuntimeError as error:
            raised.append(str(error))

    asyncio.get_running_loop().call_soon(step)
    await asyncio.sleep(0)

    assert raised == ["only a task can have a deadline"]

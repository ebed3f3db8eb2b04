"""A deadline passes without progress, and only then."""

import asyncio

import pytest

from rebaser_server.compute.errors import Stalled
from rebaser_server.compute.executors import ProgressDeadline


async def test_a_deadline_passes_without_progress() -> None:
    with pytest.raises(Stalled, match=r"no value was computed for 0\.05 s"):
        async with ProgressDeadline(0.05).limiting():
            await asyncio.Event().wait()


async def test_progress_restarts_a_deadline() -> None:
    deadline = ProgressDeadline(1)

    async with deadline.limiting():
        for done in range(1, 15):
            await asyncio.sleep(0.1)
            deadline.record(done, 100)


async def test_a_repeated_report_is_no_progress() -> None:
    deadline = ProgressDeadline(0.2)

    async def tell() -> None:
        async with deadline.limiting():
            while True:
                await asyncio.sleep(0.05)
                deadline.record(0, 100)

    with pytest.raises(Stalled):
        await tell()


async def test_a_cancellation_stays_one() -> None:
    async def work() -> None:
        async with ProgressDeadline(60).limiting():
            await asyncio.Event().wait()

    task = asyncio.create_task(work())
    await asyncio.sleep(0)
    task.cancel()

    with pytest.raises(asyncio.CancelledError):
        await task


async def test_a_deadline_passes_in_a_task_whose_group_failed_before() -> None:
    """Python 3.11.0 to 3.11.2 leave such a task with a cancellation that was never meant."""

    async def fail() -> None:
        raise ValueError

    async def wait_beside() -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(fail())
            await asyncio.sleep(10)

    with pytest.raises(ExceptionGroup):
        await wait_beside()
    with pytest.raises(Stalled):
        async with ProgressDeadline(0.01).limiting():
            await asyncio.Event().wait()

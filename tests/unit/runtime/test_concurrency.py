"""What is interrupted, and what leaves when several things end at once."""

import asyncio

import pytest

from rebaser_server.errors import Interrupted
from rebaser_server.runtime.concurrency import Shutdown, for_each_concurrently


async def test_a_wait_is_over_at_once_when_a_stop_was_asked_for_before():
    shutdown = Shutdown()
    shutdown.set()

    with pytest.raises(Interrupted):
        async with shutdown.interrupts():
            raise AssertionError("the body is not entered")


async def waiting(shutdown):
    async with shutdown.interrupts():
        await asyncio.Event().wait()


async def test_only_waiting_tasks_are_interrupted():
    shutdown = Shutdown()
    waits, ends = asyncio.create_task(waiting(shutdown)), asyncio.create_task(waiting(shutdown))
    await asyncio.sleep(0)
    ends.cancel()
    await asyncio.wait([ends])

    shutdown.set()
    shutdown.set()

    with pytest.raises(Interrupted):
        await waits
    assert ends.cancelled()
    assert not waits.cancelling()


async def test_a_cancellation_wins_over_an_interrupt():
    for first, second in (("ask", "cancel"), ("cancel", "ask")):
        shutdown = Shutdown()
        task = asyncio.create_task(waiting(shutdown))
        await asyncio.sleep(0)

        for each_one in (first, second):
            (shutdown.set if each_one == "ask" else task.cancel)()

        with pytest.raises(asyncio.CancelledError):
            await task


async def test_each_is_done_so_many_at_a_time():
    at_work, most, done = 0, 0, []

    async def do(item):
        nonlocal at_work, most
        at_work += 1
        most = max(most, at_work)
        await asyncio.sleep(0)
        at_work -= 1
        done.append(item)

    await for_each_concurrently(range(10), do, 3)

    assert (sorted(done), most) == (list(range(10)), 3)


async def test_the_first_error_ends_the_others_and_is_raised_as_it_is():
    begun = []

    async def do(item):
        begun.append(item)
        if item == 1:
            raise LookupError(item)
        await asyncio.Event().wait()

    with pytest.raises(LookupError):
        await for_each_concurrently(range(10), do, 3)

    assert begun == [0, 1, 2]

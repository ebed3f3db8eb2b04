"""What leaves when several things end at once."""

import asyncio
import gc
from contextlib import suppress

import pytest

from rebaser_server.errors import BackgroundEnded, Fenced, Interrupted, LeaseLost, RetryLater
from rebaser_server.runtime.concurrency import Shutdown, background, for_each_concurrently

FORBIDDING = [LeaseLost("lease"), Fenced("overtaken")]
OTHERS = [RetryLater("later", 1.0), Interrupted("stop"), ValueError("unforeseen")]


async def raising(error):
    """Raises it when it is cancelled, which is when the body has ended."""
    try:
        await asyncio.Event().wait()
    finally:
        raise error


@pytest.mark.parametrize("other", OTHERS, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("forbidding", FORBIDDING, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("in_body", [True, False], ids=["in the body", "beside it"])
async def test_no_error_hides_that_nothing_may_be_settled(forbidding, other, in_body):
    """W15: a run that lost its task would else nak it under whoever works on it now."""
    body, beside = (forbidding, other) if in_body else (other, forbidding)

    async def both():
        async with background(raising(beside)):
            await asyncio.sleep(0)
            raise body

    with pytest.raises(type(forbidding)) as raised:
        await both()

    assert raised.value is forbidding


async def test_an_error_beside_the_body_ends_it_and_leaves_bare():
    async def fails():
        raise ValueError("beside")

    with pytest.raises(ValueError, match="beside"):
        async with background(fails()):
            await asyncio.Event().wait()


async def test_work_that_returns_before_the_body_ends_it():
    async def returns():
        await asyncio.sleep(0)

    with pytest.raises(BackgroundEnded, match="returns"):
        async with background(returns()):
            await asyncio.Event().wait()


async def test_work_that_is_cancelled_before_the_body_ends_it():
    """By itself, or by something that it awaits."""

    async def gives_up():
        asyncio.current_task().cancel()
        await asyncio.sleep(0)

    with pytest.raises(BackgroundEnded, match="gives_up"):
        async with background(gives_up()):
            await asyncio.Event().wait()


@pytest.mark.parametrize("steps", range(3))
async def test_work_ends_with_the_body_in_silence(steps):
    async def swallows():
        with suppress(asyncio.CancelledError):
            await asyncio.Event().wait()

    for work in (asyncio.Event().wait, swallows):
        async with background(work()):
            for _ in range(steps):
                await asyncio.sleep(0)
    gc.collect()  # what was never awaited would warn


async def test_work_ends_with_a_body_that_is_cancelled():
    ended = asyncio.Event()

    async def works():
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    async def body():
        async with background(works()):
            await asyncio.Event().wait()

    task = asyncio.create_task(body())
    await asyncio.sleep(0.01)
    task.cancel()
    await asyncio.wait([task])

    assert task.cancelled()
    assert ended.is_set()


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

"""What leaves when several things end at once."""

import asyncio

import pytest

from rebaser_server.errors import Interrupted, LeaseLost, Overtaken, RetryLater
from rebaser_server.lifetimes import Shutdown, alongside, each

FORBIDDING = [LeaseLost("lease"), Overtaken("overtaken")]
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
        async with alongside(raising(beside)):
            await asyncio.sleep(0)
            raise body

    with pytest.raises(type(forbidding)) as raised:
        await both()

    assert raised.value is forbidding


async def test_an_error_beside_the_body_ends_it_and_leaves_bare():
    async def fails():
        raise ValueError("beside")

    with pytest.raises(ValueError, match="beside"):
        async with alongside(fails()):
            await asyncio.Event().wait()


async def test_a_wait_is_over_at_once_when_a_stop_was_asked_for_before():
    shutdown = Shutdown()
    shutdown.ask()

    with pytest.raises(Interrupted):
        async with shutdown.interrupts():
            raise AssertionError("the body is not entered")


async def waiting(shutdown):
    async with shutdown.interrupts():
        await asyncio.Event().wait()


async def test_whoever_waits_is_interrupted_and_nobody_else_is():
    shutdown = Shutdown()
    waits, ends = asyncio.create_task(waiting(shutdown)), asyncio.create_task(waiting(shutdown))
    await asyncio.sleep(0)
    ends.cancel()
    await asyncio.wait([ends])

    shutdown.ask()
    shutdown.ask()

    with pytest.raises(Interrupted):
        await waits
    assert ends.cancelled()
    assert not waits.cancelling()


async def test_who_is_cancelled_and_interrupted_at_once_is_cancelled():
    for first, second in (("ask", "cancel"), ("cancel", "ask")):
        shutdown = Shutdown()
        task = asyncio.create_task(waiting(shutdown))
        await asyncio.sleep(0)

        for each_one in (first, second):
            (shutdown.ask if each_one == "ask" else task.cancel)()

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

    await each(range(10), do, 3)

    assert (sorted(done), most) == (list(range(10)), 3)


async def test_the_first_error_ends_the_others_and_is_raised_as_it_is():
    begun = []

    async def do(item):
        begun.append(item)
        if item == 1:
            raise LookupError(item)
        await asyncio.Event().wait()

    with pytest.raises(LookupError):
        await each(range(10), do, 3)

    assert begun == [0, 1, 2]

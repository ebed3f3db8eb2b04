"""What leaves when several things end at once."""

import asyncio

import pytest

from rebaser_server.errors import Interrupted, LeaseLost, Overtaken, RetryLater
from rebaser_server.lifetimes import Shutdown, alongside

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

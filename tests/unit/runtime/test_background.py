"""What leaves when several things end at once, and when a task beside a body begins."""

import asyncio
import gc
from contextlib import suppress
from contextvars import ContextVar

import pytest

from rebaser_server.errors import BackgroundEnded, Fenced, Interrupted, LeaseLost, RetryLater
from rebaser_server.runtime.tasks import BackgroundTasks, Wakeup, background

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
    """W15: else a run that lost its task would nak the task of the next run."""
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
    begun, ended = asyncio.Event(), asyncio.Event()

    async def works():
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    async def body():
        async with background(works()):
            await asyncio.Event().wait()

    task = asyncio.create_task(body())
    await begun.wait()
    task.cancel()
    await asyncio.wait([task])

    assert task.cancelled()
    assert ended.is_set()


async def test_work_begins_when_it_is_woken_and_not_before():
    begun, wakeup, asked_before = [], Wakeup(), Wakeup()
    asked_before.set()

    async def works(name):
        begun.append(name)
        await asyncio.Event().wait()

    async with BackgroundTasks() as tasks:
        tasks.start_on(wakeup, lambda: works("woken"))
        tasks.start_on(asked_before, lambda: works("at once"))
        await asyncio.sleep(0)
        assert begun == ["at once"]
        wakeup.set()
        wakeup.set()
        await asyncio.sleep(0)

    assert begun == ["at once", "woken"]


async def test_work_that_is_woken_is_in_the_context_in_which_it_was_asked_for():
    """A request in hand may wake it, and what it does is no part of that request."""
    name, seen, wakeup = ContextVar("name", default="none"), [], Wakeup()

    async def works():
        seen.append(name.get())
        await asyncio.Event().wait()

    async with BackgroundTasks() as tasks:
        tasks.start_on(wakeup, works)
        name.set("a request's")
        wakeup.set()
        await asyncio.sleep(0)

    assert seen == ["none"]


async def test_work_that_begins_later_ends_the_body_if_it_fails():
    async def fails():
        raise ValueError("later")

    async def body():
        async with BackgroundTasks() as tasks:
            tasks.start_after(0.01, fails)
            await asyncio.Event().wait()

    with pytest.raises(ValueError, match="later"):
        await body()


async def test_nothing_begins_once_the_body_has_ended_or_a_task_has_failed():
    begun, wakeup = [], Wakeup()

    async def works():
        begun.append("too late")
        await asyncio.Event().wait()

    async def fails():
        raise ValueError("fails")

    async def body():
        async with BackgroundTasks() as tasks:
            tasks.start_on(wakeup, works)
            tasks.start(fails)
            try:
                await asyncio.Event().wait()
            finally:
                wakeup.set()

    async with BackgroundTasks() as tasks:
        tasks.start_after(0.01, works)
    with pytest.raises(ValueError, match="fails"):
        await body()
    await asyncio.sleep(0.02)  # longer than the delay after which it was to begin

    assert not begun


@pytest.mark.parametrize("fails", ["as it is cancelled", "a moment before"])
async def test_an_error_swallows_no_cancellation(fails):
    """Who handles the error does not go on for ever."""
    went_on, failing = [], asyncio.Event()

    async def fail():
        try:
            await failing.wait()
        finally:
            raise ValueError

    async def cancelled_slowly():
        try:
            await asyncio.Event().wait()
        finally:
            with suppress(asyncio.CancelledError):
                await asyncio.sleep(0.01)

    async def work():
        with suppress(ValueError):
            async with BackgroundTasks() as tasks:
                tasks.start(fail)
                tasks.start(cancelled_slowly)
                await asyncio.Event().wait()
        await asyncio.sleep(0)
        went_on.append(True)

    task = asyncio.create_task(work())
    await asyncio.sleep(0.01)
    if fails == "a moment before":
        failing.set()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
    task.cancel()

    with pytest.raises(asyncio.CancelledError):
        await task
    assert not went_on

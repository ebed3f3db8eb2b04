"""Seats go round among those who wait, and none is lost."""

import asyncio
import threading
from random import Random

import pytest

from rebaser_server.runtime.tasks import Turns, compute_in_turn


async def test_an_owner_of_one_waits_for_one_of_each_other() -> None:
    """And not for all that others asked for before."""
    turns, order = Turns(1), list[str]()

    async def use(owner: str) -> None:
        await turns.take(owner)
        order.append(owner)
        await asyncio.sleep(0)
        turns.give()

    async with asyncio.TaskGroup() as group:
        for owner in ("busy", "busy", "busy", "busier", "busier", "small"):
            group.create_task(use(owner))

    assert order == ["busy", "busy", "busier", "small", "busy", "busier"]


@pytest.mark.parametrize("seed", range(20))
async def test_cancellation_loses_no_seat(seed: int) -> None:
    """Whether it comes while an owner waits, or when the seat was just given."""
    random, turns, held, most = Random(seed), Turns(2), 0, 0

    async def use(owner: str) -> None:
        nonlocal held, most
        await turns.take(owner)
        held += 1
        most = max(most, held)
        try:
            await asyncio.sleep(0)
        finally:
            held -= 1
            turns.give()

    tasks = [asyncio.create_task(use(random.choice("abc"))) for _ in range(50)]
    while not all(task.done() for task in tasks):
        random.choice(tasks).cancel()
        await asyncio.sleep(0)

    assert most <= 2
    assert not turns.is_wanted
    assert [turns.take_free() for _ in range(3)] == [True, True, False]


async def test_an_owner_has_one_thread_at_a_time_and_others_do_not_wait() -> None:
    order, begun, free = list[str](), threading.Event(), threading.Event()

    def compute(what: str) -> None:
        order.append(what)
        if what == "long":
            begun.set()
            free.wait()

    async with asyncio.TaskGroup() as group:
        long = group.create_task(compute_in_turn("busy", compute, "long"))
        behind = group.create_task(compute_in_turn("busy", compute, "behind"))
        await asyncio.to_thread(begun.wait)
        await compute_in_turn("small", compute, "other")
        assert not behind.done()
        free.set()

    assert long.done()
    assert order == ["long", "other", "behind"]


async def test_a_cancelled_call_keeps_the_thread_until_its_function_returns() -> None:
    """And the owner's next call begins after that."""
    order, free, begun = list[str](), threading.Event(), threading.Event()

    def long() -> None:
        begun.set()
        free.wait()
        order.append("long")

    cancelled = asyncio.create_task(compute_in_turn("owner", long))
    waiting = asyncio.create_task(compute_in_turn("owner", order.append, "never"))
    await asyncio.to_thread(begun.wait)
    cancelled.cancel()
    waiting.cancel()
    following = asyncio.create_task(compute_in_turn("owner", order.append, "next"))
    await asyncio.wait([cancelled, waiting])
    free.set()
    await following

    assert cancelled.cancelled()
    assert order == ["long", "next"]

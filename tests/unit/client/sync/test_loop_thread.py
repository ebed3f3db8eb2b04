"""A loop in a thread of its own: what it runs for others ends with them."""

import asyncio
import signal
import subprocess
import sys
import threading
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from rebaser_client.errors import ClientClosed
from rebaser_client.sync import LoopThread


def test_an_iteration_that_is_left_early_is_closed() -> None:
    closed: list[int] = []

    async def numbers() -> AsyncIterator[int]:
        try:
            yield 1
            yield 2
        finally:
            closed.append(1)

    loop = LoopThread()
    items = loop.iterate(numbers())
    assert next(items) == 1
    items.close()

    assert closed == [1]
    loop.stop()


class _StoppedMeanwhile(LoopThread):
    """A thread that another caller stops while this one begins work."""

    def __init__(self) -> None:
        super().__init__()
        self.checked, self.stopped = threading.Event(), threading.Event()

    def check(self) -> None:
        super().check()
        self.checked.set()
        assert self.stopped.wait(60)


def test_work_that_begins_while_the_thread_is_stopped_is_refused() -> None:
    """Work is cancelled or refused, and never waits for a thread that has ended."""
    loop = _StoppedMeanwhile()
    with ThreadPoolExecutor() as threads:
        late = threads.submit(lambda: loop.run(asyncio.sleep(0)))
        assert loop.checked.wait(60)
        loop.stop()
        loop.stopped.set()

        with pytest.raises(ClientClosed):
            late.result(60)


def test_an_interrupt_ends_an_iteration_whose_cleaning_up_takes_a_while() -> None:
    closed = threading.Event()

    async def nothing_comes() -> AsyncIterator[int]:
        signal.setitimer(signal.ITIMER_REAL, 0.2)  # not before there is something to clean up
        try:
            await asyncio.sleep(60)
            yield 1
        finally:
            for _ in range(5):  # as a consumer that is deleted on the server
                await asyncio.sleep(0.01)
            closed.set()

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    loop = LoopThread()
    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        with pytest.raises(KeyboardInterrupt):
            list(loop.iterate(nothing_comes()))
    finally:
        signal.signal(signal.SIGALRM, before)

    assert closed.is_set()
    loop.stop()


def test_an_iteration_that_is_collected_in_the_thread_does_not_block_it() -> None:
    closed = threading.Event()

    async def numbers() -> AsyncIterator[int]:
        try:
            yield 1
            yield 2
        finally:
            closed.set()

    loop = LoopThread()
    left = [loop.iterate(numbers())]
    assert next(left[0]) == 1
    loop.call(left.clear)

    assert closed.wait(60)
    loop.stop()


def test_an_iteration_that_is_left_at_the_end_of_the_program_does_not_hold_it_up() -> None:
    """The thread has ended by then, and nothing waits for it."""
    subprocess.run([sys.executable, "-c", LEAVES_AN_ITERATION], check=True, timeout=120)


LEAVES_AN_ITERATION = """
from rebaser_client.sync import LoopThread

async def numbers():
    yield 1
    yield 2

items = LoopThread().iterate(numbers())
assert next(items) == 1
"""

"""What is interrupted, and what leaves when several things end at once."""

import asyncio
import gc
from contextlib import suppress
from threading import Event, Thread

import pytest

from rebaser_server.errors import Interrupted
from rebaser_server.runtime.failures import LibraryPanicked
from rebaser_server.runtime.tasks import (
    Permits,
    Shutdown,
    WorkThreads,
    finish,
    for_each_concurrently,
)
from tests.helpers.panicking_tables import PANIC, PanicException


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


async def test_what_is_to_be_finished_goes_on_for_a_while_after_a_cancellation():
    done = asyncio.Event()

    async def work():
        await asyncio.sleep(0.01)  # longer than until the cancellation
        done.set()

    finishing = asyncio.create_task(finish(work(), 10))
    await asyncio.sleep(0)
    finishing.cancel()

    with pytest.raises(asyncio.CancelledError):
        await finishing
    assert done.is_set()


@pytest.mark.parametrize("cancellations", [1, 2])
async def test_an_error_after_a_cancellation_is_reported_by_nothing(cancellations):
    complaints = []
    asyncio.get_running_loop().set_exception_handler(lambda _, said: complaints.append(said))

    async def work():
        try:
            await asyncio.Event().wait()
        finally:
            raise LookupError

    finishing = asyncio.create_task(finish(work(), 0 if cancellations == 1 else 10))
    for _ in range(cancellations):
        await asyncio.sleep(0)
        finishing.cancel()
    with suppress(asyncio.CancelledError):
        await finishing
    del finishing
    await asyncio.sleep(0)
    gc.collect()

    assert complaints == []


async def test_a_panic_of_a_library_in_a_thread_is_an_error_of_its_call():
    def panic():
        raise PanicException(PANIC)

    asyncio.get_running_loop().set_default_executor(WorkThreads())

    with pytest.raises(LibraryPanicked, match="worker thread"):
        await asyncio.to_thread(panic)


async def test_what_ends_the_process_leaves_a_thread_as_it_is():
    def leave():
        raise SystemExit(3)

    with WorkThreads() as threads, pytest.raises(SystemExit):
        threads.submit(leave).result()


class Clock:
    """Seconds that pass when a test says so."""

    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


async def test_of_work_that_takes_too_long_less_is_begun_at_once_and_always_some():
    clock = Clock()
    permits = Permits(64, 0.5, clock)
    for _ in range(4):
        held = [await permits.acquire() for _ in range(permits.limit)]
        clock.now += 5
        for permit in held:
            permits.release(permit)

    assert permits.limit == 1
    for _ in range(3_000):
        permits.release(await permits.acquire())
    assert permits.limit == 64


async def test_work_that_was_begun_together_and_too_slowly_counts_once():
    """However many lost their leases to one halt of the machine."""
    clock = Clock()
    permits = Permits(64, 0.5, clock)
    held = [await permits.acquire() for _ in range(40)]
    clock.now += 1
    for permit in held:
        permits.release(permit)

    assert permits.limit == 20


async def test_who_waits_for_a_permit_gets_it_in_turn_and_leaves_it_to_the_next_if_cancelled():
    permits = Permits(1)
    held = await permits.acquire()
    first, cancelled, last = [asyncio.create_task(permits.acquire()) for _ in range(3)]
    await asyncio.sleep(0)
    permits.release(held)
    permits.release(held)

    got = await first
    assert not cancelled.done()
    assert not last.done()
    permits.release(got)
    cancelled.cancel()
    with suppress(asyncio.CancelledError):
        await cancelled
    assert await last


async def test_there_is_room_for_as_much_work_again_as_goes_on():
    """What waits longer would hold what others could begin."""
    permits = Permits(2)
    held = [await permits.acquire() for _ in range(2)]
    assert permits.room == 2
    waiting = [asyncio.create_task(permits.acquire()) for _ in range(3)]
    await asyncio.sleep(0)
    assert permits.room == 0

    for permit in held:
        permits.release(permit)
    held = [await task for task in waiting[:2]]

    assert permits.room == 1
    waiting[2].cancel()
    await asyncio.wait(waiting)


async def test_work_that_is_stuck_keeps_others_from_nothing():
    permits = Permits(1, 0.001)
    stuck = await permits.acquire()

    other = await permits.acquire()

    assert other is not stuck
    permits.release(stuck)


def test_work_waits_for_the_threads_there_are_where_no_other_may_be_started(monkeypatch):
    """It counts as no failure of what was to be done: a request would be buried for it."""
    begun, end = Event(), Event()

    def occupy():
        begun.set()
        end.wait()

    with WorkThreads(4) as threads:
        first = threads.submit(occupy)
        begun.wait()
        monkeypatch.setattr(Thread, "start", refuse)

        try:
            second = threads.submit(lambda: 7)
        finally:
            end.set()

        assert (first.result(), second.result()) == (None, 7)


def test_without_any_thread_work_is_refused_as_by_the_system(monkeypatch):
    """Such an error of the system is waited for."""
    monkeypatch.setattr(Thread, "start", refuse)

    with WorkThreads() as threads, pytest.raises(BlockingIOError, match="limit of processes"):
        threads.submit(lambda: 7)


def refuse(_):
    raise RuntimeError("can't start new thread")

"""Parts of a job's progress sum up; a deadline passes without progress, and only then."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from rebaser_server.runtime.failures import Stalled
from rebaser_server.runtime.progress import JobProgress


def test_parts_of_parts_sum_up() -> None:
    whole = JobProgress(10)
    first, second = whole.part(6), whole.part(4)
    inner = first.part(5)

    inner.record(3)
    second.record(2)
    inner.record(5)

    assert (inner.done, first.done, second.done) == (5, 5, 2)
    assert (whole.done, whole.total, whole.records) == (7, 10, 3)


def test_done_never_exceeds_the_total() -> None:
    """A worker may count a value that is computed twice."""
    whole = JobProgress(10)
    part = whole.part(6)

    part.record(8)

    assert (part.done, whole.done) == (6, 6)


def test_values_that_are_computed_again_count_once() -> None:
    whole = JobProgress(10)
    whole.part(4).record(4)
    tried = whole.part(6)
    tried.part(6).record(5)

    tried.record(0)
    tried.part(6).record(2)

    assert (tried.done, whole.done) == (2, 6)


async def test_a_deadline_passes_without_progress() -> None:
    with pytest.raises(Stalled, match=r"no value was computed for 0\.05 s"):
        async with JobProgress(100).limiting(0.05):
            await asyncio.Event().wait()


Pass = Callable[[float], Awaitable[None]]


@pytest.fixture
async def passing(monkeypatch: pytest.MonkeyPatch) -> Pass:
    """Let so many seconds pass, at once: what is due by then happens."""
    loop = asyncio.get_running_loop()
    now = loop.time()
    monkeypatch.setattr(loop, "time", lambda: now)

    async def passing(seconds: float) -> None:
        nonlocal now
        now += seconds
        for _ in range(3):
            await asyncio.sleep(0)

    return passing


async def test_progress_of_a_part_restarts_a_deadline(passing: Pass) -> None:
    whole = JobProgress(100)
    part = whole.part(50)

    async with whole.limiting(1):
        for done in range(1, 15):
            await passing(0.9)
            part.record(done)
    with pytest.raises(Stalled):
        async with whole.limiting(1):
            await passing(1.1)


async def test_progress_of_another_kind_restarts_the_deadline_of_the_whole(passing: Pass) -> None:
    whole = JobProgress(100)
    part = whole.part(50)

    async with whole.limiting(1):
        for _ in range(14):
            await passing(0.9)
            part.extend()


@pytest.mark.parametrize("again", [[0], [3, 0, 1, 2, 3]])
async def test_what_was_reported_before_is_no_progress(again: list[int]) -> None:
    """Neither is it if values are computed again, which a part of its own may get on with."""
    whole = JobProgress(100)
    whole.record(max(again))

    async def tell() -> None:
        async with whole.limiting(0.2):
            while True:
                for done in again:
                    await asyncio.sleep(0.01)  # shorter than the deadline
                    whole.record(0)
                    whole.part(50).record(done)

    with pytest.raises(Stalled):
        await tell()


async def test_a_cancellation_stays_one() -> None:
    async def work() -> None:
        async with JobProgress(100).limiting(60):
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
            await asyncio.Event().wait()

    with pytest.raises(ExceptionGroup):
        await wait_beside()
    with pytest.raises(Stalled):
        async with JobProgress(100).limiting(0.01):
            await asyncio.Event().wait()

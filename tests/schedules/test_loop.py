"""The loop keeps asyncio's promises, and everything else is the seed's."""

import asyncio
import time

import pytest

from tests.schedules.loop import Loop, Process, Stuck


def test_time_passes_only_while_a_task_waits() -> None:
    """An hour costs nothing, and ends when it should."""
    loop = Loop(1)

    async def wait() -> float:
        await asyncio.sleep(3600)
        return loop.time()

    began = time.monotonic()
    assert loop.run(wait()) == 3600
    assert time.monotonic() - began < 600


def test_a_process_keeps_its_order_and_processes_do_not() -> None:
    """First in, first out is what asyncio promises to one program, not to several."""
    orders = {_order_of(seed) for seed in range(20)}

    assert len(orders) > 1
    assert all([n for who, n in order if who == "a"] == [0, 1, 2] for order in orders)
    assert _order_of(7) == _order_of(7)


def _order_of(seed: int) -> tuple[tuple[str, int], ...]:
    loop, seen = Loop(seed), []

    async def main() -> None:
        for name in ("a", "b"):
            process = loop.process(name)
            for number in range(3):
                loop.call_soon(seen.append, (name, number), context=process.context)
        await asyncio.sleep(1)

    loop.run(main())
    return tuple(seen)


def test_a_frozen_process_does_nothing_until_thawed() -> None:
    """Its timers fire late, its children stand still with it, and others go on."""
    loop, woke = Loop(1), []

    async def child() -> None:
        await asyncio.sleep(1)
        woke.append((Process.current().name, loop.time()))

    async def parent() -> None:
        await asyncio.create_task(child())

    async def main() -> None:
        frozen, other = loop.process("frozen"), loop.process("other")
        frozen.start(parent())
        other.start(parent())
        await asyncio.sleep(0.5)
        frozen.freeze()
        await asyncio.sleep(5)
        frozen.thaw()
        await asyncio.sleep(1)

    loop.run(main())
    assert woke == [("other", 1.0), ("frozen", 5.5)]


def test_threads_work_inline_and_take_a_moment() -> None:
    """And may be given up, as real ones."""
    loop = Loop(1)

    async def main() -> tuple[int, float]:
        result = await asyncio.to_thread(lambda: 42)
        return result, loop.time()

    result, now = loop.run(main())
    assert result == 42
    assert 0 < now < 1


def test_to_wait_for_nothing_is_an_error() -> None:
    """Not a test that hangs."""
    with pytest.raises(Stuck):
        Loop(1).run(asyncio.Event().wait())


def test_a_step_that_takes_processor_time_holds_up_its_process_alone() -> None:
    """Frozen meanwhile, it goes on once it is thawed."""
    loop, seen = Loop(1), []

    async def main() -> None:
        busy, other = loop.process("busy"), loop.process("other")
        busy.seconds_a_step = 1.0
        for process in (busy, busy, other, busy):
            note = lambda process=process: seen.append((process.name, loop.time()))  # noqa: E731
            loop.call_soon(note, context=process.context)
        await asyncio.sleep(0.5)
        busy.freeze()
        await asyncio.sleep(1)
        busy.thaw()
        await asyncio.sleep(5)

    loop.run(main())
    assert sorted(seen) == [("busy", 0.0), ("busy", 1.5), ("busy", 2.5), ("other", 0.0)]

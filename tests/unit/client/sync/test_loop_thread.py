"""A loop in a thread of its own: what it runs for others ends with them."""

from collections.abc import AsyncIterator

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

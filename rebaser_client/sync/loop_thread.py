"""An event loop in a background thread."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Iterator
from concurrent.futures import Future
from threading import Thread
from typing import Any, TypeVar

T = TypeVar("T")


class LoopThread:
    """An event loop in a thread of its own."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = Thread(target=self._loop.run_forever, name="rebaser client", daemon=True)
        self._thread.start()

    def start(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """Begin the work in the thread."""
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def call(self, callback: Callable[[], None]) -> None:
        """Call back in the thread, soon."""
        self._loop.call_soon_threadsafe(callback)

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Its result. An interrupt of the caller cancels it."""
        future = self.start(work)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def iterate(self, items: AsyncIterator[T]) -> Iterator[T]:
        """Its items, each awaited when it is asked for. It is closed if the caller stops early."""

        async def step() -> list[T]:
            try:
                return [await anext(items)]
            except StopAsyncIteration:
                return []

        try:
            while item := self.run(step()):
                yield item[0]
        finally:
            if isinstance(items, AsyncGenerator):
                self.run(items.aclose())

    def stop(self) -> None:
        """End the thread."""
        self.call(self._loop.stop)
        self._thread.join()
        self._loop.close()

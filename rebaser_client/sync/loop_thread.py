"""An event loop in a background thread."""

import asyncio
import os
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Iterator
from concurrent.futures import CancelledError, Future
from threading import Thread
from typing import Any, TypeVar

from rebaser_client.errors import ClientClosed, ClientForked

T = TypeVar("T")


class LoopThread:
    """An event loop in a thread of its own."""

    def __init__(self) -> None:
        self._process = os.getpid()
        self.is_open = True
        """Whether the thread runs."""
        self._loop = asyncio.new_event_loop()
        self._thread = Thread(target=self._loop.run_forever, name="rebaser client", daemon=True)
        self._thread.start()

    @property
    def is_forked(self) -> bool:
        """Whether this process is a fork of the one that has the thread."""
        return os.getpid() != self._process

    def check(self) -> None:
        """Raise `ClientForked` or `ClientClosed` if nothing can be run any more."""
        if self.is_forked:
            raise ClientForked
        if not self.is_open:
            raise ClientClosed

    def start(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """Begin the work in the thread.

        Raises:
            ClientForked, ClientClosed: it cannot, see `check`.
        """
        try:
            self.check()
            return asyncio.run_coroutine_threadsafe(work, self._loop)
        except BaseException:
            work.close()
            raise

    def call(self, callback: Callable[[], None]) -> None:
        """Call back in the thread, soon."""
        self._loop.call_soon_threadsafe(callback)

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Its result. An interrupt of the caller cancels it."""
        future = self.start(work)
        try:
            return future.result()
        except BaseException as error:
            future.cancel()
            if isinstance(error, CancelledError) and not self.is_open:
                raise ClientClosed from None  # by another thread
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
            if isinstance(items, AsyncGenerator) and self.is_open and not self.is_forked:
                self.run(items.aclose())

    def stop(self) -> None:
        """Cancel what runs in the thread, and end it; again, it does nothing."""
        if not self.is_open or self.is_forked:
            return
        self.is_open = False
        asyncio.run_coroutine_threadsafe(_cancel_all(), self._loop).result()
        self.call(self._loop.stop)
        self._thread.join()
        self._loop.close()


async def _cancel_all() -> None:
    """End all tasks of the loop but this one, and its iterations that were left."""
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    await asyncio.get_running_loop().shutdown_asyncgens()

"""What lives as long as what: work beside a body, waits that a stop ends, the whole process."""

import asyncio
import signal
from collections.abc import AsyncIterator, Coroutine, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any, Never

from rebaser_server.errors import Interrupted


@asynccontextmanager
async def alongside(work: Coroutine[Any, Any, Never]) -> AsyncIterator[None]:
    """Run `work`, which never returns, for exactly as long as the body.

    If `work` raises, the body is cancelled and the error raised in its place.
    A lone error leaves bare, not wrapped in an `ExceptionGroup`.
    """
    try:
        async with asyncio.TaskGroup() as group:
            background = group.create_task(work)
            try:
                yield
            finally:
                background.cancel()
    except BaseExceptionGroup as errors:
        if len(errors.exceptions) == 1:
            raise errors.exceptions[0] from None
        raise


class Shutdown:
    """Whether the process was told to stop, and the means to wait for it."""

    def __init__(self) -> None:
        self._requested = asyncio.Event()

    @property
    def requested(self) -> bool:
        return self._requested.is_set()

    def request(self) -> None:
        self._requested.set()

    async def wait(self) -> None:
        await self._requested.wait()

    @asynccontextmanager
    async def interrupts(self) -> AsyncIterator[None]:
        """Cancel the body when a stop is asked for, and raise `Interrupted`.

        For a body that may be cancelled at any point without losing anything.
        """
        if self.requested:
            raise Interrupted("told to stop")
        async with alongside(self._interrupt()):
            yield

    async def _interrupt(self) -> Never:
        await self._requested.wait()
        raise Interrupted("told to stop")


@contextmanager
def on_signals(shutdown: Shutdown) -> Iterator[None]:
    """SIGTERM or SIGINT once: ask for a stop. Twice: cancel the task that entered here."""
    loop = asyncio.get_running_loop()
    main = asyncio.current_task()

    def stop() -> None:
        if shutdown.requested and main is not None:
            main.cancel()
        shutdown.request()

    signals = (signal.SIGTERM, signal.SIGINT)
    for number in signals:
        loop.add_signal_handler(number, stop)
    try:
        yield
    finally:
        for number in signals:
            loop.remove_signal_handler(number)

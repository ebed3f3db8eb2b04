"""A server on loopback whose connections are closed, and their handlers over, when it is left."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

Meet = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@asynccontextmanager
async def listening(meet: Meet, **options: Any) -> AsyncIterator[int]:
    """Yield its port; `options` are those of `asyncio.start_server`."""
    meetings: list[asyncio.Task[Any]] = []

    async def meet_and_close(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if task := asyncio.current_task():
            meetings.append(task)
        with suppress(ConnectionError):
            try:
                await meet(reader, writer)
            finally:
                writer.close()
                await writer.wait_closed()

    async with await asyncio.start_server(meet_and_close, "127.0.0.1", 0, **options) as server:
        yield server.sockets[0].getsockname()[1]
    async with asyncio.timeout(60):
        await asyncio.gather(*meetings)

"""The proxy does to a connection what its methods say, or chaos would prove less than it claims."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from tests.chaos.proxy import Proxy

SOON = 0.2  # seconds


@asynccontextmanager
async def through_a_proxy() -> AsyncIterator[
    tuple[Proxy, asyncio.StreamReader, asyncio.StreamWriter]
]:
    """A connection to an echo, and what it goes through."""

    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(100):
            writer.write(data)
        writer.close()

    server = await asyncio.start_server(echo, "127.0.0.1", 0)
    proxy = Proxy(server.sockets[0].getsockname()[1])
    await proxy.start()
    reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
    try:
        yield proxy, reader, writer
    finally:
        writer.transport.abort()
        await proxy.close()
        server.close()


async def _echoed(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, within: float = 60
) -> bytes:
    writer.write(b"hello")
    async with asyncio.timeout(within):
        return await reader.readexactly(5)


async def test_everything_passes_unless_told_otherwise() -> None:
    async with through_a_proxy() as (_, reader, writer):
        assert await _echoed(reader, writer) == b"hello"


@pytest.mark.parametrize(("up", "down"), [(True, True), (True, False), (False, True)])
async def test_held_back_bytes_arrive_after_healing(up: bool, down: bool) -> None:
    async with through_a_proxy() as (proxy, reader, writer):
        proxy.hold(up=up, down=down)
        with pytest.raises(TimeoutError):
            await _echoed(reader, writer, SOON)

        proxy.heal()

        assert await reader.readexactly(5) == b"hello"


async def test_a_cut_resets_and_loses() -> None:
    async with through_a_proxy() as (proxy, reader, writer):
        assert await _echoed(reader, writer) == b"hello"

        proxy.cut()

        with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
            await _echoed(reader, writer)


async def test_refused_connections_end_at_once() -> None:
    async with through_a_proxy() as (proxy, _, _):
        proxy.refusing = True

        reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)

        with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
            await _echoed(reader, writer)
        writer.transport.abort()

"""A network that takes its time: every byte arrives so much later, in both directions."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from urllib.parse import urlsplit


@asynccontextmanager
async def delayed(url: str, seconds: float) -> AsyncIterator[str]:
    """The URL at which the server at `url` is `seconds` away; a round trip takes twice that."""
    host, port = urlsplit(url).hostname, urlsplit(url).port
    serving: set[asyncio.Task[None] | None] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        serving.add(asyncio.current_task())
        far_reader, far_writer = await asyncio.open_connection(host, port)
        await asyncio.gather(
            _carry(reader, far_writer, seconds), _carry(far_reader, writer, seconds)
        )

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield f"nats://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()
        await asyncio.wait(filter(None, serving), timeout=1)  # both ends hung up before


async def _carry(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, seconds: float
) -> None:
    """Bandwidth is not limited: what comes meanwhile is on its way, too."""
    loop = asyncio.get_running_loop()
    with suppress(ConnectionError):
        while data := await reader.read(1 << 16):
            loop.call_later(seconds, writer.write, data)
    loop.call_later(seconds, writer.close)

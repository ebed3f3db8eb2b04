"""NATS's protocol spoken by hand: what no client library would send reaches the server."""

import asyncio
import json
from contextlib import suppress
from typing import Any, Self

WAIT = 5.0  # seconds for the server's greeting


class RawConnection:
    """Publishes any bytes. Once the server closed it, whatever is sent goes over a new one."""

    def __init__(self, port: int, user: str | None = None, password: str | None = None) -> None:
        self._port = port
        self._login: dict[str, Any] = {} if user is None else {"user": user, "pass": password}
        self._writer: asyncio.StreamWriter | None = None
        self._reading: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self._close()

    async def publish(
        self, subject: bytes, payload: bytes = b"", *, headers: bytes = b"", reply: bytes = b""
    ) -> None:
        """Hand it to the server, if that is there. `headers`: whole lines, each with its end."""
        middle = subject + (b" " + reply if reply else b"")
        if headers:
            block = b"NATS/1.0\r\n" + headers + b"\r\n"
            line = b"HPUB %s %d %d\r\n" % (middle, len(block), len(block) + len(payload))
            await self.send(line + block + payload + b"\r\n")
        else:
            await self.send(b"PUB %s %d\r\n" % (middle, len(payload)) + payload + b"\r\n")

    async def send(self, frames: bytes) -> None:
        with suppress(OSError, TimeoutError, asyncio.IncompleteReadError):
            if self._writer is None or self._reading is None or self._reading.done():
                await self._open()
            assert self._writer is not None
            self._writer.write(frames)
            await self._writer.drain()

    async def _open(self) -> None:
        await self._close()
        reader, self._writer = await asyncio.open_connection("127.0.0.1", self._port)
        async with asyncio.timeout(WAIT):
            await reader.readuntil(b"\r\n")
        hello = {"verbose": False, "pedantic": False, "headers": True, **self._login}
        self._writer.write(b"CONNECT " + json.dumps(hello).encode() + b"\r\n")
        self._reading = asyncio.create_task(_answer_pings(reader, self._writer))

    async def _close(self) -> None:
        reading, self._reading = self._reading, None
        writer, self._writer = self._writer, None
        if reading is not None:
            reading.cancel()
            await asyncio.wait([reading])
        if writer is not None:
            writer.close()
            with suppress(OSError):
                await writer.wait_closed()


async def _answer_pings(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Return once the server ends the connection."""
    with suppress(OSError):
        while line := await reader.readline():
            if line.startswith(b"PING"):
                writer.write(b"PONG\r\n")

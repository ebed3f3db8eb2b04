"""A hostile client that goes on through whatever becomes of NATS."""

import asyncio
from contextlib import AsyncExitStack
from typing import Final, Self

from tests.helpers.raw_client import RawClient

WAIT: Final = 5.0  # seconds for the server to read a message


class RawConnection:
    """Publishes any octets; once the server closed the connection, over a new one."""

    def __init__(self, port: int, **login: str) -> None:
        self._port, self._login = port, login
        self._stack = AsyncExitStack()
        self._client: RawClient | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self._close()

    async def publish(
        self, subject: bytes, payload: bytes = b"", *, headers: bytes = b"", reply: bytes = b""
    ) -> None:
        """Hand it to the server, if that is there. `headers`: whole lines, each with its end."""
        block = b"NATS/1.0\r\n" + headers + b"\r\n" if headers else b""
        try:
            async with asyncio.timeout(WAIT):
                if self._client is None:
                    self._client = await self._stack.enter_async_context(self._new())
                self._client.publish(subject, payload, reply=reply, block=block)
                await self._client.arrived()
        except OSError:  # a deadline, too
            await self._close()

    def _new(self) -> RawClient:
        return RawClient(self._port, **self._login)

    async def _close(self) -> None:
        self._client = None
        await self._stack.aclose()

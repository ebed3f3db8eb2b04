"""A client that publishes any octets: what libraries would refuse, and a hostile one would send."""

import asyncio
import json
from types import TracebackType
from typing import Any, Self


class RawClient:
    """A connection without a library. Entering it raises if the server does not accept it.

    `login`: members of CONNECT's JSON that say who it is.
    """

    def __init__(self, port: int, **login: str) -> None:
        self._port = port
        self._hello: dict[str, Any] = {
            "verbose": False, "pedantic": False, "headers": True, **login
        }  # fmt: skip

    async def __aenter__(self) -> Self:
        self._reader, self._writer = await asyncio.open_connection("127.0.0.1", self._port)
        self._writer.write(f"CONNECT {json.dumps(self._hello)}\r\n".encode())
        await self.arrived()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._writer.close()

    def publish(
        self, subject: bytes, payload: bytes = b"", *, reply: bytes = b"", block: bytes = b""
    ) -> None:
        """Send a message, with the block of headers as it is."""
        sizes = b"%d %d" % (len(block), len(block) + len(payload))
        if not block:
            sizes = b"%d" % len(payload)
        words = b" ".join([b"HPUB" if block else b"PUB", subject, reply, sizes])
        self._writer.write(words + b"\r\n" + block + payload + b"\r\n")

    async def arrived(self) -> None:
        """Return when the server has read what was sent by now; raise if it says an error."""
        self._writer.write(b"PING\r\n")
        while (line := await self._reader.readline()) != b"PONG\r\n":
            if not line or line.startswith(b"-ERR"):
                raise OSError(line)
            if line == b"PING\r\n":
                self._writer.write(b"PONG\r\n")

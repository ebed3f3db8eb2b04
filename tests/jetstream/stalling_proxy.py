"""A way to the server that stays open and lets nothing through when told so."""

import asyncio
import contextlib
from types import TracebackType
from typing import Self


class DeafProxy:
    """Passes octets between clients and a port of this machine, until it is deaf."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._listener: asyncio.Server
        self._connections: list[asyncio.Task[None]] = []
        self._hearing = asyncio.Event()
        self._hearing.set()

    @property
    def url(self) -> str:
        return f"nats://127.0.0.1:{self._listener.sockets[0].getsockname()[1]}"

    @property
    def deaf(self) -> bool:
        return not self._hearing.is_set()

    @deaf.setter
    def deaf(self, deaf: bool) -> None:
        if deaf:
            self._hearing.clear()
        else:
            self._hearing.set()

    def hear_new_connections(self) -> None:
        """Leave the connections made by now deaf for ever."""
        self._hearing = asyncio.Event()
        self._hearing.set()

    async def __aenter__(self) -> Self:
        self._listener = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._listener.close()
        for connection in self._connections:
            connection.cancel()
        if self._connections:
            await asyncio.wait(self._connections)

    async def _accept(self, near: asyncio.StreamReader, back: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.append(task)
        try:
            far, forth = await asyncio.open_connection("127.0.0.1", self._port)
        except OSError:
            back.close()
            return
        hearing = self._hearing
        ways = [
            asyncio.create_task(_pass(near, forth, hearing)),
            asyncio.create_task(_pass(far, back, hearing)),
        ]
        try:
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            pass  # this task is the stream server's, which would report it
        finally:
            for way in ways:
                way.cancel()
            await asyncio.wait(ways)
            for end in (forth, back):
                end.close()


async def _pass(
    source: asyncio.StreamReader, sink: asyncio.StreamWriter, hearing: asyncio.Event
) -> None:
    with contextlib.suppress(OSError):
        while octets := await source.read(65536):
            await hearing.wait()
            sink.write(octets)
            await sink.drain()

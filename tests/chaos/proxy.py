"""A TCP proxy on loopback that can delay, hold back, cut and refuse what goes through it."""

import asyncio
import contextlib
from asyncio import StreamReader, StreamWriter
from collections.abc import Callable

_CHUNK = 65_536

Ear = Callable[[bytes], None]
"""Called with each piece before it goes on."""


class Proxy:
    """Between one daemon and one NATS server. What it holds back is delivered late, or never."""

    def __init__(self, port: int, ears: Callable[[], tuple[Ear, Ear]] = lambda: (_deaf, _deaf)):
        """`ears`: of a new connection, for what goes up to the server and what comes down."""
        self._target = port
        self._ears = ears
        self._server: asyncio.Server | None = None
        self._writers: set[StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._up, self._down = asyncio.Event(), asyncio.Event()
        self.delay = 0.0
        """Seconds by which each piece is late, either way."""
        self.refusing = False
        self.heal()

    @property
    def port(self) -> int:
        assert self._server is not None
        return int(self._server.sockets[0].getsockname()[1])

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._accepted, "127.0.0.1", 0)

    async def close(self) -> None:
        assert self._server is not None
        self._server.close()
        self.cut()
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)

    def heal(self) -> None:
        """Let everything through from now on, also what was held back."""
        self.delay, self.refusing = 0.0, False
        self._up.set()
        self._down.set()

    def hold(self, *, up: bool = True, down: bool = True) -> None:
        """Leave connections open, and let nothing through: to the server, from it, or both."""
        if up:
            self._up.clear()
        if down:
            self._down.clear()

    def cut(self) -> None:
        """Reset every connection; what was under way is lost."""
        for writer in self._writers:
            writer.transport.abort()

    def _accepted(self, reader: StreamReader, writer: StreamWriter) -> None:
        task = asyncio.get_running_loop().create_task(self._serve(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, reader: StreamReader, writer: StreamWriter) -> None:
        with contextlib.suppress(OSError):
            if self.refusing:
                writer.transport.abort()
                return
            self._writers.add(writer)
            try:
                server_reader, server_writer = await asyncio.open_connection(
                    "127.0.0.1", self._target
                )
            except OSError:
                writer.transport.abort()
                self._writers.discard(writer)
                return
            await self._carry((reader, writer), (server_reader, server_writer))

    async def _carry(
        self, client: tuple[StreamReader, StreamWriter], server: tuple[StreamReader, StreamWriter]
    ) -> None:
        writers = {client[1], server[1]}
        self._writers |= writers
        up, down = self._ears()
        pumps = [
            asyncio.create_task(self._pump(client[0], server[1], self._up, up)),
            asyncio.create_task(self._pump(server[0], client[1], self._down, down)),
        ]
        try:
            await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for pump in pumps:
                pump.cancel()
            await asyncio.wait(pumps)
            self._writers -= writers
            for writer in writers:
                writer.transport.abort()

    async def _pump(
        self, reader: StreamReader, writer: StreamWriter, gate: asyncio.Event, ear: Ear
    ) -> None:
        with contextlib.suppress(OSError):
            while piece := await reader.read(_CHUNK):
                ear(piece)
                if self.delay:
                    await asyncio.sleep(self.delay)
                await gate.wait()
                writer.write(piece)
                await writer.drain()


def _deaf(_: bytes) -> None:
    pass

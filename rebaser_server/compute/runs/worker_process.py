"""The worker's process: asks it, reads its answers, and ends it with all that it forked."""

import asyncio
import os
import signal
import sys
from asyncio import SubprocessTransport
from asyncio.subprocess import PIPE, SubprocessStreamProtocol
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any, Final, Self

from rebaser_server.compute.child_process import child_environment
from rebaser_server.compute.runs.local_worker import LENGTH

_READ_AHEAD: Final = 1 << 16
"""Bytes of an answer that are read ahead."""
_LAST_WORDS: Final = 1.0
"""Seconds in which what a child wrote before it ended is read."""
_GRACE: Final = 5.0
"""Seconds in which a process that was killed is gone; else it is left to the kernel."""


class _Protocol(SubprocessStreamProtocol):
    """Tells that the process has ended, also while its pipes are open in processes it forked."""

    def __init__(self) -> None:
        super().__init__(limit=_READ_AHEAD, loop=asyncio.get_running_loop())
        self.ended = asyncio.Event()

    def process_exited(self) -> None:
        super().process_exited()
        self.ended.set()


class WorkerProcess:
    """Has a session of its own: Ctrl-C is for this process, which decides what it means."""

    def __init__(self, transport: SubprocessTransport, protocol: _Protocol) -> None:
        self._transport = transport
        self._protocol = protocol

    @classmethod
    async def start(cls) -> Self:
        """Return once it has loaded what it needs, which takes longer than most tasks.

        Raises `EOFError`: it ended before. Cancelled, it leaves no process.
        """
        transport, protocol = await asyncio.get_running_loop().subprocess_exec(
            _Protocol,
            *(sys.executable, "-P", "-m", "rebaser_server.compute.runs.local_worker"),
            stdin=PIPE,
            stdout=PIPE,
            stderr=None,
            env=child_environment(),
            start_new_session=True,
        )
        child = cls(transport, protocol)
        try:
            await child._reply(child._read())
        except (EOFError, asyncio.CancelledError):
            await child.end()
            raise
        return child

    @property
    def code(self) -> int | None:
        """As `Popen.returncode`."""
        return self._transport.get_returncode()

    async def ask(self, question: bytes) -> bytes:
        """Raises `EOFError`: it has ended, or closed its pipes."""
        return await self._reply(self._ask(question))

    async def _reply(self, reply: Coroutine[Any, Any, bytes]) -> bytes:
        asking = asyncio.ensure_future(reply)
        ending = asyncio.ensure_future(self._protocol.ended.wait())
        try:
            await asyncio.wait([asking, ending], return_when=asyncio.FIRST_COMPLETED)
            if not asking.done():
                await asyncio.wait([asking], timeout=_LAST_WORDS)
            if not asking.done():
                raise EOFError
            return await asking
        except (OSError, EOFError) as error:
            await asyncio.wait([ending], timeout=_LAST_WORDS)  # killed, it would not tell its code
            raise EOFError from error
        finally:
            asking.cancel()
            ending.cancel()

    async def _ask(self, question: bytes) -> bytes:
        if (stdin := self._protocol.stdin) is None:
            raise EOFError
        stdin.write(len(question).to_bytes(LENGTH) + question)
        await stdin.drain()
        return await self._read()

    async def _read(self) -> bytes:
        if (stdout := self._protocol.stdout) is None:
            raise EOFError
        length = int.from_bytes(await stdout.readexactly(LENGTH))
        return await stdout.readexactly(length)

    async def end(self) -> None:
        """Kill it and what it has forked, unless that left its session. Takes seconds at most."""
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._transport.get_pid(), signal.SIGKILL)
        self._transport.close()  # kills it, and closes the pipes that others may hold
        ending = asyncio.ensure_future(self._protocol.ended.wait())
        await asyncio.wait([ending], timeout=_GRACE)
        ending.cancel()

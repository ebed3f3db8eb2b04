"""The worker's process: asks it, reads its answers, and ends it with all that it forked.

What functions print in it goes to the log: bounded, and with the change set that was computed.
"""

import asyncio
import os
import signal
import sys
from asyncio import SubprocessTransport
from asyncio.subprocess import PIPE, SubprocessStreamProtocol
from collections.abc import Coroutine
from contextlib import suppress
from contextvars import Context
from errno import EAGAIN
from typing import Any, Final, Self, cast

import structlog

from rebaser_server.compute.runs.local_worker import LENGTH
from rebaser_server.runtime.process import child_environment
from rebaser_server.runtime.tasks import PROCESS_LIMITS

_STDERR: Final = 2
_READ_AHEAD: Final = 1 << 16
"""Bytes of an answer that are read ahead."""
_LAST_WORDS: Final = 1.0
"""Seconds in which what a child wrote before it ended is read."""
_GRACE: Final = 5.0
"""Seconds in which a process that was killed is gone; else it is left to the kernel."""
_PRINTED: Final = 2_000
"""Bytes that are logged of what was printed lately: the last ones, with a crash's reason."""
_PRINT_PAUSES: Final = (1.0, 10.0)
"""Seconds between two such lines: first, and as they double while more is printed."""
_READ_AT_ONCE: Final = 1 << 20
"""Bytes of prints that are read before what prints has to wait for..."""
_UNREAD: Final = 0.1
"""...so many seconds, so that reading them leaves this process time for others."""

log: Final = structlog.get_logger()


class _Prints:
    """What was printed and is not logged yet, cut."""

    def __init__(self) -> None:
        self.labels: dict[str, Any] = {}
        """What log lines say of the work in hand: its change set."""
        self._labels: dict[str, Any] = {}
        self._text = bytearray()
        self._left_out = 0
        self._pause, _ = _PRINT_PAUSES
        self._timer: asyncio.TimerHandle | None = None

    def take(self, data: bytes) -> None:
        """Note it, to be logged together with what follows soon."""
        if not self._text:
            self._labels = self.labels
        else:  # of several change sets, what they have in common
            both = self._labels.items() & self.labels.items()
            self._labels = dict(both)
        self._text += data
        beyond = max(0, len(self._text) - _PRINTED)
        del self._text[:beyond]
        self._left_out += beyond
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(self._pause, self._next)

    def _next(self) -> None:
        first, longest = _PRINT_PAUSES
        self._timer = None
        if not self._text:
            self._pause = first
            return
        self.tell()
        self._pause = min(2 * self._pause, longest)
        self._timer = asyncio.get_running_loop().call_later(self._pause, self._next)

    def tell(self) -> None:
        """Log what there is."""
        if self._text:
            text, left_out = self._text.decode(errors="replace"), self._left_out
            self._text.clear()
            self._left_out = 0
            Context().run(_log_prints, self._labels, text, left_out)

    def close(self) -> None:
        self.tell()
        if self._timer is not None:
            self._timer.cancel()


def _log_prints(labels: dict[str, Any], text: str, left_out: int) -> None:
    before = {"bytes_before": left_out} if left_out else {}
    with structlog.contextvars.bound_contextvars(**labels):
        log.info("functions printed", text=text.strip("\n"), **before)


class _Protocol(SubprocessStreamProtocol):
    """Tells that the process has ended, also while its pipes are open in processes it forked."""

    def __init__(self) -> None:
        super().__init__(limit=_READ_AHEAD, loop=asyncio.get_running_loop())
        self.ended = asyncio.Event()
        self.prints = _Prints()
        self._process: SubprocessTransport | None = None
        self._unpaused = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._process = cast("SubprocessTransport", transport)

    def pipe_data_received(self, fd: int, data: bytes | str) -> None:
        if fd != _STDERR or isinstance(data, str):
            super().pipe_data_received(fd, data)
            return
        self.prints.take(data)
        self._unpaused += len(data)
        if self._unpaused >= _READ_AT_ONCE and self._process is not None:
            pipe = cast("asyncio.ReadTransport", self._process.get_pipe_transport(fd))
            pipe.pause_reading()
            asyncio.get_running_loop().call_later(_UNREAD, pipe.resume_reading)
            self._unpaused = 0

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

        Cancelled, it leaves no process.

        Raises:
            EOFError: it ended before.
            BlockingIOError: it, or the thread that waits for its end, could not be started.
        """
        try:
            transport, protocol = await asyncio.get_running_loop().subprocess_exec(
                _Protocol,
                *(sys.executable, "-P", "-m", "rebaser_server.compute.runs.local_worker"),
                stdin=PIPE,
                stdout=PIPE,
                stderr=PIPE,
                env=child_environment(),
                start_new_session=True,
            )
        except RuntimeError as error:  # "can't start new thread"; its pipes end with the transport
            raise BlockingIOError(EAGAIN, f"{error}: {PROCESS_LIMITS}") from error
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
        self._protocol.prints.labels = structlog.contextvars.get_contextvars()
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
        self._protocol.prints.close()

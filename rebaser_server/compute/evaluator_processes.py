"""Evaluators: processes beside this one that compute, each forked from one template.

The template has loaded what any unit takes, and calls no function. So an evaluator is there within
milliseconds, also on a machine whose processors are taken: loading takes most of a second of one.
See `local_worker` for the other end.

Prints of functions go to the log: bounded, and with the change set that was computed.
"""

import asyncio
import os
import secrets
import signal
import socket
import sys
from asyncio.subprocess import DEVNULL, Process
from collections.abc import Coroutine
from contextlib import ExitStack, suppress
from contextvars import Context
from errno import EAGAIN
from itertools import count
from typing import Any, Final, cast

import structlog

from rebaser_server.compute.isolation import STRAY
from rebaser_server.compute.local_worker import (
    BROKEN,
    ENDED,
    FORKED,
    LENGTH,
    NUMBER,
    REFUSED,
    REPORT,
)
from rebaser_server.runtime.process import child_environment
from rebaser_server.runtime.tasks import PROCESS_LIMITS

_READ_AHEAD: Final = 1 << 16
"""Bytes of an answer that are read ahead."""
_LONGEST: Final = 256 << 20
"""Maximum bytes of an answer: what is large lies in the run store, except for one value."""
_LAST_WORDS: Final = 1.0
"""Seconds in which what an evaluator wrote before it ended is read."""
_GRACE: Final = 5.0
"""Seconds in which a process that was killed is gone; else it is left to the kernel."""
_PRINTED: Final = 2_000
"""Bytes that are logged of what was printed lately: the last ones, with a crash's reason."""
_PRINT_PAUSES: Final = (1.0, 10.0)
"""Seconds between two such lines: first, and as they double while more is printed."""
_READ_AT_ONCE: Final = 1 << 20
"""Bytes of prints that are read before the printing process has to wait for `_UNREAD`."""
_LAST_READS: Final = 32
_READ: Final = 1 << 16
"""Number and size of reads of what a process that ends has printed."""
_UNREAD: Final = 0.1
"""Seconds for which prints are not read, so that this process has time for others."""

log: Final = structlog.get_logger()


class Template:
    """The process that evaluators are forked from, started by the first that is asked for.

    If it ends, the kernel ends its evaluators, and the next one comes from another template.
    """

    def __init__(self) -> None:
        self._starting = asyncio.Lock()
        self._process: Process | None = None
        self._control: socket.socket | None = None
        """Socket of its reports; None: it does not run."""
        self._numbers = count(1)
        self._forked: dict[int, asyncio.Future[int]] = {}
        """Process ids of evaluators to come, by their numbers."""
        self._ended: dict[int, asyncio.Future[int]] = {}
        """Exit codes of evaluators, as `Popen.returncode`."""

    async def fork(self) -> "Evaluator":
        """Return an evaluator that was asked nothing yet. Cancelled, it leaves none.

        Raises:
            EOFError: it ended at once, or its template did.
            OSError: there is no room for another process.
        """
        async with self._starting:
            control = self._control or await self._start()
        loop, number = asyncio.get_running_loop(), next(self._numbers)
        # With its channel an evaluator ends, also one that comes when its caller is gone.
        with ExitStack() as opened:
            channel, theirs = map(opened.enter_context, socket.socketpair())
            read, write = os.pipe()
            prints, printed = os.fdopen(read, "rb", 0), os.fdopen(write, "wb", 0)
            opened.enter_context(prints)
            opened.enter_context(printed)
            forked = self._forked[number] = loop.create_future()
            ended = self._ended[number] = loop.create_future()
            try:
                socket.send_fds(control, [number.to_bytes(NUMBER)], [theirs.fileno(), write])
            except ConnectionError as error:  # it has just ended
                raise EOFError from error
            # The message holds these descriptors on their way. Open here, too, channel and prints
            # would not end with the evaluator.
            theirs.close()
            printed.close()
            pid = await forked
            reader, writer = await asyncio.open_unix_connection(sock=channel, limit=_READ_AHEAD)
            opened.callback(writer.close)  # first: the loop must not watch what is closed
            _, log_of_prints = await loop.connect_read_pipe(_Prints, prints)
            opened.pop_all()
        return Evaluator(pid, ended, reader, writer, log_of_prints)

    async def _start(self) -> socket.socket:
        # Packets keep reports whole: the template and its evaluators send them by one socket.
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with ExitStack() as opened, theirs:
            opened.enter_context(ours)
            try:
                self._process = await asyncio.create_subprocess_exec(
                    # Unbuffered: a process may end at any time, and what it printed last says why.
                    *(sys.executable, "-u", "-P", "-m", "rebaser_server.compute.local_worker"),
                    stdin=theirs.fileno(),
                    stdout=DEVNULL,
                    env=child_environment(),
                    start_new_session=True,  # Ctrl-C is for this process, which knows what it means
                )
            except RuntimeError as error:  # "can't start new thread"; its pipes end with that
                raise BlockingIOError(EAGAIN, f"{error}: {PROCESS_LIMITS}") from error
            opened.pop_all()
        ours.settimeout(0)
        asyncio.get_running_loop().add_reader(ours, self._take_reports, ours)
        self._control = ours
        return ours

    def _take_reports(self, control: socket.socket) -> None:
        while True:
            try:
                report = control.recv(REPORT.size)
            except BlockingIOError:
                return
            except ConnectionError:
                report = b""
            if not report:
                log.warning("template of evaluators ended")
                self._forget()
                return
            kind, number, value = REPORT.unpack(report)
            # One that was refused may report itself nevertheless, and ends with its channel.
            if kind == FORKED and (forked := self._forked.pop(number, None)) is not None:
                _set(forked, value)
            elif kind == REFUSED:
                limits = f": {PROCESS_LIMITS}" if value == EAGAIN else ""
                self._refuse(number, OSError(value, os.strerror(value) + limits))
                self._ended.pop(number, None)
            elif kind == ENDED:
                self._refuse(number, EOFError())  # unless it was forked, and so is not in there
                _set(self._ended.pop(number), value)

    def _refuse(self, number: int, error: Exception) -> None:
        forked = self._forked.pop(number, None)
        if forked is not None and not forked.done():
            forked.set_exception(error)

    def _forget(self) -> None:
        """Let go of the template, whose evaluators the kernel has killed."""
        if self._control is None:
            return
        asyncio.get_running_loop().remove_reader(self._control)
        self._control.close()
        self._control = None
        for number in [*self._forked]:
            self._refuse(number, EOFError())
        for ended in self._ended.values():
            _set(ended, -signal.SIGKILL)
        self._ended.clear()

    async def close(self) -> None:
        """End it and its evaluators."""
        async with self._starting:
            self._forget()
            if self._process is not None:
                with suppress(ProcessLookupError):
                    self._process.kill()
                await self._process.wait()


def _set(future: "asyncio.Future[int]", value: int) -> None:
    if not future.done():  # its task may be cancelled
        future.set_result(value)


class _Prints(asyncio.Protocol):
    """Prints of an evaluator that are not logged yet, cut."""

    def __init__(self) -> None:
        self.labels: dict[str, Any] = {}
        """Labels of log lines about the work in hand: its change set."""
        self._labels: dict[str, Any] = {}
        self._text = bytearray()
        self._left_out = 0
        self._pause, _ = _PRINT_PAUSES
        self._timer: asyncio.TimerHandle | None = None
        self._pipe: asyncio.ReadTransport | None = None
        self._unpaused = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._pipe = cast("asyncio.ReadTransport", transport)

    def data_received(self, data: bytes) -> None:
        """Note it, to be logged together with what follows soon."""
        self._note(data)
        loop = asyncio.get_running_loop()
        if self._timer is None:
            self._timer = loop.call_later(self._pause, self._next)
        self._unpaused += len(data)
        if self._unpaused >= _READ_AT_ONCE and self._pipe is not None:
            self._pipe.pause_reading()
            loop.call_later(_UNREAD, self._pipe.resume_reading)
            self._unpaused = 0

    def _note(self, data: bytes) -> None:
        if not self._text:
            self._labels = self.labels
        else:  # of several change sets, what they have in common
            both = self._labels.items() & self.labels.items()
            self._labels = dict(both)
        self._text += data
        beyond = max(0, len(self._text) - _PRINTED)
        del self._text[:beyond]
        self._left_out += beyond

    def _next(self) -> None:
        first, longest = _PRINT_PAUSES
        self._timer = None
        if not self._text:
            self._pause = first
            return
        self._tell()
        self._pause = min(2 * self._pause, longest)
        self._timer = asyncio.get_running_loop().call_later(self._pause, self._next)

    def _tell(self) -> None:
        text, left_out = self._text.decode(errors="replace").strip("\n"), self._left_out
        self._text.clear()
        self._left_out = 0
        if text:  # the end of a line may come by itself
            # The loop calls this in the context of the evaluator's first caller, which may have had
            # another change set's labels.
            Context().run(_log_prints, self._labels, text, left_out)

    def close(self) -> None:
        """Log the rest, also what is not read yet: the last words of a process say why it ended."""
        if self._pipe is not None and not self._pipe.is_closing():
            with suppress(OSError):  # there is no more for now
                for _ in range(_LAST_READS):  # what functions forked may print for ever
                    self._note(os.read(self._pipe.get_extra_info("pipe").fileno(), _READ))
        self._tell()
        if self._timer is not None:
            self._timer.cancel()
        if self._pipe is not None:
            self._pipe.close()


def _log_prints(labels: dict[str, Any], text: str, left_out: int) -> None:
    before = {"bytes_before": left_out} if left_out else {}
    with structlog.contextvars.bound_contextvars(**labels):
        log.info("functions printed", text=text, **before)


class _StrayAnswer(Exception):
    """The next frame answers no question, or is longer than any answer."""


class Evaluator:
    """A process in a group of its own, for one question at a time."""

    def __init__(
        self,
        pid: int,
        ended: asyncio.Future[int],
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        prints: _Prints,
    ) -> None:
        """`ended`: its exit code, as `Popen.returncode`, once it has ended."""
        self.pid: Final = pid
        self._ended = ended
        self._reader, self._writer = reader, writer
        self._prints = prints

    @property
    def code(self) -> int | None:
        return self._ended.result() if self._ended.done() else None

    async def ask(self, question: bytes) -> bytes:
        """Return its answer: `BROKEN` with `STRAY`, if functions wrote into the channel.

        Raises:
            EOFError: it has ended, or closed its channel.
        """
        self._prints.labels = structlog.contextvars.get_contextvars()
        try:
            return await self._reply(self._ask(question))
        except _StrayAnswer:
            log.error("evaluator ended", reason=STRAY, process=self.pid)
            return BROKEN + STRAY.encode()

    async def _reply(self, reply: Coroutine[Any, Any, bytes]) -> bytes:
        asking = asyncio.ensure_future(reply)
        try:
            either: list[asyncio.Future[Any]] = [asking, self._ended]
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            # An answer that was written before the end may still lie in the channel.
            if not asking.done():
                await asyncio.wait([asking], timeout=_LAST_WORDS)
            if not asking.done():
                raise EOFError
            return await asking
        except (OSError, EOFError) as error:
            # Killed, it would not tell its code.
            await asyncio.wait([self._ended], timeout=_LAST_WORDS)
            raise EOFError from error
        finally:
            asking.cancel()

    async def _ask(self, question: bytes) -> bytes:
        number = secrets.token_bytes(NUMBER)
        self._writer.write(number + len(question).to_bytes(LENGTH) + question)
        await self._writer.drain()
        is_ours = await self._reader.readexactly(NUMBER) == number
        length = int.from_bytes(await self._reader.readexactly(LENGTH))
        if not is_ours or length > _LONGEST:
            raise _StrayAnswer
        return await self._reader.readexactly(length)

    async def end(self) -> None:
        """Kill it and what it has forked, unless that left its group. Takes seconds at most."""
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)
        await asyncio.wait([self._ended], timeout=_GRACE)
        self._writer.close()  # processes that it forked may hold the other ends
        self._prints.close()

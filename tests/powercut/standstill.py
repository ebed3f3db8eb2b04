"""Processes stopped for a moment, with all that they started."""

import contextlib
import os
import signal
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

_WITHIN: Final = 60.0  # seconds: a process in a system call stops at its end
_LOOK: Final = 0.0005


@contextlib.contextmanager
def standstill(pids: Iterable[int]) -> Iterator[None]:
    """Not one instruction of theirs is executed in the body."""
    stopped: list[int] = []
    try:
        for pid in pids:
            _stop(pid, stopped)
        yield
    finally:
        for pid in stopped:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)


def _stop(pid: int, stopped: list[int]) -> None:
    """The process before its children: it starts no others then."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGSTOP)
        stopped.append(pid)
    deadline = time.monotonic() + _WITHIN
    while _state(pid) not in "TtZX":
        if time.monotonic() > deadline:
            raise TimeoutError(pid)
        time.sleep(_LOOK)
    for child in _children(pid):
        _stop(child, stopped)


def _state(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0]
    except OSError:
        return "X"


def _children(pid: int) -> list[int]:
    found: list[int] = []
    for thread in Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(OSError):
            found += map(int, thread.read_text().split())
    return found

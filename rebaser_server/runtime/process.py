"""Child processes that end with this one, however this one ends."""

import ctypes
import os
import signal
import sys
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from subprocess import Popen
from threading import Thread
from typing import Any, Final

_PR_SET_PDEATHSIG: Final = 1  # prctl(2)
_OURS: Final = ("REBASER_", "PYSPARK_GATEWAY_")
"""Beginnings of the names of variables for this process alone: passwords and tokens, too."""


def child_environment() -> dict[str, str]:
    """Variables for a child, which may show or run anything: all but our settings."""
    return {name: value for name, value in os.environ.items() if not name.upper().startswith(_OURS)}


def spawn_bound(
    arguments: list[str], *, death_signal: int = signal.SIGKILL, **how: Any
) -> "Popen[bytes]":
    """Start a child as `Popen` does; on Linux the kernel signals it when this process is gone.

    On other systems the child has to notice by itself, for instance by the end of its standard
    input.
    """
    spawn = partial(Popen, arguments, **how)
    if sys.platform != "linux":
        return spawn()
    started: Future[Popen[bytes]] = Future()
    args = (started, spawn, death_signal)
    Thread(target=_spawn_and_wait, args=args, name="child", daemon=True).start()
    return started.result()


def _spawn_and_wait(
    started: "Future[Popen[bytes]]", spawn: "Callable[..., Popen[bytes]]", death_signal: int
) -> None:
    """Start the child, and wait for its end: the kernel signals it when this thread ends."""
    try:
        # Safe in a forked child, although there are threads here: it calls one C function.
        child = spawn(preexec_fn=_signal_on_parent_death(death_signal))
    except BaseException as error:  # noqa: BLE001 - for the caller, which waits
        started.set_exception(error)
        return
    started.set_result(child)
    with suppress(ChildProcessError):  # the caller has collected its exit code
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)


def _signal_on_parent_death(number: int) -> Callable[[], None]:
    prctl = ctypes.CDLL(None).prctl  # looked up here: the forked child should only call it
    return lambda: prctl(_PR_SET_PDEATHSIG, number)

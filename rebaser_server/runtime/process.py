"""The process itself: its memory, its garbage, and the children that end with it.

The C library gives the memory of large arrays back when they are freed. Python looks for garbage
less often. Child processes end with this one, even if it is killed.
"""

import ctypes
import gc
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

_MMAP_THRESHOLD: Final = -3
_ARENA_MAX: Final = -8
"""Numbers of glibc's parameters, see mallopt(3)."""

_LARGE: Final = 4 << 20
"""Size in bytes from which a piece of memory is the system's again once it is freed. By default,
glibc raises this up to 32 MiB, and keeps smaller pieces wherever something in use lies behind."""
_ARENAS: Final = 2
"""Number of heaps from which threads take the rest. Each keeps most of the memory that its threads
once had at a time; by default there are eight for each processor."""


_OF_LIBRARIES: Final = ("_RJEM_MALLOC_CONF", "JE_ARROW_MALLOC_CONF")
"""Variables with settings of the allocators of Delta and Arrow, read as these are loaded.

By default each allocator has its own threads. If a limit of processes forbids them, it writes a
line to stderr for each that it cannot start, some ten thousand in a second.
"""


def quiet_allocators() -> None:
    """Make Delta and Arrow free memory without threads, unless their settings are given."""
    for variable in _OF_LIBRARIES:
        os.environ.setdefault(variable, "background_thread:false")


def limit_kept_memory() -> bool:
    """Make glibc keep little freed memory; return whether the settings are in force.

    They are not in force if the C library is another one, or if the environment has settings for
    it.
    """
    if any(name.startswith(("MALLOC_", "GLIBC_TUNABLES")) for name in os.environ):
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError):
        return False
    return bool(mallopt(_MMAP_THRESHOLD, _LARGE) and mallopt(_ARENA_MAX, _ARENAS))


THRESHOLDS: Final = 100_000, 20, 20
"""Thresholds for `gc.set_threshold`. A graph is a million objects without a cycle among them, and
so are modules: at the default of 700, looking for one takes half of a large batch's time, and a
tenth of a start's."""


def collect_rarely() -> None:
    gc.set_threshold(*THRESHOLDS)


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

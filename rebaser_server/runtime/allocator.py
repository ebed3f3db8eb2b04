"""Has the C library give the memory of large arrays back when they are freed."""

import ctypes
import os
from typing import Final

_MMAP_THRESHOLD: Final = -3
_ARENA_MAX: Final = -8
"""As glibc has them, see mallopt(3)."""

LARGE: Final = 4 << 20
"""Octets from which on a piece of memory is the system's again once it is freed. Left to itself,
glibc raises this up to 32 MiB, and keeps smaller pieces wherever something in use lies behind."""
ARENAS: Final = 2
"""Heaps from which threads take the rest. Each keeps most of what its threads once had at a time;
by default there are eight for each processor."""


_OF_LIBRARIES: Final = ("_RJEM_MALLOC_CONF", "JE_ARROW_MALLOC_CONF")
"""Variables with settings of the allocators of Delta and Arrow, read as these are loaded.

By default each has threads of its own. Where a limit of processes forbids them, it writes a line
to stderr for each that it cannot start, some ten thousand in a second.
"""


def quiet_allocators() -> None:
    """Have Delta and Arrow free memory without threads, unless their settings are given."""
    for variable in _OF_LIBRARIES:
        os.environ.setdefault(variable, "background_thread:false")


def limit_kept_memory() -> bool:
    """Have glibc keep little of what is freed; whether the settings are in force.

    They are not if the C library is another one, or if the environment has settings for it.
    """
    if any(name.startswith(("MALLOC_", "GLIBC_TUNABLES")) for name in os.environ):
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError):
        return False
    return bool(mallopt(_MMAP_THRESHOLD, LARGE) and mallopt(_ARENA_MAX, ARENAS))

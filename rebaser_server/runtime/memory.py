"""Memory of this process: how often Python looks for garbage, and what libraries keep of it.

Every command imports it first, so it loads nothing that is slow.
"""

import gc
import os
from collections.abc import Callable
from typing import Final

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
    mallopt = _of_glibc("mallopt")
    return bool(mallopt(_MMAP_THRESHOLD, _LARGE) and mallopt(_ARENA_MAX, _ARENAS))


def give_back_memory() -> None:
    """Give the system all pages of memory that are free, see malloc_trim(3); takes milliseconds.

    Otherwise glibc keeps those that lie below something in use: where values come and go, a
    daemon would have more of them each hour.
    """
    _of_glibc("malloc_trim")(0)


def _of_glibc(name: str) -> Callable[..., int]:
    """Return a function of glibc; one that does nothing and returns 0 where it is missing."""
    import ctypes  # noqa: PLC0415 - slow, and only a daemon needs it

    try:
        found: Callable[..., int] = getattr(ctypes.CDLL(None), name)
    except (AttributeError, OSError):
        return lambda *_: 0
    return found


THRESHOLDS: Final = 5_000, 8, 1_000
"""Thresholds for `gc.set_threshold`. A graph is a million objects without a cycle among them: at
the default of 700, 10 and 10, looking for one takes half of a large batch's time. Each look at the
50,000 youngest objects stops the process, for some 20 ms; a look at all is rare."""


def collect_rarely() -> None:
    gc.set_threshold(*THRESHOLDS)


def exempt_modules() -> None:
    """Exempt all objects that there are from looks for garbage: a look at them takes 60 ms.

    So there is no last look either: garbage among them stays, and is little.
    """
    gc.freeze()

"""Limits of calls of functions, as far as the process that calls them keeps them itself.

It keeps the limit of memory. The time of a call of an installed function is watched by the parent
of its process, see `isolation`. Rebaser's own functions and CEL cannot switch off a timer of the
kernel: it ends their process if a step of many calls takes longer than the longest step and a call.
"""

import gc
import resource
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from rebaser_server.compute.isolation import IDLE
from rebaser_server.compute.work_unit import CallLimits

_LONGEST_STEP: Final = 30.0
"""Seconds in which a step of values ends whose calls keep their limit."""
_STATM_FILE: Final = Path("/proc/self/statm")
_PAGE_SIZE: Final = resource.getpagesize()


class CallWatchdog:
    """Limits of the calls in hand: of time on the main thread only, of memory on Linux only."""

    def __init__(self, limits: CallLimits, position: memoryview | None = None) -> None:
        """Watch nothing yet.

        `position`: 64 bits, if another process watches them, which ends this one.
        """
        self._limits = limits
        self._is_watched = position is not None
        self.position = position or memoryview(bytearray(8)).cast("q")
        """Position, in `position[0]`, of the value whose function runs, else `IDLE`."""
        self.position[0] = IDLE
        self._without_limit: tuple[int, int] | None = None
        """Memory limits of the process outside `limiting_memory`; None: it is outside."""
        self._retried = IDLE
        """Last value that ran out of memory."""

    @contextmanager
    def watching(self) -> Iterator[None]:
        """End this process if the body takes too long, unless its parent watches it."""
        seconds = 0.0 if self._is_watched else self._limits.seconds
        if not seconds or threading.current_thread() is not threading.main_thread():
            yield
            return
        # The default action ends the process in C code, too, where no handler of Python's runs.
        before = signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.setitimer(signal.ITIMER_REAL, _LONGEST_STEP + seconds)
        try:
            yield
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)

    @contextmanager
    def limiting_memory(self) -> Iterator[None]:
        """Keep the process from growing by more than the limit in the body."""
        if not self._limits.memory or not _STATM_FILE.exists():
            yield
            return
        before = resource.getrlimit(resource.RLIMIT_AS)
        self._limit_memory(before)
        self._without_limit = before
        try:
            yield
        finally:
            self._without_limit = None
            with suppress(ValueError):  # a function has lowered it for good: its process's fault
                resource.setrlimit(resource.RLIMIT_AS, before)

    def _limit_memory(self, before: tuple[int, int]) -> None:
        size = int(_STATM_FILE.read_text().split()[0]) * _PAGE_SIZE
        room = size + self._limits.memory
        if before[0] != resource.RLIM_INFINITY:
            room = min(room, before[0])
        resource.setrlimit(resource.RLIMIT_AS, (room, before[1]))

    def may_retry(self, position: int) -> bool:
        """Whether a call that ran out of memory gets another attempt, with all that it may have.

        Remains of other calls and threads may have taken a part of the limit. Each value has one
        such attempt; remains of the call itself are freed before.
        """
        if self._without_limit is None or self._retried == position:
            return False
        self._retried = position
        resource.setrlimit(resource.RLIMIT_AS, self._without_limit)
        gc.collect()
        self._limit_memory(self._without_limit)
        return True

    @property
    def value_bytes(self) -> int:
        """Maximum bytes of a result as JSON; 0: any number."""
        return self._limits.value_bytes

    @contextmanager
    def lifting_memory_limit(self) -> Iterator[None]:
        """Lift the memory limit in the body: for libraries that crash where memory ends."""
        before = resource.getrlimit(resource.RLIMIT_AS)
        resource.setrlimit(resource.RLIMIT_AS, (before[1], before[1]))
        try:
            yield
        finally:
            resource.setrlimit(resource.RLIMIT_AS, before)

    def violation_message(self, error: BaseException) -> str | None:
        """Return the message for users of a call's end; None if the call exceeded no limit."""
        if issubclass(type(error), MemoryError) and self._limits.memory:
            return f"it took more than {self._limits.memory:,} bytes of memory"
        return None

"""Holds calls of functions to their limits, in the process that they run in.

A call that goes on for too long is interrupted between two steps of Python, by an exception that
only it sees. A call that is stuck in a library cannot be interrupted, and one that catches every
exception goes on: then the process ends, and `evaluation` finds the value whose fault it was. The
kernel ends the process, by a timer of which functions know nothing.
"""

import ctypes
import faulthandler
import gc
import os
import resource
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

from rebaser_server.compute.work_unit import CallLimits

_CHECKS_PER_CALL: Final = 4
"""Number of checks of the running call within its time limit."""
KILL_FACTOR: Final = 2
"""Multiple of the time limit after which, plus a second, a process with a stuck call ends."""
IDLE: Final = -1

_LAST_WORDS: Final = 1.0
"""Seconds between the report where a call is stuck and the end of its process by any means."""
_get_handler: Final = sys.modules["_signal"].getsignal

_STATM_FILE: Final = Path("/proc/self/statm")
_PAGE_SIZE: Final = resource.getpagesize()


class TimeLimitExceeded(BaseException):
    """The call took too long. This is not an `Exception`: functions catch those."""


class CallWatchdog:
    """Limits of the calls in hand, and what happens to a call that exceeds them.

    Time is limited on the main thread only, memory on Linux only.
    """

    def __init__(self, limits: CallLimits, position: memoryview | None = None) -> None:
        """Watch nothing yet.

        `position`: 64 bits, if another process watches them, which ends this one.
        """
        self._limits = limits
        self._alone = position is None
        self.position = position or memoryview(bytearray(8)).cast("q")
        """Position, in `position[0]`, of the value whose function runs, else `IDLE`."""
        self.position[0] = IDLE
        self._seen = IDLE
        self._since = 0.0
        self._without_limit: tuple[int, int] | None = None
        """Memory limits of the process outside `limiting_memory`; None: it is outside."""
        self._retried = IDLE
        """Last value that ran out of memory."""
        self._death_timer = _DeathTimer() if self._alone else None
        self._handler = self._tick
        self._is_watching = False

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Limit the calls of the body."""
        seconds = self._limits.seconds
        if not seconds or threading.current_thread() is not threading.main_thread():
            yield
            return
        before = signal.getsignal(signal.SIGALRM)
        self._start_ticking()
        self._is_watching = True
        self._rearm()
        try:
            yield
        finally:
            self._is_watching = False
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)
            if self._death_timer is not None:
                faulthandler.cancel_dump_traceback_later()
                self._death_timer.arm(0)

    def _start_ticking(self) -> None:
        signal.signal(signal.SIGALRM, self._handler)
        interval = self._limits.seconds / _CHECKS_PER_CALL
        signal.setitimer(signal.ITIMER_REAL, interval, interval)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGALRM})

    def keep_ticking(self) -> bool:
        """Whether calls are watched as they should be; if not, they are from now on."""
        if not self._is_watching or (
            _get_handler(signal.SIGALRM) == self._handler
            and signal.getitimer(signal.ITIMER_REAL)[1]
        ):
            return True
        self._start_ticking()
        return False

    def restart(self) -> None:
        """Count the next computed value as another one, even if it is the last one again."""
        self._seen = IDLE
        if self._is_watching:
            self._rearm()

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
        self.restart()
        return True

    @property
    def memory(self) -> int:
        """Bytes by which the process may grow during a call; 0: any number."""
        return self._limits.memory

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
        if issubclass(type(error), TimeLimitExceeded):
            return f"it did not return within {self._limits.seconds:g} s"
        if issubclass(type(error), MemoryError) and self._limits.memory:
            return f"it took more than {self._limits.memory:,} bytes of memory"
        return None

    def _tick(self, *_: Any) -> None:
        now, position = time.monotonic(), self.position[0]
        if position == IDLE or position != self._seen:
            self._seen, self._since = position, now
            self._rearm()  # only here: a call that goes on ends, even if it catches everything
        elif now - self._since >= self._limits.seconds:
            self._since = now  # a function may catch even this: again in a while
            raise TimeLimitExceeded

    def _rearm(self) -> None:
        # In a forked child it would wait for ever for the thread that the parent does this with.
        if self._death_timer is None:
            return
        seconds = KILL_FACTOR * self._limits.seconds + 1
        self._death_timer.arm(seconds + _LAST_WORDS)
        if sys.__stderr__ is not None:
            # It is closed, or no file; or there is no memory for its thread: the next tick tries.
            with suppress(ValueError, OSError, RuntimeError):
                faulthandler.dump_traceback_later(seconds, exit=True, file=sys.__stderr__)


class _DeathTimer:
    """A timer of the kernel that kills this process: neither caught, nor ignored, nor blocked.

    On Linux only; elsewhere it does nothing. A forked child does not have it.
    """

    def __init__(self) -> None:
        self._timer: Any = None
        self._process = os.getpid()

    def __del__(self) -> None:
        if self._timer is not None and os.getpid() == self._process:
            _LIBC.timer_delete(self._timer)

    def arm(self, seconds: float) -> None:
        """Kill this process after `seconds`; 0: not at all."""
        if self._timer is None:
            if not seconds or not _HAS_TIMER:
                return
            event = _SignalEvent(0, int(signal.SIGKILL), 0)
            timer = ctypes.c_void_p()
            if _LIBC.timer_create(time.CLOCK_MONOTONIC, ctypes.byref(event), ctypes.byref(timer)):
                return
            self._timer = timer
        whole = int(seconds)
        rest = int((seconds - whole) * 1e9)
        _LIBC.timer_settime(self._timer, 0, ctypes.byref(_TimerSpan(0, 0, whole, rest)), None)


class _SignalEvent(ctypes.Structure):
    """Structure sigevent of Linux: a timer that expires sends a signal."""

    _fields_ = (
        ("value", ctypes.c_void_p),
        ("signal", ctypes.c_int),
        ("notify", ctypes.c_int),
        ("padding", ctypes.c_char * 48),
    )


class _TimerSpan(ctypes.Structure):
    """Structure itimerspec of Linux: the interval, and the time until the timer expires."""

    _fields_ = tuple(
        (name, ctypes.c_long) for name in ("interval", "interval_ns", "span", "span_ns")
    )


_LIBC: Final = ctypes.CDLL(None)
_HAS_TIMER: Final = sys.platform == "linux" and hasattr(_LIBC, "timer_create")

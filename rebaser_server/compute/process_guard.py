"""Restoration of process-wide state after functions that the process called have changed it.

Each call of an installed function has its own context (`contextvars`), which holds decimal's
and NumPy's settings. Other state is compared after a call, or after a group of calls that take less
time than comparing pays for, and restored. If that is impossible the process is *spoilt*: it
computes no further value and another one goes on.
"""

import _thread
import builtins
import ctypes
import decimal
import faulthandler
import gc
import io
import locale
import os
import random
import resource
import signal
import stat
import sys
import time
import warnings
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any, Final

import numpy as np

_MAX_LEFT_OPEN: Final = 256
"""Maximum number of descriptors that functions may leave open in a process, or less if its own
limit is lower."""
_FEW: Final = 1024
"""Number of descriptors that are closed without a look whether they are open."""
_END_SECONDS: Final = 2.0
"""Seconds in which killed processes are gone."""
_UNBUFFERED: Final = 2  # setvbuf(3)
_PR_SET_PDEATHSIG: Final = 1  # prctl(2)
_PR_SET_CHILD_SUBREAPER: Final = 36
_PATCHABLE: Final = (
    *("cbor2", "pyarrow"),  # answers are made of them
    *("collections", "copy", "datetime", "decimal", "fractions", "functools", "itertools", "json"),
    *("math", "numpy", "operator", "os", "random", "re", "statistics", "string", "time"),
)
"""Modules that are kept as they are, name by name; the content of others is not looked at."""
_LIMITS: Final = [
    getattr(resource, name)
    for name in dir(resource)
    # The watchdog's own is set and lifted while functions run.
    if name.startswith("RLIMIT_") and name != "RLIMIT_AS"
]
_get_handler: Final = sys.modules["_signal"].getsignal
"""Handler of a signal. The enumerations of `signal.getsignal` take ten times as long."""
_SIGNALS: Final = [
    int(number)
    for number in signal.valid_signals()
    # Two cannot be handled, and the third is the watchdog's.
    if number not in {signal.SIGKILL, signal.SIGSTOP, signal.SIGALRM}
]
_SYS: Final = (
    *("stdin", "stdout", "stderr", "displayhook", "excepthook", "unraisablehook"),
    *("breakpointhook", "path", "modules", "meta_path", "path_hooks", "dont_write_bytecode"),
)
_BUILTINS: Final = vars(builtins)
_getpid: Final = os.getpid
_OF_TZSET: Final = {"tzname", "timezone", "altzone", "daylight"}
_ABSENT: Final = object()
_STANDARD: Final = (0, 1, 2)
STRAY: Final = "a function wrote into the pipe by which its process answers"
CUT_OFF: Final = 3
"""Exit code of a process that a function has left without the means to answer."""


class Spoilt(Exception):
    """The process cannot compute the next value as if nothing had happened in it."""


@dataclass(frozen=True, slots=True)
class _Shared:
    """State that a process has once. It can be compared, and written again."""

    words: str
    read: Callable[[], Any]
    write: Callable[[Any], object]


_reported: set[tuple[str, str]] = set()
"""Functions and the changes of each that were reported."""


class ProcessGuard:
    """State that functions share in this process, as it was when the guard was made.

    Make the guard before the functions that it guards are loaded, since loading runs their code.
    """

    def __init__(self, keep_ticking: Callable[[], bool], *, is_strict: bool) -> None:
        """Note the shared state as it is now.

        Args:
            keep_ticking: makes the watchdog go on, and returns whether it did anyway.
            is_strict: whether a thread that a call leaves behind makes the process unfit for
                the next call. Otherwise it does so only if something is found changed meanwhile.
        """
        self._keep_ticking = keep_ticking
        self.is_strict = is_strict
        self._process = os.getpid()
        self._builtins = dict(_BUILTINS)
        self._modules = [(vars(module), dict(vars(module))) for module in _patchable()]
        self._before = [(each, each.read()) for each in _shared_things()]
        self._threads = _thread._count()  # noqa: SLF001 - also those that `threading` does not know
        self.spoilt = ""
        """Reason why the process is unfit to compute another value; empty: it is fit."""

    def _exit_if_forked(self) -> None:
        """End this process if it is a child that a function forked and returned in.

        Its output would reach the process that waits for its parent's answer.
        """
        if _getpid() != self._process:
            os._exit(0)

    def watch_threads(self) -> None:
        """Count the present threads as not the functions'."""
        self._threads = _thread._count()  # noqa: SLF001 - see above

    @property
    def _has_threads_left(self) -> bool:
        return _thread._count() > self._threads  # noqa: SLF001 - see above

    @property
    def is_cut_off(self) -> bool:
        """Whether the answers of this process reach nothing."""
        return is_cut_off()

    @property
    def is_over(self) -> bool:
        return bool(self.spoilt) or (self.is_strict and self._has_threads_left)

    def end(self, memory: int) -> None:
        """Decide, after the last call, whether the process is fit for other units.

        `memory`: bytes by which it may have grown; 0: any number.
        """
        global unfit  # noqa: PLW0603 - of the process
        if _claim is None:
            return
        # The generators that a process has once begin anew: seeds are not handed on.
        random.seed()
        np.random.seed()  # noqa: NPY002 - it is this one that functions may have seeded
        if self.spoilt:
            unfit = self.spoilt
        elif self._has_threads_left:
            unfit = "functions left threads behind"
        elif memory and _claim.memory_growth() > memory:
            unfit = "functions hold more memory than one call may take"

    def is_clean(self) -> bool:
        """Whether all shared state is as it was; a look costs some 30 microseconds."""
        try:
            return self._is_as_before()
        except Exception:  # what a function put there compares as it likes
            return False

    def _is_as_before(self) -> bool:
        if self._builtins != _BUILTINS:
            return False
        self._exit_if_forked()
        if not self._keep_ticking():
            return False
        for now, before in self._modules:
            if now != before:
                return False
        for each, kept in self._before:
            if each.read() != kept:
                return False
        if self.is_strict and is_cut_off():
            return False
        return _claim is None or not (_has_children() or _claim.has_descriptors_changed())

    def put_back(self) -> list[str]:
        """Restore changed state, and name it; if that fails, the process is `spoilt`."""
        if self._builtins != _BUILTINS:
            # No builtin is used as long as functions may have replaced it.
            _BUILTINS.update(self._builtins)
            changed = ["builtins"]
            for name in set(_BUILTINS) - set(self._builtins):
                del _BUILTINS[name]
        else:
            changed = []
        changed += self._put_back_modules()
        self._exit_if_forked()
        for each, kept in self._before:
            if not _is_same(each, kept):
                changed.append(each.words)
                with suppress(Exception):
                    each.write(kept)
                if not _is_same(each, kept):
                    self.spoilt = f"{each.words} could not be put back"
        if _claim is not None:
            changed += self._put_back_process(_claim)
        if changed and self._has_threads_left:
            self.spoilt = "a thread that a function left behind may have changed it"
        return changed

    def report(self, function: str, seen: str, changed: list[str]) -> None:
        """Report on standard error which function changed what, once in a process for each.

        `seen`: when the change was seen.

        `seen`: when that was.
        """
        end = "the process is replaced" if self.spoilt else "it was put back"
        for words in changed:
            if (function, words) not in _reported:
                _reported.add((function, words))
                with suppress(OSError):
                    os.write(
                        2, f"rebaser: function {function} changed {words} {seen}; {end}\n".encode()
                    )

    def _put_back_modules(self) -> list[str]:
        changed = []
        for now, before in self._modules:
            replaced = {
                key: kept
                for key, kept in before.items()
                if now.get(key, _ABSENT) is not kept and key not in _OF_TZSET
            }
            before.update({key: now[key] for key in _OF_TZSET & before.keys() & now.keys()})
            if replaced:
                now.update(replaced)
                changed.append(f"the module {before['__name__']}")
            before.update({key: item for key, item in now.items() if key not in before})
        return changed

    def _put_back_process(self, claim: "_Claim") -> list[str]:
        changed = []
        if claim.has_descriptors_changed():
            changed.append("what files are open")
            self.spoilt = claim.put_descriptors_back() or self.spoilt
        if _has_children():
            changed.append("what processes there are")
            if not _end_children():
                self.spoilt = "a process that a function started does not end"
        return changed


def _is_same(each: _Shared, kept: Any) -> bool:
    try:
        return bool(each.read() == kept)
    except Exception:  # what a function put there compares as it likes
        return False


def _patchable() -> list[ModuleType]:
    return [import_module(name) for name in _PATCHABLE if name in sys.modules]


def _shared_things() -> list[_Shared]:
    """Shared things to compare after calls, the ones that change most often first."""
    mask = _umask(0o077)
    return [
        _Shared("the recursion limit", sys.getrecursionlimit, sys.setrecursionlimit),
        _Shared("the working directory", _working_directory, os.chdir),
        _Shared("the environment", _environment, _set_environment),
        _Shared("the time zone", _time_zone, lambda _: time.tzset()),
        _Shared("the locale", _locale, lambda name: locale.setlocale(locale.LC_ALL, name)),
        _Shared("the file mode mask", lambda: _umask(mask), os.umask),
        _Shared("what sys has", _of_sys, _set_sys),
        _Shared("sys.path", sys.path.copy, _set_items_of(sys.path)),
        _importers(),
        _Shared("the warnings filters", _filters, _set_filters),
        _Shared("the signal handlers", _handlers, _set_handlers),
        _Shared("the blocked signals", _blocked, _set_blocked),
        _Shared("the timers", _timers, _set_timers),
        _Shared("the default decimal context", _decimal_contexts, _set_decimal_contexts),
        _Shared("the digits of an integer's text", _digits, sys.set_int_max_str_digits),
        _Shared("the garbage collection", _collection, _set_collection),
        _Shared("the tracing", lambda: (sys.gettrace(), sys.getprofile()), _set_tracing),
        _Shared("the thread switch interval", sys.getswitchinterval, sys.setswitchinterval),
        _Shared("the event loop policy", _policy, _set_policy),
        _Shared("the fault handler", faulthandler.is_enabled, _set_fault_handler),
        _Shared("the resource limits", _limits, _set_limits),
        _Shared("the highest memory limit", _hard_memory_limit, _set_hard_memory_limit),
        _Shared("the priority", _priority, lambda old: os.setpriority(os.PRIO_PROCESS, 0, old)),
        _Shared("the socket timeout", _socket_timeout, _set_socket_timeout),
    ]


def _set_items_of(target: list[Any]) -> Callable[[list[Any]], None]:
    def write(items: list[Any]) -> None:
        target[:] = items

    return write


def _importers() -> _Shared:
    """Importers of `sys.meta_path`. Those that imported modules add stay: modules rely on them."""
    before = sys.meta_path.copy()

    def write(kept: list[Any]) -> None:
        added = [each for each in sys.meta_path if each not in before]
        sys.meta_path[:] = [*kept, *added]

    return _Shared(
        "sys.meta_path", lambda: [each for each in sys.meta_path if each in before], write
    )


def _working_directory() -> str | None:
    try:
        return os.getcwd()  # noqa: PTH109 - it is compared after each call
    except FileNotFoundError:
        return None


def _environment() -> dict[Any, Any]:
    # The names and values as bytes, without reading each.
    octets: dict[Any, Any] = os.environ._data.copy()  # type: ignore[attr-defined]  # noqa: SLF001
    return octets


def _set_environment(octets: dict[Any, Any]) -> None:
    for name in os.environb.keys() - octets.keys():
        del os.environb[name]
    for name, value in octets.items():
        if os.environb.get(name) != value:
            os.environb[name] = value
    time.tzset()


def _time_zone() -> Any:
    return time.tzname, time.timezone, time.altzone


def _locale() -> str:
    return locale.setlocale(locale.LC_ALL)


def _umask(likely: int) -> int:
    """Mask of file modes. Reading it sets it for a moment, best to its likely value."""
    mask = os.umask(likely)
    if mask != likely:
        os.umask(mask)
    return mask


def _of_sys() -> list[Any]:
    return [getattr(sys, name, None) for name in _SYS]


def _set_sys(items: list[Any]) -> None:
    for name, item in zip(_SYS, items, strict=True):
        setattr(sys, name, item)


def _filters() -> Any:
    return warnings.filters[:], warnings.showwarning


def _set_filters(kept: Any) -> None:
    warnings.filters[:], warnings.showwarning = kept  # type: ignore[index]
    with warnings.catch_warnings():  # its end makes the interpreter read the filters anew
        pass


def _handlers() -> list[Any]:
    return list(map(_get_handler, _SIGNALS))


def _set_handlers(kept: list[Any]) -> None:
    for number, handler in zip(_SIGNALS, kept, strict=True):
        if handler is not None and _get_handler(number) != handler:
            signal.signal(number, handler)


def _blocked() -> set[Any]:
    return set(signal.pthread_sigmask(signal.SIG_BLOCK, ()))


def _set_blocked(kept: set[Any]) -> None:
    signal.pthread_sigmask(signal.SIG_SETMASK, kept)


def _timers() -> Any:
    return signal.getitimer(signal.ITIMER_VIRTUAL)[1], signal.getitimer(signal.ITIMER_PROF)[1]


def _set_timers(_: Any) -> None:
    signal.setitimer(signal.ITIMER_VIRTUAL, 0)
    signal.setitimer(signal.ITIMER_PROF, 0)


def _decimal_contexts() -> list[str]:
    return [
        repr(decimal.DefaultContext),
        repr(decimal.BasicContext),
        repr(decimal.ExtendedContext),
    ]


def _set_decimal_contexts(kept: list[str]) -> None:
    for context, text in zip(
        [decimal.DefaultContext, decimal.BasicContext, decimal.ExtendedContext], kept, strict=True
    ):
        old = eval(text, vars(decimal))  # noqa: S307 - what `repr` made of it, to be read so
        for name in ("prec", "rounding", "Emin", "Emax", "capitals", "clamp"):
            setattr(context, name, getattr(old, name))
        context.traps.update(old.traps)
        context.flags.update(old.flags)


def _digits() -> int:
    return sys.get_int_max_str_digits()


def _collection() -> Any:
    return gc.isenabled(), gc.get_threshold(), gc.get_debug(), gc.callbacks[:]


def _set_collection(kept: Any) -> None:
    is_enabled, threshold, debug, gc.callbacks[:] = kept
    (gc.enable if is_enabled else gc.disable)()
    gc.set_threshold(*threshold)
    gc.set_debug(debug)


def _set_tracing(kept: Any) -> None:
    sys.settrace(kept[0])
    sys.setprofile(kept[1])


def _policy() -> Any:
    policy = getattr(sys.modules.get("asyncio.events"), "_event_loop_policy", None)
    # An object that is made when first asked for is no change.
    return None if type(policy).__module__ == "asyncio.unix_events" else policy


def _set_policy(kept: Any) -> None:
    setattr(sys.modules["asyncio.events"], "_event_loop_policy", kept)  # noqa: B010 - not of mypy's


def _set_fault_handler(is_enabled: bool) -> None:  # noqa: FBT001 - as it was read
    if is_enabled and sys.__stderr__ is not None:
        faulthandler.enable(sys.__stderr__)
    else:
        faulthandler.disable()


def _limits() -> list[tuple[int, int]]:
    return list(map(resource.getrlimit, _LIMITS))


def _set_limits(kept: list[tuple[int, int]]) -> None:
    for number, limit in zip(_LIMITS, kept, strict=True):
        if resource.getrlimit(number) != limit:
            resource.setrlimit(number, limit)


def _hard_memory_limit() -> int:
    return resource.getrlimit(resource.RLIMIT_AS)[1]


def _set_hard_memory_limit(hard: int) -> None:
    resource.setrlimit(resource.RLIMIT_AS, (resource.getrlimit(resource.RLIMIT_AS)[0], hard))


def _priority() -> int:
    return os.getpriority(os.PRIO_PROCESS, 0)


def _socket_timeout() -> float | None:
    module = sys.modules.get("_socket")
    return None if module is None else module.getdefaulttimeout()


def _set_socket_timeout(seconds: float | None) -> None:
    sys.modules["_socket"].setdefaulttimeout(seconds)


class _Claim:
    """A process whose only work is to call functions, and which owns their leftovers."""

    def __init__(self) -> None:
        self._null = os.open(os.devnull, os.O_RDWR)
        self._standard = [(fd, os.dup(fd), _identity(fd)) for fd in _STANDARD if _identity(fd)]
        self._first_free = self._lowest_free()
        soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        self._most_free = self._first_free + min(_MAX_LEFT_OPEN, max(soft // 4, 8))
        self._memory = _resident_bytes()
        self._kept: set[int] = set()
        self._channels: list[tuple[int, Any]] = []
        """Pipes and sockets by which this process answers."""
        self.refresh()

    def refresh(self) -> None:
        """Count descriptors that are open now as not the functions'."""
        self._kept = set(_descriptors())
        self._channels = [
            (fd, identity)
            for fd in self._kept
            if fd not in _STANDARD
            and (identity := _identity(fd))
            and identity[2] in {stat.S_IFIFO, stat.S_IFSOCK}
        ]

    def memory_growth(self) -> int:
        return _resident_bytes() - self._memory

    def is_cut_off(self) -> bool:
        """Whether a function closed or replaced the channel by which this process answers."""
        return any(_identity(fd) != identity for fd, identity in self._channels)

    def let_go(self) -> None:
        """Close, in a forked child, the channels whose end other processes wait for."""
        for fd, _ in self._channels:
            with suppress(OSError):
                os.dup2(self._null, fd, inheritable=False)

    def has_descriptors_changed(self) -> bool:
        try:
            is_full = self._lowest_free() > self._most_free
        except OSError:
            return True
        return is_full or any(_identity(fd) != identity for fd, _, identity in self._standard)

    def put_descriptors_back(self) -> str:
        """Restore descriptors; return why this process has to be replaced, or an empty text."""
        for fd, copy, identity in self._standard:
            if _identity(fd) != identity:
                with suppress(OSError):
                    os.dup2(copy, fd)
        if not self.has_descriptors_changed():
            return ""
        # The rest of this process needs some to send its results.
        self._close(range(len(_STANDARD), _FEW))  # frees some, with which to look for others
        with suppress(OSError):
            self._close(_descriptors())
        return "functions left too many files open"

    def _close(self, descriptors: Iterable[int]) -> None:
        for fd in descriptors:
            if fd not in self._kept:
                with suppress(OSError):
                    os.close(fd)

    def _lowest_free(self) -> int:
        fd = os.dup(self._null)
        os.close(fd)
        return fd


unfit = ""
"""Reason why this process should compute no other unit; empty: it can."""
_claim: _Claim | None = None
_forking: tuple[int, bool] = 0, False
"""The process that forks, and whether it does on its main thread."""
_prctl: Any = None


def claim() -> None:
    """Declare that this process only calls functions, or does so for another unit from now on.

    From then on processes, open files and threads that functions leave behind belong to the
    functions, and end with their call or with this process.
    """
    global _claim, _prctl  # noqa: PLW0603 - of the process
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # what can be printed is no matter of the machine
            stream.reconfigure(encoding="utf-8", errors="backslashreplace")
    if sys.platform != "linux":
        return
    if _prctl is None:
        c = ctypes.CDLL(None)
        # The process may end at any time, and what C has in its buffers would be lost.
        c.setvbuf(ctypes.c_void_p.in_dll(c, "stdout"), None, _UNBUFFERED, 0)
        _prctl = c.prctl
        os.register_at_fork(before=_before_fork, after_in_child=_after_fork_in_child)
    # Processes whose parents ended become this one's children, and not those of process 1.
    _prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    if _claim is None:
        _claim = _Claim()
    else:
        _claim.refresh()


def claim_again() -> None:
    """Claim this process, a child forked to call functions, if its parent was claimed."""
    if _claim is not None:
        claim()


def end_with_parent() -> None:
    """Ask the kernel to end this process, which is claimed, with the process that started it.

    Threads of this one cannot do that while a function lets no other thread get on.
    """
    if _prctl is not None:
        _prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)


def end_orphans() -> None:
    """End the processes that functions had started, once the child that called them has ended."""
    if _claim is not None:
        _end_children()


def is_cut_off() -> bool:
    return _claim is not None and _claim.is_cut_off()


def _before_fork() -> None:
    global _forking  # noqa: PLW0603 - of the process
    _forking = os.getpid(), _thread.get_native_id() == os.getpid()


def _after_fork_in_child() -> None:
    """Make the child end with its parent and not hold what others wait for."""
    parent, is_main_thread = _forking
    if is_main_thread:  # the kernel goes by the thread, and others may end long before the process
        _prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
        if os.getppid() != parent:  # the parent ended before the signal was asked for
            os._exit(0)
    if _claim is not None:
        _claim.let_go()


def _has_children() -> bool:
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True


def _end_children() -> bool:
    """Kill the processes that this one has started, and theirs; return whether all are gone."""
    until = time.monotonic() + _END_SECONDS
    while _has_children():
        for pid in _children():
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        with suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        if time.monotonic() > until:
            return False
        time.sleep(0.001)
    return True


def _children() -> list[int]:
    own, children = str(os.getpid()), []
    for entry in os.listdir("/proc"):  # noqa: PTH208 - names
        if entry.isdigit():
            with suppress(OSError):
                # Behind the name, which stands in parentheses and may have any: state and parent.
                fields = Path("/proc", entry, "stat").read_text().rpartition(")")[2].split()
                if fields[1] == own:
                    children.append(int(entry))
    return children


def _descriptors() -> list[int]:
    return [int(name) for name in os.listdir("/proc/self/fd")]  # noqa: PTH208 - names


def _identity(fd: int) -> tuple[int, int, int] | None:
    try:
        status = os.fstat(fd)
    except OSError:
        return None
    return status.st_dev, status.st_ino, stat.S_IFMT(status.st_mode)


def _resident_bytes() -> int:
    pages = Path("/proc/self/statm").read_text().split()[1]
    return int(pages) * resource.getpagesize()

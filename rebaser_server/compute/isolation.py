"""Processes that call the functions of others: each is forked for one task, and then ends.

What a function changes in its process can be anything, so nothing is put back: a child is forked
from a process that has called no function, answers by a pipe of its own, and is killed. Its parent
keeps its limits. A child notes in shared memory which value it computes; so the parent knows which
value took too long, or ended the child.

A module that a function lies in is imported in a child first. If that leaves nothing behind that
other functions could meet, the parent imports it, too, for the children to come.
"""

import _thread
import builtins
import ctypes
import decimal
import faulthandler
import gc
import io
import locale
import mmap
import os
import resource
import select
import signal
import sys
import time
import warnings
from collections.abc import Callable
from contextlib import suppress
from math import log2
from pathlib import Path
from typing import Any, Final

from rebaser_server.compute.errors import describe

IDLE: Final = -1
"""Position of no value."""
VECTORISED: Final = -2
"""Position of many values that one call computes."""
LOADING: Final = -3
"""Position while the first function is loaded; of the next one it is less by one."""

STRAY: Final = "a function wrote into the pipe by which its process answers"
UNABLE: Final = "a function left its process unable to answer"

_LOOK: Final = 0.125
"""Seconds of a child between two looks, and after which its priority begins to fall."""
_LOWEST: Final = 10
_LOOKS_PER_CALL: Final = 8
"""Looks at the running call within its time limit, at least."""
_LONGEST_PAUSE: Final = 30.0
"""Seconds, or twice a call's limit, that a child takes between calls: to load, read, and write."""
_LONGEST: Final = 1 << 31
"""Maximum bytes of an answer."""
_AT_ONCE: Final = 1 << 16
"""Bytes of an answer that are read at once."""
_TOKEN: Final = 16
_LENGTH: Final = 8
_DONE: Final = b"\0"
_BROKEN: Final = b"\1"
_STANDARD: Final = 2
"""Last of the descriptors that a child shares with its parent: those of its prints."""
_END_SECONDS: Final = 2.0
"""Seconds in which killed processes are gone."""
_UNBUFFERED: Final = 2  # setvbuf(3)
_PR_SET_PDEATHSIG: Final = 1  # prctl(2)
_PR_SET_CHILD_SUBREAPER: Final = 36

_prctl: Final = ctypes.CDLL(None).prctl if sys.platform == "linux" else None
_is_claimed = False
_forking: tuple[int, bool] = 0, False
"""The process that forks, and whether it does on its main thread."""
_pipe: int | None = None
"""Descriptor by which this process, a child, answers."""
_of_modules: set[int] = set()
"""Descriptors that modules opened when they were imported here."""
_ended: "list[_Child]" = []
"""Children that have answered, and may still be about to end."""


class ChildEnded(Exception):
    """A child gave no answer."""

    def __init__(self, position: int, reason: str, *, is_limit: bool = False) -> None:
        """Note the position that the child was at. `is_limit`: it took longer than it may."""
        super().__init__(reason)
        self.position = position
        self.reason = reason
        self.is_limit = is_limit


def shared_position() -> memoryview:
    """Return memory for a position, in `position[0]`, that children share with this process."""
    position = memoryview(mmap.mmap(-1, mmap.PAGESIZE)).cast("q")
    position[0] = IDLE
    return position


def ask_child(
    work: Callable[[], bytes],
    position: memoryview,
    seconds: float,
    looked: Callable[[int], None] = lambda _: None,
) -> bytes:
    """Return what `work` returns in a child that is forked for it.

    Args:
        work: what to do there.
        position: as of `shared_position`, where it notes the value that it computes.
        seconds: that it may stay at one position; 0: any number.
        looked: called from time to time with the number of positions seen so far.

    Raises:
        ChildEnded: there is none, or the work raised an error, which is the reason.
    """
    # The remains of the last child are ended before the fork. That kills every child that this
    # process has, so it would kill the next one, too.
    end_children()
    # A child that was killed leaves its position here. The next one must not be blamed for it.
    position[0] = IDLE
    child = _Child(work, position)
    try:
        answer = child.read(seconds, looked)
    finally:
        child.kill()
        _ended.append(child)
    if answer[:1] == _BROKEN:
        raise ChildEnded(IDLE, answer[1:].decode())
    return answer[1:]


class _Child:
    def __init__(self, work: Callable[[], bytes], position: memoryview) -> None:
        self._position = position
        # Bytes that a function writes into the pipe do not begin with this token.
        self._token = os.urandom(_TOKEN)
        self._pipe, theirs = os.pipe()
        self._pid = fork()
        if self._pid == 0:
            self._answer(work, theirs)
        # The pipe would not end with the child if it were open here, too.
        os.close(theirs)
        # A process that the function started may hold the pipe open, so the child's end is polled.
        self._pidfd = os.pidfd_open(self._pid) if hasattr(os, "pidfd_open") else None

    def _answer(self, work: Callable[[], bytes], pipe: int) -> None:
        """Answer and end, in the child, without Python's own clean-up."""
        global _pipe  # noqa: PLW0603 - of the process
        # The work may replace functions of `os`, so these are taken before.
        own, getpid, leave, write = os.getpid(), os.getpid, os._exit, os.write
        try:
            _pipe = pipe
            _close_others(pipe)
            try:
                answer = _DONE + work()
            except BaseException as error:
                answer = _BROKEN + describe(error).encode(errors="replace")
            self._position[0] = IDLE
            frame = memoryview(self._token + len(answer).to_bytes(_LENGTH) + answer)
            while frame and getpid() == own:  # a child that a function forked may return here, too
                frame = frame[write(pipe, frame) :]
        finally:
            leave(0)

    def kill(self) -> None:
        """End it, with its threads, also if they hang."""
        with suppress(ProcessLookupError):
            os.kill(self._pid, signal.SIGKILL)

    def read(self, seconds: float, looked: Callable[[int], None]) -> bytes:
        poll, answers, data = select.poll(), select.poll(), bytearray()
        answers.register(self._pipe, select.POLLIN)
        for each in (self._pipe, self._pidfd):
            if each is not None:
                poll.register(each, select.POLLIN)
        pause = min(_LOOK, seconds / _LOOKS_PER_CALL or _LOOK)
        watched = _Watch(self._pid, seconds)
        while True:
            ready = [fd for fd, _ in poll.poll(1000 * pause)]
            # Asked before the pipe is looked at: what an ended child wrote lies there by then. That
            # `ready` lacks the pipe says nothing, since the child may have answered and ended while
            # the kernel looked from the one to the other.
            exit_code = None if ready == [self._pipe] else self._exit_code()
            is_readable = bool(answers.poll(0))
            part = os.read(self._pipe, _AT_ONCE) if is_readable else b""
            data += part
            position: int = self._position[0]
            if (answer := self._answer_in(data, position)) is not None:
                return answer
            if not part and (exit_code is not None or is_readable):
                raise self._ended(position, exit_code)
            watched.look(position, is_answering=bool(part))
            looked(watched.met)

    def _answer_in(self, data: bytearray, position: int) -> bytes | None:
        header = _TOKEN + _LENGTH
        if not self._token.startswith(data[:_TOKEN]):
            raise ChildEnded(position, STRAY)
        size = header + int.from_bytes(data[_TOKEN:header])
        if size > _LONGEST:
            raise ChildEnded(IDLE, f"it answers with more than {_LONGEST >> 20} MiB")
        return bytes(data[header:size]) if header < size <= len(data) else None

    def _ended(self, position: int, exit_code: int | None) -> ChildEnded:
        """Return the error about its end, or about the end of its pipe, which it has closed."""
        until = time.monotonic() + _END_SECONDS
        while exit_code is None and time.monotonic() < until:  # most often it is about to end
            time.sleep(0.001)
            exit_code = self._exit_code()
        exit_code = exit_code or 0
        reason = describe_exit(exit_code) if exit_code or position != IDLE else UNABLE
        return ChildEnded(position, reason)

    def _exit_code(self) -> int | None:
        # The child stays a zombie. Else its id might be another process's when `kill` uses it.
        status = os.waitid(os.P_PID, self._pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        if status is None:
            return None
        return status.si_status if status.si_code == os.CLD_EXITED else -status.si_status

    def end(self) -> None:
        """Wait for its end, which is near."""
        with suppress(ChildProcessError):
            os.waitpid(self._pid, 0)
        os.close(self._pipe)
        if self._pidfd is not None:
            os.close(self._pidfd)


class _Watch:
    """Look at a child from time to time: how far it is, and whether it takes too long."""

    def __init__(self, pid: int, seconds: float) -> None:
        self._seconds = seconds
        self._schedule = Path(f"/proc/{pid}/schedstat")
        self._seen: int | None = None
        self._began = self._since = time.monotonic()
        self._pid, self._nice = pid, 0
        self.met = 0
        """Number of values that it was seen at."""

    def look(self, position: int, *, is_answering: bool) -> None:
        """Raise `ChildEnded` if the child was at this position for too long."""
        now = self._clock()
        self._lower(now - self._began)
        if position != self._seen or is_answering:
            self.met += position != self._seen and position >= 0
            self._seen, self._since = position, now
            return
        longest = max(2 * self._seconds, _LONGEST_PAUSE) if position == IDLE else self._seconds
        if self._seconds and now - self._since > longest:
            reason = f"it did not return within {self._seconds:g} s"
            raise ChildEnded(position, reason, is_limit=True)

    def _lower(self, seconds: float) -> None:
        """Lower its priority each time that it took twice as long: cheaper calls go first."""
        nice = min(_LOWEST, 3 * int(log2(max(seconds, _LOOK) / _LOOK)))
        if nice > self._nice:
            self._nice = nice
            with suppress(OSError):
                os.setpriority(os.PRIO_PROCESS, self._pid, nice)

    def _clock(self) -> float:
        """Seconds in which the child was not waiting for a processor, as beside many others."""
        waited = 0
        with suppress(OSError, IndexError):
            waited = int(self._schedule.read_text().split()[1])
        return time.monotonic() - waited / 1e9


def fork() -> int:
    """Fork this process, whose other threads hold no lock that the child uses."""
    if sys.version_info < (3, 12):
        return os.fork()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        return os.fork()


def _close_others(pipe: int) -> None:
    """Take away what this process, a child, could write into, or hold open, for others.

    Descriptors are replaced and not closed: objects that close them later do no harm.
    """
    null = os.open(os.devnull, os.O_RDWR)
    for number in _descriptors() - _of_modules - {pipe, null, *range(_STANDARD + 1)}:
        with suppress(OSError):
            os.dup2(null, number, inheritable=False)
    os.close(null)


def end_children() -> None:
    """Wait until children that have answered are gone, and end what their functions started."""
    while _ended:
        _ended.pop().end()
        if _is_claimed:
            _end_orphans()


def _end_orphans() -> None:
    """Kill the processes that functions have started, and theirs; all are this one's by now."""
    until = time.monotonic() + _END_SECONDS
    while time.monotonic() < until:
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return
        # A killed process leaves its own children to this one, so the loop looks again.
        for pid in _children():
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.001)


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


def _descriptors() -> set[int]:
    return {int(name) for name in os.listdir("/dev/fd")}  # noqa: PTH208 - names


def describe_exit(code: int) -> str:
    """Return how a process ended, by its exit code as `Popen.returncode`."""
    if code >= 0:
        return f"exit code {code}"
    return f"killed by {signal.Signals(-code).name}"


def claim() -> None:
    """Declare that this process forks others only to call functions. Idempotent.

    From then on processes that functions leave behind end with the child that called them.
    """
    global _is_claimed  # noqa: PLW0603 - of the process
    print_everything()
    if _prctl is None or _is_claimed:
        return
    _is_claimed = True
    c = ctypes.CDLL(None)
    # A child ends without a clean-up, and what C has in its buffers would be lost.
    c.setvbuf(ctypes.c_void_p.in_dll(c, "stdout"), None, _UNBUFFERED, 0)
    os.register_at_fork(before=_before_fork, after_in_child=_after_fork_in_child)
    # Where memory runs out, functions are what took it, and neither the daemon nor Spark's JVM.
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")
    # Processes whose parents ended become this one's children, and not those of process 1.
    _prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def print_everything() -> None:
    """Let this process print every text, on any machine. Idempotent."""
    encoding, errors = "utf-8", "backslashreplace"
    for stream in (sys.stdout, sys.stderr):
        if not isinstance(stream, io.TextIOWrapper):
            continue
        if (stream.encoding, stream.errors) != (encoding, errors):
            stream.reconfigure(encoding=encoding, errors=errors)


def end_with_parent(parent: int | None = None) -> None:
    """Ask the kernel to end this process with the process that started it.

    Threads of this one cannot do that while a function lets no other thread get on.

    `parent`: its process id, if that may have ended already.
    """
    if _prctl is not None:
        _prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
    # A parent that ended before the request is not noticed by the kernel: this process would stay.
    if parent is not None and os.getppid() != parent:
        os._exit(0)


def _before_fork() -> None:
    global _forking  # noqa: PLW0603 - of the process
    _forking = os.getpid(), _thread.get_native_id() == os.getpid()


def _after_fork_in_child() -> None:
    """Make the child end with its parent, and not hold the pipe that the parent answers by."""
    parent, is_main_thread = _forking
    if is_main_thread:  # the kernel goes by the thread, and others may end long before the process
        end_with_parent(parent)
    if _pipe is not None:
        with suppress(OSError):
            os.close(_pipe)


def import_for_children(load: Callable[[], object]) -> None:
    """Call what imports a module whose import was found clean in a child."""
    before = _descriptors()
    with suppress(Exception):  # the children find the error themselves
        load()
    _of_modules.update(_descriptors() - before)
    gc.freeze()  # no collection makes children copy the memory in which the module lies


_PATCHABLE: Final = (
    *("cbor2", "pyarrow", "collections", "copy", "datetime", "decimal", "fractions", "functools"),
    *("itertools", "json", "math", "numpy", "operator", "os", "random", "re", "statistics"),
    *("string", "time"),
)
"""Modules that are compared name by name."""
_LIMITS: Final = [getattr(resource, name) for name in dir(resource) if name.startswith("RLIMIT_")]
_ABSENT: Final = object()
_PLAIN: Final = (int, float, str, tuple)
"""Types of constants, which may be replaced by equal ones."""


def state_of_process() -> Callable[[], bool]:
    """Return a function that tells whether this process still is as it is now.

    It looks at what an import may change for other modules and libraries may rely on. Importers,
    caches, and filters of warnings that modules add are no change.
    """
    modules = [builtins, *(sys.modules[name] for name in _PATCHABLE if name in sys.modules)]
    names = [(vars(module), dict(vars(module))) for module in modules]
    things = _things()

    def is_same() -> bool:
        try:
            return _things() == things and all(
                _is_kept(now.get(name, _ABSENT), item)
                for now, before in names
                for name, item in before.items()
            )
        except Exception:
            return False

    return is_same


def _is_kept(now: object, before: object) -> bool:
    # Setting the time zone anew, as pandas does, sets the zone's names and offsets to equal ones.
    return now is before or (type(now) is type(before) and type(now) in _PLAIN and now == before)


def _things() -> list[Any]:
    mask = os.umask(0o077)
    os.umask(mask)
    policy = getattr(sys.modules.get("asyncio.events"), "_event_loop_policy", None)
    sockets = sys.modules.get("_socket")
    return [
        *(mask, Path.cwd(), dict(os.environ), time.tzname, locale.setlocale(locale.LC_ALL)),
        *(sys.getrecursionlimit(), sys.getswitchinterval(), sys.get_int_max_str_digits()),
        *(sys.stdin, sys.stdout, sys.stderr, sys.excepthook, sys.gettrace(), sys.getprofile()),
        *(sys.path.copy(), sys.modules is _MODULES, gc.isenabled(), gc.get_threshold()),
        [signal.getsignal(number) for number in signal.valid_signals()],
        signal.pthread_sigmask(signal.SIG_BLOCK, ()),
        *(signal.getitimer(signal.ITIMER_VIRTUAL)[1], signal.getitimer(signal.ITIMER_PROF)[1]),
        [repr(each) for each in (decimal.DefaultContext, decimal.BasicContext)],
        [each for each in warnings.filters if each[0] == "error"],
        faulthandler.is_enabled(),
        [resource.getrlimit(number) for number in _LIMITS],
        os.getpriority(os.PRIO_PROCESS, 0),
        # An object that is made when first asked for is no change.
        None if type(policy).__module__ == "asyncio.unix_events" else policy,
        None if sockets is None else sockets.getdefaulttimeout(),
        *(_thread._count(), len(os.listdir("/proc/self/task"))),  # noqa: SLF001, PTH208 - all threads
        [os.fstat(number)[:3] for number in range(_STANDARD + 1)],
    ]


_MODULES: Final = sys.modules

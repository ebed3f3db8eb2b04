"""Executors of a plan's units: children beside the daemon, and the choice between these and Spark.

A run goes to one of two executors, by its cost or by the number of its values. A `DvuRun` knows
which parts of a run are done, and which tasks are next.

Children cost a small run no more than its values do. All workspaces share them, and take them in
turns. A task that takes longer than `QUICK` leaves its seat to others and goes on beside them, with
a lower priority (see `isolation`), so a quick task waits for quick ones only. Prints of functions
go to the log: bounded, and with the change set that was computed.
"""

import asyncio
import os
import pickle
import secrets
import signal
import sys
from asyncio import SubprocessTransport
from asyncio.subprocess import PIPE, SubprocessStreamProtocol
from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Sequence
from contextlib import suppress
from contextvars import Context
from errno import EAGAIN
from functools import partial
from typing import Any, Final, Never, Protocol, Self, TypeVar, cast
from uuid import uuid4

import structlog

from rebaser_server.compute.cost_model import ROW_SECONDS, UNMEASURED_SECONDS, CostModel
from rebaser_server.compute.errors import RunFailed, evaluator_error
from rebaser_server.compute.evaluation import FIRST_STEP, TIME_SLICE
from rebaser_server.compute.functions.runtimes import ARROW
from rebaser_server.compute.isolation import STRAY
from rebaser_server.compute.local_worker import BROKEN, DONE, LENGTH, NUMBER
from rebaser_server.compute.results import (
    PartFile,
    RunStore,
    StoredResult,
    UnitResult,
    contiguous_parts,
)
from rebaser_server.compute.task_protocol import (
    GaveWay,
    decode_answer,
    encode_task,
    execute,
    read_stored_result,
)
from rebaser_server.compute.work_unit import (
    WorkUnit,
    count_values,
    digest_of,
    has_runtime,
    read_limits,
)
from rebaser_server.runtime.process import child_environment
from rebaser_server.runtime.progress import JobProgress
from rebaser_server.runtime.tasks import PROCESS_LIMITS, TaskGroup, Turns, WorkThreads, background

P = TypeVar("P")

PROGRESS_EVERY: Final = 0.5
"""Seconds between two records of a run's progress."""

_SMALL_SECONDS: Final = 0.25
"""Seconds that a run takes, by estimate, up to which a job of Spark, which takes some 0.1 s beside
that, is not worth it."""
_SMALL_BYTES: Final = 8 << 20
"""Bytes of a small run's units, at most."""


class Executor(Protocol):
    async def start(self) -> None:
        """Let the first run find everything warm. Optional; may be repeated or cancelled."""

    async def run(
        self,
        units: Sequence[bytes | memoryview],
        *,
        owner: str = "",
        store: RunStore | None = None,
        progress: JobProgress | None = None,
    ) -> list[UnitResult | StoredResult]:
        """Return what became of each unit, in their order. Several runs may go on at once.

        `owner`: whose run it is; the runs of several owners take turns where room is short.
        `progress`: of these units, recorded now and then.

        Cancelled, it ends what it began, within about a second; other runs go on. May be
        repeated: functions are pure. With a run store, what is large may be left there, what is
        there already is not computed again, and without one nothing is `StoredResult`.

        Raises:
            RunFailed: what computed has ended; there are no results.
            EvaluationFailed: the evaluator raised an error; there are no results.
            DiskFull: the same, because a disk has no room.
            SessionFailed: there is nothing to run on.
        """

    async def close(self) -> None:
        """End what was started, runs in hand included; these raise `RunFailed`."""


async def run_apart(
    units: Sequence[bytes | memoryview],
    parts: Sequence[P | None],
    together: Callable[
        [list[bytes | memoryview]], Coroutine[Any, Any, list[UnitResult | StoredResult]]
    ],
    apart: Callable[[P], Coroutine[Any, Any, UnitResult]],
) -> list[UnitResult | StoredResult]:
    """Return the results of all units: those without a part together, each other by its part.

    All run at the same time. The first error ends the others, and is raised as it is.
    """
    rest = [unit for unit, part in zip(units, parts, strict=True) if part is None]
    try:
        async with TaskGroup() as group:
            of_rest = group.create_task(together(rest))
            tasks = [group.create_task(apart(part)) for part in parts if part is not None]
    except ExceptionGroup as errors:
        raise errors.exceptions[0] from None  # in a group it would not be known for what it is
    whole, single = iter(of_rest.result()), iter([task.result() for task in tasks])
    return [next(whole) if part is None else next(single) for part in parts]


class RoutingExecutor:
    """An `Executor` that owns two others."""

    def __init__(
        self, small: Executor, large: Executor, costs: CostModel, *, large_from: int | None
    ) -> None:
        """`large_from`: affected values from which a run is `large`'s; 0: all are.

        None: those are that take more than `_SMALL_SECONDS`, as `costs` expects.
        """
        self._small = small
        self._large = large
        self._costs = costs
        self._large_from = large_from

    async def start(self) -> None:
        if self._large_from != 0:
            await self._small.start()
        await self._large.start()

    async def run(
        self,
        units: Sequence[bytes | memoryview],
        *,
        owner: str = "",
        store: RunStore | None = None,
        progress: JobProgress | None = None,
    ) -> list[UnitResult | StoredResult]:
        of_tables = any(has_runtime(unit, ARROW) for unit in units)  # their files are here
        is_large = not of_tables and await self._is_large(units)
        chosen = self._large if is_large else self._small
        return await chosen.run(units, owner=owner, store=store, progress=progress)

    async def _is_large(self, units: Sequence[bytes | memoryview]) -> bool:
        count = sum(map(count_values, units))
        if self._large_from is not None:
            return count >= self._large_from
        if count * ROW_SECONDS > _SMALL_SECONDS or sum(map(len, units)) > _SMALL_BYTES:
            return True
        return await asyncio.to_thread(self._seconds, units) > _SMALL_SECONDS

    def _seconds(self, units: Sequence[bytes | memoryview]) -> float:
        estimate = partial(self._costs.estimate, unmeasured=UNMEASURED_SECONDS)
        return float(sum(estimate(WorkUnit.decode(unit)).sum() for unit in units))

    async def close(self) -> None:
        try:
            await self._small.close()
        finally:
            await self._large.close()


_STDERR: Final = 2
_READ_AHEAD: Final = 1 << 16
"""Bytes of an answer that are read ahead."""
_LONGEST: Final = 256 << 20
"""Maximum bytes of an answer: what is large lies in the run store, except for one value."""
_LAST_WORDS: Final = 1.0
"""Seconds in which what a child wrote before it ended is read."""
_GRACE: Final = 5.0
"""Seconds in which a process that was killed is gone; else it is left to the kernel."""
_PRINTED: Final = 2_000
"""Bytes that are logged of what was printed lately: the last ones, with a crash's reason."""
_PRINT_PAUSES: Final = (1.0, 10.0)
"""Seconds between two such lines: first, and as they double while more is printed."""
_READ_AT_ONCE: Final = 1 << 20
"""Bytes of prints that are read before the printing process has to wait for `_UNREAD`."""
_UNREAD: Final = 0.1
"""Seconds for which prints are not read, so that this process has time for others."""

log: Final = structlog.get_logger()


class _Prints:
    """Prints that are not logged yet, cut."""

    def __init__(self) -> None:
        self.labels: dict[str, Any] = {}
        """Labels of log lines about the work in hand: its change set."""
        self._labels: dict[str, Any] = {}
        self._text = bytearray()
        self._left_out = 0
        self._pause, _ = _PRINT_PAUSES
        self._timer: asyncio.TimerHandle | None = None

    def take(self, data: bytes) -> None:
        """Note it, to be logged together with what follows soon."""
        if not self._text:
            self._labels = self.labels
        else:  # of several change sets, what they have in common
            both = self._labels.items() & self.labels.items()
            self._labels = dict(both)
        self._text += data
        beyond = max(0, len(self._text) - _PRINTED)
        del self._text[:beyond]
        self._left_out += beyond
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(self._pause, self._next)

    def _next(self) -> None:
        first, longest = _PRINT_PAUSES
        self._timer = None
        if not self._text:
            self._pause = first
            return
        self.tell()
        self._pause = min(2 * self._pause, longest)
        self._timer = asyncio.get_running_loop().call_later(self._pause, self._next)

    def tell(self) -> None:
        """Log what there is."""
        text, left_out = self._text.decode(errors="replace").strip("\n"), self._left_out
        self._text.clear()
        self._left_out = 0
        if text:  # the end of a line may come by itself
            Context().run(_log_prints, self._labels, text, left_out)

    def close(self) -> None:
        self.tell()
        if self._timer is not None:
            self._timer.cancel()


def _log_prints(labels: dict[str, Any], text: str, left_out: int) -> None:
    before = {"bytes_before": left_out} if left_out else {}
    with structlog.contextvars.bound_contextvars(**labels):
        log.info("functions printed", text=text, **before)


class _Protocol(SubprocessStreamProtocol):
    """Tells that the process has ended, also while its pipes are open in processes it forked."""

    def __init__(self) -> None:
        super().__init__(limit=_READ_AHEAD, loop=asyncio.get_running_loop())
        self.ended = asyncio.Event()
        self.prints = _Prints()
        self._process: SubprocessTransport | None = None
        self._unpaused = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._process = cast("SubprocessTransport", transport)

    def pipe_data_received(self, fd: int, data: bytes | str) -> None:
        if fd != _STDERR or isinstance(data, str):
            super().pipe_data_received(fd, data)
            return
        self.prints.take(data)
        self._unpaused += len(data)
        if self._unpaused >= _READ_AT_ONCE and self._process is not None:
            pipe = cast("asyncio.ReadTransport", self._process.get_pipe_transport(fd))
            pipe.pause_reading()
            asyncio.get_running_loop().call_later(_UNREAD, pipe.resume_reading)
            self._unpaused = 0

    def process_exited(self) -> None:
        super().process_exited()
        self.ended.set()


class _StrayAnswer(Exception):
    """The next frame answers no question, or is longer than any answer."""


class WorkerProcess:
    """A child in a session of its own: Ctrl-C is for this process, which decides what it means."""

    def __init__(self, transport: SubprocessTransport, protocol: _Protocol) -> None:
        self._transport = transport
        self._protocol = protocol

    @classmethod
    async def start(cls) -> Self:
        """Return once it has loaded what it needs, which takes longer than most tasks.

        Cancelled, it leaves no process.

        Raises:
            EOFError: it ended before.
            BlockingIOError: it, or the thread that waits for its end, could not be started.
        """
        try:
            transport, protocol = await asyncio.get_running_loop().subprocess_exec(
                _Protocol,
                # Unbuffered: it may end at any time, and what was printed last says why.
                *(sys.executable, "-u", "-P", "-m", "rebaser_server.compute.local_worker"),
                stdin=PIPE,
                stdout=PIPE,
                stderr=PIPE,
                env=child_environment(),
                start_new_session=True,
            )
        except RuntimeError as error:  # "can't start new thread"; its pipes end with the transport
            raise BlockingIOError(EAGAIN, f"{error}: {PROCESS_LIMITS}") from error
        child = cls(transport, protocol)
        try:
            await child._reply(child._read(bytes(NUMBER)))
        except (EOFError, asyncio.CancelledError):
            await child.end()
            raise
        return child

    @property
    def code(self) -> int | None:
        """Exit code, as `Popen.returncode`."""
        return self._transport.get_returncode()

    async def ask(self, question: bytes) -> bytes:
        """Return its answer: `BROKEN` with `STRAY`, if functions wrote into the pipe.

        Raises:
            EOFError: it has ended, or closed its pipes.
        """
        self._protocol.prints.labels = structlog.contextvars.get_contextvars()
        try:
            return await self._reply(self._ask(question))
        except _StrayAnswer:
            log.error("evaluator ended", reason=STRAY, process=self._transport.get_pid())
            return BROKEN + STRAY.encode()

    async def _reply(self, reply: Coroutine[Any, Any, bytes]) -> bytes:
        asking = asyncio.ensure_future(reply)
        ending = asyncio.ensure_future(self._protocol.ended.wait())
        try:
            await asyncio.wait([asking, ending], return_when=asyncio.FIRST_COMPLETED)
            if not asking.done():
                await asyncio.wait([asking], timeout=_LAST_WORDS)
            if not asking.done():
                raise EOFError
            return await asking
        except (OSError, EOFError) as error:
            await asyncio.wait([ending], timeout=_LAST_WORDS)  # killed, it would not tell its code
            raise EOFError from error
        finally:
            asking.cancel()
            ending.cancel()

    async def _ask(self, question: bytes) -> bytes:
        if (stdin := self._protocol.stdin) is None:
            raise EOFError
        number = secrets.token_bytes(NUMBER)
        stdin.write(number + len(question).to_bytes(LENGTH) + question)
        await stdin.drain()
        return await self._read(number)

    async def _read(self, number: bytes) -> bytes:
        if (stdout := self._protocol.stdout) is None:
            raise EOFError
        is_ours = await stdout.readexactly(NUMBER) == number
        length = int.from_bytes(await stdout.readexactly(LENGTH))
        if not is_ours or length > _LONGEST:
            raise _StrayAnswer
        return await stdout.readexactly(length)

    async def end(self) -> None:
        """Kill it and what it has forked, unless that left its session. Takes seconds at most."""
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._transport.get_pid(), signal.SIGKILL)
        ending = asyncio.ensure_future(self._protocol.ended.wait())
        await asyncio.wait([ending], timeout=_GRACE)
        ending.cancel()
        # Last: it closes the pipes that others may hold, and takes the exit code from asyncio's
        # watcher of a process whose end that has not seen.
        self._transport.close()
        self._protocol.prints.close()


_INLINE_UNIT_BYTES: Final = 256 * 1024
"""Bytes of a unit that travels with the job; a larger one lies in the run store, if there is one:
in a job it would be held several times over by driver, scheduler and worker."""
_PUT_CONCURRENCY: Final = 4
"""Large units written to the run store at a time."""


class DvuRun:
    """Executed in rounds: a worker gives way to other runs after a time slice, and gets a new task.

    Its methods block.
    """

    def __init__(
        self,
        run_id: str,
        units: Sequence[bytes | memoryview],
        store: RunStore | None,
        *,
        time_slice: float = TIME_SLICE,
    ) -> None:
        """`time_slice`: seconds, see `task_protocol.TIME_SLICE`."""
        self.id: Final = run_id
        self.store: Final = store
        self._time_slice = time_slice
        self._units = units
        self._digests = [""] * len(units)
        self._sizes = list(map(count_values, units))
        self.size: Final = sum(self._sizes)
        self._stops = [0] * len(units)
        """Number of values of each unit that are done for sure."""
        self._ended: dict[int, UnitResult | StoredResult] = {}

    def next_tasks(self) -> dict[int, bytes]:
        """The tasks to execute next, by the number of the unit; none once all is done."""
        names = self.store.names() if self.store and self.size > FIRST_STEP else []
        if self.store and "" in self._digests:
            self._digests = list(map(digest_of, self._units))
        tasks = {}
        for number, digest in enumerate(self._digests):
            if number in self._ended:
                continue
            parts = contiguous_parts(names, digest)
            self._stops[number] = parts[-1].stop if parts else 0
            if self.store and parts and parts[-1].stop == self._sizes[number]:
                self._ended[number] = read_stored_result(self.store, parts)
            else:
                tasks[number] = self._encode_task(number, parts)
        if self.store:
            self._put_large(self.store, tasks, names)
        return tasks

    def _encode_task(self, number: int, parts: list[PartFile]) -> bytes:
        unit = None if self._is_in_store(number) else self._units[number]
        names = [part.name for part in parts]
        return encode_task(
            self._digests[number],
            unit,
            names,
            time_slice=self._time_slice,
            limits=read_limits(self._units[number]),
        )

    def _is_in_store(self, number: int) -> bool:
        return self.store is not None and len(self._units[number]) > _INLINE_UNIT_BYTES

    def _put_large(self, store: RunStore, numbers: Iterable[int], names: list[str]) -> None:
        missing = {
            self._digests[number]: self._units[number]
            for number in numbers
            if self._is_in_store(number) and f"{self._digests[number]}.blob" not in names
        }
        if missing:
            with WorkThreads(_PUT_CONCURRENCY) as pool:
                list(pool.map(store.put_unit, missing.keys(), missing.values()))

    def record(self, number: int, answer: bytes) -> None:
        """Record the answer to the task for a unit."""
        ended = decode_answer(answer)
        if not isinstance(ended, GaveWay):
            self._ended[number] = ended
            self._stops[number] = self._sizes[number]

    def results(self) -> list[UnitResult | StoredResult]:
        """The result of each unit, once there are no more tasks."""
        return [self._ended[number] for number in range(len(self._units))]

    def values_done(self) -> int:
        """Values done, at least: workers report only on units that take long."""
        progress = self.store.progress(self.id) if self.store else {}
        return sum(
            max(stop, progress.get(digest, 0))
            for stop, digest in zip(self._stops, self._digests, strict=True)
        )


HEAD_START: Final = 0.1
"""Seconds that tasks wait for children that are there before another one is started, which takes
as long as many cheap tasks do."""
QUICK: Final = 0.25
"""Seconds of a task, from when its child is there, after which it is slow."""
_SLOW_SEATS: Final = 16
"""Slow tasks at once, at most."""
_BYTES_PER_SEAT: Final = 512 << 20
"""Memory of the machine for each slow task."""


class ChildProcessExecutor:
    """An `Executor` with several child processes, each of which computes one unit at a time.

    Not threads: functions would hold up the event loop that keeps tasks ours, could not be
    stopped, and could take this process down. A child is started when a task needs it, anew
    after a cancellation or a crash, and ends with this process.
    """

    def __init__(self, children: int = 1) -> None:
        """Start no child yet.

        `children`: quick tasks at once, and tasks of one run; up to `_SLOW_SEATS` slow ones go on
        beside them.
        """
        self._limit = children
        self._open = 1
        """Quick tasks at once as of now: more only where they are needed for a while."""
        self._opening: asyncio.TimerHandle | None = None
        memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        self._quick = Turns(self._open)
        self._slow = Turns(max(children, min(_SLOW_SEATS, memory // _BYTES_PER_SEAT)))
        self._idle: list[WorkerProcess] = []
        self._busy: set[WorkerProcess] = set()
        self._starting: asyncio.Task[None] | None = None
        """Start of a child for tasks to come."""

    async def start(self) -> None:
        await self.run([WorkUnit().encode()])

    async def close(self) -> None:
        if self._starting is not None:
            self._starting.cancel()
            await asyncio.wait([self._starting])
        await asyncio.gather(*map(self._end, [*self._idle, *self._busy]))

    async def run(
        self,
        units: Sequence[bytes | memoryview],
        *,
        owner: str = "",
        store: RunStore | None = None,
        progress: JobProgress | None = None,
    ) -> list[UnitResult | StoredResult]:
        progress = progress or JobProgress(sum(map(count_values, units)))
        rest, results = deque(enumerate(units)), dict[int, UnitResult | StoredResult]()

        async def compute_rest() -> None:
            while rest:
                index, unit = rest.popleft()
                part = progress.part(count_values(unit))
                results[index] = await self._run_unit(unit, owner, store, part)

        try:
            async with TaskGroup() as group:
                for _ in range(min(self._limit, len(units))):
                    group.create_task(compute_rest())
        except ExceptionGroup as errors:
            raise errors.exceptions[0] from None  # in a group it would not be known for what it is
        return [results[index] for index in range(len(units))]

    async def _run_unit(
        self,
        unit: bytes | memoryview,
        owner: str,
        store: RunStore | None,
        progress: JobProgress,
    ) -> UnitResult | StoredResult:
        run = DvuRun(f"beside-{uuid4()}", [unit], store)
        # A function of tables reaches the store in a process that is forked from a child. Clients
        # of object stores have threads, which a fork of a child that has used one is without.
        is_fresh = has_runtime(unit, ARROW) and store is not None and not store.files.is_local
        async with background(_report(run, progress)):
            while tasks := await asyncio.to_thread(run.next_tasks):
                [(number, task)] = tasks.items()
                question = pickle.dumps(partial(execute, task, store, run.id))
                answer = await self._ask(question, owner, is_fresh=is_fresh)
                run.record(number, answer)
                progress.record(await asyncio.to_thread(run.values_done))
        [result] = run.results()
        return result

    async def _ask(self, question: bytes, owner: str, *, is_fresh: bool = False) -> bytes:
        """Return the answer of a child, which is asked when it is the owner's turn.

        `is_fresh`: whether the child must not have been asked before.
        """
        await self._take_quick_seat(owner)
        seat = self._quick
        try:
            child = await (self._start_child() if is_fresh else self._take_child())
            asking = asyncio.ensure_future(self._execute(question, child))
            try:
                await asyncio.wait([asking], timeout=QUICK)
                if not asking.done() and self._slow.take_free():
                    seat.give()
                    seat = self._slow
                    self._start_ahead()
                return await asking
            finally:
                # Once that is done, the child may be busy for another caller.
                if not asking.done():
                    asking.cancel()
                    await asyncio.wait([asking])
                    if child in self._busy:  # cancelled before it was asked
                        await self._end(child)
        finally:
            seat.give()

    async def _take_quick_seat(self, owner: str) -> None:
        if not self._quick.take_free():
            self._open_later()
            await self._quick.take(owner)

    def _open_later(self) -> None:
        if self._opening is None and self._open < self._limit:
            loop = asyncio.get_running_loop()
            self._opening = loop.call_later(HEAD_START, self._open_seat)

    def _open_seat(self) -> None:
        self._opening = None
        if self._quick.is_wanted:
            self._open += 1
            self._quick.give()
            self._open_later()

    def _start_ahead(self) -> None:
        """Start a child that the next task finds ready, since slow tasks have the others."""
        if not self._idle and self._starting is None:
            self._starting = asyncio.create_task(self._add_child())

    async def _add_child(self) -> None:
        try:
            with suppress(RunFailed, OSError):  # the task that needs one starts it, or fails
                child = await self._start_child()
                self._busy.discard(child)
                self._idle.append(child)
        finally:
            self._starting = None

    async def _take_child(self) -> WorkerProcess:
        while self._starting is not None and not self._idle:
            await asyncio.wait([self._starting])
        if self._idle:
            child = self._idle.pop()
            self._busy.add(child)
            return child
        return await self._start_child()

    async def _start_child(self) -> WorkerProcess:
        try:
            child = await WorkerProcess.start()
        except EOFError as error:
            raise RunFailed("the evaluator ended before it was ready") from error
        self._busy.add(child)
        return child

    async def _execute(self, question: bytes, child: WorkerProcess) -> bytes:
        try:
            answer = await child.ask(question)
        except EOFError as error:
            await self._end(child)
            raise RunFailed(f"the evaluator ended with exit code {child.code}") from error
        except asyncio.CancelledError:
            await self._end(child)  # there is no other way to stop a function
            raise
        self._busy.discard(child)
        if len(self._idle) > self._open:
            await self._end(child)
        else:
            self._idle.append(child)
        if answer[:1] != DONE:
            reason = answer[1:].decode()
            raise evaluator_error(reason.partition(":")[0], reason)
        return answer[1:]

    async def _end(self, child: WorkerProcess) -> None:
        self._busy.discard(child)
        await child.end()


async def _report(run: DvuRun, progress: JobProgress) -> Never:
    while True:
        await asyncio.sleep(PROGRESS_EVERY)
        progress.record(await asyncio.to_thread(run.values_done))

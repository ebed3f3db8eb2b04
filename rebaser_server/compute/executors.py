"""Children beside the daemon, and the choice between these and Spark for the units of a run.

A run goes to one of two places, by its cost or by the number of its values. A `UnitTasks` knows
which parts of a run are done, and which tasks are next.

Children cost a small run no more than its values do. All workspaces share them, and take them in
turns. A task that takes longer than `QUICK` leaves its seat to others and goes on beside them, with
a lower priority (see `isolation`), so a quick task waits for quick ones only.
"""

import asyncio
import os
import pickle
from collections.abc import Sequence
from functools import partial
from typing import Final, Never
from uuid import uuid4

from rebaser_server.compute.cost_model import ROW_SECONDS, UNMEASURED_SECONDS, CostModel
from rebaser_server.compute.errors import RunFailed, evaluator_error
from rebaser_server.compute.evaluation import FIRST_STEP, TIME_SLICE
from rebaser_server.compute.evaluator_processes import Evaluator, Template
from rebaser_server.compute.functions.runtimes import ARROW
from rebaser_server.compute.level_parallel import LeveledRun
from rebaser_server.compute.local_worker import DONE
from rebaser_server.compute.results import (
    PartFile,
    RunStore,
    StoredResult,
    UnitResult,
    contiguous_parts,
)
from rebaser_server.compute.run import Place, Run
from rebaser_server.compute.task_protocol import (
    GaveWay,
    decode_answer,
    encode_task,
    execute,
    read_stored_result,
)
from rebaser_server.compute.work_unit import WorkUnit, digest_of
from rebaser_server.runtime.progress import JobProgress
from rebaser_server.runtime.tasks import Turns, WorkThreads, background, for_each_concurrently

PROGRESS_EVERY: Final = 0.5
"""Seconds between two records of a run's progress."""

_SMALL_SECONDS: Final = 0.25
"""Seconds that a run takes, by estimate, up to which a job of Spark, which takes some 0.1 s beside
that, is not worth it."""
_SMALL_BYTES: Final = 8 << 20
"""Bytes of a small run's units, at most."""


class RoutingExecutor:
    """An `Executor` that owns two places, and knows what functions cost there."""

    def __init__(
        self, small: Place, large: Place, costs: CostModel, *, large_from: int | None
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
        self, units: Sequence[WorkUnit], run: Run = Run()
    ) -> list[UnitResult | StoredResult]:
        place, costs = self._small, self._costs.beside()
        is_of_tables = any(unit.has_runtime(ARROW) for unit in units)  # their files are here
        if not is_of_tables and await self._is_large(units):
            place, costs = self._large, self._costs
        return await LeveledRun(place, costs, run).results(units)

    async def _is_large(self, units: Sequence[WorkUnit]) -> bool:
        count = sum(map(len, units))
        if self._large_from is not None:
            return count >= self._large_from
        size = sum(unit.nbytes for unit in units)
        if count * ROW_SECONDS > _SMALL_SECONDS or size > _SMALL_BYTES:
            return True
        return await asyncio.to_thread(self._seconds, units) > _SMALL_SECONDS

    def _seconds(self, units: Sequence[WorkUnit]) -> float:
        estimate = partial(self._costs.estimate, unmeasured=UNMEASURED_SECONDS)
        return float(sum(estimate(unit).sum() for unit in units))

    async def close(self) -> None:
        try:
            await self._small.close()
        finally:
            await self._large.close()


_INLINE_UNIT_BYTES: Final = 256 * 1024
"""Bytes of a unit that travels with the job; a larger one lies in the run store, if there is one:
in a job it would be held several times over by driver, scheduler and worker."""
_PUT_CONCURRENCY: Final = 4
"""Large units written to the run store at a time."""


class UnitTasks:
    """The tasks of a run, in rounds: a worker gives way after a time slice, and gets a new task.

    Its methods block.
    """

    def __init__(
        self,
        run_id: str,
        units: Sequence[WorkUnit],
        store: RunStore | None,
        *,
        time_slice: float = TIME_SLICE,
    ) -> None:
        """`time_slice`: seconds, see `task_protocol.TIME_SLICE`."""
        self.id: Final = run_id
        self.store: Final = store
        self._time_slice = time_slice
        self._units = units
        self._encoded: list[bytes | None] = []
        """Units as they leave this process. None: workers find it in the store."""
        self._digests = [""] * len(units)
        self._sizes = list(map(len, units))
        self.size: Final = sum(self._sizes)
        self._stops = [0] * len(units)
        """Number of values of each unit that are done for sure."""
        self._ended: dict[int, UnitResult | StoredResult] = {}
        self._has_parts = self.size > FIRST_STEP
        """Whether the store may have parts of units: a small unit has some once it gave way."""

    def next_tasks(self) -> dict[int, bytes]:
        """The tasks to execute next, by the number of the unit; none once all is done."""
        names = self.store.names() if self.store and self._has_parts else []
        if not self._encoded:
            self._encode(names)
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
        return tasks

    def _encode(self, names: list[str]) -> None:
        """Encode the units; put large ones into the store, and do not keep their bytes here."""
        encoded = [unit.encode() for unit in self._units]
        self._digests = list(map(digest_of, encoded))
        by_digest = dict(zip(self._digests, encoded, strict=True)) if self.store else {}
        large = {each: data for each, data in by_digest.items() if len(data) > _INLINE_UNIT_BYTES}
        missing = {each: data for each, data in large.items() if f"{each}.blob" not in names}
        if self.store and missing:
            with WorkThreads(_PUT_CONCURRENCY) as pool:
                list(pool.map(self.store.put_unit, missing.keys(), missing.values()))
        self._encoded = [
            None if digest in large else data
            for digest, data in zip(self._digests, encoded, strict=True)
        ]

    def _encode_task(self, number: int, parts: list[PartFile]) -> bytes:
        return encode_task(
            self._digests[number],
            self._encoded[number],
            [part.name for part in parts],
            time_slice=self._time_slice,
            limits=self._units[number].limits,
        )

    def record(self, number: int, answer: bytes) -> None:
        ended = decode_answer(answer)
        if isinstance(ended, GaveWay):
            # Else the next task would begin at the first value again, and stop where this one did.
            self._has_parts = True
        else:
            self._ended[number] = ended
            self._stops[number] = self._sizes[number]

    def results(self) -> list[UnitResult | StoredResult]:
        return [self._ended[number] for number in range(len(self._units))]

    def values_done(self) -> int:
        """Values done, at least: workers report only on units that take long."""
        progress = self.store.progress(self.id) if self.store else {}
        return sum(
            max(stop, progress.get(digest, 0))
            for stop, digest in zip(self._stops, self._digests, strict=True)
        )


QUICK: Final = 0.05
"""Seconds of a task after which it is slow."""
_SLOW_SEATS: Final = 16
"""Slow tasks at once, at most."""
_BYTES_PER_SEAT: Final = 512 << 20
"""Memory of the machine for each slow task."""


class ChildProcessExecutor:
    """A `Place` with several child processes, each of which computes one unit at a time.

    Not threads: functions would hold up the event loop that keeps tasks ours, could not be
    stopped, and could take this process down. A child is forked when a task needs it, anew
    after a cancellation or a crash, and ends with this process.
    """

    def __init__(self, children: int = 1) -> None:
        """Fork no child yet.

        `children`: quick tasks at once, and tasks of one run; up to `_SLOW_SEATS` slow ones go on
        beside them.
        """
        self._limit = children
        self._template = Template()
        memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        self._quick = Turns(children)
        self._slow = Turns(max(children, min(_SLOW_SEATS, memory // _BYTES_PER_SEAT)))
        self._idle: list[Evaluator] = []
        self._busy: set[Evaluator] = set()

    @property
    def slots(self) -> int:
        return self._limit

    async def start(self) -> None:
        await self.run([WorkUnit()])

    async def close(self) -> None:
        await asyncio.gather(*map(self._end, [*self._idle, *self._busy]))
        await self._template.close()

    async def run(
        self, units: Sequence[WorkUnit], run: Run = Run()
    ) -> list[UnitResult | StoredResult]:
        results: dict[int, UnitResult | StoredResult] = {}

        async def compute(numbered: tuple[int, WorkUnit]) -> None:
            index, unit = numbered
            results[index] = await self._run_unit(unit, run.part(len(unit)))

        await for_each_concurrently(enumerate(units), compute, min(self._limit, len(units)))
        return [results[index] for index in range(len(units))]

    async def _run_unit(self, unit: WorkUnit, run: Run) -> UnitResult | StoredResult:
        tasks, store = UnitTasks(f"beside-{uuid4()}", [unit], run.store), run.store
        # A function of tables reaches the store in a process that is forked from a child. Clients
        # of object stores have threads, which a fork of a child that has used one is without.
        is_fresh = unit.has_runtime(ARROW) and store is not None and not store.files.is_local
        async with background(_report(tasks, run.progress)):
            while due := await asyncio.to_thread(tasks.next_tasks):
                [(number, task)] = due.items()
                question = pickle.dumps(partial(execute, task, store, tasks.id))
                answer = await self._ask(question, run.owner, is_fresh=is_fresh)
                tasks.record(number, answer)
                run.progress.record(await asyncio.to_thread(tasks.values_done))
        [result] = tasks.results()
        return result

    async def _ask(self, question: bytes, owner: str, *, is_fresh: bool = False) -> bytes:
        """Return the answer of a child, which is asked when it is the owner's turn.

        `is_fresh`: whether the child must not have been asked before.
        """
        await self._quick.take(owner)
        seat = self._quick
        try:
            child = await self._take_child(is_fresh=is_fresh)
            asking = asyncio.ensure_future(self._execute(question, child))
            try:
                await asyncio.wait([asking], timeout=QUICK)
                if not asking.done() and self._slow.take_free():
                    seat.give()
                    seat = self._slow
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

    async def _take_child(self, *, is_fresh: bool) -> Evaluator:
        if self._idle and not is_fresh:
            child = self._idle.pop()
        else:
            try:
                child = await self._template.fork()
            except EOFError as error:
                raise RunFailed("the evaluator ended before it was ready") from error
        self._busy.add(child)
        return child

    async def _execute(self, question: bytes, child: Evaluator) -> bytes:
        try:
            answer = await child.ask(question)
        except EOFError as error:
            await self._end(child)
            raise RunFailed(f"the evaluator ended with exit code {child.code}") from error
        except asyncio.CancelledError:
            await self._end(child)  # there is no other way to stop a function
            raise
        self._busy.discard(child)
        if len(self._idle) > self._limit:
            await self._end(child)
        else:
            self._idle.append(child)
        if answer[:1] != DONE:
            reason = answer[1:].decode()
            raise evaluator_error(reason.partition(":")[0], reason)
        return answer[1:]

    async def _end(self, child: Evaluator) -> None:
        self._busy.discard(child)
        await child.end()


async def _report(tasks: UnitTasks, progress: JobProgress) -> Never:
    while True:
        await asyncio.sleep(PROGRESS_EVERY)
        progress.record(await asyncio.to_thread(tasks.values_done))

"""One run of a plan's units: which parts are done, which tasks are next, how far it is."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Final

from rebaser_server.compute.evaluate.task_protocol import (
    FIRST_STEP,
    TIME_SLICE,
    GaveWay,
    decode_answer,
    encode_task,
    read_stored_result,
)
from rebaser_server.compute.units.run_store import (
    PartFile,
    RunStore,
    StoredResult,
    contiguous_parts,
)
from rebaser_server.compute.units.unit_result import UnitResult
from rebaser_server.compute.units.work_unit import count_values, digest_of, read_limits
from rebaser_server.runtime.tasks import WorkThreads

INLINE_UNIT_BYTES: Final = 256 * 1024
"""Octets of a unit that travels with the job; a larger one lies in the run store, if there is one:
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
        """Of each unit, how many values are done for sure."""
        self._ended: dict[int, UnitResult | StoredResult] = {}
        self._unfit: set[int] = set()
        """The units whose functions made their process unfit for the rest of it."""

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
        limits = read_limits(self._units[number])
        if number in self._unfit:
            limits = replace(limits, is_forked=True)
        return encode_task(
            self._digests[number], unit, names, time_slice=self._time_slice, limits=limits
        )

    def _is_in_store(self, number: int) -> bool:
        return self.store is not None and len(self._units[number]) > INLINE_UNIT_BYTES

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
        elif ended.is_unfit:
            self._unfit.add(number)

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

"""One run of units: what goes along with them, and the protocol of the places that compute them."""

from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Protocol, TypeVar

from rebaser_server.compute.results import RunStore, StoredResult, UnitResult
from rebaser_server.compute.work_unit import WorkUnit
from rebaser_server.runtime.progress import JobProgress
from rebaser_server.runtime.tasks import for_each_concurrently

P = TypeVar("P")


@dataclass(frozen=True, slots=True)
class Run:
    """Owner, store and progress of units, which go along wherever these are computed."""

    owner: str = ""
    """Workspace whose run it is; the runs of several take turns where room is short."""
    store: RunStore | None = None
    """Place for what is large. What is there already is not computed again. None: no result is a
    `StoredResult`."""
    progress: JobProgress = field(default_factory=partial(JobProgress, 0))
    """Progress of the units, recorded now and then. It has the deadline, too."""
    on_ready: Callable[[UnitResult], None] | None = None
    """Function that takes results that stand, while others are waited for."""

    def part(self, count: int) -> "Run":
        return replace(self, progress=self.progress.part(count))

    def ready(self, results: Sequence[UnitResult | StoredResult]) -> None:
        """Hand on results that stand; those in a store come with the others."""
        if self.on_ready is not None:
            for result in results:
                if isinstance(result, UnitResult):
                    self.on_ready(result)


class Executor(Protocol):
    async def run(
        self, units: Sequence[WorkUnit], run: Run = Run()
    ) -> list[UnitResult | StoredResult]:
        """Return what became of each unit, in their order. Several runs may go on at once.

        Cancelled, it ends what it began, within about a second; other runs go on. May be
        repeated: functions are pure.

        Raises:
            RunFailed: what computed has ended; there are no results.
            EvaluationFailed: the evaluator raised an error; there are no results.
            DiskFull: the same, because a disk has no room.
            SessionFailed: there is nothing to run on.
        """


class Place(Executor, Protocol):
    """An `Executor` by itself: children beside the daemon, or Spark."""

    @property
    def slots(self) -> int:
        """Units computed at a time."""

    async def start(self) -> None:
        """Let the first run find everything warm. Optional; may be repeated or cancelled."""

    async def close(self) -> None:
        """End what was started, runs in hand included; these raise `RunFailed`."""


async def run_apart(
    units: Sequence[WorkUnit],
    parts: Sequence[P | None],
    together: Callable[[list[WorkUnit]], Coroutine[Any, Any, list[UnitResult | StoredResult]]],
    apart: Callable[[P], Coroutine[Any, Any, UnitResult]],
) -> list[UnitResult | StoredResult]:
    """Return the results of all units: those without a part together, each other by its part.

    All run at the same time. The first error ends the others, and is raised as it is.
    """
    results: dict[int, UnitResult | StoredResult] = {}
    rest = [index for index, part in enumerate(parts) if part is None]

    async def compute(single: tuple[int, P] | None) -> None:
        if single is None:
            found = await together([units[index] for index in rest])
            results.update(zip(rest, found, strict=True))
        else:
            results[single[0]] = await apart(single[1])

    singles = [(index, part) for index, part in enumerate(parts) if part is not None]
    every = [*singles, None] if rest else singles
    await for_each_concurrently(every, compute, len(every))
    return [results[index] for index in range(len(units))]

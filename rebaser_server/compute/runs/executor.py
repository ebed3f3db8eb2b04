"""The protocol of executors, which run the units of a plan."""

from collections.abc import Callable, Sequence
from typing import Final, Protocol

from rebaser_server.compute.units.run_store import RunStore, StoredResult
from rebaser_server.compute.units.unit_result import UnitResult

OnProgress = Callable[[int, int], None]
"""Values done, at least, and values in all. Called on the event loop, now and then."""

PROGRESS_EVERY: Final = 0.5
"""Seconds between two calls of `OnProgress`."""


class Executor(Protocol):
    async def start(self) -> None:
        """Let the first run find everything warm. Optional; may be repeated or cancelled."""

    async def run(
        self,
        units: Sequence[bytes | memoryview],
        *,
        owner: str = "",
        store: RunStore | None = None,
        on_progress: OnProgress | None = None,
    ) -> list[UnitResult | StoredResult]:
        """What became of each unit, in their order. Several runs may go on at once.

        `owner`: whose run it is; the runs of several owners take turns where room is short.

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


class TotalProgress:
    """Values done in all runs of one run."""

    def __init__(self, total: int, on_progress: OnProgress | None) -> None:
        self._total = total
        self._on_progress = on_progress
        self._done: list[int] = []

    def part(self) -> OnProgress | None:
        """The callback for one of the runs."""
        if self._on_progress is None:
            return None
        report, number = self._on_progress, len(self._done)
        self._done.append(0)

        def on_progress(done: int, _of_run: int) -> None:
            self._done[number] = done
            report(min(sum(self._done), self._total), self._total)

        return on_progress

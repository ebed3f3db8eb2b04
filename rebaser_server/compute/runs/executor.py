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
        store: RunStore | None = None,
        on_progress: OnProgress | None = None,
    ) -> list[UnitResult | StoredResult]:
        """What became of each unit, in their order. Several runs may go on at once.

        Cancelled, it ends what it began, within about a second; other runs go on. May be
        repeated: functions are pure. With a run store, what is large may be left there, what is
        there already is not computed again, and without one nothing is `StoredResult`.

        Raises:
            RunFailed: the run broke down; there are no results.
            DiskFull: the same, because a disk has no room.
            SessionFailed: there is nothing to run on.
        """

    async def close(self) -> None:
        """End what was started, runs in hand included; these raise `RunFailed`."""

"""One package whose fix is set and taken back, measured each time in three ways."""

import asyncio
from dataclasses import dataclass, field
from typing import Any

from benchmarks.debian import InProcess
from benchmarks.embedded import Rebaser
from benchmarks.spark import empty_job
from benchmarks.tables import MILLI, Cell, median

WARM_UP = 2
"""Rounds that are not counted: the JVM compiles what runs often."""


def set_pending(value_id: str, is_pending: bool) -> dict[str, Any]:  # noqa: FBT001 - a value
    return {"setValue": {"valueId": value_id, "value": is_pending}}


@dataclass(slots=True)
class Case:
    """Milliseconds, an item for each round."""

    state: str
    package: str
    value_id: str
    is_pending: bool
    """As it is now."""
    counts: tuple[int, int, int] = (0, 0, 0)
    """Values affected, recomputed, changed."""
    total: list[float] = field(default_factory=list)
    phases: list[list[float]] = field(default_factory=list)
    plan: list[float] = field(default_factory=list)
    evaluate: list[float] = field(default_factory=list)
    empty: list[float] = field(default_factory=list)

    async def measure(self, rebaser: Rebaser, beside: InProcess, rounds: int) -> None:
        """Measure `rounds` changes, a round more if the last would leave the fix taken back."""
        for number in range(WARM_UP + rounds + rounds % 2):
            await self._round(rebaser, beside, counted=number >= WARM_UP)

    async def _round(self, rebaser: Rebaser, beside: InProcess, *, counted: bool) -> None:
        self.is_pending = not self.is_pending
        change = [set_pending(self.value_id, self.is_pending)]
        counts = await rebaser.update(change)
        local = await asyncio.to_thread(beside.apply, change)
        empty = await asyncio.to_thread(empty_job)
        if local.counts != counts:
            raise RuntimeError(f"{self.package}: Rebaser {counts}, in process {local.counts}")
        if counted:
            self.counts = counts
            self.total.append(rebaser.trace.seconds * MILLI)
            self.phases.append([seconds * MILLI for seconds in rebaser.trace.phases()])
            self.plan.append(local.plan_seconds * MILLI)
            self.evaluate.append(local.evaluate_seconds * MILLI)
            self.empty.append(empty * MILLI)

    def row(self) -> list[Cell]:
        """What it took, beside its limits."""
        total, empty = median(self.total), median(self.empty)
        here = median([p + e for p, e in zip(self.plan, self.evaluate, strict=True)])
        return [
            *(self.package, self.state, *self.counts),
            *(total, min(self.total), max(self.total)),
            *(here, total / here, empty, total / empty, total / (here + empty)),
        ]

    def phases_row(self) -> list[Cell]:
        """Where the time went."""
        phases = [median(phase) for phase in zip(*self.phases, strict=True)]
        return [self.package, self.state, *phases, median(self.plan), median(self.evaluate)]

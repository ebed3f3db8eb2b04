"""What computing values costs, as measured, and which levels to compute in parallel."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

import numpy as np
from numpy.typing import NDArray

from rebaser_server.compute.units.run_store import StoredResult
from rebaser_server.compute.units.unit_result import CallCosts, UnitResult
from rebaser_server.compute.units.work_unit import WorkUnit

UNKNOWN_SECONDS: Final = 2e-6
"""Seconds for a value of a function that was never measured: that of a cheap one."""
ROW_SECONDS: Final = 2e-6
"""Seconds that a value takes beside its function."""
STAGE_SECONDS: Final = 0.1
"""Seconds that a run of its own takes, however little there is to do in it, before one was seen."""
MIN_SPEEDUP: Final = 1.25
"""Times that a plan has to be shorter by estimate, since estimates are inexact."""
_WEIGHT: Final = 0.3
"""Of the newest measurement against all before it."""
_OVERHEAD: Final = ("", "")
"""The key of what a run takes beside its functions."""
_NEGLIGIBLE: Final = 20
"""Times what a run takes besides: what works for longer says nothing of that, since what it took
is not known so well."""


_MAX_FUNCTIONS: Final = 10_000
"""Functions whose costs a process knows; it forgets those that it measured least lately."""


@dataclass(slots=True)
class CostModel:
    """Seconds for a value, by runtime and code; what was measured lately counts most.

    A process has one, for all its change sets: their updates learn what functions cost, Spark's
    executor what a run costs besides.
    """

    seconds: dict[tuple[str, str], float] = field(default_factory=dict)

    @property
    def stage_seconds(self) -> float:
        """Seconds that a run takes besides."""
        return self.seconds.get(_OVERHEAD, STAGE_SECONDS)

    def snapshot(self) -> "CostModel":
        """What is known now; may be called in a thread while others learn."""
        return CostModel(self.seconds.copy())

    def known(self, functions: Iterable[tuple[str | None, str]]) -> dict[tuple[str, str], float]:
        """What is known of these functions, and of runs: enough to estimate the same again."""
        wanted = {_OVERHEAD, *functions}
        return {function: cost for function, cost in self.seconds.items() if function in wanted}

    def learn(self, costs: CallCosts) -> None:
        """Learn what calls took."""
        for function, (calls, spent) in costs.items():
            if calls:
                self._record(function, spent / calls, spent / calls)
        while len(self.seconds) > _MAX_FUNCTIONS:
            del self.seconds[next(iter(self.seconds))]

    def learn_overhead(
        self, seconds: float, results: Iterable[UnitResult | StoredResult], slots: int
    ) -> None:
        """Learn from a run that took so long what it did beside its functions."""
        longest = total = 0.0
        for result in results:
            spent = (
                sum(spent for _, spent in result.costs.values()) + ROW_SECONDS * result.recomputed
            )
            longest, total = max(longest, spent), total + spent
        busy = max(longest, total / slots)
        if busy < _NEGLIGIBLE * self.stage_seconds:
            self._record(_OVERHEAD, max(seconds - busy, 0.0), STAGE_SECONDS)

    def _record(self, function: tuple[str, str], measured: float, default: float) -> None:
        before = self.seconds.pop(function, default)
        self.seconds[function] = before + _WEIGHT * (measured - before)  # the last to be forgotten

    def knows(self, unit: WorkUnit) -> bool:
        """Whether all functions of a unit were measured that may be dear."""
        return all(
            runtime in (None, "builtin") or (runtime, code) in self.seconds
            for runtime, code in unit.functions
        )

    def of_function(self, runtime: str | None, code: str) -> float:
        """The seconds that a value of this function takes if it is computed."""
        call = UNKNOWN_SECONDS if runtime is None else self.seconds.get((runtime, code))
        return ROW_SECONDS + (UNKNOWN_SECONDS if call is None else call)

    def estimate(self, unit: WorkUnit) -> NDArray[np.float64]:
        """The seconds that each value of a unit takes if it is computed."""
        by_function = [self.of_function(runtime, code) for runtime, code in unit.functions]
        by_call = [by_function[function] for function, _ in unit.signatures]
        return np.array([*by_call, 0.0])[unit.signature_indices]


@dataclass(frozen=True, slots=True)
class Stage:
    """Levels that are computed in one run: side by side if it is one, else one after the other."""

    start: int
    """Values, in the order of their levels."""
    stop: int
    is_split: bool


def plan_stages(
    costs: NDArray[np.float64], ends: list[int], slots: int, *, stage: float = STAGE_SECONDS
) -> tuple[list[Stage], float]:
    """How to go through levels in the shortest time, and how many seconds that is by all guesses.

    Each level is split over the slots, which costs a run of its own, or computed in one slot
    together with its neighbours that are not split either.

    Args:
        costs: seconds of each value, level by level.
        ends: where each level ends.
        slots: values computed at a time.
        stage: seconds that a run takes besides.
    """
    starts = [0, *ends[:-1]]
    sums = np.add.reduceat(costs, starts)
    longest = np.maximum.reduceat(costs, starts)
    # The shortest time up to and with each level, if that is split and if it is not; and which
    # of the two the level before was then.
    split, whole = 0.0, stage
    choices: list[tuple[bool, bool]] = []
    for level, (seconds, dearest) in enumerate(zip(sums.tolist(), longest.tolist(), strict=True)):
        if level == 0:
            split, whole = stage + max(seconds / slots, dearest), stage + seconds
            choices.append((True, False))
            continue
        best_is_split = split <= whole
        after_split = split + stage < whole
        split, whole = (
            min(split, whole) + stage + max(seconds / slots, dearest),
            min(split + stage, whole) + seconds,
        )
        choices.append((best_is_split, after_split))
    return _backtrack(choices, starts, ends, is_split=split <= whole), min(split, whole)


def _backtrack(
    choices: list[tuple[bool, bool]], starts: list[int], ends: list[int], *, is_split: bool
) -> list[Stage]:
    stages: list[Stage] = []
    for level in range(len(ends) - 1, -1, -1):
        if not is_split and stages and not stages[-1].is_split:
            stages[-1] = Stage(starts[level], stages[-1].stop, is_split=False)
        else:
            stages.append(Stage(starts[level], ends[level], is_split))
        is_split = choices[level][0 if is_split else 1]
    return stages[::-1]

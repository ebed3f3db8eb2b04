"""What computing values costs, as measured, and which levels to compute in parallel."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

import numpy as np
from numpy.typing import NDArray

from rebaser_server.compute.results import CallCosts, StoredResult, UnitResult
from rebaser_server.compute.work_unit import FAILED_RUNTIME, WorkUnit

UNKNOWN_SECONDS: Final = 2e-6
"""Seconds for a value of a function that was never measured: that of a cheap one."""
UNMEASURED_SECONDS: Final = 2e-3
"""Seconds for it where units are cut: as if it were dear, lest one slot computes them all."""
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
_BESIDE: Final = ("", "beside")
"""Likewise, of runs in child processes."""
_NEGLIGIBLE: Final = 20
"""Times what a run takes besides: what works for longer says nothing of that, since what it took
is not known so well."""


_CHEAP: Final = (None, "builtin", FAILED_RUNTIME)
"""Runtimes whose functions are never dear: a missing one, ours, and one that fails at once."""
_MAX_FUNCTIONS: Final = 10_000
"""Functions whose costs a process knows; it forgets those that it measured least lately."""


@dataclass(slots=True)
class CostModel:
    """Seconds for a value, by runtime and code; what was measured lately counts most.

    A process has one, for all its change sets: their updates learn what functions cost, Spark's
    executor what a run costs besides.
    """

    seconds: dict[tuple[str, str], float] = field(default_factory=dict)
    _overhead: tuple[str, str] = _OVERHEAD

    def beside(self) -> "CostModel":
        """The same for runs of another executor: they cost other than these, functions do not."""
        return CostModel(self.seconds, _BESIDE)

    @property
    def stage_seconds(self) -> float:
        """Seconds that a run takes besides."""
        return self.seconds.get(self._overhead, STAGE_SECONDS)

    def snapshot(self) -> "CostModel":
        """What is known now; may be called in a thread while others learn."""
        return CostModel(self.seconds.copy(), self._overhead)

    def known(self, functions: Iterable[tuple[str | None, str]]) -> dict[tuple[str, str], float]:
        """What is known of these functions, and of runs: enough to estimate the same again."""
        wanted = {self._overhead, *functions}
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
            self._record(self._overhead, max(seconds - busy, 0.0), STAGE_SECONDS)

    def _record(self, function: tuple[str, str], measured: float, default: float) -> None:
        before = self.seconds.pop(function, default)
        self.seconds[function] = before + _WEIGHT * (measured - before)  # the last to be forgotten

    def knows(self, unit: WorkUnit) -> bool:
        """Whether all functions of a unit were measured that may be dear."""
        return all(self.knows_function(*function) for function in unit.functions)

    def knows_function(self, runtime: str | None, code: str) -> bool:
        """Whether this function was measured, or cannot be dear."""
        return runtime in _CHEAP or (runtime, code) in self.seconds

    def of_function(
        self, runtime: str | None, code: str, *, unmeasured: float = UNKNOWN_SECONDS
    ) -> float:
        """The seconds that a value of this function takes if it is computed.

        `unmeasured`: those of one that may be dear and was never measured.
        """
        call = UNKNOWN_SECONDS if runtime in _CHEAP else unmeasured
        return ROW_SECONDS + (self.seconds.get((runtime, code), call) if runtime else call)

    def estimate(
        self, unit: WorkUnit, *, unmeasured: float = UNKNOWN_SECONDS
    ) -> NDArray[np.float64]:
        """The seconds that each value of a unit takes if it is computed; see `of_function`."""
        by_function = [
            self.of_function(*function, unmeasured=unmeasured) for function in unit.functions
        ]
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

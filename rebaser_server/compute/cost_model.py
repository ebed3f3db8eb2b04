"""Measured costs of computing values, and the choice of levels to compute in parallel."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

import numpy as np
from numpy.typing import NDArray

from rebaser_server.compute.results import CallCosts, StoredResult, UnitResult
from rebaser_server.compute.work_unit import FAILED_RUNTIME, WorkUnit

UNKNOWN_SECONDS: Final = 2e-6
"""Seconds for a value of a function that was never measured: those of a cheap one."""
UNMEASURED_SECONDS: Final = 2e-3
"""Seconds for such a value where units are cut: those of a dear one, lest one slot computes them
all."""
ROW_SECONDS: Final = 2e-6
"""Seconds that a value takes in addition to its function."""
STAGE_SECONDS: Final = 0.1
"""Assumed overhead of one Spark run, in seconds, until the first is measured."""
MIN_SPEEDUP: Final = 1.25
"""Factor by which a plan has to be shorter by estimate, since estimates are inexact."""
_WEIGHT: Final = 0.3
"""Weight of the newest measurement against all earlier ones."""
_OVERHEAD: Final = ("", "")
"""Key of the overhead of a run."""
_BESIDE: Final = ("", "beside")
"""Key of the overhead of a run in child processes."""
_NEGLIGIBLE: Final = 20
"""Multiple of the overhead beyond which a run's work hides it: such a run does not change the
measured overhead."""


_CHEAP: Final = (None, "builtin", FAILED_RUNTIME)
"""Runtimes whose functions are never dear: a missing one, ours, and one that fails at once."""
_MAX_FUNCTIONS: Final = 10_000
"""Maximum number of functions with known costs; the least lately measured are forgotten."""


@dataclass(slots=True)
class CostModel:
    """Seconds for a value, by runtime and code; the latest measurements count most.

    A process has one, for all its change sets: their updates learn the costs of functions, Spark's
    executor the overhead of a run.
    """

    seconds: dict[tuple[str, str], float] = field(default_factory=dict)
    _overhead: tuple[str, str] = _OVERHEAD

    def beside(self) -> "CostModel":
        """Return the model for another executor: its overhead differs, functions do not."""
        return CostModel(self.seconds, _BESIDE)

    @property
    def stage_seconds(self) -> float:
        """Overhead of a run, in seconds."""
        return self.seconds.get(self._overhead, STAGE_SECONDS)

    def snapshot(self) -> "CostModel":
        """Return the present knowledge; may be called in a thread while others learn."""
        return CostModel(self.seconds.copy(), self._overhead)

    def known(self, functions: Iterable[tuple[str | None, str]]) -> dict[tuple[str, str], float]:
        """Return the costs of these functions and of runs, enough to repeat an estimate."""
        wanted = {self._overhead, *functions}
        return {function: cost for function, cost in self.seconds.items() if function in wanted}

    def learn(self, costs: CallCosts) -> None:
        for function, (calls, spent) in costs.items():
            if calls:
                self._record(function, spent / calls, spent / calls)
        while len(self.seconds) > _MAX_FUNCTIONS:
            del self.seconds[next(iter(self.seconds))]

    def learn_overhead(
        self, seconds: float, results: Iterable[UnitResult | StoredResult], slots: int
    ) -> None:
        """Learn the overhead of a run of `seconds`: its time outside its functions."""
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
        """Whether all functions of a unit that may be dear were measured."""
        return all(self.knows_function(*function) for function in unit.functions)

    def knows_function(self, runtime: str | None, code: str) -> bool:
        return runtime in _CHEAP or (runtime, code) in self.seconds

    def of_function(
        self, runtime: str | None, code: str, *, unmeasured: float = UNKNOWN_SECONDS
    ) -> float:
        """Return the seconds that a value of this function takes if it is computed.

        `unmeasured`: seconds for a function that may be dear and was never measured.
        """
        call = UNKNOWN_SECONDS if runtime in _CHEAP else unmeasured
        return ROW_SECONDS + (self.seconds.get((runtime, code), call) if runtime else call)

    def estimate(
        self, unit: WorkUnit, *, unmeasured: float = UNKNOWN_SECONDS
    ) -> NDArray[np.float64]:
        """Return the seconds that each value of a unit takes when computed; see `of_function`."""
        by_function = [
            self.of_function(*function, unmeasured=unmeasured) for function in unit.functions
        ]
        by_call = [by_function[function] for function, _ in unit.signatures]
        return np.array([*by_call, 0.0])[unit.signature_indices]


@dataclass(frozen=True, slots=True)
class Stage:
    """Levels of one run: a single one in parallel, several one after the other."""

    start: int
    """Position of its first value, in the order of their levels."""
    stop: int
    is_split: bool


def plan_stages(
    costs: NDArray[np.float64], ends: list[int], slots: int, *, stage: float = STAGE_SECONDS
) -> tuple[list[Stage], float]:
    """Return the fastest way to go through levels, and its estimated seconds.

    Each level is either split over the slots, which costs one run, or computed in one slot together
    with its neighbours that are not split either.

    Args:
        costs: seconds of each value, level by level.
        ends: end of each level.
        slots: number of values computed at a time.
        stage: overhead of a run, in seconds.
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

"""Computes the levels of a unit in parallel where one slot would be busy with it for too long.

Values of one level do not depend on each other. So a level whose functions are dear can be
computed by all slots at once, in a run of its own; the next level takes what came out changed.
"""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from rebaser_server.compute.cost_model import (
    MIN_SPEEDUP,
    UNMEASURED_SECONDS,
    CostModel,
    Stage,
    plan_stages,
)
from rebaser_server.compute.results import (
    SCHEMA,
    StoredResult,
    UnitResult,
    locate,
    restore_order,
    total_costs,
)
from rebaser_server.compute.run import Place, Run, run_apart
from rebaser_server.compute.work_unit import (
    IncrementalSplit,
    WorkUnit,
    digest_of,
    extract,
    sort_by_level,
    with_inputs,
)

_PARTS_PER_SLOT: Final = 2
"""Units for each slot that a level is split into, so that a slot that is done early helps."""
_MIN_STAGES: Final = 2
"""Units that take no longer than this many times a run's overhead cannot win by splitting."""
_MAX_SAMPLE: Final = 4
"""Values of functions never measured that a sample holds, at most: it is computed once more."""


def split_costs_of(units: Sequence[WorkUnit]) -> str:
    """The name in the run store of what functions were taken to cost when units were cut."""
    return f"sweeps-{digest_of(units[0].encode())}"


class LeveledRun:
    """A run in one place, which learns what functions and runs cost there."""

    def __init__(self, place: Place, costs: CostModel, run: Run) -> None:
        self._place = place
        self._costs = costs
        self._run = run

    async def results(self, units: Sequence[WorkUnit]) -> list[UnitResult | StoredResult]:
        assumed = await self._measure(units)
        splits = await asyncio.to_thread(self._choose_splits, units, assumed)
        return await run_apart(units, splits, self._compute, self._compute_levels)

    async def _measure(self, units: Sequence[WorkUnit]) -> float:
        """Learn what functions cost that would keep one slot busy if they were dear.

        One value of each is computed for that, and once more with the others: so what units are
        cut into depends on costs alone, and not on what was measured with. Returns the seconds
        of the dearest, which others are taken for that could not be measured; 0 for none.
        """
        samples = await asyncio.to_thread(self._samples, units)
        if not samples:
            return 0.0
        costs = total_costs(await self._place.run(samples, Run(self._run.owner)))
        self._costs.learn(costs)
        return max((spent / calls for calls, spent in costs.values()), default=0.0)

    def _samples(self, units: Sequence[WorkUnit]) -> list[WorkUnit]:
        store = self._run.store
        if self._place.slots <= 1:
            return []
        if all(map(self._costs.knows, units)) or (
            store is not None and store.costs(split_costs_of(units))
        ):
            return []
        seconds = [
            float(self._costs.estimate(unit, unmeasured=UNMEASURED_SECONDS).sum()) for unit in units
        ]
        fair = sum(seconds) / self._place.slots
        samples: list[WorkUnit] = []
        for unit, each in zip(units, seconds, strict=True):
            if each > fair:
                samples += self._samples_of(unit)
        return samples[: self._place.slots * _PARTS_PER_SLOT]  # others are taken to cost as much

    def _samples_of(self, unit: WorkUnit) -> list[WorkUnit]:
        """A value of each function that was never measured, with what it is computed from."""
        is_known = [self._costs.knows_function(*function) for function in unit.functions]
        functions = np.array([function for function, _ in unit.signatures])[unit.signature_indices]
        is_unmeasured = ~np.array(is_known)[functions]
        if int(is_unmeasured.sum()) <= self._place.slots:
            return []
        samples: list[WorkUnit] = []
        for function in np.flatnonzero(~np.array(is_known)):
            positions = np.flatnonzero(functions == function)
            if len(positions) and len(samples) < self._place.slots * _PARTS_PER_SLOT:
                chosen = with_inputs(unit, int(positions[0]))
                if int(is_unmeasured[chosen].sum()) <= _MAX_SAMPLE:
                    sample = extract(unit, chosen)
                    samples.append(
                        # A value that is not due, or whose result is known, is not called and so
                        # not measured.
                        replace(
                            sample,
                            must_compute=np.ones(len(sample), np.bool_),
                            remembered=frozenset(),
                            known_results=None,
                        )
                    )
        return samples

    def _choose_splits(
        self, units: Sequence[WorkUnit], assumed: float
    ) -> list["_LevelSplit | None"]:
        """Split of each unit, or None; an earlier attempt at the update decides.

        `assumed`: seconds of a function never measured; 0: those of a cheap one.
        """
        if self._place.slots <= 1:
            return [None] * len(units)
        store = self._run.store
        costs, is_known = self._costs.snapshot(), False
        for runtime, code in chain.from_iterable(unit.functions for unit in units):
            if assumed and runtime and not costs.knows_function(runtime, code):
                costs.seconds[runtime, code] = assumed
        dear = self._is_dear(units, costs)
        if store is not None and (any(dear) or not all(map(costs.knows, units))):
            before = store.costs(split_costs_of(units))
            is_known = bool(before)
            if is_known:
                costs = CostModel(before)
                dear = self._is_dear(units, costs)
        splits = [
            self._split_if_faster(unit, costs) if is_dear else None
            for unit, is_dear in zip(units, dear, strict=True)
        ]
        # Costs are stored before a part runs. By them a later attempt makes equal parts, and finds
        # the results of this one.
        if store is not None and any(splits) and not is_known:
            functions = chain.from_iterable(unit.functions for unit in units)
            store.put_costs(costs.known(functions), split_costs_of(units))
        return splits

    def _is_dear(self, units: Sequence[WorkUnit], costs: CostModel) -> list[bool]:
        """Whether each unit keeps one slot busy while others are idle."""
        seconds = [float(costs.estimate(unit).sum()) for unit in units]
        fair = max(sum(seconds) / self._place.slots, _MIN_STAGES * costs.stage_seconds)
        return [each > fair for each in seconds]

    def _split_if_faster(self, unit: WorkUnit, costs: CostModel) -> "_LevelSplit | None":
        moved, order, ends = sort_by_level(unit)
        seconds = costs.estimate(moved)
        stages, promised = plan_stages(seconds, ends, self._place.slots, stage=costs.stage_seconds)
        return (
            _LevelSplit(moved, order, seconds, stages)
            if promised * MIN_SPEEDUP < seconds.sum()
            else None
        )

    async def _compute(self, units: Sequence[WorkUnit]) -> list[UnitResult | StoredResult]:
        if not units:
            return []
        started, run = time.monotonic(), self._run.part(sum(map(len, units)))
        results = await self._place.run(units, run)
        self._costs.learn_overhead(time.monotonic() - started, results, self._place.slots)
        return results

    async def _compute_levels(self, level_split: "_LevelSplit") -> UnitResult:
        split = IncrementalSplit(level_split.unit)
        done: list[UnitResult] = []
        for stage in level_split.stages:
            piece = split.next(stage.stop - stage.start)
            parts = await asyncio.to_thread(self._parts, level_split, piece, stage)
            results = await self._compute([unit for _, unit in parts])
            located = [
                await asyncio.to_thread(locate, result, positions + stage.start, self._run.store)
                for result, (positions, _) in zip(results, parts, strict=True)
            ]
            split.record(
                stage.stop, pa.concat_tables([SCHEMA.empty_table(), *(o.table for o in located)])
            )
            done += located
        return await asyncio.to_thread(restore_order, done, level_split.order)

    def _parts(
        self, level_split: "_LevelSplit", piece: WorkUnit, stage: Stage
    ) -> list[tuple[NDArray[np.int64], WorkUnit]]:
        """Return what to run, and each value's position in the piece.

        Costs that were guessed at first decide, and not what was learnt since: so another attempt
        that begins with equal guesses has equal parts, and finds their results in the run store.
        """
        if not stage.is_split:
            return [(np.arange(len(piece)), piece)]
        due = np.flatnonzero(piece.must_compute)
        if not len(due):
            return []
        until = level_split.seconds[stage.start : stage.stop][due].cumsum()
        count = min(self._place.slots * _PARTS_PER_SLOT, len(due))
        cuts = np.searchsorted(until, until[-1] * np.arange(1, count) / count, side="left")
        chosen = [part for part in np.split(due, cuts) if len(part)]
        return [(part, extract(piece, part)) for part in chosen]


@dataclass(frozen=True, slots=True)
class _LevelSplit:
    """A unit in the order of its levels, and how to go through them."""

    unit: WorkUnit
    order: NDArray[np.int64]
    """Position of each value in the order of before."""
    seconds: NDArray[np.float64]
    stages: list[Stage]

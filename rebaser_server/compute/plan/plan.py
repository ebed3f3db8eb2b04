"""Plans a dependent values update: the affected values, packed into units of work.

The cost follows the affected values and their inputs; planning does not read the rest of the
graph, and makes no Python object for any value.
"""

from dataclasses import dataclass, field
from typing import Final

import numpy as np
from numpy.typing import NDArray

from rebaser_server.compute.plan.admission import (
    UnitLimits,
    refused_unit,
    split_by_bytes,
    text_bytes_of_parts,
)
from rebaser_server.compute.plan.affected import Closure, closure
from rebaser_server.compute.plan.cost_model import (
    ROW_SECONDS,
    UNKNOWN_SECONDS,
    UNMEASURED_SECONDS,
    CostModel,
)
from rebaser_server.compute.plan.graph_preview import GraphPreview, preview_graph
from rebaser_server.compute.plan.partitioning import balance, components
from rebaser_server.compute.units.work_unit import OK, WorkUnit
from rebaser_server.values.columns import sorted_unique
from rebaser_server.values.graph import ReadableGraph

MIN_VALUES_PER_UNIT: Final = 256
"""Values that a unit holds on average, at least: tasks of fewer would cost more than they gain;
unless they are known to take as long as so many cheap ones, or may: one by itself that was never
measured does."""
UNITS_PER_SLOT: Final = 2
"""More than one, so that a slot that was given the cheaper values can take over from another."""
_USUAL_SECONDS: Final = ROW_SECONDS + UNKNOWN_SECONDS
"""Seconds for a value of a cheap function."""


@dataclass(frozen=True, slots=True)
class Plan:
    """A snapshot: what happens to the graph afterwards does not reach it."""

    affected: int
    """Values that may be recomputed; how many are, early cutoff decides while they run."""
    units: list[bytes]
    """Encoded `WorkUnit`s, independent of each other, the dearest first."""
    preview: GraphPreview = field(default_factory=GraphPreview, compare=False)


def plan(
    graph: ReadableGraph,
    slots: int,
    *,
    small: int = MIN_VALUES_PER_UNIT,
    costs: CostModel | None = None,
    limits: UnitLimits = UnitLimits(),
    affected: Closure | None = None,
) -> Plan:
    """The update that covers all roots of `graph`, for `slots` evaluators at a time.

    Dependent roots and the direct dependents of every root are computed in any case, others
    that are affected only if one of their inputs comes out changed.

    Args:
        graph: of the values; the caller holds its lock, or it is a snapshot.
        slots: evaluators.
        small: values of a unit, on average, at least.
        costs: what functions were measured to cost.
        limits: of each unit.
        affected: the closure of the graph as it is, if that is known; it is released.
    """
    affected = affected or closure(graph)
    preview = preview_graph(graph, affected)
    units = []
    if len(affected.indices):
        builder = _UnitBuilder(graph, affected, limits)
        units = builder.pack(slots, small, costs or CostModel())
    affected.release(graph)
    return Plan(len(affected.indices), units, preview)


class _UnitBuilder:
    """Packs values of a closure, which stand level by level, and in a level by signature."""

    def __init__(self, graph: ReadableGraph, affected: Closure, limits: UnitLimits) -> None:
        self._graph = graph
        self._limits = limits
        columns, indices = graph.columns, affected.indices
        funcs, shapes = columns.func.buffer[indices], columns.signature.buffer[indices]
        # By function, then by shape: one number for each signature that occurs.
        pairs = funcs.astype(np.int64) << 32 | shapes
        signatures, calls = _unique_codes(pairs)
        self._signatures = [(pair >> 32, pair & 0xFFFFFFFF) for pair in signatures.tolist()]
        order = np.argsort(
            affected.levels.astype(np.int64) * len(signatures) + calls, kind="stable"
        )
        self._indices, self._calls = indices[order], calls[order]
        self._must_compute = affected.must_compute[order]
        self._positions = affected.positions
        self._positions[self._indices] = np.arange(1, len(order) + 1, dtype=np.int32)
        self._refs, self._widths = graph.adjacency.inputs_of(self._indices)

    def pack(self, slots: int, small: int, costs: CostModel) -> list[bytes]:
        """The units, as `plan` has them."""
        count = len(self._indices)
        is_large = self._is_large()
        if is_large or (slots > 1 and count > 1):
            seconds = self._estimate(costs)
            worth = int(float(seconds.sum()) / (max(small, 1) * _USUAL_SECONDS) + 1e-9)
            most = min(slots * UNITS_PER_SLOT, worth)
            if most > 1 or is_large:
                return self._balanced(seconds, max(most, 1), is_large=is_large)
        return [self._build(np.arange(count))]

    def _estimate(self, costs: CostModel) -> NDArray[np.float64]:
        """The seconds that each value is expected to take."""
        funcs = [self._graph.funcs.get(self._graph.func_ids[func]) for func, _ in self._signatures]
        seconds = [
            costs.of_function(f.runtime, f.code, unmeasured=UNMEASURED_SECONDS)
            if f
            else _USUAL_SECONDS
            for f in funcs
        ]
        return np.array(seconds)[self._calls]

    def _is_large(self) -> bool:
        """Whether all values together, with their constants, may exceed the text of one unit."""
        graph, allowed = self._graph, self._limits.text_bytes
        total = int(graph.text_sizes(self._indices).sum())
        if total <= allowed:
            total += int(graph.text_sizes(self._refs[self._positions[self._refs] == 0]).sum())
        return total > allowed

    def _balanced(self, seconds: NDArray[np.float64], most: int, *, is_large: bool) -> list[bytes]:
        """At most so many units of whole components, the dearest first.

        More of them where they would need more text than a unit may have.
        """
        inside = self._positions[self._refs] - np.int32(1)
        dependents = np.repeat(np.arange(len(self._indices), dtype=np.int32), self._widths)
        is_edge = inside >= 0
        parts = components(len(self._indices), inside[is_edge], dependents[is_edge])
        if is_large:
            needed = text_bytes_of_parts(
                self._graph, self._indices, parts, self._refs[~is_edge], dependents[~is_edge]
            )
            seconds_of_parts = np.bincount(parts, seconds).astype(np.float64)
            return self._balanced_within_bytes(parts, needed, seconds_of_parts, most)
        group_of = balance(np.bincount(parts, seconds), most)
        groups = group_of[parts]
        totals = np.bincount(groups, seconds, most)
        order = np.argsort(groups, kind="stable")
        ends = np.cumsum(np.bincount(groups, minlength=most))
        members = np.split(order, ends[:-1])
        dearest = np.argsort(-totals, kind="stable").tolist()
        return [self._build(members[number]) for number in dearest if len(members[number])]

    def _balanced_within_bytes(
        self,
        parts: NDArray[np.int32],
        needed: NDArray[np.float64],
        seconds: NDArray[np.float64],
        most: int,
    ) -> list[bytes]:
        allowed = self._limits.text_bytes
        group_of = balance(seconds, most)
        is_refused = needed > allowed
        units = []
        for number in range(most):
            chosen = np.flatnonzero((group_of == number) & ~is_refused)
            for some in split_by_bytes(chosen, needed, allowed) if len(chosen) else ():
                is_in = np.zeros(len(needed), np.bool_)
                is_in[some] = True
                units.append(self._build(np.flatnonzero(is_in[parts])))
        for part in np.flatnonzero(is_refused).tolist():
            indices = self._indices[parts == part]
            refused = refused_unit(self._graph, indices, float(needed[part]), allowed)
            units.append(refused.encode())
        return units

    def _build(self, positions: NDArray[np.int64]) -> bytes:
        """The unit of values at these positions, ascending, which hold all of their components."""
        graph, columns = self._graph, self._graph.columns
        indices = self._indices[positions]
        refs = self._refs_of(positions)
        inside = self._positions[refs]
        is_outside = inside == 0
        constants, constant_of = _unique_codes(refs[is_outside])
        local = np.zeros(len(self._indices) + 1, np.int32)
        local[positions + 1] = np.arange(len(positions), dtype=np.int32)
        cells = local[inside]
        cells[is_outside] = ~constant_of
        signatures, calls = _unique_codes(self._calls[positions])
        funcs, calls_of = _unique_codes(
            np.array([self._signatures[each][0] for each in signatures.tolist()])
        )
        is_known = columns.status.buffer[constants] == OK
        return WorkUnit(
            [self._function(graph.func_ids[func]) for func in funcs.tolist()],
            [
                (func, list(graph.signatures.all[self._signatures[each][1]]))
                for func, each in zip(calls_of.tolist(), signatures.tolist(), strict=True)
            ],
            graph.ids_of(indices),
            calls,
            columns.status.buffer[indices],
            graph.texts_of(indices),
            self._must_compute[positions],
            cells,
            graph.ids_of(constants),
            is_known,
            graph.texts_of(constants),
            self._limits.calls,
        ).encode()

    def _refs_of(self, positions: NDArray[np.int64]) -> NDArray[np.int32]:
        if len(positions) == len(self._indices):
            return self._refs
        is_in = np.zeros(len(self._indices), np.bool_)
        is_in[positions] = True
        return self._refs[np.repeat(is_in, self._widths)]

    def _function(self, func_id: str) -> tuple[str | None, str]:
        func = self._graph.funcs.get(func_id)
        return (func.runtime, func.code) if func else (None, func_id)


def _unique_codes(items: NDArray[np.integer]) -> tuple[NDArray[np.integer], NDArray[np.int32]]:
    """The different items, ascending, and for each item its index among them."""
    if len(items) and (items == items[0]).all():
        return items[:1], np.zeros(len(items), np.int32)
    unique = sorted_unique(items)
    return unique, np.searchsorted(unique, items).astype(np.int32)

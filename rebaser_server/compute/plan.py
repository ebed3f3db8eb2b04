"""Plans of dependent values updates: the affected values, packed into units of work.

The cost follows the affected values and their inputs; planning does not read the rest of the
graph, and makes no Python object for any value. Units are a partition by connection and cost: a
component of connected values stays in one. The text of a unit, which its evaluator holds in memory,
is bounded. All attempts at an update have equal units.
"""

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from rebaser_server.compute.affected import Closure, LargeClosure, closure, small_closure
from rebaser_server.compute.cost_model import (
    ROW_SECONDS,
    UNKNOWN_SECONDS,
    UNMEASURED_SECONDS,
    CostModel,
)
from rebaser_server.compute.functions.runtimes import expected_code
from rebaser_server.compute.memo import WorkspaceMemo
from rebaser_server.compute.results import SCHEMA, RunStore, StoredResult, UnitResult
from rebaser_server.compute.work_unit import (
    FAILED_RUNTIME,
    OK,
    PENDING,
    CallLimits,
    WorkUnit,
    strings,
)
from rebaser_server.values.columns import sorted_unique
from rebaser_server.values.graph import Graph, GraphSnapshot, ReadableGraph

_MAX_UNIT_BYTES: Final = 512 << 20
"""Bytes of text of a unit, unless the settings have another number."""
_MIB: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class UnitLimits:
    calls: CallLimits = CallLimits()
    text_bytes: int = _MAX_UNIT_BYTES
    """Bytes of its values and constants; values that need more together are planned to fail."""


def _text_bytes_of_parts(
    graph: ReadableGraph,
    indices: NDArray[np.int32],
    parts: NDArray[np.int32],
    outside: NDArray[np.int32],
    dependents: NDArray[np.int32],
) -> NDArray[np.float64]:
    """Bytes of text that each part needs: of its values, and of each constant that it takes.

    Args:
        graph: of the values.
        indices: of the values.
        parts: of each value.
        outside: what is taken from outside, and for each
        dependents: the value that takes it.
    """
    count = int(parts.max()) + 1
    own = np.bincount(parts, graph.text_sizes(indices), count)
    pairs = np.unique(parts[dependents].astype(np.int64) << 32 | outside)
    constants = graph.text_sizes(pairs & 0xFFFFFFFF)
    return (own + np.bincount(pairs >> 32, constants, count)).astype(np.float64)


def _split_by_bytes(
    order: NDArray[np.int64], needed: NDArray[np.float64], most: int
) -> list[NDArray[np.int64]]:
    """Split parts, in this order, into groups that need at most `most` bytes each."""
    ends, total = [], 0.0
    for position, each in enumerate(needed[order].tolist()):
        total += each
        if total > most and position:
            ends.append(position)
            total = each
    return np.split(order, ends)


def _refused_unit(
    graph: ReadableGraph, indices: NDArray[np.int32], needed: float, most: int
) -> WorkUnit:
    """A unit in which all these values fail, since what they need does not go into one."""
    count = len(indices)
    message = (
        f"not computed: values that depend on each other need {needed / _MIB:,.4g} MiB of text "
        f"together; at most {most / _MIB:,.4g} are allowed (REBASER_DVU_WORK_UNIT_BYTES)"
    )
    return WorkUnit(
        [(FAILED_RUNTIME, message)],
        [(0, [])],
        strings(graph.ids_of(indices)),
        np.zeros(count, np.int32),
        np.full(count, PENDING, np.uint8),
        strings([""]).take(np.zeros(count, np.int64)),
        np.ones(count, np.bool_),
        limits=CallLimits(),
    )


_BALANCED_ONE_BY_ONE: Final = 4096
"""Parts assigned one by one, each to the group that costs least; all others are small."""


def components(count: int, one: NDArray[np.int32], other: NDArray[np.int32]) -> NDArray[np.int32]:
    """Return the component of each of `count` things, joined by edges from `one` to `other`.

    Components are numbered by their first things. Each round hooks every tree of what is
    known to be connected under the lowest that it meets, and makes all trees flat: a few
    rounds, however deep the graph is.
    """
    parents = np.arange(count, dtype=np.int32)
    while len(one):
        low, high = np.minimum(one, other), np.maximum(one, other)
        np.minimum.at(parents, high, low)
        while True:
            above = parents[parents]
            if (above == parents).all():
                break
            parents = above
        one, other = parents[one], parents[other]
        is_apart = one != other
        one, other = one[is_apart], other[is_apart]
    return _number_by_root(parents)


def _number_by_root(parents: NDArray[np.int32]) -> NDArray[np.int32]:
    is_first = parents == np.arange(len(parents), dtype=np.int32)
    number: NDArray[Any] = np.cumsum(is_first, dtype=np.int32) - np.int32(1)
    return number[parents]


def balance(costs: NDArray[Any], count: int) -> NDArray[np.int32]:
    """Return the group, of `count`, that each part goes to, so that all cost about the same.

    The dearest are given out first, each to the group that costs least so far.
    """
    group = np.empty(len(costs), np.int32)
    order = np.argsort(-costs, kind="stable")
    totals = [(0.0, number) for number in range(count)]
    dealt = order[:_BALANCED_ONE_BY_ONE]
    for part, cost in zip(dealt.tolist(), costs[dealt].tolist(), strict=True):
        total, number = totals[0]
        group[part] = number
        heapq.heapreplace(totals, (total + cost, number))
    rest = order[_BALANCED_ONE_BY_ONE:]
    if len(rest):
        # Give each group its share of the rest, in order.
        sums = np.cumsum(costs[rest])
        level = (sums[-1] + sum(total for total, _ in totals)) / count
        room = np.array([max(level - total, 0.0) for total, _ in totals])
        ends = np.cumsum(room) * (sums[-1] / max(room.sum(), sums[-1] * 1e-9))
        position = np.minimum(np.searchsorted(ends, sums - costs[rest] / 2), count - 1)
        group[rest] = np.array([number for _, number in totals], np.int32)[position]
    return group


MIN_VALUES_PER_UNIT: Final = 256
"""Values of a cheap function that a unit holds on average, at least: tasks of fewer would cost more
than they gain. Of dear values, and of those never measured, it may hold fewer."""
UNITS_PER_SLOT: Final = 2
"""More than one, so that a slot that was given the cheaper values can take over from another."""
_USUAL_SECONDS: Final = ROW_SECONDS + UNKNOWN_SECONDS
"""Seconds for a value of a cheap function."""


@dataclass(frozen=True, slots=True)
class Plan:
    """A snapshot: what happens to the graph afterwards does not reach it."""

    affected: int
    """Values that may be recomputed; how many are, early cutoff decides while they run."""
    units: list[WorkUnit]
    """Units independent of each other, the dearest first."""


def plan(
    graph: ReadableGraph,
    slots: int,
    *,
    small: int = MIN_VALUES_PER_UNIT,
    costs: CostModel | None = None,
    limits: UnitLimits = UnitLimits(),
    affected: Closure | None = None,
    memo: WorkspaceMemo | None = None,
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
        memo: results that the values had before.
    """
    affected = affected or closure(graph)
    units = []
    if len(affected.indices):
        builder = _UnitBuilder(graph, affected, limits, costs or CostModel(), memo)
        units = builder.pack(slots, small)
    affected.release(graph)
    return Plan(len(affected.indices), units)


class _UnitBuilder:
    """Packs values of a closure, which stand level by level, and in a level by signature."""

    def __init__(
        self,
        graph: ReadableGraph,
        affected: Closure,
        limits: UnitLimits,
        costs: CostModel,
        memo: WorkspaceMemo | None,
    ) -> None:
        self._graph = graph
        self._limits = limits
        self._costs = costs
        self._memo = memo
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
        self._remembered = self._find_remembered()

    def pack(self, slots: int, small: int) -> list[WorkUnit]:
        """The units, as `plan` has them."""
        count = len(self._indices)
        is_large = self._is_large()
        if is_large or (slots > 1 and count > 1):
            seconds = self._estimate()
            worth = int(float(seconds.sum()) / (max(small, 1) * _USUAL_SECONDS) + 1e-9)
            most = min(slots * UNITS_PER_SLOT, worth)
            if most > 1 or is_large:
                return self._balanced(seconds, max(most, 1), is_large=is_large)
        return [self._build(np.arange(count))]

    def _estimate(self) -> NDArray[np.float64]:
        funcs = [self._graph.funcs.get(self._graph.func_ids[func]) for func, _ in self._signatures]
        seconds = [
            self._costs.of_function(f.runtime, f.code, unmeasured=UNMEASURED_SECONDS)
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

    def _balanced(
        self, seconds: NDArray[np.float64], most: int, *, is_large: bool
    ) -> list[WorkUnit]:
        """Return at most `most` units of whole components, the dearest first.

        More of them where they would need more text than a unit may have.
        """
        inside = self._positions[self._refs] - np.int32(1)
        dependents = np.repeat(np.arange(len(self._indices), dtype=np.int32), self._widths)
        is_edge = inside >= 0
        parts = components(len(self._indices), inside[is_edge], dependents[is_edge])
        if is_large:
            needed = _text_bytes_of_parts(
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
    ) -> list[WorkUnit]:
        allowed = self._limits.text_bytes
        group_of = balance(seconds, most)
        is_refused = needed > allowed
        units = []
        for number in range(most):
            chosen = np.flatnonzero((group_of == number) & ~is_refused)
            for some in _split_by_bytes(chosen, needed, allowed) if len(chosen) else ():
                is_in = np.zeros(len(needed), np.bool_)
                is_in[some] = True
                units.append(self._build(np.flatnonzero(is_in[parts])))
        for part in np.flatnonzero(is_refused).tolist():
            indices = self._indices[parts == part]
            units.append(_refused_unit(self._graph, indices, float(needed[part]), allowed))
        return units

    def _build(self, positions: NDArray[np.int64]) -> WorkUnit:
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
        functions = [self._function(graph.func_ids[func]) for func in funcs.tolist()]
        ids = strings(graph.ids_of(indices))
        return WorkUnit(
            functions,
            [
                (func, list(graph.signatures.all[self._signatures[each][1]]))
                for func, each in zip(calls_of.tolist(), signatures.tolist(), strict=True)
            ],
            ids,
            calls,
            columns.status.buffer[indices],
            strings(graph.texts_of(indices)),
            self._must_compute[positions],
            cells,
            strings(graph.ids_of(constants)),
            is_known,
            strings(graph.texts_of(constants)),
            self._limits.calls,
            *self._known_results(functions, calls_of[calls], ids),
            expected_code(functions),
        )

    def _find_remembered(self) -> frozenset[tuple[str | None, str]]:
        """The functions whose results are remembered; what is known of these is at hand then."""
        memo = self._memo
        if memo is None:
            return frozenset()
        functions = [self._function(self._graph.func_ids[func]) for func, _ in self._signatures]
        seconds = np.array([memo.seconds(*each, self._costs) for each in functions])
        memo.prepare(float(seconds[self._calls].sum()))
        return frozenset(f for f, each in zip(functions, seconds, strict=True) if each)

    def _known_results(
        self,
        functions: list[tuple[str | None, str]],
        functions_used: NDArray[np.int32],
        ids: pa.LargeStringArray,
    ) -> tuple[frozenset[int], pa.LargeListArray | None]:
        """Return the functions whose results are remembered, and those known of the values."""
        remembered = [n for n, each in enumerate(functions) if each in self._remembered]
        if not remembered or self._memo is None:
            return frozenset(), None
        is_remembered = np.isin(functions_used, remembered)
        known = self._memo.known(ids.filter(pa.array(is_remembered)))
        rows = np.where(is_remembered, np.cumsum(is_remembered) - 1, 0)
        return frozenset(remembered), known.take(pa.array(rows, mask=~is_remembered))

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


_FEW_EDGES: Final = 4_096
_PART: Final = 128
"""An update is small if it follows at most `_FEW_EDGES` edges, or one for `_PART` values of the
graph: its plan costs no more than a snapshot."""


class Rounds:
    """The rounds of one attempt at an update, each of which has its units.

    A small update is one round. The rounds of a large one end where nothing comes out changed: what
    changed in a round says which values the next one has.
    """

    def __init__(
        self,
        first: Plan,
        large: LargeClosure | None = None,
        plan_round: Callable[[Closure], Plan] | None = None,
    ) -> None:
        """`large` and `plan_round`: what the rounds after the first are made of, if there are."""
        self._large, self._plan_round = large, plan_round
        self.affected = 0
        """Values of the rounds until now: those that may be recomputed."""
        self._begin(first)

    def _begin(self, planned: Plan) -> None:
        self._current = planned
        self.affected += planned.affected
        if self._large is not None and self._large.is_last:
            self._large = self._plan_round = None  # they hold a copy of the graph

    @property
    def units(self) -> list[WorkUnit]:
        """Units of the round in hand; none once all is done."""
        return self._current.units

    def record(self, outcomes: Sequence[UnitResult | StoredResult], store: RunStore) -> None:
        """Take in what became of the round's units, and plan the next round. Blocks."""
        planned = Plan(0, [])
        if self._large is not None and self._plan_round is not None:
            results = [each for outcome in outcomes for each in store.results_of(outcome)]
            tables = [result.table.replace_schema_metadata() for result in results]
            self._large.record(pa.concat_tables([SCHEMA.empty_table(), *tables]))
            affected = self._large.next()
            if affected is not None:
                planned = self._plan_round(affected)
        self._begin(planned)

    def rest(self) -> pa.Array:
        """Ids of what the round in hand may affect, and that is in no round yet. Blocks."""
        return strings([]) if self._large is None else self._large.ids_of_rest()


class UpdatePlanner:
    """Keeps the estimates that the update in hand is planned with, in all of its attempts.

    What an attempt left in the run store belongs to its units: others would find nothing there.
    """

    def __init__(
        self, slots: int, limits: UnitLimits, costs: CostModel, memo: WorkspaceMemo | None = None
    ) -> None:
        self._memo = memo
        self.slots = slots
        self.costs: Final = costs
        self._limits = limits
        self._estimates = CostModel()
        self._clean_sequence: int | None = None
        """The update in hand is the one that begins behind this sequence."""

    def prepare(
        self, graph: Graph, clean_sequence: int, store: RunStore, *, is_repeated: bool
    ) -> Rounds | Callable[[], Rounds]:
        """Take from the graph what planning the update behind `clean_sequence` needs.

        Blocks; the caller holds the graph for as long as that takes, which is some milliseconds
        for a million values. Returns the rounds, which are one, if that is small and needs no
        results from the store, else what makes them: it blocks for longer and needs the graph
        no more.

        Args:
            graph: of the change set.
            clean_sequence: the last that an update covered.
            store: of the update.
            is_repeated: whether the update was attempted before, maybe by another process.
        """
        if clean_sequence != self._clean_sequence:
            self._clean_sequence = clean_sequence
            self._estimates = CostModel(store.costs()) if is_repeated else self.costs.snapshot()
        affected = small_closure(graph, max(_FEW_EDGES, len(graph.columns) // _PART))
        if affected is not None and self._reads_memo(graph, affected):
            affected.release(graph)  # no store is waited for while the caller holds the graph
            affected = None
        if affected is None:
            return partial(self._begin_large, GraphSnapshot(graph), store)
        return Rounds(self._plan(graph, store, affected))

    def _begin_large(self, graph: GraphSnapshot, store: RunStore) -> Rounds:
        large, plan_round = LargeClosure(graph), partial(self._plan, graph, store)
        return Rounds(plan_round(large.next()), large, plan_round)

    def _reads_memo(self, graph: Graph, affected: Closure) -> bool:
        """Whether results are looked for in the store."""
        if self._memo is None:
            return False
        seconds, used = 0.0, graph.columns.func.buffer[affected.indices]
        for func, count in zip(*np.unique(used, return_counts=True), strict=True):
            known = graph.funcs.get(graph.func_ids[func])
            if known is not None:
                seconds += count * self._memo.seconds(known.runtime, known.code, self._estimates)
        return self._memo.reads_store(seconds)

    def _plan(self, graph: ReadableGraph, store: RunStore, affected: Closure | None = None) -> Plan:
        planned = plan(
            graph,
            self.slots,
            costs=self._estimates,
            limits=self._limits,
            affected=affected,
            memo=self._memo,
        )
        # Estimates are stored before a unit runs. By them the next attempt makes equal units, and
        # finds the results of this one.
        if len(planned.units) > 1 and self._estimates.seconds:
            functions = [(func.runtime, func.code) for func in graph.funcs.values()]
            store.put_costs(self._estimates.known(functions))
        return planned

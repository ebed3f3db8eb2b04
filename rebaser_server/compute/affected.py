"""The values that an update affects: its roots and all that depends on them, level by level.

If they are many, they are found a part at a time: the values that are due, and the values that have
to be known before.
"""

import sys
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from rebaser_server.values.adjacency import topological_levels
from rebaser_server.values.columns import OK, PENDING, indptr_of, sorted_unique
from rebaser_server.values.graph import GraphSnapshot, ReadableGraph

_SCALAR_UP_TO: Final = 64
"""Number of values of a step up to which their dependents are found faster one by one."""
_INDEX: Final = np.int32


@dataclass(frozen=True, slots=True, eq=False)
class Closure:
    """The dependent values that are affected, in topological order, level by level.

    All arrays have one item for each of them, in one order. The order within a level, too, is equal
    in every process.
    """

    indices: NDArray[np.int32]
    """Indices in the graph's columns."""
    levels: NDArray[np.int32]
    """Level of each value, which takes only values of lower levels."""
    must_compute: NDArray[np.bool_]
    """Whether it is computed even if none of its inputs changes."""
    positions: NDArray[np.int32]
    """Position here plus 1, by index in the graph; 0 if not affected. Borrowed, see `release`."""

    def release(self, graph: ReadableGraph) -> None:
        """Return the borrowed array, for the next closure to use."""
        # The next borrower expects zeros. Resetting the used items alone is cheap: the array is as
        # long as the graph.
        self.positions[self.indices] = 0
        graph.return_scratch(self.positions)


def closure(graph: ReadableGraph) -> Closure:
    """The values that the roots of `graph` affect; the cost follows their number alone."""
    found = small_closure(graph, sys.maxsize)
    if found is None:
        raise AssertionError("no graph has so many edges")
    return found


def small_closure(graph: ReadableGraph, most: int) -> Closure | None:
    """Return the `closure`, or None if more than about `most` edges lead to it, at less cost."""
    graph.adjacency.prune()  # from here on, shapes and refs agree
    walk = _Walk(graph, most)
    roots = graph.root_indices()
    walk.add(roots)
    frontier = walk.expand(roots, steps=1)
    direct = len(roots) + len(frontier)
    while len(frontier):
        frontier = walk.expand(frontier)
    if walk.room < 0:
        walk.give_up()
        return None
    return walk.closure(direct)


@dataclass(frozen=True, slots=True)
class RoundSizes:
    """Limits of the rounds of a large update, beyond which the rest is one round."""

    ahead: int = 256
    """Approximate number of edges that the first round looks ahead."""
    growth: int = 4
    """Factor by which each further round looks further ahead, so that the rounds stay few."""
    behind: int = 4_096
    """Maximum number of values that are not due, and on which others of a round depend; or four
    times the others, if that is more."""
    steps: int = 256
    """Maximum number of steps from value to input that are searched for them."""
    values: float = 0.125
    """Maximum size of a round, as a part of all values."""


class LargeClosure:
    """The closure of a snapshot, in rounds that end where values come out unchanged.

    A round has all values that are due by then. The inputs of its values were computed in an
    earlier round, are in this one, or do not change. So each value is in one round at most, and is
    right after it.
    """

    def __init__(self, graph: GraphSnapshot, sizes: RoundSizes = RoundSizes()) -> None:
        self._graph = graph
        self._sizes = sizes
        self._due = certain_dependents(graph)
        self._is_done = np.zeros(len(graph.columns), np.bool_)
        self._ahead = sizes.ahead
        self.is_last = False
        """Whether no value can become due after the round in hand."""

    def next(self) -> Closure | None:
        """Return the next round, to be computed before the next call; None: no value is due."""
        if not len(self._due):
            return None
        found = self._reach(self._ahead) or self._reach(sys.maxsize)
        if found is None:
            raise AssertionError("no graph has so many edges")
        self._is_done[found.indices] = True
        self._ahead *= self._sizes.growth
        return found

    def record(self, results: pa.Table) -> None:
        """Note the round's values that changed: their id, status and text."""
        graph, indices = self._graph, self._graph.indices_of(results.column("id"))
        statuses = results.column("status").to_numpy()
        is_changed = (statuses == OK) | (graph.columns.status.buffer[indices] == OK)
        graph.assign(indices, statuses, results.column("text").combine_chunks())
        dependents, _ = graph.adjacency.dependents_of(indices[is_changed])
        self._due = sorted_unique(dependents[~self._is_done[dependents]]).astype(_INDEX)

    def ids_of_rest(self) -> pa.Array:
        """Return ids of values that the round in hand may affect and that are in no round yet."""
        found = self._reach(sys.maxsize) if len(self._due) else None
        if found is None:
            return self._graph.ids_of(_NONE)
        found.release(self._graph)
        return self._graph.ids_of(found.indices[~self._is_done[found.indices]])

    def _reach(self, ahead: int) -> Closure | None:
        """Find the due values and those that they affect; only a part beyond `ahead` edges."""
        walk, frontier = _Walk(self._graph, ahead), self._due
        walk.add(frontier)
        while len(frontier):
            frontier = walk.expand(frontier)
        self.is_last = walk.room >= 0
        if self.is_last:
            return walk.closure(len(self._due))
        if walk.count <= self._sizes.values * len(self._graph.columns) and walk.add_inputs(
            self._is_done, self._graph.columns.rank.buffer[self._due].min(), self._sizes
        ):
            return walk.cut_closure(len(self._due))
        walk.give_up()
        return None


def certain_dependents(graph: ReadableGraph) -> NDArray[np.int32]:
    """Return the dependent values that an update of the roots surely computes, in any order."""
    roots = graph.root_indices()
    dependents, _ = graph.adjacency.dependents_of(roots)
    met: NDArray[np.int32] = sorted_unique(np.concatenate([roots, dependents.astype(_INDEX)]))
    is_dependent: NDArray[np.bool_] = graph.columns.func.buffer[met] >= 0
    return met[is_dependent]


class _Walk:
    """A walk over values, which are numbered as they are met; edges are kept until the end."""

    def __init__(self, graph: ReadableGraph, most: int) -> None:
        self._graph = graph
        self.room = most
        """Number of edges that may still be met; below 0, the walk has ended early."""
        self._met: list[NDArray[np.int32]] = []
        self._dependents: list[NDArray[np.int32]] = []
        self._widths: list[NDArray[Any]] = []
        self.count = 0
        """Number of values met."""
        self._numbers = graph.borrow_scratch()
        """Number of each value plus 1, by index in the graph; 0 if it was not met."""
        self._ahead = 0
        """Number of values met before `add_inputs`."""

    def add(self, indices: NDArray[np.int32]) -> None:
        count = len(indices)
        self._numbers[indices] = np.arange(self.count + 1, self.count + count + 1, dtype=_INDEX)
        self.count += count
        self._met.append(indices)

    def expand(self, frontier: NDArray[np.int32], *, steps: int = sys.maxsize) -> NDArray[np.int32]:
        """Meet the dependents of these, and return the new ones; go on while they are few."""
        if self._graph.adjacency.least_dependents(frontier) > self.room:
            self.room = -1
            return _NONE
        if len(frontier) <= _SCALAR_UP_TO:
            return self._expand_narrow(frontier, steps)
        dependents, widths = self._graph.adjacency.dependents_of(frontier)
        self.room -= len(dependents)
        self._dependents.append(dependents)
        self._widths.append(widths)
        fresh = sorted_unique(dependents[self._numbers[dependents] == 0])
        self.add(fresh)
        return fresh

    def _expand_narrow(self, frontier: NDArray[np.int32], steps: int) -> NDArray[np.int32]:
        lookup, numbers = self._graph.adjacency.dependents_lookup(), self._numbers.data
        step: list[int] = frontier.tolist()
        met: list[int] = []
        dependents: list[int] = []
        widths: list[int] = []
        count = self.count
        while 0 < len(step) <= _SCALAR_UP_TO and steps and len(dependents) <= self.room:
            steps -= 1
            if len(step) == 1 and len(row := lookup(step[0])) == 1:  # a chain has many of these
                widths.append(1)
                dependents += row
                if numbers[row[0]]:
                    step = []
                else:
                    count += 1
                    numbers[row[0]] = count
                    met += row
                    step = row
                continue
            fresh: set[int] = set()
            for index in step:
                row = lookup(index)
                widths.append(len(row))
                dependents += row
                fresh.update([dependent for dependent in row if not numbers[dependent]])
            step = sorted(fresh)
            for index in step:
                count += 1
                numbers[index] = count
            met += step
        self.count = count
        self.room -= len(dependents)
        self._met.append(np.array(met, _INDEX))
        self._dependents.append(np.array(dependents, _INDEX))
        self._widths.append(np.array(widths, np.int64))
        return np.array(step, _INDEX) if self.room >= 0 else _NONE

    def add_inputs(self, is_done: NDArray[np.bool_], lowest: int, sizes: RoundSizes) -> bool:
        """Meet the inputs, direct or not, that may depend on a value of the rank `lowest`.

        Returns False if there are too many.
        """
        columns, frontier = self._graph.columns, np.concatenate(self._met)
        self._ahead = len(frontier)
        room = max(sizes.behind, 4 * len(frontier))
        for _ in range(sizes.steps):
            refs, _ = self._graph.adjacency.inputs_of(frontier)
            is_new = (self._numbers[refs] == 0) & (columns.rank.buffer[refs] > lowest)
            is_new &= (columns.func.buffer[refs] >= 0) & ~is_done[refs]
            frontier = sorted_unique(refs[is_new])
            self.add(frontier)
            room -= len(frontier)
            if not len(frontier) or room < 0:
                break
        return not len(frontier)

    def cut_closure(self, direct: int) -> Closure:
        """Return the values met; of those met by `add_inputs`, only dependents of the others."""
        met = np.concatenate(self._met)
        refs, widths = self._graph.adjacency.inputs_of(met)
        inputs = self._numbers[refs] - np.int32(1)
        dependents = np.repeat(np.arange(len(met), dtype=_INDEX), widths)[inputs >= 0]
        inputs = inputs[inputs >= 0]
        order = np.argsort(inputs, kind="stable")
        inputs, dependents = inputs[order], dependents[order]
        is_reached = np.arange(len(met)) < self._ahead
        while (is_new := is_reached[inputs] & ~is_reached[dependents]).any():
            is_reached[dependents[is_new]] = True
        bounds = indptr_of(np.bincount(inputs, minlength=len(met)))
        return self._in_order(direct, met, bounds, dependents, is_reached)

    def give_up(self) -> None:
        """Return the borrowed array."""
        self._numbers[np.concatenate(self._met)] = 0
        self._graph.return_scratch(self._numbers)

    def closure(self, direct: int) -> Closure:
        met = np.concatenate(self._met)
        dependents = self._numbers[np.concatenate([_NONE, *self._dependents])] - np.int32(1)
        bounds = indptr_of(np.concatenate([_NO_WIDTHS, *self._widths]))
        is_dependent = self._graph.columns.func.buffer[met] >= 0
        return self._in_order(direct, met, bounds, dependents, is_dependent)

    def _in_order(
        self,
        direct: int,
        met: NDArray[np.int32],
        bounds: NDArray[np.int64],
        dependents: NDArray[np.int32],
        is_wanted: NDArray[np.bool_],
    ) -> Closure:
        waiting = np.bincount(dependents, minlength=len(met)).astype(np.int32)
        order, levels = topological_levels(waiting, bounds, dependents)
        columns = self._graph.columns
        order = order[is_wanted[order]]
        indices = met[order]
        must_compute = (order < direct) | (columns.status.buffer[indices] == PENDING)
        positions = self._numbers
        positions[met] = 0
        positions[indices] = np.arange(1, len(indices) + 1, dtype=_INDEX)
        return Closure(indices, levels[order], must_compute, positions)


_NONE: Final = np.empty(0, _INDEX)
_NO_WIDTHS: Final = np.empty(0, np.int64)

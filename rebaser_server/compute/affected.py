"""What an update affects: its roots and all that depends on them, level by level."""

import sys
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from rebaser_server.values.adjacency import topological_levels
from rebaser_server.values.columns import PENDING, indptr_of, sorted_unique
from rebaser_server.values.graph import ReadableGraph

_SCALAR_UP_TO: Final = 64
"""Up to so many values at a step their dependents are found faster one by one."""
_INDEX: Final = np.int32


@dataclass(frozen=True, slots=True, eq=False)
class Closure:
    """The dependent values that are affected, in topological order, level by level.

    All arrays have one item for each of them, in one order. The order within a level, too, is
    the same in every process.
    """

    indices: NDArray[np.int32]
    """In the graph's columns."""
    levels: NDArray[np.int32]
    """One takes only what is of lower levels."""
    must_compute: NDArray[np.bool_]
    """Whether it is computed even if none of its inputs changes."""
    positions: NDArray[np.int32]
    """By index: the position here plus 1, or 0 if not affected. Borrowed, see `release`."""

    def release(self, graph: ReadableGraph) -> None:
        """Return the borrowed array, for the next closure to use."""
        self.positions[self.indices] = 0
        graph.return_scratch(self.positions)


def closure(graph: ReadableGraph) -> Closure:
    """The values that the roots of `graph` affect; the cost follows their number alone."""
    found = small_closure(graph, sys.maxsize)
    if found is None:
        raise AssertionError("no graph has so many edges")
    return found


def small_closure(graph: ReadableGraph, most: int) -> Closure | None:
    """`closure`, unless more than about `most` edges lead to them; then None, for less."""
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


def certain_dependents(graph: ReadableGraph) -> NDArray[np.int32]:
    """The dependent values that an update of the roots computes in any case, in any order."""
    roots = graph.root_indices()
    dependents, _ = graph.adjacency.dependents_of(roots)
    met: NDArray[np.int32] = sorted_unique(np.concatenate([roots, dependents.astype(_INDEX)]))
    is_dependent: NDArray[np.bool_] = graph.columns.func.buffer[met] >= 0
    return met[is_dependent]


class _Walk:
    """Values are numbered as they are met; edges are kept from one step to the end."""

    def __init__(self, graph: ReadableGraph, most: int) -> None:
        self._graph = graph
        self.room = most
        """Edges that may still be met; below 0, the walk has ended early."""
        self._met: list[NDArray[np.int32]] = []
        self._dependents: list[NDArray[np.int32]] = []
        self._widths: list[NDArray[Any]] = []
        self._count = 0
        self._numbers = graph.borrow_scratch()
        """By index: its number and 1, or 0 for what was not met."""

    def add(self, indices: NDArray[np.int32]) -> None:
        count = len(indices)
        self._numbers[indices] = np.arange(self._count + 1, self._count + count + 1, dtype=_INDEX)
        self._count += count
        self._met.append(indices)

    def expand(self, frontier: NDArray[np.int32], *, steps: int = sys.maxsize) -> NDArray[np.int32]:
        """Meet what takes these, and return what is new of it; goes on while that is few."""
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
        count = self._count
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
        self._count = count
        self.room -= len(dependents)
        self._met.append(np.array(met, _INDEX))
        self._dependents.append(np.array(dependents, _INDEX))
        self._widths.append(np.array(widths, np.int64))
        return np.array(step, _INDEX) if self.room >= 0 else _NONE

    def give_up(self) -> None:
        """Return what was borrowed."""
        self._numbers[np.concatenate(self._met)] = 0
        self._graph.return_scratch(self._numbers)

    def closure(self, direct: int) -> Closure:
        met = np.concatenate(self._met)
        dependents = self._numbers[np.concatenate([_NONE, *self._dependents])] - np.int32(1)
        bounds = indptr_of(np.concatenate([_NO_WIDTHS, *self._widths]))
        waiting = np.bincount(dependents, minlength=len(met)).astype(np.int32)
        order, levels = topological_levels(waiting, bounds, dependents)
        columns = self._graph.columns
        order = order[columns.func.buffer[met[order]] >= 0]
        indices = met[order]
        must_compute = (order < direct) | (columns.status.buffer[indices] == PENDING)
        positions = self._numbers
        positions[met] = 0
        positions[indices] = np.arange(1, len(indices) + 1, dtype=_INDEX)
        return Closure(indices, levels[order], must_compute, positions)


_NONE: Final = np.empty(0, _INDEX)
_NO_WIDTHS: Final = np.empty(0, np.int64)

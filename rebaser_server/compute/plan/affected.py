"""What an update affects: its roots and all that depends on them, level by level."""

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from rebaser_server.values.graph import Graph
from rebaser_server.values.graph.columns import PENDING
from rebaser_server.values.graph.csr import bounds_of, distinct
from rebaser_server.values.graph.toposort import sweeps

_NARROW: Final = 64
"""Up to so many values their dependents are found faster one by one."""
_INDEX: Final = np.int32


@dataclass(frozen=True, slots=True, eq=False)
class Closure:
    """The dependent values that are affected, in topological order, level by level.

    What is said of each has the same place in every array. The order within a level, too, is
    the same in every process.
    """

    indices: NDArray[np.int32]
    """In the graph's columns."""
    levels: NDArray[np.int32]
    """One takes only what is of lower levels."""
    forced: NDArray[np.bool_]
    """Whether it is computed even if none of its inputs changes."""
    places: NDArray[np.int32]
    """By index: the place here and 1, or 0 for what is not affected. To be given back."""

    def give_back(self, graph: Graph) -> None:
        """Let the next closure have what this one was made with."""
        self.places[self.indices] = 0
        graph.give_scratch(self.places)


def closure(graph: Graph) -> Closure:
    """What the roots of `graph` affect; costs what that is, whatever the graph's size."""
    graph.wiring.tighten()  # from here on, shapes and refs agree
    walk = _Walk(graph)
    roots = graph.roots.indices()
    walk.reach(roots)
    frontier = walk.step(roots)
    direct = len(roots) + len(frontier)
    while len(frontier):
        frontier = walk.step(frontier)
    return walk.closure(direct)


def direct(graph: Graph) -> NDArray[np.int32]:
    """The dependent values that the roots of `graph` have computed in any case, in any order."""
    roots = graph.roots.indices()
    takers, _ = graph.wiring.takers_of(roots)
    met: NDArray[np.int32] = distinct(np.concatenate([roots, takers.astype(_INDEX)]))
    is_dependent: NDArray[np.bool_] = graph.columns.func.room[met] >= 0
    return met[is_dependent]


class _Walk:
    """Values are numbered as they are met; edges are kept from one step to the end."""

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._met: list[NDArray[np.int32]] = []
        self._takers: list[NDArray[np.int32]] = []
        self._widths: list[NDArray[Any]] = []
        self._count = 0
        self._numbers = graph.take_scratch()
        """By index: its number and 1, or 0 for what was not met."""

    def reach(self, indices: NDArray[np.int32]) -> None:
        count = len(indices)
        self._numbers[indices] = np.arange(self._count + 1, self._count + count + 1, dtype=_INDEX)
        self._count += count
        self._met.append(indices)

    def step(self, frontier: NDArray[np.int32]) -> NDArray[np.int32]:
        """Meet what takes these, and return what is new of it."""
        if len(frontier) <= _NARROW:
            rows = [list(self._graph.wiring.takers(index)) for index in frontier.tolist()]
            takers = np.array([taker for row in rows for taker in row], _INDEX)
            widths = np.array([len(row) for row in rows], np.int64)
        else:
            takers, widths = self._graph.wiring.takers_of(frontier)
        self._takers.append(takers)
        self._widths.append(widths)
        fresh = distinct(takers[self._numbers[takers] == 0])
        self.reach(fresh)
        return fresh

    def closure(self, direct: int) -> Closure:
        met = np.concatenate(self._met)
        takers = self._numbers[np.concatenate([_NONE, *self._takers])] - np.int32(1)
        bounds = bounds_of(np.concatenate([_NO_WIDTHS, *self._widths]))
        waiting = np.bincount(takers, minlength=len(met)).astype(np.int32)
        order, levels = sweeps(waiting, bounds, takers)
        columns = self._graph.columns
        order = order[columns.func.room[met[order]] >= 0]
        indices = met[order]
        forced = (order < direct) | (columns.status.room[indices] == PENDING)
        places = self._numbers
        places[met] = 0
        places[indices] = np.arange(1, len(indices) + 1, dtype=_INDEX)
        return Closure(indices, levels[order], forced, places)


_NONE: Final = np.empty(0, _INDEX)
_NO_WIDTHS: Final = np.empty(0, np.int64)

"""Topological order, level by level (Kahn's algorithm on whole levels at a time)."""

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from rebaser_server.values.graph.csr import gather_rows, sorted_unique

_NARROW: Final = 48
"""Up to this many rows, a level is faster row by row."""
_ONE: Final = np.int32(1)  # of the array's own type: else many times slower


def topological_levels(
    indegrees: NDArray[np.int32], bounds: NDArray[np.int64], dependents: NDArray[np.int32]
) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """All rows in topological order, level by level, and the level of each row.

    `indegrees`: how many inputs each row has; used up. `dependents`: those of all rows, one row
    after another, between the row's `bounds`. The level is the longest path from a row without
    inputs. Rows on a cycle are left out, and have level -1.
    """
    level_of = np.full(len(indegrees), -1, np.int32)
    frontier: NDArray[Any] = np.flatnonzero(indegrees == 0).astype(np.int32)
    levels = [frontier]
    level = 0
    narrow = _NarrowLevels(indegrees, bounds, dependents)
    while len(frontier):
        level_of[frontier] = level
        level += 1
        if len(frontier) <= _NARROW:
            frontier = np.array(narrow.next(frontier.tolist()), np.int32)
        else:
            starts = bounds[frontier]
            reached = gather_rows(dependents, starts, bounds[frontier + 1] - starts)
            np.subtract.at(indegrees, reached, _ONE)
            frontier = sorted_unique(reached[indegrees[reached] == 0])
        levels.append(frontier)
    return np.concatenate(levels), level_of


class _NarrowLevels:
    def __init__(
        self, indegrees: NDArray[Any], bounds: NDArray[Any], dependents: NDArray[Any]
    ) -> None:
        self._indegrees, self._bounds, self._dependents = indegrees.data, bounds.data, dependents

    def next(self, frontier: list[int]) -> list[int]:
        indegrees, bounds = self._indegrees, self._bounds
        free = []
        for row in frontier:
            for dependent in self._dependents[bounds[row] : bounds[row + 1]].tolist():
                left = indegrees[dependent] - 1
                indegrees[dependent] = left
                if not left:
                    free.append(dependent)
        free.sort()
        return free

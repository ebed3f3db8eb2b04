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
    frontier: NDArray[Any] = np.flatnonzero(indegrees == 0).astype(np.int32)
    parts: list[NDArray[Any]] = [frontier[:0]]
    widths: list[int] = []
    narrow = _NarrowLevels(indegrees, bounds, dependents)
    while len(frontier):
        if len(frontier) <= _NARROW:
            order, frontier = narrow.walk(frontier.tolist(), widths)
            parts.append(order)
        else:
            parts.append(frontier)
            widths.append(len(frontier))
            starts = bounds[frontier]
            reached = gather_rows(dependents, starts, bounds[frontier + 1] - starts)
            np.subtract.at(indegrees, reached, _ONE)
            frontier = sorted_unique(reached[indegrees[reached] == 0])
    rows = np.concatenate(parts)
    level_of = np.full(len(indegrees), -1, np.int32)
    level_of[rows] = np.repeat(np.arange(len(widths), dtype=np.int32), widths)
    return rows, level_of


class _NarrowLevels:
    def __init__(
        self, indegrees: NDArray[Any], bounds: NDArray[Any], dependents: NDArray[Any]
    ) -> None:
        self._indegrees, self._bounds, self._dependents = indegrees.data, bounds.data, dependents

    def walk(
        self, frontier: list[int], widths: list[int]
    ) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
        """The rows of the narrow levels from `frontier` on, and the level after these.

        How many rows each has is appended to `widths`.
        """
        indegrees, bounds, dependents = self._indegrees, self._bounds, self._dependents
        order: list[int] = []
        while 0 < len(frontier) <= _NARROW:
            order += frontier
            widths.append(len(frontier))
            free = []
            for row in frontier:
                first, last = bounds[row], bounds[row + 1]
                few = (dependents[first],) if last - first == 1 else dependents[first:last]
                for dependent in few:
                    left = indegrees[dependent] - 1
                    indegrees[dependent] = left
                    if not left:
                        free.append(dependent)
            if len(free) > 1:
                free.sort()
            frontier = free
        return np.array(order, np.int32), np.array(frontier, np.int32)

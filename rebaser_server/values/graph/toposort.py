"""Topological order by sweeps: all that waits for nothing more, then what waited for it."""

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from rebaser_server.values.graph.csr import distinct, gathered

_NARROW: Final = 48
"""Up to so many values a sweep is faster one by one."""
_ONE: Final = np.int32(1)  # of the array's own type: else many times slower


def sweeps(
    waiting: NDArray[np.int32], bounds: NDArray[np.int64], takers: NDArray[np.int32]
) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """All rows in topological order, level by level, and the level of each row.

    `waiting` says for how many each row waits and is used up; a row's `takers`, between its
    bounds, wait for it, once for each time they stand there. The level is the longest path
    from a row that waits for nothing. Rows on a cycle are left out, and have level -1.
    """
    level_of = np.full(len(waiting), -1, np.int32)
    frontier: NDArray[Any] = np.flatnonzero(waiting == 0).astype(np.int32)
    found = [frontier]
    level = 0
    narrow = _Narrow(waiting, bounds, takers)
    while len(frontier):
        level_of[frontier] = level
        level += 1
        if len(frontier) <= _NARROW:
            frontier = np.array(narrow.next(frontier.tolist()), np.int32)
        else:
            starts = bounds[frontier]
            reached = gathered(takers, starts, bounds[frontier + 1] - starts)
            np.subtract.at(waiting, reached, _ONE)
            frontier = distinct(reached[waiting[reached] == 0])
        found.append(frontier)
    return np.concatenate(found), level_of


class _Narrow:
    def __init__(self, waiting: NDArray[Any], bounds: NDArray[Any], takers: NDArray[Any]) -> None:
        self._waiting, self._bounds, self._takers = waiting.data, bounds.data, takers

    def next(self, frontier: list[int]) -> list[int]:
        waiting, bounds = self._waiting, self._bounds
        free = []
        for row in frontier:
            for taker in self._takers[bounds[row] : bounds[row + 1]].tolist():
                left = waiting[taker] - 1
                waiting[taker] = left
                if not left:
                    free.append(taker)
        free.sort()
        return free

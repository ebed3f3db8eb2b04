"""Cuts values in topological order into runs: values none of which is an input of another."""

from collections.abc import Iterator
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

WIDE: Final = 48
"""Values from which computing them at once costs less than one by one."""
_WINDOW: Final = 2048


def highest_refs(refs: NDArray[Any], widths: NDArray[np.int64]) -> NDArray[np.int64]:
    """The last of the own values that each takes; -1 if it takes none."""
    highest = np.full(len(widths), -1, np.int64)
    takers = np.flatnonzero(widths)
    if len(takers):
        starts = np.cumsum(widths[takers]) - widths[takers]
        highest[takers] = np.maximum.reduceat(refs, starts)
    return np.maximum(highest, -1)


def runs(highest: NDArray[np.int64]) -> Iterator[tuple[int, int, bool]]:
    """From, to, and whether it is one wide run; narrow ones come together, to be taken in order."""
    count = len(highest)
    start = narrow_from = 0
    while start < count:
        end = _end_of_run(highest, start, count)
        if end - start >= WIDE:
            if narrow_from < start:
                yield narrow_from, start, False
            yield start, end, True
            start = narrow_from = end
        else:
            start = _after_narrow(highest, end, count)
    if narrow_from < count:
        yield narrow_from, count, False


def _end_of_run(highest: NDArray[np.int64], start: int, count: int) -> int:
    """The first value after `start` that takes it or one after it."""
    end, step = start + 1, WIDE
    while end < count:
        beyond = highest[end : end + step] >= start
        met = int(beyond.argmax())
        if beyond[met]:
            return end + met
        end += len(beyond)
        step *= 4
    return count


def _after_narrow(highest: NDArray[np.int64], start: int, count: int) -> int:
    """Where a run begins that may be wide, for less than looking at each with NumPy."""
    stop = min(start + _WINDOW, count)
    begin = start
    for index, ref in enumerate(highest[start:stop].tolist(), start):
        if ref >= begin:
            begin = index
        elif index - begin >= WIDE:
            return begin
    return max(start, begin)

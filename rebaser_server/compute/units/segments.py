"""Cuts values in topological order into segments without an edge inside."""

from collections.abc import Iterator
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

VECTOR_THRESHOLD: Final = 48
"""Values from which computing them at once costs less than one by one."""
_WINDOW: Final = 2048
_NARROW: Final = 16


def highest_inputs(refs: NDArray[Any], widths: NDArray[np.int64]) -> NDArray[Any]:
    """The last of the own values that each takes; below 0 if it takes none."""
    count = len(widths)
    width = int(widths[0]) if count else 0
    if 0 < width <= _NARROW and len(refs) == count * width and (widths == width).all():
        columns = refs.reshape(count, width)
        highest = columns[:, 0].copy()
        for column in range(1, width):
            np.maximum(highest, columns[:, column], out=highest)
        return highest
    highest = np.full(count, -1, np.int64)
    dependents = np.flatnonzero(widths)
    if len(dependents):
        starts = np.cumsum(widths[dependents]) - widths[dependents]
        highest[dependents] = np.maximum.reduceat(refs, starts)
    return highest


def segments(highest: NDArray[Any], start: int, count: int) -> Iterator[tuple[int, int, bool]]:
    """The runs from value `start` up to `count`: from, to, and whether it is one wide run.

    Narrow ones come together, to be taken in order.
    """
    highest = highest[:count]
    narrow_from = start
    usual = VECTOR_THRESHOLD
    while start < count:
        end = _segment_end(highest, start, count, usual)
        if end - start >= VECTOR_THRESHOLD:
            if narrow_from < start:
                yield narrow_from, start, False
            yield start, end, True
            usual = end - start
            start = narrow_from = end
        else:
            start = _next_wide_start(highest, end, count)
    if narrow_from < count:
        yield narrow_from, count, False


def _segment_end(highest: NDArray[Any], start: int, count: int, step: int) -> int:
    """The first value after `start` that takes it or one after it; found best `step` after it."""
    end = start + 1
    while end < count:
        beyond = highest[end : end + step] >= start
        met = int(beyond.argmax())
        if beyond[met]:
            return end + met
        end += len(beyond)
        step *= 4
    return count


def _next_wide_start(highest: NDArray[Any], start: int, count: int) -> int:
    """Where a run begins that may be wide, for less than looking at each with NumPy."""
    stop = min(start + _WINDOW, count)
    begin = start
    for index, ref in enumerate(highest[start:stop].tolist(), start):
        if ref >= begin:
            begin = index
        elif index - begin >= VECTOR_THRESHOLD:
            return begin
    return max(start, begin)

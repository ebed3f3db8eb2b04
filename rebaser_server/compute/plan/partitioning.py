"""Partitions affected values by connection and cost: a component stays in one group."""

import heapq
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

_BALANCED_ONE_BY_ONE: Final = 4096
"""Parts assigned one by one, each to the group that costs least; all others are small."""


def components(count: int, one: NDArray[np.int32], other: NDArray[np.int32]) -> NDArray[np.int32]:
    """Of `count` things, joined by edges from `one` to `other`, the component of each.

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
    """Which of `count` groups each of these parts goes to, so that all cost about the same.

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

"""A topological order that is kept up to date: each value ranks above its inputs."""

from collections.abc import Callable, Iterable

import numpy as np

from rebaser_server.values.graph.adjacency import Adjacency
from rebaser_server.values.graph.columns import Columns
from rebaser_server.values.graph.signatures import NO_INPUTS
from rebaser_server.values.graph.toposort import topological_levels


class TopologicalOrder:
    """The ranks of one graph's values, all different.

    Costs nothing where the order already agrees, else the values between the two
    (Pearce and Kelly, "A dynamic topological sort algorithm for directed acyclic
    graphs", 2006).
    """

    def __init__(self, columns: Columns, adjacency: Adjacency) -> None:
        self._columns = columns
        self._adjacency = adjacency
        ranks = columns.rank.all
        self.highest = int(ranks.max(initial=0))
        self._lowest = int(ranks.min(initial=0))

    def next_rank(self) -> int:
        """A rank above every other."""
        self.highest += 1
        return self.highest

    def next_ranks(self, count: int) -> int:
        """The first of so many ranks above every other."""
        self.highest += count
        return self.highest - count + 1

    def raise_above(self, index: int, inputs: Iterable[int]) -> set[int]:
        """Rank a value above each of `inputs`; those that depend on it, which cannot be."""
        ranks = self._columns.rank.at
        rank = ranks[index]
        later = [ref for ref in inputs if ranks[ref] >= rank]
        return {ref for ref in later if not self._raise_above_one(index, ref)}

    def _raise_above_one(self, index: int, other: int) -> bool:
        ranks = self._columns.rank.at
        if ranks[other] < ranks[index]:
            return True
        if self._columns.signature.at[other] == NO_INPUTS and other != index:
            # It can come before all others. So it costs nothing either to define values
            # before their inputs, or to give new inputs to old values.
            self._lowest -= 1
            ranks[other] = self._lowest
            return True
        lowest, highest = ranks[index], ranks[other]
        above = self._reach(index, self._adjacency.dependents, lambda v: ranks[v] <= highest)
        if other in above:
            return False
        below = self._reach(other, self._adjacency.inputs, lambda v: ranks[v] >= lowest)
        rank_of = ranks.__getitem__
        moving = [*sorted(below, key=rank_of), *sorted(above, key=rank_of)]
        for moved, rank in zip(moving, sorted(map(rank_of, moving)), strict=True):
            ranks[moved] = rank
        return True

    def _reach(
        self, start: int, following: Callable[[int], Iterable[int]], within: Callable[[int], bool]
    ) -> set[int]:
        seen, stack = {start}, [start]
        while stack:
            for index in following(stack.pop()):
                if index not in seen and within(index):
                    seen.add(index)
                    stack.append(index)
        return seen


def rank_all(columns: Columns, adjacency: Adjacency, widths: np.ndarray) -> None:
    """Rank all values anew, right after their edges were indexed. `widths`: inputs of each."""
    order, _ = topological_levels(widths.astype(np.int32), *adjacency.compacted_rows())
    if len(order) < len(columns):
        raise ValueError(f"{len(columns) - len(order)} values depend on themselves")
    columns.rank.all[order] = np.arange(1, len(order) + 1)

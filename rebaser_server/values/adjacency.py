"""The edges: each value's inputs as refs in one pool, and an index of dependents over them.

The index of dependents has two parts. `compact` makes the *compacted* edges, in compressed
rows; such an edge is void once its dependent has got other inputs (`IN_DELTA`). A *delta* edge
is a ref behind the compacted ones, in a linked list of its input; it is void once its ref is
not among those of its dependent any more. So no edit ever searches for an edge. A removed value
stays among the inputs of its dependents, which are *dangling* until `prune`.

A *delta* edge's list belongs to one input, the newest edge first.

`topological_levels` orders values level by level (Kahn's algorithm on whole levels at a time).

`TopologicalOrder` is kept up to date: each value ranks above its inputs.
"""

from collections.abc import Callable, Iterable, Iterator
from copy import copy
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from rebaser_server.values.columns import (
    IN_DELTA,
    NO_INPUTS,
    REMOVED,
    Columns,
    GrowableArray,
    Signatures,
    gather_rows,
    indptr_of,
    sorted_unique,
    transpose,
)


def link_edges(newest: NDArray[Any], refs: NDArray[np.int32], first: int) -> NDArray[np.int32]:
    """Link new edges to these inputs, numbered from `first`; return the next edge of each, or -1.

    `newest` has the number of each input's newest edge, or -1, and is brought up to date.
    """
    order = np.argsort(refs, kind="stable")
    inputs, edges = refs[order], (order + first).astype(np.int32)
    is_first = np.ones(len(refs), np.bool_)
    np.not_equal(inputs[1:], inputs[:-1], out=is_first[1:])
    following = np.empty(len(refs), np.int32)
    following[order] = np.where(is_first, newest[inputs], np.roll(edges, 1))
    is_last = np.roll(is_first, -1)
    newest[inputs[is_last]] = edges[is_last]
    return following


_MIN_DELTA: Final = 1 << 14  # delta edges up to which compaction is not worth its cost
_COMPACTED: Final = np.uint8(0xFF ^ IN_DELTA)
_CHUNK: Final = 1 << 10
_APPENDED: Final = ("_refs", "_delta_dependents", "_next_edge")


class Adjacency:
    """The edges of one graph. A value's dependents come in no particular order."""

    def __init__(
        self, columns: Columns, signatures: Signatures, refs: NDArray[np.int32] | None = None
    ) -> None:
        """Index `refs`: the inputs of all values, in the order of the columns, if there are any."""
        self._columns = columns
        self._signatures = signatures
        self._pairs: tuple[NDArray[np.int32], NDArray[np.int32]] | None = None
        self._dangling: dict[int, None] = {}
        self._refs = GrowableArray(np.int32, refs)
        self._reindex(signatures.widths_of(columns.signature.all))

    @property
    def delta_ratio(self) -> float:
        """Delta edges for each compacted one (for each of `_MIN_DELTA`, if there are fewer)."""
        return self._delta_dependents.count / max(len(self._compacted_dependents), _MIN_DELTA)

    def snapshot(self, columns: Columns) -> "Adjacency":
        """The edges of a snapshot of the columns, right after `prune`; for reading alone."""
        taken = copy(self)  # edits replace what is not named here, or add to the ends of arrays
        arrays = {name: copy(vars(self)[name]) for name in _APPENDED}
        vars(taken).update(arrays, _columns=columns, _dangling={})
        return taken

    def inputs(self, index: int) -> list[int]:
        if index in self._dangling:
            self._prune(index)
        columns = self._columns
        start = columns.start.at[index]
        refs: list[int] = self._refs.buffer[
            start : start + self._signatures.widths[columns.signature.at[index]]
        ].tolist()
        return refs

    def set_inputs(self, index: int, signature: int, refs: list[int]) -> None:
        columns = self._columns
        columns.signature.at[index] = signature
        columns.start.at[index] = self._refs.count
        newest = columns.newest_edge
        edge = self._delta_dependents.count
        for ref in refs:
            self._refs.append(ref)
            self._delta_dependents.append(index)
            self._next_edge.append(newest.at[ref])
            newest.at[ref] = edge
            edge += 1
        self._pairs = None
        if edge > max(2 * _MIN_DELTA, len(self._compacted_dependents)):
            self.compact()

    def set_all_inputs(
        self,
        indices: NDArray[np.int32],
        signatures: NDArray[np.int32],
        refs: NDArray[np.int32],
    ) -> None:
        """Give inputs to values that have none; `refs` are the inputs of all, value after value."""
        columns = self._columns
        widths = self._signatures.widths_of(signatures)
        columns.signature.buffer[indices] = signatures
        columns.start.buffer[indices] = self._refs.count + indptr_of(widths)[:-1]
        self._refs.extend(refs)
        newest = columns.newest_edge.buffer
        self._next_edge.extend(link_edges(newest, refs, self._delta_dependents.count))
        self._delta_dependents.extend(np.repeat(indices, widths))
        self._pairs = None
        if self._delta_dependents.count > max(2 * _MIN_DELTA, len(self._compacted_dependents)):
            self.compact()

    def clear_inputs(self, index: int) -> None:
        self._pairs = None
        self._columns.flags.at[index] |= IN_DELTA
        self._columns.signature.at[index] = NO_INPUTS
        self._dangling.pop(index, None)

    def detach(self, index: int) -> list[int]:
        """Detach a removed value from its dependents; return these, each once."""
        dependents = list(dict.fromkeys(self.dependents(index)))
        self._dangling.update(dict.fromkeys(dependents))
        return dependents

    def dependents(self, index: int) -> Iterator[int]:
        """The dependents of a value; one that takes it twice comes twice."""
        columns, flags = self._columns, self._columns.flags.at
        if index < self._compacted_values:
            bounds = self._indptr.data
            first, last = bounds[index], bounds[index + 1]
            for start in range(first, last, _CHUNK):
                for dependent in self._compacted_dependents[
                    start : min(start + _CHUNK, last)
                ].tolist():
                    if not flags[dependent] & IN_DELTA:
                        yield dependent
        edge = columns.newest_edge.at[index]
        edge_ends, next_edge = self._delta_dependents.at, self._next_edge.at
        starts, signatures, widths = columns.start.at, columns.signature.at, self._signatures.widths
        while edge >= 0:
            dependent = edge_ends[edge]
            if 0 <= edge + self._compacted_refs - starts[dependent] < widths[signatures[dependent]]:
                yield dependent
            edge = next_edge[edge]

    def dependents_lookup(self) -> Callable[[int], list[int]]:
        """`dependents` as lists, several times as fast; of use until the next edit."""
        count, bounds = self._compacted_values, self._indptr.data
        compacted = self._compacted_dependents.data
        flags, newest = self._columns.flags.at, self._columns.newest_edge.at

        def dependents_of_one(index: int) -> list[int]:
            if newest[index] >= 0:
                return list(self.dependents(index))
            if index >= count:
                return []
            first, last = bounds[index], bounds[index + 1]
            if last - first == 1:
                only = compacted[first]
                return [] if flags[only] & IN_DELTA else [only]
            row = compacted[first:last]
            return [dependent for dependent in row if not flags[dependent] & IN_DELTA]

        return dependents_of_one

    def least_dependents(self, indices: NDArray[Any]) -> int:
        """Number of dependents of these values, without those of the newest edges."""
        compacted = indices[indices < self._compacted_values]
        return int((self._indptr[compacted + 1] - self._indptr[compacted]).sum())

    def inputs_of(self, indices: NDArray[Any]) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
        """The inputs of these values, value after value, and the number that each has."""
        self.prune()
        columns = self._columns
        widths = self._signatures.widths_of(columns.signature.buffer[indices])
        return gather_rows(self._refs.buffer, columns.start.buffer[indices], widths), widths

    def dependents_of(self, indices: NDArray[Any]) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
        """The dependents of these values, value after value, and the number that each has."""
        flags = self._columns.flags.buffer
        compacted_rows = np.flatnonzero(indices < self._compacted_values)
        compacted = indices[compacted_rows]
        starts = self._indptr[compacted]
        widths = self._indptr[compacted + 1] - starts
        dependents = gather_rows(self._compacted_dependents, starts, widths)
        owners = np.repeat(compacted_rows, widths)
        is_live = flags[dependents] & IN_DELTA == 0
        if not is_live.all():
            dependents, owners = dependents[is_live], owners[is_live]
        delta_inputs, delta_dependents = self._delta_pairs()
        if len(delta_inputs):
            starts = np.searchsorted(delta_inputs, indices)
            widths = np.searchsorted(delta_inputs, indices, "right") - starts
            owners = np.concatenate([owners, np.repeat(np.arange(len(indices)), widths)])
            order = np.argsort(owners, kind="stable")
            dependents = np.concatenate(
                [dependents, gather_rows(delta_dependents, starts, widths)]
            )[order]
        return dependents, np.bincount(owners, minlength=len(indices))

    def prune(self) -> None:
        """Remove removed values from all inputs. Call it before one of them is defined again."""
        for index in list(self._dangling):  # the first one of a dictionary is further and further
            if index in self._dangling:  # no other one has compacted meanwhile
                self._prune(index)

    def compact(self) -> None:
        """Move all edges into the compacted rows, and drop refs that no value uses."""
        self.prune()
        columns = self._columns
        widths = self._signatures.widths_of(columns.signature.all)
        self._refs = GrowableArray(
            np.int32, gather_rows(self._refs.buffer, columns.start.all, widths)
        )
        columns.flags.all[:] &= _COMPACTED
        columns.newest_edge.all[:] = -1
        self._reindex(widths)

    def compacted_rows(self) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
        """The start of each value's dependents, and the dependents; right after `compact`."""
        return self._indptr, self._compacted_dependents

    def _reindex(self, widths: NDArray[np.int64]) -> None:
        """Index the refs, which are in the order of their dependents."""
        count = len(self._columns)
        refs = self._refs.all
        self._columns.start.all[:] = indptr_of(widths)[:-1]
        self._indptr, self._compacted_dependents = transpose(refs, widths, count)
        self._compacted_values = count
        """Values below this index are in the compacted rows."""
        self._compacted_refs = len(refs)
        """Refs below this position are compacted."""
        self._delta_dependents = GrowableArray(np.int32)
        """The dependent of each delta edge, by the edge's number."""
        self._next_edge = GrowableArray(np.int32)
        """Number of the next delta edge of the edge's input, or -1."""
        self._pairs = None

    def _prune(self, index: int) -> None:
        self._dangling.pop(index)
        columns = self._columns
        signature = columns.signature.at[index]
        refs = self.inputs(index)
        status = columns.status.at
        is_kept = [status[ref] != REMOVED for ref in refs]
        self.clear_inputs(index)
        kept = [ref for ref, kept in zip(refs, is_kept, strict=True) if kept]
        self.set_inputs(index, self._signatures.without(signature, is_kept), kept)

    def _delta_pairs(self) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
        """The delta edges that are not void: inputs, ascending, and their dependents."""
        if self._pairs is None:
            columns, dependents = self._columns, self._delta_dependents.all
            start = columns.start.buffer[dependents]
            position = self._compacted_refs + np.arange(len(dependents)) - start
            widths = self._signatures.widths_of(columns.signature.buffer[dependents])
            live = np.flatnonzero((position >= 0) & (position < widths))
            inputs = self._refs.buffer[self._compacted_refs + live]
            order = np.argsort(inputs, kind="stable")
            self._pairs = inputs[order], dependents[live[order]]
        return self._pairs


_NARROW: Final = 48
"""Number of rows up to which a level is faster row by row."""
_ONE: Final = np.int32(1)  # in the array's type, which is many times faster


def topological_levels(
    indegrees: NDArray[np.int32], bounds: NDArray[np.int64], dependents: NDArray[np.int32]
) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """All rows in topological order, level by level, and the level of each row.

    `indegrees`: the number of inputs of each row; it is used up. `dependents`: the dependents of
    all rows, row after row, each row's between its `bounds`. The level is the longest path from a
    row without inputs. Rows on a cycle are left out, and have level -1.
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

        The number of rows of each level is appended to `widths`.
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


class TopologicalOrder:
    """The ranks of one graph's values, all different.

    A new edge costs nothing if the order agrees with it, else the values between its two ends are
    moved (Pearce and Kelly, "A dynamic topological sort algorithm for directed acyclic graphs",
    2006).
    """

    def __init__(self, columns: Columns, adjacency: Adjacency) -> None:
        self._columns = columns
        self._adjacency = adjacency
        ranks = columns.rank.all
        self.highest = int(ranks.max(initial=0))
        self._lowest = int(ranks.min(initial=0))

    def next_rank(self) -> int:
        self.highest += 1
        return self.highest

    def next_ranks(self, count: int) -> int:
        """The first of `count` ranks above every other."""
        self.highest += count
        return self.highest - count + 1

    def raise_above(self, index: int, inputs: Iterable[int]) -> set[int]:
        """Rank a value above each of `inputs`; return those that depend on it, which cannot be."""
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
    """Rank all values anew, right after their edges were indexed. `widths`: numbers of inputs."""
    order, _ = topological_levels(widths.astype(np.int32), *adjacency.compacted_rows())
    if len(order) < len(columns):
        raise ValueError(f"{len(columns) - len(order)} values depend on themselves")
    columns.rank.all[order] = np.arange(1, len(order) + 1)

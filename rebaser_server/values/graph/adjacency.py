"""Who takes whom: inputs as refs in one pool, dependents as an index over them.

The index of dependents is in two parts. Edges that are *old* are in compressed rows, made by
`fold`; an old edge is void once its taker is rewired (`YOUNG`). Each *young* edge, a ref behind
the old ones, is in a list of its input, linked by numbers; it is void once its ref is no longer
among those of its taker. So no edit ever looks for an edge. Who removes a value leaves it among
the inputs of others, which are *loose* until `tighten`.
"""

from collections.abc import Iterator
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from rebaser_server.values.graph.columns import GONE, YOUNG, Columns, Growing
from rebaser_server.values.graph.csr import bounds_of, gathered, turned
from rebaser_server.values.graph.signatures import NONE, Shapes

_SOON: Final = 1 << 14
"""Young edges that are not worth a fold."""
_AGED: Final = np.uint8(0xFF ^ YOUNG)
_CHUNK: Final = 1 << 10


class Wiring:
    """The edges of one graph. The order of a value's dependents tells nothing."""

    def __init__(
        self, columns: Columns, shapes: Shapes, refs: NDArray[np.int32] | None = None
    ) -> None:
        """`refs`: those of all values, in the order of the columns, if there are any."""
        self._columns = columns
        self._shapes = shapes
        self._pairs: tuple[NDArray[np.int32], NDArray[np.int32]] | None = None
        self._loose: dict[int, None] = {}
        self._refs = Growing(np.int32, refs)
        self._age(shapes.widths_of(columns.shape.all))

    @property
    def youth(self) -> float:
        """Young edges for each old one, or for each of so many as are not worth a fold."""
        return self._takers.count / max(len(self._old_takers), _SOON)

    def refs(self, index: int) -> list[int]:
        """The inputs of a value, in the order of its arguments."""
        if index in self._loose:
            self._tighten(index)
        columns = self._columns
        start = columns.start.at[index]
        refs: list[int] = self._refs.room[
            start : start + self._shapes.widths[columns.shape.at[index]]
        ].tolist()
        return refs

    def wire(self, index: int, shape: int, refs: list[int]) -> None:
        """Give a value that has none these inputs."""
        columns = self._columns
        columns.shape.at[index] = shape
        columns.start.at[index] = self._refs.count
        newest = columns.newest
        edge = self._takers.count
        for ref in refs:
            self._refs.append(ref)
            self._takers.append(index)
            self._next.append(newest.at[ref])
            newest.at[ref] = edge
            edge += 1
        self._pairs = None
        if edge > max(2 * _SOON, len(self._old_takers)):
            self.fold()

    def unwire(self, index: int) -> None:
        """Take all its inputs from a value."""
        self._pairs = None
        self._columns.flags.at[index] |= YOUNG
        self._columns.shape.at[index] = NONE
        self._loose.pop(index, None)

    def cut(self, index: int) -> list[int]:
        """Have nothing take a value that is being removed; those that did, each once."""
        takers = list(dict.fromkeys(self.takers(index)))
        self._loose.update(dict.fromkeys(takers))
        return takers

    def takers(self, index: int) -> Iterator[int]:
        """The values that take this one; which takes it twice comes twice."""
        columns, flags = self._columns, self._columns.flags.at
        if index < self._aged:
            bounds = self._bounds.data
            first, last = bounds[index], bounds[index + 1]
            for start in range(first, last, _CHUNK):
                for taker in self._old_takers[start : min(start + _CHUNK, last)].tolist():
                    if not flags[taker] & YOUNG:
                        yield taker
        edge = columns.newest.at[index]
        takers, following = self._takers.at, self._next.at
        starts, shapes, widths = columns.start.at, columns.shape.at, self._shapes.widths
        while edge >= 0:
            taker = takers[edge]
            if 0 <= edge + self._old - starts[taker] < widths[shapes[taker]]:
                yield taker
            edge = following[edge]

    def refs_of(self, indices: NDArray[Any]) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
        """The inputs of these values, value after value, and how many each has."""
        self.tighten()
        columns = self._columns
        widths = self._shapes.widths_of(columns.shape.room[indices])
        return gathered(self._refs.room, columns.start.room[indices], widths), widths

    def takers_of(self, indices: NDArray[Any]) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
        """The values that take these, value after value, and how many each has."""
        flags = self._columns.flags.room
        is_old = np.flatnonzero(indices < self._aged)
        old = indices[is_old]
        starts = self._bounds[old]
        widths = self._bounds[old + 1] - starts
        found = gathered(self._old_takers, starts, widths)
        owners = np.repeat(is_old, widths)
        keep = flags[found] & YOUNG == 0
        if not keep.all():
            found, owners = found[keep], owners[keep]
        taken, takers = self._young_pairs()
        if len(taken):
            starts = np.searchsorted(taken, indices)
            widths = np.searchsorted(taken, indices, "right") - starts
            owners = np.concatenate([owners, np.repeat(np.arange(len(indices)), widths)])
            order = np.argsort(owners, kind="stable")
            found = np.concatenate([found, gathered(takers, starts, widths)])[order]
        return found, np.bincount(owners, minlength=len(indices))

    def tighten(self) -> None:
        """Take removed values out of all inputs. To be done before one of them is defined again."""
        while self._loose:
            self._tighten(next(iter(self._loose)))

    def fold(self) -> None:
        """Make all edges old, and forget refs that nobody has any more."""
        self.tighten()
        columns = self._columns
        widths = self._shapes.widths_of(columns.shape.all)
        self._refs = Growing(np.int32, gathered(self._refs.room, columns.start.all, widths))
        columns.flags.all[:] &= _AGED
        columns.newest.all[:] = -1
        self._age(widths)

    def old_rows(self) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
        """Bounds and takers of all values, right after a fold."""
        return self._bounds, self._old_takers

    def _age(self, widths: NDArray[np.int64]) -> None:
        """Index the refs, which are in the order of their takers."""
        count = len(self._columns)
        refs = self._refs.all
        self._columns.start.all[:] = bounds_of(widths)[:-1]
        self._bounds, self._old_takers = turned(refs, widths, count)
        self._aged = count
        """Values before are in the compressed rows."""
        self._old = len(refs)
        """Refs before are old."""
        self._takers = Growing(np.int32)
        """Of each young edge, by its number."""
        self._next = Growing(np.int32)
        """The number of the next young edge of the same input, or -1."""
        self._pairs = None

    def _tighten(self, index: int) -> None:
        self._loose.pop(index)
        columns = self._columns
        shape = columns.shape.at[index]
        refs = self.refs(index)
        status = columns.status.at
        is_kept = [status[ref] != GONE for ref in refs]
        self.unwire(index)
        kept = [ref for ref, kept in zip(refs, is_kept, strict=True) if kept]
        self.wire(index, self._shapes.without(shape, is_kept), kept)

    def _young_pairs(self) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
        """The young edges that are not void: who is taken, ascending, and who takes it."""
        if self._pairs is None:
            columns, takers = self._columns, self._takers.all
            place = np.arange(self._old, self._old + len(takers)) - columns.start.room[takers]
            widths = self._shapes.widths_of(columns.shape.room[takers])
            live = np.flatnonzero((place >= 0) & (place < widths))
            taken = self._refs.room[self._old + live]
            order = np.argsort(taken, kind="stable")
            self._pairs = taken[order], takers[live[order]]
        return self._pairs

"""Which values are roots, and which were touched: marks in a column, and lists of the marked."""

from array import array
from collections.abc import Iterator, Mapping
from collections.abc import Set as AbstractSet
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from rebaser_server.values.graph.columns import TOUCHED, Columns
from rebaser_server.values.graph.csr import sorted_unique
from rebaser_server.values.graph.ids import IdIndex

_UNTOUCHED: Final = np.uint8(0xFF ^ TOUCHED)
_NO_INDICES: Final = np.empty(0, np.int32)


class Touched(AbstractSet[str]):
    """Values changed or removed since the store last saved them, by id."""

    def __init__(self, columns: Columns, ids: IdIndex) -> None:
        self._columns = columns
        self._ids = ids
        self._marked = array("i")

    def mark(self, index: int) -> None:
        flags = self._columns.flags.at
        if not flags[index] & TOUCHED:
            flags[index] |= TOUCHED
            self._marked.append(index)

    def mark_all(self, indices: NDArray[Any]) -> None:
        """Mark values, each of which comes once."""
        flags = self._columns.flags.buffer
        fresh = indices[flags[indices] & TOUCHED == 0]
        flags[fresh] |= np.uint8(TOUCHED)
        self._marked.frombytes(fresh.astype(np.int32).tobytes())

    def indices(self) -> NDArray[np.int32]:
        return np.sort(np.frombuffer(self._marked, np.int32)) if self._marked else _NO_INDICES

    def clear(self) -> None:
        self._columns.flags.buffer[self.indices()] &= _UNTOUCHED
        self._marked = array("i")

    def __contains__(self, value_id: object) -> bool:
        index = self._ids.find(value_id) if isinstance(value_id, str) else -1
        return index >= 0 and bool(self._columns.flags.at[index] & TOUCHED)

    def __len__(self) -> int:
        return len(self._marked)

    def __iter__(self) -> Iterator[str]:
        return (raw.decode() for raw in self._columns.ids.buffer[self.indices()])


class Roots(Mapping[str, int]):
    """Value id → sequence of the last request that changed its value, function or inputs."""

    def __init__(self, columns: Columns, ids: IdIndex) -> None:
        self._columns = columns
        self._ids = ids
        self._by_sequence: dict[int, array[int]] = {}
        """Values that became roots of each, some of them no longer, some twice."""
        marked = np.flatnonzero(columns.root.all)
        self._count = len(marked)
        sequences = columns.root.buffer[marked]
        for sequence in sorted_unique(sequences).tolist():
            self._append(sequence, marked[sequences == sequence])

    def mark(self, index: int, sequence: int) -> None:
        roots = self._columns.root.at
        before = roots[index]
        if before == sequence:
            return
        self._count += not before
        roots[index] = sequence
        indices = self._by_sequence.get(sequence)
        if indices is None:
            indices = self._by_sequence[sequence] = array("i")
        indices.append(index)

    def mark_all(self, indices: NDArray[Any], sequence: int) -> None:
        """Mark values, each of which comes once."""
        roots = self._columns.root.buffer
        self._count += int(np.count_nonzero(roots[indices] == 0))
        self._append(sequence, indices[roots[indices] != sequence])
        roots[indices] = sequence

    def unmark(self, index: int) -> None:
        roots = self._columns.root.at
        self._count -= bool(roots[index])
        roots[index] = 0

    def clear_through(self, covers: int) -> NDArray[np.int32]:
        """Unmark the roots up to sequence `covers`, and return them."""
        parts = [_NO_INDICES]
        for sequence in [s for s in self._by_sequence if s <= covers]:
            parts.append(self._indices_of(sequence))
            del self._by_sequence[sequence]
        cleared = np.concatenate(parts)
        self._columns.root.buffer[cleared] = 0
        self._count -= len(cleared)
        return cleared

    def indices(self) -> NDArray[np.int32]:
        return np.concatenate([_NO_INDICES, *map(self._indices_of, sorted(self._by_sequence))])

    def _append(self, sequence: int, indices: NDArray[Any]) -> None:
        of_it = self._by_sequence.setdefault(sequence, array("i"))
        of_it.frombytes(indices.astype(np.int32).tobytes())

    def _indices_of(self, sequence: int) -> NDArray[np.int32]:
        listed = np.frombuffer(self._by_sequence[sequence], np.int32)
        return sorted_unique(listed[self._columns.root.buffer[listed] == sequence])

    def __getitem__(self, value_id: str) -> int:
        index = self._ids.find(value_id)
        sequence: int = self._columns.root.at[index] if index >= 0 else 0
        if not sequence:
            raise KeyError(value_id)
        return sequence

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[str]:
        return (raw.decode() for raw in self._columns.ids.buffer[self.indices()])

    def __repr__(self) -> str:
        return f"Roots({dict(self)})"

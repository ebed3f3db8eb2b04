"""The data of a graph: its columns, and the bulk reads that planner and store make."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from rebaser_server.values.graph.adjacency import Adjacency
from rebaser_server.values.graph.columns import REMOVED, Columns
from rebaser_server.values.graph.dirty_sets import Roots, Touched
from rebaser_server.values.graph.hash_index import HashIndex
from rebaser_server.values.graph.ids import IdIndex, padded_ids
from rebaser_server.values.graph.names import NameIndex
from rebaser_server.values.graph.order import TopologicalOrder, rank_all
from rebaser_server.values.graph.readable_graph import ReadableGraph
from rebaser_server.values.graph.signatures import Signatures
from rebaser_server.values.graph.text_column import EMPTY, TextColumn
from rebaser_server.values.graph.types import Func

NULL: Final = "null"
_MAX_DELTA_RATIO: Final = 0.125
"""Delta edges for each compacted one from which `compact` moves them there."""


@dataclass(frozen=True, slots=True, eq=False)
class StoredGraph:
    """What the store keeps of a graph, column by column; by default nothing."""

    columns: Columns = field(default_factory=Columns)
    """Without ranks and `start`, which follow from the others."""
    signatures: Signatures = field(default_factory=Signatures)
    refs: NDArray[np.int32] | None = None
    """The inputs of all values, in the order of the columns."""
    func_ids: Sequence[str] = ()
    """What the columns hold indices of; `texts` and `names` likewise."""
    texts: pa.Array = field(default_factory=lambda: EMPTY)
    names: pa.Array = field(default_factory=lambda: EMPTY)
    funcs: Iterable[Func] = ()
    hash_index: HashIndex | None = None
    """The ids' indices by their hashes."""


class GraphData(ReadableGraph):
    """Values, functions, names and roots. Only `Graph` changes them."""

    def __init__(self, stored: StoredGraph | None = None) -> None:
        """The graph as it was stored, with nothing touched; else an empty one.

        Raises:
            ValueError: a value depends on itself.
        """
        stored = stored or StoredGraph()
        self.columns = stored.columns
        self.signatures = stored.signatures
        self.count = len(self.columns)
        self.texts = TextColumn(stored.texts)
        self._null = self.texts.add(NULL)
        self.func_ids = list(stored.func_ids)
        self._func_indices = {func_id: place for place, func_id in enumerate(self.func_ids)}
        func_indices = self.columns.func.all
        self._users = np.bincount(
            func_indices[func_indices >= 0], minlength=len(self.func_ids)
        ).tolist()
        self.funcs = {func.id: func for func in stored.funcs}
        self._ids = IdIndex(self.columns, stored.hash_index)
        self.names = NameIndex(self.columns, TextColumn(stored.names))
        self.roots: Final = Roots(self.columns, self._ids)
        self.touched: Final = Touched(self.columns, self._ids)
        self.touched_funcs: set[str] = set()
        """Functions changed or removed since the store last saved them."""
        self.adjacency = Adjacency(self.columns, self.signatures, stored.refs)
        if self.count:
            rank_all(
                self.columns, self.adjacency, self.signatures.widths_of(self.columns.signature.all)
            )
        self._order: Final = TopologicalOrder(self.columns, self.adjacency)

    def root_indices(self) -> NDArray[np.int32]:
        return self.roots.indices()

    def indices_of(self, ids: Any) -> NDArray[np.int32]:
        """The index of each id, Arrow strings or a sequence of text; -1: there is no such value."""
        indices = self._ids.find_all(padded_ids(ids))
        if not len(self.columns.status.buffer):  # -1 is an index of anything but nothing
            return indices
        indices[self.columns.status.buffer[indices] == REMOVED] = -1
        return indices

    def known_indices(self, raw_ids: NDArray[Any]) -> NDArray[np.int32]:
        """The index of each padded id, also of a value that was removed; -1: it is new."""
        return self._ids.find_all(raw_ids)

    def all_indices(self) -> NDArray[np.int64]:
        """Of the values that there are, in the order in which they were defined."""
        return np.flatnonzero(self.columns.status.all != REMOVED)

    def users_of(self, func_id: str) -> set[str]:
        """The values that a function computes."""
        return {self.id_at(index) for index in self._users_of(func_id).tolist()}

    def user_count(self, func_id: str) -> int:
        """Number of values that a function computes."""
        func_index = self._func_indices.get(func_id)
        return 0 if func_index is None else int(self._users[func_index])

    def compact(self) -> None:
        """Free what edits left behind. Nothing that can be seen changes."""
        if self.adjacency.delta_ratio > _MAX_DELTA_RATIO:
            self.adjacency.compact()
        if self.texts.waste > 1:
            self._compact_texts()
        if self.names.texts.waste > 1:
            self.names.compact()

    def _users_of(self, func_id: str) -> NDArray[Any]:
        func_index = self._func_indices.get(func_id)
        if func_index is None or not self._users[func_index]:
            return np.empty(0, np.int64)
        return np.flatnonzero(self.columns.func.all == func_index)

    def _compact_texts(self) -> None:
        self.texts.compact(self.columns.text.all)
        self.columns.text.all[:] = np.arange(len(self.columns), dtype=np.int32)
        self._null = self.texts.add(NULL)

"""Bulk reads of a graph, as it is, or as it was when a snapshot was taken."""

from copy import copy
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from rebaser_server.values.graph.adjacency import Adjacency
from rebaser_server.values.graph.columns import REMOVED, Columns
from rebaser_server.values.graph.ids import IdIndex, arrow_ids
from rebaser_server.values.graph.names import NameIndex
from rebaser_server.values.graph.signatures import Signatures
from rebaser_server.values.graph.text_column import TextColumn
from rebaser_server.values.graph.types import Func


class ReadableGraph:
    """The columns of a graph, and bulk reads of them."""

    columns: Columns
    signatures: Signatures
    texts: TextColumn
    names: NameIndex
    adjacency: Adjacency
    funcs: dict[str, Func]
    func_ids: list[str]
    """Ids of functions that values use, or used."""
    count: int
    """Values that there are."""
    _ids: IdIndex
    _scratch: NDArray[np.int32] | None = None

    def root_indices(self) -> NDArray[np.int32]:
        """The values that the next dependent values update starts from."""
        raise NotImplementedError

    def index_of(self, value_id: str) -> int:
        """Its index, or -1: there is no such value."""
        index = self._ids.find(value_id)
        return -1 if index >= 0 and self.columns.status.at[index] == REMOVED else index

    def id_at(self, index: int) -> str:
        raw: bytes = self.columns.ids.buffer[index]
        return raw.decode()

    def snapshot_ids(self, columns: Columns) -> IdIndex:
        """The index of ids for a snapshot of the columns."""
        return self._ids.snapshot(columns)

    def ids_of(self, indices: NDArray[Any]) -> pa.StringArray:
        return arrow_ids(self.columns.ids.buffer[indices])

    def texts_of(self, indices: NDArray[Any]) -> pa.Array:
        """Canonical JSON text; messages of values that are failed or blocked."""
        return self.texts.take(self.columns.text.buffer[indices])

    def text_sizes(self, indices: NDArray[Any]) -> NDArray[np.int64]:
        """Bytes of each text of `texts_of`."""
        return self.texts.sizes(self.columns.text.buffer[indices])

    def borrow_scratch(self) -> NDArray[np.int32]:
        """A zero for each value: making so many each time would cost too much."""
        scratch, self._scratch = self._scratch, None
        if scratch is None or len(scratch) < len(self.columns):
            scratch = np.zeros(len(self.columns.ids.buffer), np.int32)
        return scratch

    def return_scratch(self, scratch: NDArray[np.int32]) -> None:
        """Return what was borrowed, all zeros again."""
        self._scratch = scratch


class GraphSnapshot(ReadableGraph):
    """What a graph is at one moment: later edits do not reach it. For reading alone.

    Costs 37 bytes of memory for each value, and the time to copy them: what edits never change
    in place, ids, inputs and texts, is shared. Ranks are the graph's.
    """

    def __init__(self, graph: ReadableGraph) -> None:
        """The caller holds the graph for as long as this takes."""
        graph.adjacency.prune()
        self.columns = graph.columns.snapshot()
        self.count = graph.count
        self._ids = graph.snapshot_ids(self.columns)
        self.signatures = graph.signatures
        self.texts = graph.texts.snapshot()
        self.names = NameIndex(self.columns, graph.names.texts.snapshot())
        self.adjacency = graph.adjacency.snapshot(self.columns)
        self.funcs = copy(graph.funcs)
        self.func_ids = copy(graph.func_ids)
        self._roots = graph.root_indices()

    def root_indices(self) -> NDArray[np.int32]:
        return self._roots

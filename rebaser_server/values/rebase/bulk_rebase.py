"""Apply a large batch at once if all of it is regular: as row by row, at a tenth of the cost.

A regular batch puts new values and sources that stay sources, and sets sources. No id comes twice
in it, its names are free, its inputs are there, and nothing closes a cycle. So it needs no
correction; any other batch is applied row by row.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import compress, repeat
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from rebaser_core.plain_updates import PlainUpdates, UpdateColumns
from rebaser_server.values.canonical_json import dumps
from rebaser_server.values.graph import Func, Graph
from rebaser_server.values.graph.columns import ID_BYTES, REMOVED
from rebaser_server.values.graph.csr import transpose
from rebaser_server.values.graph.toposort import topological_levels
from rebaser_server.values.rebase.result import RebaseResult

Rows = NDArray[np.int64]
"""Rows of a batch's columns."""
Indices = NDArray[np.int32]
"""Of values in the graph."""
_TEXT = pa.large_string()


def rebase_in_bulk(graph: Graph, sequence: int, updates: PlainUpdates) -> RebaseResult | None:
    """Apply a regular batch; None, and the graph is as before, if it is none."""
    batch = _RegularBatch.of(graph, updates.columns)
    if batch is None:
        return None
    return RebaseResult(updates, dirty=batch.apply(graph, sequence))


@dataclass(frozen=True, slots=True)
class _Wiring:
    """The inputs of the rows that have a function."""

    owners: Rows
    """The row that takes each input; ascending."""
    rows: Rows
    """The row of the batch that defines or sets the input, or -1."""
    indices: Indices
    """The input, if no row defines or sets it; else -1."""

    def ranks(self, count: int) -> Rows | None:
        """The rows' order, each after those that it takes; None: some are on a cycle."""
        inside = self.rows >= 0
        rows, owners = self.rows[inside], self.owners[inside]
        if (rows < owners).all():
            return np.arange(count)
        widths = np.bincount(owners, minlength=count)
        bounds, dependents = transpose(rows.astype(np.int32), widths, count)
        order, _ = topological_levels(widths.astype(np.int32), bounds, dependents)
        if len(order) < count:
            return None
        ranks = np.empty(count, np.int64)
        ranks[order] = np.arange(count)
        return ranks

    def taken_before(self, count: int) -> NDArray[np.bool_]:
        """Whether an earlier row takes a row as an input."""
        inside = self.rows >= 0
        first = np.full(count, count)
        np.minimum.at(first, self.rows[inside], self.owners[inside])
        return first < np.arange(count)


@dataclass(frozen=True, slots=True)
class _RegularBatch:
    columns: UpdateColumns
    raw_ids: NDArray[Any]
    indices: Indices
    """Of values that there are; else -1."""
    has_func: NDArray[np.bool_]
    names: list[str]
    """Of the new values that have one."""
    wiring: _Wiring
    ranks: Rows

    @classmethod
    def of(cls, graph: Graph, columns: UpdateColumns) -> "_RegularBatch | None":
        """Without a change to the graph; None if the batch is not regular."""
        if len(set(columns.ids)) < len(columns.ids):
            return None
        raw_ids = _padded(columns.ids)
        indices = graph.known_indices(raw_ids)
        has_func = np.array([func_id is not None for func_id in columns.func_ids], np.bool_)
        if not _are_regular(graph, columns, indices, has_func):
            return None
        names = [
            name
            for name, is_new in zip(columns.names, (indices < 0).tolist(), strict=True)
            if is_new and name is not None
        ]
        if len(set(names)) < len(names) or not graph.names.are_free(pa.array(names, _TEXT)):
            return None
        wiring = _wiring_of(graph, columns)
        ranks = None if wiring is None else wiring.ranks(len(raw_ids))
        if wiring is None or ranks is None:
            return None
        return cls(columns, raw_ids, indices, has_func, names, wiring, ranks)

    def apply(self, graph: Graph, sequence: int) -> bool:
        """Apply it; return whether it left roots."""
        dirty = self._put_funcs(graph, sequence)
        is_new = self.indices < 0
        indices = self.indices.copy()
        order = np.argsort(self.ranks[is_new], kind="stable")
        ranks = np.empty(len(order), np.int64)
        ranks[order] = np.arange(len(order))
        indices[is_new] = graph.add_all(self.raw_ids[is_new], ranks)
        named = np.array([name is not None for name in self.columns.names], np.bool_)
        graph.names.assign_all(indices[is_new & named], pa.array(self.names, _TEXT))
        changed = self._assign_sources(graph, indices)
        taken = self.wiring.taken_before(len(indices))
        roots = [
            row
            for row in changed.tolist()
            if taken[row] or (self.indices[row] >= 0 and _is_taken(graph, self.indices[row]))
        ]
        self._define_dependents(graph, indices)
        marked = np.concatenate([indices[self.has_func], indices[np.array(roots, np.int64)]])
        graph.roots.mark_all(marked, sequence)
        graph.touched.mark_all(marked)
        return dirty or len(marked) > 0

    def _put_funcs(self, graph: Graph, sequence: int) -> bool:
        dirty = False
        for func in self.columns.funcs:
            graph.put_func(Func(func.func_id, func.name, func.runtime, func.code))
            dirty |= graph.mark_users_pending(func.func_id, sequence)
        return dirty

    def _assign_sources(self, graph: Graph, indices: Indices) -> Rows:
        """Assign the sources whose values change; return their rows."""
        rows = np.flatnonzero(~self.has_func)
        values = compress(self.columns.values, (~self.has_func).tolist())
        texts = pa.array(list(map(dumps, values)), _TEXT)
        known = graph.texts_of(indices[rows])
        differ = pc.not_equal(texts, known).to_numpy(zero_copy_only=False)
        changed: Rows = rows[differ]
        graph.assign_texts(indices[changed], texts.filter(pa.array(differ)))
        return changed

    def _define_dependents(self, graph: Graph, indices: Indices) -> None:
        columns, wiring = self.columns, self.wiring
        known = np.array([*map(graph.signatures.intern, columns.known_signatures)], np.int32)
        signatures = known[np.array(columns.signatures, np.int64)[self.has_func]]
        func_ids = [func_id for func_id in columns.func_ids if func_id is not None]
        refs = np.where(wiring.rows < 0, wiring.indices, indices[wiring.rows])
        graph.define_all(indices[self.has_func], func_ids, signatures, refs)


def _padded(ids: Sequence[str]) -> NDArray[Any]:
    return np.frombuffer("".join(ids).encode(), f"S{ID_BYTES}")


def _are_regular(
    graph: Graph, columns: UpdateColumns, indices: Indices, has_func: NDArray[np.bool_]
) -> bool:
    """Whether each row defines a new value, or says what a source is that stays one."""
    is_known = indices >= 0
    known = indices[is_known]
    statuses, funcs = graph.columns.status.buffer[known], graph.columns.func.buffer[known]
    if (statuses == REMOVED).any() or (funcs >= 0).any() or has_func[is_known].any():
        return False
    is_put = np.array(columns.is_put, np.bool_)
    if not (is_put | is_known).all():
        return False
    for index, row in zip(known.tolist(), np.flatnonzero(is_known).tolist(), strict=True):
        if is_put[row] and columns.names[row] != graph.names.name_at(index):
            return False
    signatures = np.array(columns.signatures)
    has_value = np.array([value is not None for value in columns.values], np.bool_)
    return not (has_func & has_value).any() and not signatures[~has_func].any()


def _wiring_of(graph: Graph, columns: UpdateColumns) -> _Wiring | None:
    """None if an input is missing."""
    row_of = {value_id: row for row, value_id in enumerate(columns.ids)}
    widths = np.array(columns.widths, np.int64)[np.array(columns.signatures, np.int64)]
    owners = np.repeat(np.arange(len(widths)), widths)
    rows = np.array([*map(row_of.get, columns.input_ids, repeat(-1))], np.int64)
    indices = np.full(len(rows), -1, np.int32)
    outside = rows < 0
    found = graph.known_indices(_padded([*compress(columns.input_ids, outside.tolist())]))
    if (found < 0).any() or (graph.columns.status.buffer[found] == REMOVED).any():
        return None
    indices[outside] = found
    return _Wiring(owners, rows, indices)


def _is_taken(graph: Graph, index: np.int32) -> bool:
    return next(graph.adjacency.dependents(int(index)), None) is not None

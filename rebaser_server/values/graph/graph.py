"""The graph: every edit of one change set's values."""

from collections.abc import Iterable, Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from rebaser_server.values.canonical_json import dumps
from rebaser_server.values.graph.columns import (
    BLOCKED,
    FAILED,
    ID_BYTES,
    OK,
    PENDING,
    REMOVED,
    STATUSES,
)
from rebaser_server.values.graph.csr import sorted_unique
from rebaser_server.values.graph.graph_data import NULL, GraphData
from rebaser_server.values.graph.types import Func, Inputs, ValueStatus, ids_in
from rebaser_server.values.graph.value import Value, ValuesById

_MAX_WASTE: Final = 4.0
"""Waste of texts from which an edit compacts them, without waiting for `compact`."""
_STATUS_CODES: Final = {status: place for place, status in enumerate(STATUSES)}


class Graph(GraphData):
    """Values, functions, names, and the roots that the next dependent values update starts from."""

    @property
    def values(self) -> ValuesById:
        """By id, in the order in which they were defined."""
        return ValuesById(self)

    def add(self, value_id: str) -> Value:
        """A new source without a value, after every other in the order.

        Raises:
            ValueError: the id is longer than a ULID.
        """
        index = self._ids.find(value_id)
        if index >= 0:
            self.adjacency.prune()  # its former dependents do not get it back
            self.columns.status.at[index] = OK
            self.columns.text.at[index] = self._null
            self.columns.rank.at[index] = self._order.next_rank()
        else:
            raw = value_id.encode()
            if not 0 < len(raw) <= ID_BYTES:
                raise ValueError(f"{value_id!r} is not the id of a value")
            index = self.columns.append(raw, self._null, self._order.next_rank())
            self._ids.add(value_id, index)
        self.count += 1
        self.touched.mark(index)
        return Value(self, index)

    def add_all(self, raw_ids: NDArray[Any], ranks: NDArray[np.int64]) -> NDArray[np.int32]:
        """New sources without values, none of whose ids was ever here; their indices.

        Args:
            raw_ids: their ids, padded.
            ranks: their order among themselves, from 0; they come after every other value.
        """
        count = len(raw_ids)
        first = self.columns.extend(raw_ids, self._null, ranks + self._order.next_ranks(count))
        self._ids.add_all()
        self.count += count
        indices = np.arange(first, first + count, dtype=np.int32)
        self.touched.mark_all(indices)
        return indices

    def put_func(self, func: Func) -> None:
        self.funcs[func.id] = func
        self.touched_funcs.add(func.id)

    def remove_func(self, func_id: str) -> None:
        """Remove a function, which exists; the values that it computes keep its id."""
        del self.funcs[func_id]
        self.touched_funcs.add(func_id)

    def assign(
        self,
        value: Value,
        data: Any,
        status: ValueStatus = ValueStatus.OK,
        message: str | None = None,
    ) -> None:
        """Set what `value` is; `message` says why it has no value."""
        self.assign_text(value, dumps(data) if message is None else message, status)

    def assign_text(self, value: Value, text: str, status: ValueStatus = ValueStatus.OK) -> None:
        """Set the canonical JSON text of `value`, or the message if it is failed or blocked."""
        if self.texts.waste > _MAX_WASTE:
            self._compact_texts()
        row = self._null if text == NULL and status == STATUSES[OK] else self.texts.add(text)
        self.columns.text.at[value.index] = row
        self.columns.status.at[value.index] = _STATUS_CODES[status]
        self.touched.mark(value.index)

    def assign_texts(self, indices: NDArray[np.int32], texts: pa.Array) -> None:
        """Set the canonical JSON texts of these sources."""
        if self.texts.waste > _MAX_WASTE:
            self._compact_texts()
        first = self.texts.add_all(texts)
        self.columns.text.buffer[indices] = np.arange(first, first + len(texts), dtype=np.int32)
        self.touched.mark_all(indices)

    def mark_pending(self, value: Value) -> None:
        """Mark `value` as to be computed. It keeps its value, but not a message."""
        index = value.index
        if self.columns.status.at[index] in (FAILED, BLOCKED):
            self.columns.text.at[index] = self._null
        self.columns.status.at[index] = PENDING
        self.touched.mark(index)

    def mark_root(self, value: Value, sequence: int) -> None:
        """Mark `value` and its dependents for recomputation, because of the request `sequence`."""
        self.roots.mark(value.index, sequence)
        self.touched.mark(value.index)

    def remove(self, value: Value) -> list[Value]:
        """Remove `value`, also from the inputs of its dependents; return these by rank.

        The cost grows with the number of dependents, not with their other inputs.
        """
        index = value.index
        self.set_function(value, None)
        self.clear_inputs(value)
        dependents = sorted(self.adjacency.detach(index), key=self.columns.rank.at.__getitem__)
        for dependent in dependents:
            self.touched.mark(dependent)
        self.rename(value, None)
        self.roots.unmark(index)
        self.columns.status.at[index] = REMOVED
        self.columns.text.at[index] = self._null
        self.count -= 1
        return [Value(self, dependent) for dependent in dependents]

    def rename(self, value: Value, name: str | None) -> None:
        """Give `value` a name that is free, or none."""
        self.names.assign(value.index, name)
        self.touched.mark(value.index)

    def set_function(self, value: Value, func_id: str | None) -> None:
        """Let `value` be computed by a function, which need not exist yet, or by none."""
        column, users = self.columns.func.at, self._users
        former = column[value.index]
        func_index = -1
        if func_id is not None:
            func_index = self._func_index(func_id)
            users[func_index] += 1
        if former >= 0:
            users[former] -= 1
        column[value.index] = func_index
        self.touched.mark(value.index)

    def set_inputs(self, value: Value, inputs: Inputs) -> None:
        """Replace the inputs of `value`: existing ones, without cycles (`order_inputs_before`)."""
        refs = list(map(self._ids.find, ids_in(inputs)))
        self.adjacency.clear_inputs(value.index)
        self.adjacency.set_inputs(value.index, self.signatures.index_for(inputs), refs)
        self.touched.mark(value.index)

    def define_all(
        self,
        indices: NDArray[np.int32],
        funcs_used: NDArray[np.int32],
        func_ids: Sequence[str],
        signatures: NDArray[np.int32],
        refs: NDArray[np.int32],
    ) -> None:
        """Make sources without a value dependent ones, which are to be computed.

        `funcs_used` says which of `func_ids` computes each. `refs` are the inputs of all, value
        after value, ranked below the value that takes them.
        """
        funcs = np.array(list(map(self._func_index, func_ids)), np.int32)[funcs_used]
        for func_index, users in zip(*np.unique(funcs, return_counts=True), strict=True):
            self._users[func_index] += int(users)
        self.columns.func.buffer[indices] = funcs
        self.columns.status.buffer[indices] = PENDING
        self.adjacency.set_all_inputs(indices, signatures, refs)

    def clear_inputs(self, value: Value) -> None:
        self.adjacency.clear_inputs(value.index)
        self.touched.mark(value.index)

    def order_inputs_before(self, value: Value, inputs: Iterable[str]) -> set[str]:
        """Rank `value` above each of `inputs`; return those that depend on it, which cannot be."""
        cyclic = self._order.raise_above(value.index, map(self._ids.find, inputs))
        return set(map(self.id_at, cyclic))

    def clear_roots(self, covers: int) -> None:
        """Clear the roots up to sequence `covers`: their dependents are right again."""
        self.touched.mark_all(self.roots.clear_through(covers))

    def assign_many(
        self, ids: Any, statuses: NDArray[Any], texts: Any, covers: int
    ) -> NDArray[np.bool_]:
        """Assign the results computed for the roots up to `covers`; return which were taken.

        A result is dropped if its value is no dependent one, or was defined anew since: its
        root is above `covers`. `statuses` are indices into `STATUSES`. Of an id that comes
        twice, the last result counts.
        """
        columns = self.columns
        indices_found = self.indices_of(ids)
        taken = indices_found >= 0
        taken &= columns.func.buffer[indices_found] >= 0 if self.count else False
        taken &= columns.root.buffer[indices_found] <= covers if self.count else False
        indices = indices_found[taken]
        texts = texts.combine_chunks() if isinstance(texts, pa.ChunkedArray) else texts
        first = self.texts.add_all(texts.filter(pa.array(taken)))
        columns.text.buffer[indices] = np.arange(first, first + len(indices), dtype=np.int32)
        columns.status.buffer[indices] = np.asarray(statuses)[taken]
        self.touched.mark_all(sorted_unique(indices))
        if self.texts.waste > 1:
            self._compact_texts()
        return taken

    def mark_users_pending(self, func_id: str, sequence: int) -> bool:
        """Mark all values that a function computes for recomputation; whether there are any."""
        users = self._users_of(func_id)
        columns = self.columns
        statuses = columns.status.buffer[users]
        columns.text.buffer[users[(statuses == FAILED) | (statuses == BLOCKED)]] = self._null
        columns.status.buffer[users] = PENDING
        self.roots.mark_all(users, sequence)
        self.touched.mark_all(users)
        return len(users) > 0

    def _func_index(self, func_id: str) -> int:
        func_index = self._func_indices.setdefault(func_id, len(self.func_ids))
        if func_index == len(self.func_ids):
            self.func_ids.append(func_id)
            self._users.append(0)
        return func_index

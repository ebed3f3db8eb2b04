"""The graph: every edit of one change set's values.

`ReadableGraph` has the columns and the bulk reads that planner and store make, of a graph as it is,
or of a `GraphSnapshot`. `Value` is one value as callers see it.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence, ValuesView
from copy import copy
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from rebaser_core.references import REFERENCE, keys_in
from rebaser_server.values.adjacency import Adjacency, TopologicalOrder, rank_all
from rebaser_server.values.canonical_json import dumps, loads
from rebaser_server.values.columns import (
    BLOCKED,
    EMPTY,
    FAILED,
    ID_BYTES,
    OK,
    PENDING,
    REMOVED,
    STATUSES,
    Columns,
    Func,
    Inputs,
    Signatures,
    TextColumn,
    ValueStatus,
    ids_in,
    sorted_unique,
)
from rebaser_server.values.indexes import (
    HashIndex,
    IdIndex,
    NameIndex,
    Roots,
    Touched,
    arrow_ids,
    padded_ids,
)


class ReadableGraph:
    columns: Columns
    signatures: Signatures
    texts: TextColumn
    names: NameIndex
    adjacency: Adjacency
    funcs: dict[str, Func]
    func_ids: list[str]
    """Ids of functions that values use, or used."""
    count: int
    _ids: IdIndex
    _scratch: NDArray[np.int32] | None = None

    def root_indices(self) -> NDArray[np.int32]:
        """The values that the next dependent values update starts from."""
        raise NotImplementedError

    def index_of(self, value_id: str) -> int:
        """The index of a value, or -1: there is no such value."""
        index = self._ids.find(value_id)
        return -1 if index >= 0 and self.columns.status.at[index] == REMOVED else index

    def indices_of(self, ids: Any) -> NDArray[np.int32]:
        """The index of each id, Arrow strings or a sequence of text; -1: there is no such value."""
        indices = self._ids.find_all(padded_ids(ids))
        if not len(self.columns.status.buffer):  # -1 is an index of anything but nothing
            return indices
        indices[self.columns.status.buffer[indices] == REMOVED] = -1
        return indices

    def id_at(self, index: int) -> str:
        raw: bytes = self.columns.ids.buffer[index]
        return raw.decode()

    def snapshot_ids(self, columns: Columns) -> IdIndex:
        return self._ids.snapshot(columns)

    def ids_of(self, indices: NDArray[Any]) -> pa.StringArray:
        return arrow_ids(self.columns.ids.buffer[indices])

    def texts_of(self, indices: NDArray[Any]) -> pa.Array:
        """Canonical JSON texts; for failed and blocked values their messages."""
        return self.texts.take(self.columns.text.buffer[indices])

    def text_sizes(self, indices: NDArray[Any]) -> NDArray[np.int64]:
        return self.texts.sizes(self.columns.text.buffer[indices])

    def borrow_scratch(self) -> NDArray[np.int32]:
        """An array with a zero for each value: making one each time would cost too much."""
        scratch, self._scratch = self._scratch, None
        if scratch is None or len(scratch) < len(self.columns):
            scratch = np.zeros(len(self.columns.ids.buffer), np.int32)
        return scratch

    def return_scratch(self, scratch: NDArray[np.int32]) -> None:
        """Return the borrowed array, all zeros again."""
        self._scratch = scratch


class GraphSnapshot(ReadableGraph):
    """A graph as it is at one moment: later edits do not reach it.

    It costs 45 bytes of memory for each value, and the time to copy them. Ids, inputs and texts,
    which edits never change in place, are shared.
    """

    def __init__(self, graph: ReadableGraph, roots: NDArray[np.int32] | None = None) -> None:
        """Copy the graph, which the caller holds meanwhile; `roots` are those in place of its."""
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
        self._roots = graph.root_indices() if roots is None else roots

    def root_indices(self) -> NDArray[np.int32]:
        return self._roots

    def assign(self, indices: NDArray[np.int32], statuses: NDArray[Any], texts: pa.Array) -> None:
        """Give values a status and a text. The graph keeps those that it has."""
        first = self.texts.add_all(texts)
        self.columns.text.buffer[indices] = np.arange(first, first + len(texts), dtype=np.int32)
        self.columns.status.buffer[indices] = statuses


NULL: Final = "null"
_MAX_DELTA_RATIO: Final = 0.125
"""Number of delta edges for each compacted one from which `compact` moves them there."""


@dataclass(frozen=True, slots=True, eq=False)
class StoredGraph:
    """The parts of a graph that the store keeps, column by column; by default empty."""

    columns: Columns = field(default_factory=Columns)
    """Columns without ranks and `start`, which follow from the others."""
    signatures: Signatures = field(default_factory=Signatures)
    refs: NDArray[np.int32] | None = None
    """The inputs of all values, in the order of the columns."""
    func_ids: Sequence[str] = ()
    """Function ids, which the columns have indices of, as of `texts` and `names`."""
    texts: pa.Array = field(default_factory=lambda: EMPTY)
    names: pa.Array = field(default_factory=lambda: EMPTY)
    funcs: Iterable[Func] = ()
    hash_index: HashIndex | None = None
    """Indices of ids, by their hashes."""


class _GraphData(ReadableGraph):
    """Values, functions, names and roots. Only `Graph` changes them."""

    def __init__(self, stored: StoredGraph | None = None) -> None:
        """Make the graph as it was stored, with nothing touched; else an empty one.

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

    def known_indices(self, raw_ids: NDArray[Any]) -> NDArray[np.int32]:
        """The index of each padded id, also of a value that was removed; -1: it is new."""
        return self._ids.find_all(raw_ids)

    def all_indices(self) -> NDArray[np.int64]:
        """Indices of all values, in the order in which they were defined."""
        return np.flatnonzero(self.columns.status.all != REMOVED)

    def users_of(self, func_id: str) -> set[str]:
        return {self.id_at(index) for index in self._users_of(func_id).tolist()}

    def user_count(self, func_id: str) -> int:
        func_index = self._func_indices.get(func_id)
        return 0 if func_index is None else int(self._users[func_index])

    def compact(self) -> None:
        """Free the memory that edits left behind. Nothing that can be seen changes."""
        if self.adjacency.delta_ratio > _MAX_DELTA_RATIO:
            self.adjacency.compact()
        if self.texts.waste > 1:
            self._compact_texts()
        if self.names.texts.waste > 1:
            self.names.compact()

    def referred_keys(self) -> list[str]:
        """Return the keys of the files that values name, sorted; at once if there are none."""
        if not self.texts.may_refer:
            return []
        texts = self.texts_of(self._referring())
        keys = sorted(set().union(*map(keys_in, texts.to_pylist())))
        self.texts.may_refer = bool(keys)
        return keys

    def referring_values(self) -> "list[Value]":
        """Return the values with references, at any depth; at once if there are none."""
        if not self.texts.may_refer:
            return []
        return [Value(self, index) for index in self._referring().tolist()]

    def _referring(self) -> NDArray[np.int64]:
        indices = self.all_indices()
        named = pc.match_substring(self.texts_of(indices), REFERENCE)
        naming: NDArray[np.int64] = indices[named.to_numpy(zero_copy_only=False)]
        return naming

    def _users_of(self, func_id: str) -> NDArray[Any]:
        func_index = self._func_indices.get(func_id)
        if func_index is None or not self._users[func_index]:
            return np.empty(0, np.int64)
        return np.flatnonzero(self.columns.func.all == func_index)

    def _compact_texts(self) -> None:
        self.texts.compact(self.columns.text.all)
        self.columns.text.all[:] = np.arange(len(self.columns), dtype=np.int32)
        self._null = self.texts.add(NULL)


_WITHOUT_VALUE: Final = (FAILED, BLOCKED)


class Value:
    """A node. A *source* (`func_id` is None) is set by updates, a *dependent* one is computed.

    It is a view, which shows the present state of the graph and is useless once the value is
    removed.
    """

    __slots__ = ("_graph", "index")

    def __init__(self, graph: ReadableGraph, index: int) -> None:
        self._graph = graph
        self.index: Final = index

    @property
    def id(self) -> str:
        return self._graph.id_at(self.index)

    @property
    def name(self) -> str | None:
        return self._graph.names.name_at(self.index)

    @property
    def text(self) -> str:
        """Content as canonical JSON text; `null` if there is none."""
        graph = self._graph
        if graph.columns.status.at[self.index] in _WITHOUT_VALUE:
            return "null"
        return graph.texts.get(graph.columns.text.at[self.index])

    @property
    def value(self) -> Any:
        """Content, parsed on each access; changing the result does not change the graph."""
        return loads(self.text)

    @property
    def message(self) -> str | None:
        graph = self._graph
        if graph.columns.status.at[self.index] not in _WITHOUT_VALUE:
            return None
        return graph.texts.get(graph.columns.text.at[self.index])

    @property
    def status(self) -> ValueStatus:
        code: int = self._graph.columns.status.at[self.index]
        return STATUSES[code]

    @property
    def func_id(self) -> str | None:
        func_index = self._graph.columns.func.at[self.index]
        return None if func_index < 0 else self._graph.func_ids[func_index]

    @property
    def inputs(self) -> Inputs:
        """Inputs, made on each access; `Graph.set_inputs` replaces them."""
        ids = self.input_ids()  # first: it may change the signature
        return self._graph.signatures.build_inputs(
            self._graph.columns.signature.at[self.index], ids
        )

    def input_ids(self) -> list[str]:
        """Every input, in argument order; one taken twice comes twice."""
        return list(map(self._graph.id_at, self._graph.adjacency.inputs(self.index)))

    @property
    def dependents(self) -> set[str]:
        return set(map(self._graph.id_at, self._graph.adjacency.dependents(self.index)))

    @property
    def has_dependents(self) -> bool:
        return next(self._graph.adjacency.dependents(self.index), None) is not None

    @property
    def rank(self) -> int:
        """Rank, greater than that of every input: sorting by it is a topological order."""
        rank: int = self._graph.columns.rank.at[self.index]
        return rank

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, Value) and other.index == self.index and other._graph is self._graph
        )

    def __hash__(self) -> int:
        return hash(self.index)

    def __repr__(self) -> str:
        return f"Value({self.id!r}, {self.status.value}, {self.text[:40]})"


class ValuesById(Mapping[str, Value]):
    """Value id → value, in the order in which they were defined."""

    def __init__(self, graph: ReadableGraph) -> None:
        self._graph = graph

    def get(self, value_id: str, default: Any = None) -> Value | Any:
        index = self._graph.index_of(value_id)
        return default if index < 0 else Value(self._graph, index)

    def __getitem__(self, value_id: str) -> Value:
        index = self._graph.index_of(value_id)
        if index < 0:
            raise KeyError(value_id)
        return Value(self._graph, index)

    def __contains__(self, value_id: object) -> bool:
        return isinstance(value_id, str) and self._graph.index_of(value_id) >= 0

    def __len__(self) -> int:
        return self._graph.count

    def __iter__(self) -> Iterator[str]:
        columns = self._graph.columns
        for index in np.flatnonzero(columns.status.all != REMOVED).tolist():
            yield self._graph.id_at(index)

    def values(self) -> ValuesView[Value]:
        return _ValuesInOrder(self)

    def in_order(self) -> Iterator[Value]:
        for index in np.flatnonzero(self._graph.columns.status.all != REMOVED).tolist():
            yield Value(self._graph, index)


class _ValuesInOrder(ValuesView[Value]):
    _mapping: ValuesById

    def __iter__(self) -> Iterator[Value]:
        return self._mapping.in_order()


_MAX_WASTE: Final = 4.0
"""Waste of texts from which an edit compacts them, before any call of `compact`."""
_STATUS_CODES: Final = {status: place for place, status in enumerate(STATUSES)}


class Graph(_GraphData):
    """Values, functions, names, and the roots that the next dependent values update starts from."""

    @property
    def values(self) -> ValuesById:
        """Values by id, in the order in which they were defined."""
        return ValuesById(self)

    def add(self, value_id: str) -> Value:
        """Add a source without a value, behind every other in the order; return it.

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
        """Add sources without values, whose ids are all new; return their indices.

        Args:
            raw_ids: their ids, padded.
            ranks: their order from 0 on; they come behind every other value.
        """
        count = len(raw_ids)
        first = self.columns.extend(raw_ids, self._null, ranks + self._order.next_ranks(count))
        self._ids.add_all()
        self.count += count
        indices = np.arange(first, first + count, dtype=np.int32)
        self.touched.mark_all(indices)
        return indices

    def put_func(self, func: Func, sequence: int) -> bool:
        """Define a function; return whether that makes values that it computes roots of `sequence`.

        If the function is as before, only values without a result become roots.
        """
        before = self.funcs.get(func.id)
        self.funcs[func.id] = func
        self.touched_funcs.add(func.id)
        is_same = before is not None and (before.runtime, before.code) == (func.runtime, func.code)
        return self.mark_users_pending(func.id, sequence, failed_only=is_same)

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
        """Set the content of `value`; `message` says why it has none."""
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
        """Mark `value` as to be computed. It keeps its content, but not a message."""
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
        """Replace the inputs of `value` by existing ones, without cycles: `order_inputs_before`."""
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
        """Turn sources without a value into dependent values, which are to be computed.

        `funcs_used` has indices into `func_ids`. `refs` are the inputs of all, value after value,
        ranked below the value that takes them.
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
        """Clear the roots up to sequence `covers`: their dependents are up to date again."""
        self.touched.mark_all(self.roots.clear_through(covers))

    def assign_many(
        self, ids: Any, statuses: NDArray[Any], texts: Any, covers: int
    ) -> NDArray[np.bool_]:
        """Assign the results computed for the roots up to `covers`; return a mask of those taken.

        The values become roots of `covers`, until `clear_roots`.

        A result is dropped if its value is a source, is gone, or was defined anew since, so that
        its root is above `covers`. `statuses` are indices into `STATUSES`. If an id comes twice,
        the last result counts.
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
        # D4: a root until the whole result is committed. An update that begins anew after a part of
        # it finds this value as it was, and would not compute what takes the value.
        self.roots.mark_all(changed := sorted_unique(indices), covers)
        self.touched.mark_all(changed)
        if self.texts.waste > 1:
            self._compact_texts()
        return taken

    def mark_users_pending(self, func_id: str, sequence: int, *, failed_only: bool = False) -> bool:
        """Mark all values that a function computes for recomputation; return whether there are any.

        With `failed_only`, these are the failed or blocked ones.
        """
        users = self._users_of(func_id)
        columns = self.columns
        statuses = columns.status.buffer[users]
        failed = users[(statuses == FAILED) | (statuses == BLOCKED)]
        if failed_only:
            users = failed
        columns.text.buffer[failed] = self._null
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

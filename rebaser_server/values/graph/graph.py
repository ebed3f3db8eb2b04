"""The graph: every edit of one change set's values."""

from collections.abc import Iterable
from typing import Any, Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from rebaser_server.values.canonical_json import text_of
from rebaser_server.values.graph.columns import (
    BLOCKED,
    FAILED,
    GONE,
    ID_BYTES,
    OK,
    PENDING,
    STATUSES,
)
from rebaser_server.values.graph.contents import NULL, Contents
from rebaser_server.values.graph.csr import distinct
from rebaser_server.values.graph.types import Func, Inputs, Status, ids_in
from rebaser_server.values.graph.value import Value, Values

_TOO_MUCH: Final = 4.0
"""Waste of texts, as often as there are any, from which nobody waits for `tidy`."""
_PLACES: Final = {status: place for place, status in enumerate(STATUSES)}


class Graph(Contents):
    """Values, functions, names, and the roots that the next dependent values update starts from."""

    @property
    def values(self) -> Values:
        """By id, in the order in which they were defined."""
        return Values(self)

    def add(self, value_id: str) -> Value:
        """A new source without a value, after every other in the order.

        Raises:
            ValueError: the id is longer than a ULID.
        """
        index = self._ids.find(value_id)
        if index >= 0:
            self.wiring.tighten()  # nobody takes it any more, who took the one that was removed
            self.columns.status.at[index] = OK
            self.columns.text.at[index] = self._null
            self.columns.rank.at[index] = self._order.after_all()
        else:
            raw = value_id.encode()
            if not 0 < len(raw) <= ID_BYTES:
                raise ValueError(f"{value_id!r} is no id of a value")
            index = self.columns.append(raw, self._null, self._order.after_all())
            self._ids.added(value_id, index)
        self.count += 1
        self.touched.mark(index)
        return Value(self, index)

    def put_func(self, func: Func) -> None:
        self.funcs[func.id] = func
        self.touched_funcs.add(func.id)

    def remove_func(self, func_id: str) -> None:
        """Take a function away that is there; the values that it computes keep its id."""
        del self.funcs[func_id]
        self.touched_funcs.add(func_id)

    def assign(
        self, value: Value, data: Any, status: Status = Status.OK, message: str | None = None
    ) -> None:
        """Say what `value` is, and why if it is nothing."""
        self.assign_text(value, text_of(data) if message is None else message, status)

    def assign_text(self, value: Value, text: str, status: Status = Status.OK) -> None:
        """Say what `value` is as canonical JSON text; of a failed or blocked one the message."""
        if self.texts.waste > _TOO_MUCH:
            self._compact_texts()
        row = self._null if text == NULL and status == STATUSES[OK] else self.texts.add(text)
        self.columns.text.at[value.index] = row
        self.columns.status.at[value.index] = _PLACES[status]
        self.touched.mark(value.index)

    def pend(self, value: Value) -> None:
        """Say that `value` is to be computed. What it was it keeps; why it was nothing it loses."""
        index = value.index
        if self.columns.status.at[index] in (FAILED, BLOCKED):
            self.columns.text.at[index] = self._null
        self.columns.status.at[index] = PENDING
        self.touched.mark(index)

    def root(self, value: Value, sequence: int) -> None:
        """Have `value` and what depends on it recomputed, because of the request `sequence`."""
        self.roots.mark(value.index, sequence)
        self.touched.mark(value.index)

    def remove(self, value: Value) -> list[Value]:
        """Take `value` out, and out of the inputs of its dependents, which are returned by rank.

        Costs what the dependents are, however many other inputs they have.
        """
        index = value.index
        self.compute_by(value, None)
        self.unwire(value)
        dependents = sorted(self.wiring.cut(index), key=self.columns.rank.at.__getitem__)
        for dependent in dependents:
            self.touched.mark(dependent)
        self.rename(value, None)
        self.roots.unmark(index)
        self.columns.status.at[index] = GONE
        self.columns.text.at[index] = self._null
        self.count -= 1
        return [Value(self, dependent) for dependent in dependents]

    def rename(self, value: Value, name: str | None) -> None:
        """Give `value` a name that is free, or none."""
        self.names.give(value.index, name)
        self.touched.mark(value.index)

    def compute_by(self, value: Value, func_id: str | None) -> None:
        """Let `value` be computed by a function, which need not exist yet, or by none."""
        column, users = self.columns.func.at, self._users
        before = column[value.index]
        place = -1
        if func_id is not None:
            place = self._func_places.setdefault(func_id, len(self.func_ids))
            if place == len(self.func_ids):
                self.func_ids.append(func_id)
                users.append(0)
            users[place] += 1
        if before >= 0:
            users[before] -= 1
        column[value.index] = place
        self.touched.mark(value.index)

    def wire(self, value: Value, inputs: Inputs) -> None:
        """Replace the inputs of `value`. They exist and close no cycle: see `order_after`."""
        refs = list(map(self._ids.find, ids_in(inputs)))
        self.wiring.unwire(value.index)
        self.wiring.wire(value.index, self.shapes.of(inputs), refs)
        self.touched.mark(value.index)

    def unwire(self, value: Value) -> None:
        self.wiring.unwire(value.index)
        self.touched.mark(value.index)

    def order_after(self, value: Value, inputs: Iterable[str]) -> set[str]:
        """Rank `value` above each of `inputs`; return those that depend on it, which cannot be."""
        cyclic = self._order.above(value.index, map(self._ids.find, inputs))
        return set(map(self.id_at, cyclic))

    def settle_roots(self, covers: int) -> None:
        """Take away the roots up to sequence `covers`: what depends on them is right again."""
        self.touched.mark_all(self.roots.settle(covers))

    def assign_many(
        self, ids: Any, statuses: NDArray[Any], texts: Any, covers: int
    ) -> NDArray[np.bool_]:
        """Assign what was computed for the roots up to `covers`; which of it was taken.

        Not taken is what is not of a dependent value, or of one that was defined anew since:
        its root is above `covers`. `statuses` and `texts` as in `dvu.outcome.SCHEMA`. An id
        that comes twice takes the last.
        """
        columns = self.columns
        found = self.indices_of(ids)
        taken = found >= 0
        taken &= columns.func.room[found] >= 0 if self.count else False
        taken &= columns.root.room[found] <= covers if self.count else False
        indices = found[taken]
        texts = texts.combine_chunks() if isinstance(texts, pa.ChunkedArray) else texts
        first = self.texts.add_all(texts.filter(pa.array(taken)))
        columns.text.room[indices] = np.arange(first, first + len(indices), dtype=np.int32)
        columns.status.room[indices] = np.asarray(statuses)[taken]
        self.touched.mark_all(distinct(indices))
        if self.texts.waste > 1:
            self._compact_texts()
        return taken

    def pend_users(self, func_id: str, sequence: int) -> bool:
        """Have all values that a function computes recomputed; whether there are any."""
        users = self._users_of(func_id)
        columns = self.columns
        statuses = columns.status.room[users]
        columns.text.room[users[(statuses == FAILED) | (statuses == BLOCKED)]] = self._null
        columns.status.room[users] = PENDING
        self.roots.mark_all(users, sequence)
        self.touched.mark_all(users)
        return len(users) > 0

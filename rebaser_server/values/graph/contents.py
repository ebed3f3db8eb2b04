"""What a graph is made of, and what planner and store take from it."""

from collections.abc import Iterable
from typing import Any, Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from rebaser_server.values.graph.adjacency import Wiring
from rebaser_server.values.graph.columns import GONE, Columns
from rebaser_server.values.graph.dirty_sets import Roots, Touched
from rebaser_server.values.graph.hash_index import Slots
from rebaser_server.values.graph.ids import Ids, arrow_ids, raw_ids
from rebaser_server.values.graph.names import Names
from rebaser_server.values.graph.order import Order, rank_all
from rebaser_server.values.graph.signatures import Shapes
from rebaser_server.values.graph.text_column import EMPTY, Texts
from rebaser_server.values.graph.types import Func

NULL: Final = "null"
_SOON: Final = 0.125
"""Young edges for each old one from which `tidy` folds them in."""


class Contents:
    """Values, functions, names and roots, which only `Graph` changes."""

    def __init__(
        self,
        columns: Columns | None = None,
        shapes: Shapes | None = None,
        refs: NDArray[np.int32] | None = None,
        *,
        func_ids: Iterable[str] = (),
        funcs: Iterable[Func] = (),
        texts: pa.Array = EMPTY,
        names: pa.Array = EMPTY,
        slots: Slots | None = None,
    ) -> None:
        """Empty; or, for the store, of columns that lack ranks and `start`. Nothing is touched.

        `refs`: the inputs of all values, in the order of the columns. `func_ids`, `texts`,
        `names`: what the columns say the places of. `slots`: the ids' indices by their hashes.

        Raises:
            ValueError: a value depends on itself.
        """
        self.columns: Final = columns or Columns()
        self.shapes: Final = shapes or Shapes()
        self.count = len(self.columns)
        self.texts: Final = Texts(texts)
        self._null = self.texts.add(NULL)
        self.func_ids: Final = list(func_ids)
        """Of functions that values are computed by, or were."""
        self._func_places = {func_id: place for place, func_id in enumerate(self.func_ids)}
        places = self.columns.func.all
        self._users = np.bincount(places[places >= 0], minlength=len(self.func_ids)).tolist()
        self.funcs: Final = {func.id: func for func in funcs}
        self._ids: Final = Ids(self.columns, slots)
        self.names: Final = Names(self.columns, names)
        self.roots: Final = Roots(self.columns, self._ids)
        self.touched: Final = Touched(self.columns, self._ids)
        self.touched_funcs: set[str] = set()
        """Functions changed or removed likewise; one may go by the same id as a value."""
        self.wiring: Final = Wiring(self.columns, self.shapes, refs)
        if self.count:
            rank_all(self.columns, self.wiring, self.shapes.widths_of(self.columns.shape.all))
        self._order: Final = Order(self.columns, self.wiring)
        self._scratch: NDArray[np.int32] | None = None

    def id_at(self, index: int) -> str:
        raw: bytes = self.columns.ids.room[index]
        return raw.decode()

    def index_of(self, value_id: str) -> int:
        """Its index, or -1: there is no such value."""
        index = self._ids.find(value_id)
        return -1 if index >= 0 and self.columns.status.at[index] == GONE else index

    def indices_of(self, ids: Any) -> NDArray[np.int32]:
        """The index of each id, Arrow strings or a sequence of text; -1: there is no such value."""
        found = self._ids.find_all(raw_ids(ids))
        if not len(self.columns.status.room):  # -1 is an index of anything but nothing
            return found
        found[self.columns.status.room[found] == GONE] = -1
        return found

    def ids_of(self, indices: NDArray[Any]) -> pa.StringArray:
        return arrow_ids(self.columns.ids.room[indices])

    def texts_of(self, indices: NDArray[Any]) -> pa.Array:
        """Canonical JSON text; messages of values that are failed or blocked."""
        return self.texts.take(self.columns.text.room[indices])

    def text_sizes(self, indices: NDArray[Any]) -> NDArray[np.int64]:
        """Bytes of each text of `texts_of`."""
        return self.texts.sizes(self.columns.text.room[indices])

    def all_indices(self) -> NDArray[np.int64]:
        """Of the values that there are, in the order in which they were defined."""
        return np.flatnonzero(self.columns.status.all != GONE)

    def users_of(self, func_id: str) -> set[str]:
        """The values that a function computes."""
        return {self.id_at(index) for index in self._users_of(func_id).tolist()}

    def take_scratch(self) -> NDArray[np.int32]:
        """A zero for each value; for whom it is too dear to make so many each time."""
        scratch, self._scratch = self._scratch, None
        if scratch is None or len(scratch) < len(self.columns):
            scratch = np.zeros(len(self.columns.ids.room), np.int32)
        return scratch

    def give_scratch(self, scratch: NDArray[np.int32]) -> None:
        """Give back what was taken, all zeros again."""
        self._scratch = scratch

    def tidy(self) -> None:
        """Give back what edits left behind. Nothing that can be seen changes."""
        if self.wiring.youth > _SOON:
            self.wiring.fold()
        if self.texts.waste > 1:
            self._compact_texts()
        if self.names.texts.waste > 1:
            self.names.compact()

    def _users_of(self, func_id: str) -> NDArray[Any]:
        place = self._func_places.get(func_id)
        if place is None or not self._users[place]:
            return np.empty(0, np.int64)
        return np.flatnonzero(self.columns.func.all == place)

    def _compact_texts(self) -> None:
        self.texts.compact(self.columns.text.all)
        self.columns.text.all[:] = np.arange(len(self.columns), dtype=np.int32)
        self._null = self.texts.add(NULL)

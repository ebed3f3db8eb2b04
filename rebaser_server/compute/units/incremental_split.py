"""Cuts a blob into blobs that are evaluated one after the other, and come to the same.

A blob is in topological order, so a run of its values needs only what lies before it. What
an earlier piece found stands in a later one as constants.
"""

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from rebaser_server.compute.units.buffers import KIND, strings
from rebaser_server.compute.units.work_unit import OK, Blob


class Pieces:
    """A blob, and what became of its values from the first up to `done`."""

    def __init__(self, blob: Blob) -> None:
        self.done = 0
        self._blob = blob
        self._ends = np.concatenate([[0], blob.widths().cumsum()])
        self._changed = np.zeros(len(blob), np.bool_)
        self._statuses = blob.statuses.copy()
        # Text of value *i*: in the blob, or in what was found, at the row that is not below 0.
        self._rows = np.full(len(blob), -1, np.int64)
        self._found: list[pa.LargeStringArray] = []
        self._found_count = 0

    def next(self, count: int) -> Blob:
        """The `count` values from `done` on, or as many as there are."""
        blob, start = self._blob, self.done
        stop = min(start + count, len(blob))
        if start == 0 and stop == len(blob):
            return blob
        first, last = int(self._ends[start]), int(self._ends[stop])
        refs, outside = _rebased(blob.refs[first:last], start, len(blob.constant_known))
        ids, known, texts = self._constants(outside)
        widths = np.diff(self._ends[start : stop + 1])
        return Blob(
            blob.functions,
            blob.signatures,
            blob.ids[start:stop],
            blob.calls[start:stop],
            blob.statuses[start:stop],
            blob.texts[start:stop],
            self._due(blob.forced[start:stop], blob.refs[first:last], widths),
            refs,
            ids,
            known,
            texts,
            blob.limits,
        )

    def settle(self, stop: int, changes: pa.Table) -> None:
        """Take over what became of the values from `done` up to `stop`: those that changed.

        `changes` has columns as `outcome.SCHEMA` has them, with places of the whole blob.
        """
        self.done = stop
        if stop == len(self._blob):
            return  # nothing is left that could take any of it
        places = changes.column("place").to_numpy()
        statuses = changes.column("status").to_numpy()
        self._changed[places] = (statuses == OK) | (self._statuses[places] == OK)
        self._statuses[places] = statuses
        self._rows[places] = self._found_count + np.arange(len(places))
        self._found.append(strings(changes.column("text")))
        self._found_count += len(places)

    def _due(
        self, forced: NDArray[np.bool_], refs: NDArray[np.int32], widths: NDArray[np.int64]
    ) -> NDArray[np.bool_]:
        """Which values are forced, or take one of an earlier piece that changed."""
        earlier = np.flatnonzero((refs >= 0) & (refs < self.done))
        if not len(earlier) or forced.all():
            return forced
        hits = earlier[self._changed[refs[earlier]]]
        due = forced.copy()
        due[np.searchsorted(widths.cumsum(), hits, "right")] = True
        return due

    def _constants(
        self, outside: NDArray[np.int32]
    ) -> tuple[pa.LargeStringArray, NDArray[np.bool_], pa.LargeStringArray]:
        """Ids, whether known, and texts of what refs of the whole blob refer to."""
        blob = self._blob
        settled, given = outside[outside >= 0], ~outside[outside < 0]
        rows = self._rows[settled]
        texts: list[pa.LargeStringArray] = [
            strings(blob.texts.take(pa.array(settled[rows < 0]))),
            strings(pa.chunked_array(self._found, KIND).take(pa.array(rows[rows >= 0]))),
        ]
        # In the order of `settled`: those from the blob and those found, sorted back.
        order = np.concatenate([np.flatnonzero(rows < 0), np.flatnonzero(rows >= 0)])
        back = np.empty(len(order), np.int64)
        back[order] = np.arange(len(order))
        of_settled = pa.concat_arrays(texts).take(pa.array(back))
        # Constants come first in `outside`, since their refs are negative.
        return (
            pa.concat_arrays(
                [
                    blob.constant_ids.take(pa.array(given)),
                    blob.ids.take(pa.array(settled)),
                ]
            ),
            np.concatenate([blob.constant_known[given], self._statuses[settled] == OK]),
            pa.concat_arrays([blob.constant_texts.take(pa.array(given)), of_settled]),
        )


def _rebased(
    refs: NDArray[np.int32], start: int, constants: int
) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """Refs as a piece that begins at `start` has them, and what its constants are, in order."""
    is_outside = refs < start
    taken = refs[is_outside] + np.int32(constants)
    is_taken = np.zeros(constants + start, np.bool_)
    is_taken[taken] = True
    outside = np.flatnonzero(is_taken).astype(np.int32)
    places = np.empty(len(is_taken), np.int32)
    places[outside] = np.arange(len(outside))
    rebased = refs - np.int32(start)
    rebased[is_outside] = ~places[taken]
    return rebased, outside - np.int32(constants)


def shifted(changes: pa.Table, by: int) -> pa.Table:
    """What a piece that begins at `by` came to, with places of the whole blob."""
    place = pc.add(changes.column("place"), pa.scalar(by, pa.int32()))
    return changes.set_column(
        changes.schema.get_field_index("place"), changes.field("place"), place
    )

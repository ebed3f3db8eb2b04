"""Cuts a unit into units that are evaluated one after the other, and come to the same.

A unit is in topological order, so a run of its values needs only what lies before it. What
an earlier piece found stands in a later one as constants.
"""

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from rebaser_server.compute.units.buffers import STRING_TYPE, strings
from rebaser_server.compute.units.work_unit import OK, WorkUnit


class IncrementalSplit:
    """A unit, and what became of its values from the first up to `done`."""

    def __init__(self, unit: WorkUnit) -> None:
        self.done = 0
        self._unit = unit
        self._ends = np.concatenate([[0], unit.widths().cumsum()])
        self._changed = np.zeros(len(unit), np.bool_)
        self._statuses = unit.statuses.copy()
        # Text of value *i*: in the unit, or in what was found, at the row that is not below 0.
        self._rows = np.full(len(unit), -1, np.int64)
        self._found: list[pa.LargeStringArray] = []
        self._found_count = 0

    def next(self, count: int) -> WorkUnit:
        """The `count` values from `done` on, or as many as there are."""
        unit, start = self._unit, self.done
        stop = min(start + count, len(unit))
        if start == 0 and stop == len(unit):
            return unit
        first, last = int(self._ends[start]), int(self._ends[stop])
        refs, outside = _localise_refs(unit.refs[first:last], start, len(unit.constant_known))
        ids, known, texts = self._constants(outside)
        widths = np.diff(self._ends[start : stop + 1])
        return WorkUnit(
            unit.functions,
            unit.signatures,
            unit.ids[start:stop],
            unit.signature_indices[start:stop],
            unit.statuses[start:stop],
            unit.texts[start:stop],
            self._must_compute(unit.must_compute[start:stop], unit.refs[first:last], widths),
            refs,
            ids,
            known,
            texts,
            unit.limits,
        )

    def record(self, stop: int, changes: pa.Table) -> None:
        """Take over what became of the values from `done` up to `stop`: those that changed.

        `changes` has columns as `unit_result.SCHEMA` has them, with positions of the whole unit.
        """
        self.done = stop
        if stop == len(self._unit):
            return  # nothing is left that could take any of it
        positions = changes.column("place").to_numpy()
        statuses = changes.column("status").to_numpy()
        self._changed[positions] = (statuses == OK) | (self._statuses[positions] == OK)
        self._statuses[positions] = statuses
        self._rows[positions] = self._found_count + np.arange(len(positions))
        self._found.append(strings(changes.column("text")))
        self._found_count += len(positions)

    def _must_compute(
        self, must_compute: NDArray[np.bool_], refs: NDArray[np.int32], widths: NDArray[np.int64]
    ) -> NDArray[np.bool_]:
        """Which values are forced, or take one of an earlier piece that changed."""
        earlier = np.flatnonzero((refs >= 0) & (refs < self.done))
        if not len(earlier) or must_compute.all():
            return must_compute
        hits = earlier[self._changed[refs[earlier]]]
        due = must_compute.copy()
        due[np.searchsorted(widths.cumsum(), hits, "right")] = True
        return due

    def _constants(
        self, outside: NDArray[np.int32]
    ) -> tuple[pa.LargeStringArray, NDArray[np.bool_], pa.LargeStringArray]:
        """Ids, whether known, and texts of what refs of the whole unit refer to."""
        unit = self._unit
        settled, given = outside[outside >= 0], ~outside[outside < 0]
        rows = self._rows[settled]
        texts: list[pa.LargeStringArray] = [
            strings(unit.texts.take(pa.array(settled[rows < 0]))),
            strings(pa.chunked_array(self._found, STRING_TYPE).take(pa.array(rows[rows >= 0]))),
        ]
        # In the order of `settled`: those from the unit and those found, sorted back.
        order = np.concatenate([np.flatnonzero(rows < 0), np.flatnonzero(rows >= 0)])
        back = np.empty(len(order), np.int64)
        back[order] = np.arange(len(order))
        of_settled = pa.concat_arrays(texts).take(pa.array(back))
        # Constants come first in `outside`, since their refs are negative.
        return (
            pa.concat_arrays(
                [
                    unit.constant_ids.take(pa.array(given)),
                    unit.ids.take(pa.array(settled)),
                ]
            ),
            np.concatenate([unit.constant_known[given], self._statuses[settled] == OK]),
            pa.concat_arrays([unit.constant_texts.take(pa.array(given)), of_settled]),
        )


def _localise_refs(
    refs: NDArray[np.int32], start: int, constants: int
) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """Refs as a piece that begins at `start` has them, and what its constants are, in order."""
    is_outside = refs < start
    taken = refs[is_outside] + np.int32(constants)
    is_taken = np.zeros(constants + start, np.bool_)
    is_taken[taken] = True
    outside = np.flatnonzero(is_taken).astype(np.int32)
    positions = np.empty(len(is_taken), np.int32)
    positions[outside] = np.arange(len(outside))
    rebased = refs - np.int32(start)
    rebased[is_outside] = ~positions[taken]
    return rebased, outside - np.int32(constants)


def offset_positions(changes: pa.Table, by: int) -> pa.Table:
    """What a piece that begins at `by` came to, with positions of the whole unit."""
    position = pc.add(changes.column("place"), pa.scalar(by, pa.int32()))
    return changes.set_column(
        changes.schema.get_field_index("place"), changes.field("place"), position
    )

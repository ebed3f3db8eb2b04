"""Takes down what values come to that are computed by calls of their own."""

from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from rebaser_server.compute.errors import FunctionMissing
from rebaser_server.compute.evaluate.call_watchdog import Watch
from rebaser_server.compute.failure_text import TooLarge, bounded, described
from rebaser_server.compute.json_values import read_only, size_of
from rebaser_server.compute.units.value_buffers import (
    BOOL,
    FLOAT,
    INT,
    NONE,
    NOTHING,
    NULL,
    TEXT,
    Bits,
    Cells,
    Places,
)
from rebaser_server.compute.units.work_unit import BLOCKED, FAILED, OK, Blob
from rebaser_server.values.canonical_json import text_of

_LARGE: Final = 1 << 16
"""Bytes of a result from which its text is not made within the memory that a call may take."""

_KINDS: Final[dict[type, int]] = {type(None): NULL, bool: BOOL, int: INT, float: FLOAT}


@dataclass(frozen=True, slots=True)
class Failure:
    """What a call came to that raised."""

    message: str


class Results:
    """Which values come out changed is noted in `changed`.

    What those are that have a value stands in the cells, what became of the others here.
    """

    def __init__(self, blob: Blob, cells: Cells, changed: bytearray, watch: Watch) -> None:
        self._blob = blob
        self._cells = cells
        self._changed = changed
        self._is_changed = np.frombuffer(changed, np.bool_)
        self._watch = watch
        self.blocked = 0
        self.places: list[int] = []
        """Of those that come out without a value, and what they are."""
        self.statuses: list[int] = []
        self.texts: list[str] = []

    def failure(self, error: BaseException) -> Failure:
        if isinstance(error, FunctionMissing):
            return Failure(str(error))
        return Failure(self._watch.message(error) or described(error))

    def write_all(self, places: Places, found: list[Any]) -> None:
        """What calls have returned for values at ascending places, or failures."""
        same = _of_one_kind(found)
        if same is None:
            for place, value in zip(places.tolist(), found, strict=True):
                self._write_any(place, value)
            return
        cells, (kind, bits) = self._cells, same
        is_new = (cells.kinds[places] != kind) | (cells.bits[places] != bits)
        cells.kinds[places] = kind
        cells.bits[places] = bits
        cells.put_objects(places, found)
        self._is_changed[places[is_new]] = True

    def _write_any(self, place: int, value: Any) -> None:
        if type(value) is not Failure:
            try:
                value = read_only(value)
            except BaseException as error:  # noqa: BLE001 - a result's own code, or its threads'
                value = self.failure(error)
            else:
                self.write(place, value)
                return
        self.write_failure(place, value)

    def write(self, place: int, value: Any) -> None:
        """A value that is JSON, and read-only. One that is too large fails."""
        cells = self._cells
        cells.objects[place] = value
        cells.box_bytes[place] = True
        kind = _KINDS.get(type(value), TEXT)
        is_new = cells.kind_bytes[place] != kind
        if kind == TEXT:
            try:
                is_new = self._write_text(place, value) or is_new
            except (TooLarge, MemoryError) as error:
                self.write_failure(place, self.failure(error))
                return
        else:
            bits = cells.int_items
            before = bits[place]
            if kind == FLOAT:
                cells.float_items[place] = value
            else:
                bits[place] = value or 0  # of null, too
            is_new = is_new or bits[place] != before
        if is_new:
            cells.kind_bytes[place] = kind
            self._changed[place] = True

    def _write_text(self, place: int, value: Any) -> bool:
        cells = self._cells
        text = self._text_of(value)
        if cells.kind_bytes[place] == TEXT and text == cells.texts[place].as_py():
            return False
        cells.int_items[place] = 0
        cells.computed_texts[place] = text
        return True

    def _text_of(self, value: Any) -> str:
        """Raises `TooLarge`, before the text is made if the value shows it."""
        least = size_of(value)
        self._require_room(least)
        if least < _LARGE:
            text = text_of(value)
        else:
            with self._watch.relieved():
                text = text_of(value)
        if self._watch.value_bytes and len(text) * 4 > self._watch.value_bytes:
            self._require_room(len(text.encode()))
        return text

    def _require_room(self, size: int) -> None:
        most = self._watch.value_bytes
        if most and size > most:
            raise TooLarge(size, most)

    def write_failure(self, place: int, failure: Failure) -> None:
        self._write_nothing(place, FAILED, failure.message)

    def write_blocked(self, place: int, ref: int) -> None:
        """`ref`: of the first input that has no value."""
        self.blocked += 1
        own = len(self._blob)
        column = self._blob.ids if ref < own else self._blob.constant_ids
        self._write_nothing(place, BLOCKED, column[ref if ref < own else ref - own].as_py())

    def _write_nothing(self, place: int, status: int, text: str) -> None:
        text = bounded(text)
        cells, before = self._cells, int(self._blob.statuses[place])
        cells.objects[place] = NOTHING
        cells.box_bytes[place] = True
        cells.kind_bytes[place] = NONE
        if status != before or text != self._blob.texts[place].as_py():
            self.places.append(place)
            self.statuses.append(status)
            self.texts.append(text)
            self._changed[place] = before == OK


def _of_one_kind(values: list[Any]) -> tuple[int, Bits] | None:
    """The kind and the bits of values that are all sound, of one kind, and not TEXT."""
    types = set(map(type, values))
    kind = _KINDS.get(types.pop()) if len(types) == 1 else None
    if kind == NULL:
        return kind, np.zeros(len(values), np.int64)
    if kind == FLOAT:
        numbers = np.array(values, np.float64)
        return (kind, numbers.view(np.int64)) if np.isfinite(numbers).all() else None
    try:
        return None if kind is None else (kind, np.array(values, np.int64))
    except OverflowError:
        return None

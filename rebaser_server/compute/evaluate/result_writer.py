"""The state of a unit's evaluation, and the writer of results into it."""

from dataclasses import dataclass
from typing import Any, Final, Self

import numpy as np
from numpy.typing import NDArray

from rebaser_server.compute.errors import FunctionMissing
from rebaser_server.compute.evaluate.call_watchdog import CallWatchdog
from rebaser_server.compute.evaluate.process_guard import ProcessGuard
from rebaser_server.compute.failure_text import ResultTooLarge, describe_call, truncate
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
    Positions,
    ValueBuffers,
)
from rebaser_server.compute.units.work_unit import BLOCKED, FAILED, OK, WorkUnit
from rebaser_server.values.canonical_json import dumps

_LARGE_TEXT: Final = 1 << 16
"""Bytes of a result from which its text is not made within the memory that a call may take."""

_KINDS: Final[dict[type, int]] = {type(None): NULL, bool: BOOL, int: INT, float: FLOAT}


@dataclass(frozen=True, slots=True)
class CallFailure:
    """What a call came to that raised."""

    message: str


@dataclass(frozen=True, slots=True, eq=False)
class EvaluationState:
    """What all parts of the evaluation of one unit work on. Positions: values, then constants."""

    unit: WorkUnit
    watchdog: CallWatchdog
    buffers: ValueBuffers
    refs: Positions
    """The position of each ref."""
    starts: Positions
    """Where the refs of each value begin, and at last where they end."""
    changed: bytearray
    """Whether each value came out changed."""
    is_changed: NDArray[np.bool_]
    """The same memory."""
    guard: ProcessGuard | None
    """None: there are no functions but Rebaser's own."""

    @classmethod
    def of(cls, unit: WorkUnit, watchdog: CallWatchdog, guard: ProcessGuard | None) -> Self:
        count = len(unit)
        starts = np.zeros(count + 1, np.int64)
        np.cumsum(unit.widths(), out=starts[1:])
        refs = unit.refs.astype(np.int64)
        np.subtract(count - 1, refs, out=refs, where=refs < 0)
        changed = bytearray(count + len(unit.constant_known))
        is_changed = np.frombuffer(changed, np.bool_)
        return cls(unit, watchdog, ValueBuffers(unit), refs, starts, changed, is_changed, guard)


@dataclass(frozen=True, slots=True)
class SavedValues:
    """State of some values before they were computed."""

    start: int
    end: int
    kinds: bytes
    bits: Bits
    materialised: bytes
    changed: bytes
    objects: list[Any]
    blocked: int
    count: int
    """Number of values that had come out without one."""


class ResultWriter:
    """Writes values into the buffers, and collects failed and blocked ones."""

    def __init__(self, state: EvaluationState) -> None:
        self._unit = state.unit
        self._buffers = state.buffers
        self._changed = state.changed
        self._is_changed = state.is_changed
        self._watchdog = state.watchdog
        self.blocked = 0
        self.positions: list[int] = []
        """Of those that come out without a value, and what they are."""
        self.statuses: list[int] = []
        self.texts: list[str] = []

    def save(self, start: int, end: int) -> SavedValues:
        """Copy of what computing the values from `start` to `end` changes."""
        buffers = self._buffers
        return SavedValues(
            start,
            end,
            bytes(buffers.kind_bytes[start:end]),
            buffers.bits[start:end].copy(),
            bytes(buffers.materialised_bytes[start:end]),
            bytes(self._changed[start:end]),
            buffers.objects[start:end],
            self.blocked,
            len(self.positions),
        )

    def restore(self, saved: SavedValues) -> None:
        buffers, where = self._buffers, slice(saved.start, saved.end)
        buffers.kind_bytes[where] = saved.kinds
        buffers.bits[where] = saved.bits
        buffers.materialised_bytes[where] = saved.materialised
        self._changed[where] = saved.changed
        buffers.objects[where] = saved.objects
        for position in range(saved.start, saved.end):
            buffers.computed_texts.pop(position, None)
        self.blocked = saved.blocked
        for column in (self.positions, self.statuses, self.texts):
            del column[saved.count :]

    def to_failure(self, error: BaseException) -> CallFailure:
        if type(error) is FunctionMissing:
            return CallFailure(str(error))
        return CallFailure(self._watchdog.violation_message(error) or describe_call(error))

    def write_all(self, positions: Positions, returned: list[Any]) -> None:
        """What calls have returned for values at ascending positions, or failures."""
        same = _uniform_bits(returned)
        if same is None:
            for position, value in zip(positions.tolist(), returned, strict=True):
                self._write_any(position, value)
            return
        buffers, (kind, bits) = self._buffers, same
        is_new = (buffers.kinds[positions] != kind) | (buffers.bits[positions] != bits)
        buffers.kinds[positions] = kind
        buffers.bits[positions] = bits
        buffers.set_objects(positions, returned)
        self._is_changed[positions[is_new]] = True

    def _write_any(self, position: int, value: Any) -> None:
        if type(value) is not CallFailure:
            try:
                value = read_only(value)
            except BaseException as error:  # a result's own code, or its threads'
                value = self.to_failure(error)
            else:
                self.write(position, value)
                return
        self.write_failure(position, value)

    def write(self, position: int, value: Any) -> None:
        """A value that is JSON, and read-only. One that is too large fails."""
        buffers = self._buffers
        buffers.objects[position] = value
        buffers.materialised_bytes[position] = True
        kind = _KINDS.get(type(value), TEXT)
        is_new = buffers.kind_bytes[position] != kind
        if kind == TEXT:
            try:
                is_new = self._write_text(position, value) or is_new
            except Exception as error:  # too large; or C code put in what is not JSON
                self.write_failure(position, self.to_failure(error))
                return
        else:
            bits = buffers.int_items
            before = bits[position]
            if kind == FLOAT:
                buffers.float_items[position] = value
            else:
                bits[position] = value or 0  # of null, too
            is_new = is_new or bits[position] != before
        if is_new:
            buffers.kind_bytes[position] = kind
            self._changed[position] = True

    def _write_text(self, position: int, value: Any) -> bool:
        buffers = self._buffers
        text = self._text_of(value)
        if buffers.kind_bytes[position] == TEXT and text == buffers.texts[position].as_py():
            return False
        buffers.int_items[position] = 0
        buffers.computed_texts[position] = text
        return True

    def _text_of(self, value: Any) -> str:
        """Raises `ResultTooLarge`, before the text is made if the value shows it."""
        least = size_of(value)
        self._require_room(least)
        if least < _LARGE_TEXT:
            text = dumps(value)
        else:
            with self._watchdog.lifting_memory_limit():
                text = dumps(value)
        if self._watchdog.value_bytes and len(text) * 4 > self._watchdog.value_bytes:
            self._require_room(len(text.encode()))
        return text

    def _require_room(self, size: int) -> None:
        most = self._watchdog.value_bytes
        if most and size > most:
            raise ResultTooLarge(size, most)

    def write_failure(self, position: int, failure: CallFailure) -> None:
        self._write_no_value(position, FAILED, failure.message)

    def write_blocked(self, position: int, ref: int) -> None:
        """`ref`: of the first input that has no value."""
        self.blocked += 1
        own = len(self._unit)
        column = self._unit.ids if ref < own else self._unit.constant_ids
        self._write_no_value(position, BLOCKED, column[ref if ref < own else ref - own].as_py())

    def _write_no_value(self, position: int, status: int, text: str) -> None:
        text = truncate(text)
        buffers, before = self._buffers, int(self._unit.statuses[position])
        buffers.objects[position] = NOTHING
        buffers.materialised_bytes[position] = True
        buffers.kind_bytes[position] = NONE
        if status != before or text != self._unit.texts[position].as_py():
            self.positions.append(position)
            self.statuses.append(status)
            self.texts.append(text)
            self._changed[position] = before == OK


def _uniform_bits(values: list[Any]) -> tuple[int, Bits] | None:
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

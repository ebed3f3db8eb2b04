"""The bytes between planner and evaluator: some values, and all that computing them needs.

A unit is columns, and is made from columns that were taken from a graph's. No Python object is made
for any value on the way.

Encoded, little-endian: the format's version in one byte, three of padding, the length of the
header in four, the number of values in eight; the limits in 32; the header in CBOR; then the
columns as they lie in memory. Each part begins at a multiple of 8. The header is an array:
functions, signatures, the number of constants, the length of each section. An array column is
one section, a string column two: Arrow's offsets of 64 bits, and the text.
"""

import struct
from dataclasses import dataclass, field
from typing import Final, Self

import cbor2
import numpy as np
import pyarrow as pa
from blake3 import blake3
from numpy.typing import NDArray

from rebaser_server.compute.units.buffers import (
    ALIGNMENT,
    STRING_TYPE,
    contiguous,
    join_sections,
    split_sections,
    string_buffers,
    strings,
    strings_from_buffers,
)

VERSION: Final = 3

OK: Final = 0
FAILED: Final = 1
BLOCKED: Final = 2
PENDING: Final = 3
STATUSES: Final = ("ok", "failed", "blocked", "pending")
"""The word of `graph.Status` for each status as columns have it."""

ArgumentSpec = tuple[str, int | None]
"""An argument: its name, and how many refs are its list; None: it is one ref itself."""

_FIXED_PART: Final = struct.Struct("<B3xIQ")
_LIMITS_PART: Final = struct.Struct("<dQQ?7x")
_HEADER_OFFSET: Final = _FIXED_PART.size + _LIMITS_PART.size
"""Where the header begins."""
_DIGEST_DIGITS: Final = 32
"""Digits of a unit's digest: 128 bits."""


@dataclass(frozen=True, slots=True)
class CallLimits:
    """What a call of a function may take; 0: as much as it likes."""

    seconds: float = 0.0
    memory: int = 0
    """Bytes that the evaluator may grow by during the call."""
    is_forked: bool = False
    """Have the unit evaluated in a process that may end: for one that has ended an evaluator."""
    value_bytes: int = 0
    """Bytes of a result as JSON."""


def _no_strings() -> pa.LargeStringArray:
    return pa.array([], STRING_TYPE)


def _no_numbers() -> NDArray[np.int32]:
    return np.empty(0, np.int32)


def _no_codes() -> NDArray[np.uint8]:
    return np.empty(0, np.uint8)


def _no_flags() -> NDArray[np.bool_]:
    return np.empty(0, np.bool_)


@dataclass(slots=True, eq=False)
class WorkUnit:
    """Values in topological order, column by column.

    The evaluator takes together what stands together: a run of values none of which is an
    input of another, and in it a run of one signature. So the best order is by level, then
    by signature; any topological order is right.
    """

    functions: list[tuple[str | None, str]] = field(default_factory=list)
    """Runtime and code; without a runtime, the function does not exist and the code is its id."""
    signatures: list[tuple[int, list[ArgumentSpec]]] = field(default_factory=list)
    """A function, and the arguments to call it with."""
    ids: pa.LargeStringArray = field(default_factory=_no_strings)
    signature_indices: NDArray[np.int32] = field(default_factory=_no_numbers)
    """The signature of each value."""
    statuses: NDArray[np.uint8] = field(default_factory=_no_codes)
    """What each value was before, a position in `STATUSES`."""
    texts: pa.LargeStringArray = field(default_factory=_no_strings)
    """Its value then as canonical JSON text; the message of a failed one; of a blocked one the id
    of the input that blocked it; of a pending one nothing."""
    must_compute: NDArray[np.bool_] = field(default_factory=_no_flags)
    """Whether it is computed even if none of its inputs changes."""
    refs: NDArray[np.int32] = field(default_factory=_no_numbers)
    """What each value takes, argument after argument, value after value: *r* ≥ 0 is the unit's
    value *r*, which comes before it; *r* < 0 its constant ~*r*: -1 the first, -2 the second."""
    constant_ids: pa.LargeStringArray = field(default_factory=_no_strings)
    """Inputs from outside of the unit."""
    constant_known: NDArray[np.bool_] = field(default_factory=_no_flags)
    """Whether each has a value."""
    constant_texts: pa.LargeStringArray = field(default_factory=_no_strings)
    """The values; of one that has none, anything."""
    limits: CallLimits = CallLimits()

    def __len__(self) -> int:
        return len(self.signature_indices)

    def widths(self) -> NDArray[np.int64]:
        """How many refs each value takes."""
        by_call = [sum(1 if n is None else n for _, n in specs) for _, specs in self.signatures]
        return np.array(by_call, np.int64)[self.signature_indices]

    def encode(self) -> bytes:
        sections: list[bytes | memoryview] = [
            *string_buffers(strings(self.ids)),
            contiguous(self.signature_indices, np.int32).data.cast("B"),
            contiguous(self.statuses, np.uint8).data.cast("B"),
            *string_buffers(strings(self.texts)),
            contiguous(self.must_compute, np.bool_).view(np.uint8).data.cast("B"),
            contiguous(self.refs, np.int32).data.cast("B"),
            *string_buffers(strings(self.constant_ids)),
            contiguous(self.constant_known, np.bool_).view(np.uint8).data.cast("B"),
            *string_buffers(strings(self.constant_texts)),
        ]
        lengths = list(map(len, sections))
        header = cbor2.dumps(
            [
                self.functions,
                self.signatures,
                len(self.constant_known),
                lengths,
            ]
        )
        fixed = _FIXED_PART.pack(VERSION, len(header), len(self))
        return join_sections([fixed + _pack_limits(self.limits), header, *sections])

    @classmethod
    def decode(cls, data: bytes | memoryview) -> Self:
        """The unit; its columns share the memory of `data` and are read-only.

        Raises:
            ValueError: these are not the bytes of a unit of this version.
        """
        count_values(data)
        _, length, count = _FIXED_PART.unpack_from(data)
        view = memoryview(data)
        start = _HEADER_OFFSET + length
        functions, signatures, constants, lengths = cbor2.loads(view[_HEADER_OFFSET:start])
        parts = split_sections(view[start + -length % ALIGNMENT :], lengths)
        return cls(
            [(runtime, code) for runtime, code in functions],
            [(function, [(name, n) for name, n in specs]) for function, specs in signatures],
            strings_from_buffers(count, *parts[0:2]),
            np.frombuffer(parts[2], np.int32),
            np.frombuffer(parts[3], np.uint8),
            strings_from_buffers(count, *parts[4:6]),
            np.frombuffer(parts[6], np.bool_),
            np.frombuffer(parts[7], np.int32),
            strings_from_buffers(constants, *parts[8:10]),
            np.frombuffer(parts[10], np.bool_),
            strings_from_buffers(constants, *parts[11:13]),
            read_limits(data),
        )


def count_values(unit: bytes | memoryview) -> int:
    """How many values an encoded unit holds, for the price of its first bytes."""
    if len(unit) < _HEADER_OFFSET or unit[0] != VERSION:
        raise ValueError(f"not a work unit of version {VERSION}")
    count: int = _FIXED_PART.unpack_from(unit)[2]
    return count


def read_limits(unit: bytes | memoryview) -> CallLimits:
    """Of an encoded unit."""
    count_values(unit)
    seconds, memory, value_bytes, is_forked = _LIMITS_PART.unpack_from(unit, _FIXED_PART.size)
    return CallLimits(seconds, memory, is_forked, value_bytes)


def with_limits(unit: bytes | memoryview, limits: CallLimits) -> bytes | memoryview:
    """An encoded unit with these limits: itself if it has them, else a copy."""
    if read_limits(unit) == limits:
        return unit
    view = memoryview(unit)
    return b"".join([view[: _FIXED_PART.size], _pack_limits(limits), view[_HEADER_OFFSET:]])


def digest_of(unit: bytes | memoryview) -> str:
    """Of an encoded unit, whatever its limits: they change how it is computed, and not to what."""
    view = memoryview(unit)
    return (
        blake3(view[: _FIXED_PART.size]).update(view[_HEADER_OFFSET:]).hexdigest()[:_DIGEST_DIGITS]
    )


def _pack_limits(limits: CallLimits) -> bytes:
    return _LIMITS_PART.pack(limits.seconds, limits.memory, limits.value_bytes, limits.is_forked)

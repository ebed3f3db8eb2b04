"""Units that planner and evaluator pass on: some values, and all that computing them needs.

A unit is columns, and is made from columns that were taken from a graph's. No Python object is made
for any value on the way. It is encoded where it leaves the process.

Encoded, little-endian: the format's version in one byte, three of padding, the length of the header
in four, the number of values in eight; the limits in 32; the header in CBOR; then the columns as
they lie in memory. Each part begins at a multiple of 8. The header is an array: functions,
signatures, the number of constants, the length of each section, and the code that functions are
expected to have. An array column is one section, a string column two: Arrow's offsets of 64 bits,
and the text. Behind that are the known results, as an Arrow stream; nothing if there are none.

A unit is in topological order, so a run of its values needs only values before it. It can be
sorted, cut into segments without an edge inside, and cut into units that are evaluated one after
the other, with equal results: results of an earlier piece are constants of a later one. Other units
are derived from it.
"""

import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, Self, TypeAlias

import cbor2
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from blake3 import blake3
from numpy.typing import NDArray

_ALIGNMENT: Final = 8
_OFFSET_TYPE: Final = np.dtype("<i8")
STRING_TYPE: Final = pa.large_string()
"""Type of every column of strings: offsets of 64 bits, since values may be 2 GiB of text
together."""

Strings: TypeAlias = "pa.Array | pa.ChunkedArray | Sequence[str]"
"""Arrow strings of any type, or a list of them. A null is taken for an empty string."""


def strings(given: Strings) -> pa.LargeStringArray:
    """Return one Arrow array of strings, without nulls."""
    if not isinstance(given, pa.Array | pa.ChunkedArray):
        return pa.array(given, STRING_TYPE)
    if given.type != STRING_TYPE:
        given = given.cast(STRING_TYPE)
    if isinstance(given, pa.ChunkedArray):
        given = given.combine_chunks()
    return given.fill_null("") if given.null_count else given


def string_buffers(column: pa.LargeStringArray) -> list[bytes | memoryview]:
    _, offsets, text = column.buffers()
    if not len(column):
        return [bytes(_OFFSET_TYPE.itemsize), b""]
    bounds = np.frombuffer(
        offsets, _OFFSET_TYPE, len(column) + 1, column.offset * _OFFSET_TYPE.itemsize
    )
    first, last = int(bounds[0]), int(bounds[-1])
    data = memoryview(text)[first:last] if text is not None else b""
    return [(bounds - bounds[0]).data.cast("B") if first else bounds.data.cast("B"), data]


def _strings_from_buffers(count: int, offsets: memoryview, text: memoryview) -> pa.LargeStringArray:
    """Return the strings in these buffers; shares their memory."""
    return pa.LargeStringArray.from_buffers(count, pa.py_buffer(offsets), pa.py_buffer(text))


def contiguous(given: Any, kind: type[np.generic]) -> NDArray[Any]:
    """Return one contiguous NumPy array of this kind; copied only if needed."""
    return np.ascontiguousarray(given, kind)


def _join_sections(sections: Sequence[bytes | memoryview]) -> bytes:
    """Return all sections, each padded to begin at a multiple of `_ALIGNMENT`."""
    parts: list[bytes | memoryview] = []
    for section in sections:
        parts += [section, bytes(-len(section) % _ALIGNMENT)]
    return b"".join(parts)


def _split_sections(data: memoryview, lengths: Sequence[int]) -> list[memoryview]:
    """Return the sections, of these lengths, that `_join_sections` joined."""
    sections, start = [], 0
    for length in lengths:
        sections.append(data[start : start + length])
        start += length + -length % _ALIGNMENT
    if start != len(data):
        raise ValueError(f"{len(data)} bytes are not sections of {start}")
    return sections


VERSION: Final = 5

OK: Final = 0
FAILED: Final = 1
BLOCKED: Final = 2
PENDING: Final = 3
STATUSES: Final = ("ok", "failed", "blocked", "pending")
"""Words for each status as columns have it, as in `graph.Status`."""

ArgumentSpec = tuple[str, int | None]
"""An argument: its name, and the number of refs in its list; None: it is one ref itself."""

_FIXED_PART: Final = struct.Struct("<B3xIQQ")
_LIMITS_PART: Final = struct.Struct("<dQQ?7x")
_HEADER_OFFSET: Final = _FIXED_PART.size + _LIMITS_PART.size
_COLUMN: Final = "known"
_REMEMBERED: Final = b"remembered"

KEY_BYTES: Final = 16
"""Bytes of a key: a digest of a function's code and of all inputs of a call."""
KNOWN_RESULTS: Final = pa.large_list(
    pa.struct([pa.field("key", pa.binary(KEY_BYTES)), pa.field("text", STRING_TYPE)])
)
"""Type of each value's keys, and the results that they had as canonical JSON text."""

_DIGEST_DIGITS: Final = 32
"""Number of digits of a unit's digest: 128 bits."""


@dataclass(frozen=True, slots=True)
class CallLimits:
    """Limits of a call of a function; 0: no limit."""

    seconds: float = 0.0
    memory: int = 0
    """Maximum bytes that the evaluator may grow by during the call."""
    is_forked: bool = False
    """Whether to evaluate the unit in a process that may end: for one that has ended an
    evaluator."""
    value_bytes: int = 0
    """Maximum bytes of a result as JSON."""


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

    The evaluator takes neighbours together: a run of values none of which is an input of another,
    and in it a run of one signature. So the best order is by level, then by signature; any
    topological order is right.
    """

    functions: list[tuple[str | None, str]] = field(default_factory=list)
    """Runtime and code; without a runtime, the function does not exist and the code is its id."""
    signatures: list[tuple[int, list[ArgumentSpec]]] = field(default_factory=list)
    """A function, and the arguments to call it with."""
    ids: pa.LargeStringArray = field(default_factory=_no_strings)
    signature_indices: NDArray[np.int32] = field(default_factory=_no_numbers)
    """The signature of each value."""
    statuses: NDArray[np.uint8] = field(default_factory=_no_codes)
    """Status of each value before, a position in `STATUSES`."""
    texts: pa.LargeStringArray = field(default_factory=_no_strings)
    """Former value as canonical JSON text; the message of a failed one; the id of the input that
    blocked a blocked one; empty for a pending one."""
    must_compute: NDArray[np.bool_] = field(default_factory=_no_flags)
    """Whether it is computed even if none of its inputs changes."""
    refs: NDArray[np.int32] = field(default_factory=_no_numbers)
    """Inputs of each value, argument after argument, value after value: *r* ≥ 0 is the unit's value
    *r*, which comes before it; *r* < 0 its constant ~*r*: -1 the first, -2 the second."""
    constant_ids: pa.LargeStringArray = field(default_factory=_no_strings)
    """Inputs from outside of the unit."""
    constant_known: NDArray[np.bool_] = field(default_factory=_no_flags)
    constant_texts: pa.LargeStringArray = field(default_factory=_no_strings)
    """The values; for a constant without value, anything."""
    limits: CallLimits = CallLimits()
    remembered: frozenset[int] = frozenset()
    """Functions of which the evaluator returns the key of each result that it computes."""
    known_results: pa.LargeListArray | None = None
    """Results that each value had before, as `KNOWN_RESULTS`; None: none is known. They change the
    way in which a value is computed, and not the result."""
    code: Mapping[int, str] = field(default_factory=dict)
    """Code that functions, by their place, have where the unit was made, see
    `runtimes.code_version`: an evaluator with other code computes nothing."""

    def __len__(self) -> int:
        return len(self.signature_indices)

    @property
    def nbytes(self) -> int:
        """Bytes of the columns whose size varies."""
        columns = (self.ids, self.texts, self.refs, self.constant_ids, self.constant_texts)
        return sum(int(column.nbytes) for column in columns)

    def has_runtime(self, *runtimes: str) -> bool:
        """Whether a function has one of these runtimes."""
        return any(runtime in runtimes for runtime, _ in self.functions)

    def widths(self) -> NDArray[np.int64]:
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
                self.code,
            ]
        )
        size = _HEADER_OFFSET + sum(n + -n % _ALIGNMENT for n in [len(header), *lengths])
        fixed = _FIXED_PART.pack(VERSION, len(header), len(self), size)
        encoded = _join_sections([fixed + _pack_limits(self.limits), header, *sections])
        return encoded + self._encode_known() if self.remembered else encoded

    def _encode_known(self) -> bytes:
        known = self.known_results
        if known is None:
            known = pa.nulls(len(self), KNOWN_RESULTS)
        batch = pa.record_batch({_COLUMN: known}).replace_schema_metadata(
            {_REMEMBERED: cbor2.dumps(sorted(self.remembered))}
        )
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, batch.schema) as stream:
            stream.write_batch(batch)
        encoded: bytes = sink.getvalue().to_pybytes()
        return encoded

    @classmethod
    def decode(cls, data: bytes | memoryview) -> Self:
        """Return the unit; its columns share the memory of `data` and are read-only.

        Raises:
            ValueError: these are not the bytes of a unit of this version.
        """
        if len(data) < _HEADER_OFFSET or data[0] != VERSION:
            raise ValueError(f"not a work unit of version {VERSION}")
        _, length, count, size = _FIXED_PART.unpack_from(data)
        seconds, memory, value_bytes, is_forked = _LIMITS_PART.unpack_from(data, _FIXED_PART.size)
        view, tail = memoryview(data)[:size], memoryview(data)[size:]
        start = _HEADER_OFFSET + length
        header = cbor2.loads(view[_HEADER_OFFSET:start])
        functions, signatures, constants, lengths, code = header
        parts = _split_sections(view[start + -length % _ALIGNMENT :], lengths)
        return cls(
            [(runtime, code) for runtime, code in functions],
            [(function, [(name, n) for name, n in specs]) for function, specs in signatures],
            _strings_from_buffers(count, *parts[0:2]),
            np.frombuffer(parts[2], np.int32),
            np.frombuffer(parts[3], np.uint8),
            _strings_from_buffers(count, *parts[4:6]),
            np.frombuffer(parts[6], np.bool_),
            np.frombuffer(parts[7], np.int32),
            _strings_from_buffers(constants, *parts[8:10]),
            np.frombuffer(parts[10], np.bool_),
            _strings_from_buffers(constants, *parts[11:13]),
            CallLimits(seconds, memory, is_forked, value_bytes),
            *_decode_known(tail),
            code,
        )


def _decode_known(tail: memoryview) -> tuple[frozenset[int], pa.LargeListArray | None]:
    if not len(tail):
        return frozenset(), None
    try:
        batch = pa.ipc.open_stream(tail).read_next_batch()
    except pa.ArrowInvalid as error:
        raise ValueError(f"not the known results of a unit: {error}") from error
    return frozenset(cbor2.loads(batch.schema.metadata[_REMEMBERED])), batch.column(_COLUMN)


def digest_of(unit: bytes | memoryview) -> str:
    """Return the digest of an encoded unit's values: neither limits nor known results change it."""
    view = memoryview(unit)[: _FIXED_PART.unpack_from(unit)[3]]
    return (
        blake3(view[: _FIXED_PART.size]).update(view[_HEADER_OFFSET:]).hexdigest()[:_DIGEST_DIGITS]
    )


def _pack_limits(limits: CallLimits) -> bytes:
    return _LIMITS_PART.pack(limits.seconds, limits.memory, limits.value_bytes, limits.is_forked)


VECTOR_THRESHOLD: Final = 48
"""Number of values from which computing them at once costs less than one by one."""
_WINDOW: Final = 2048
_NARROW: Final = 16


def highest_inputs(refs: NDArray[Any], widths: NDArray[np.int64]) -> NDArray[Any]:
    """Return the last of a unit's values that each value takes; below 0 if it takes none."""
    count = len(widths)
    width = int(widths[0]) if count else 0
    if 0 < width <= _NARROW and len(refs) == count * width and (widths == width).all():
        columns = refs.reshape(count, width)
        highest = columns[:, 0].copy()
        for column in range(1, width):
            np.maximum(highest, columns[:, column], out=highest)
        return highest
    highest = np.full(count, -1, np.int64)
    dependents = np.flatnonzero(widths)
    if len(dependents):
        starts = np.cumsum(widths[dependents]) - widths[dependents]
        highest[dependents] = np.maximum.reduceat(refs, starts)
    return highest


def segments(highest: NDArray[Any], start: int, count: int) -> Iterator[tuple[int, int, bool]]:
    """Yield the runs from value `start` up to `count`: bounds, and whether it is one wide run.

    Narrow runs come together, to be taken in order.
    """
    highest = highest[:count]
    narrow_from = start
    usual = VECTOR_THRESHOLD
    while start < count:
        end = _segment_end(highest, start, count, usual)
        if end - start >= VECTOR_THRESHOLD:
            if narrow_from < start:
                yield narrow_from, start, False
            yield start, end, True
            usual = end - start
            start = narrow_from = end
        else:
            start = _next_wide_start(highest, end, count)
    if narrow_from < count:
        yield narrow_from, count, False


def _segment_end(highest: NDArray[Any], start: int, count: int, step: int) -> int:
    """Return the first value that takes `start` or a later one; found best `step` after it."""
    end = start + 1
    while end < count:
        beyond = highest[end : end + step] >= start
        met = int(beyond.argmax())
        if beyond[met]:
            return end + met
        end += len(beyond)
        step *= 4
    return count


def _next_wide_start(highest: NDArray[Any], start: int, count: int) -> int:
    """Return the start of the next run that may be wide, faster than NumPy would."""
    stop = min(start + _WINDOW, count)
    begin = start
    for index, ref in enumerate(highest[start:stop].tolist(), start):
        if ref >= begin:
            begin = index
        elif index - begin >= VECTOR_THRESHOLD:
            return begin
    return max(start, begin)


def count_levels_below(unit: WorkUnit) -> NDArray[np.int64]:
    """Return the number of values below each value of the unit, on the longest path."""
    levels_below: list[int] = []
    refs, end = unit.refs.tolist(), 0
    for width in unit.widths().tolist():
        start, end = end, end + width
        levels_below.append(
            1 + max((levels_below[ref] for ref in refs[start:end] if ref >= 0), default=-1)
        )
    return np.array(levels_below, np.int64)


def sort_by_level(unit: WorkUnit) -> tuple[WorkUnit, NDArray[np.int64], list[int]]:
    """Return the unit by levels, each value's position in the old order, and each level's end.

    The cost is about a microsecond a value.
    """
    level = count_levels_below(unit)
    order = np.lexsort((unit.signature_indices, level))
    return reorder(unit, order), order, np.cumsum(np.bincount(level)).tolist()


def reorder(unit: WorkUnit, order: NDArray[np.int64]) -> WorkUnit:
    """Return the unit in another topological order: the old position of each value."""
    positions = np.empty(len(unit), np.int32)
    positions[order] = np.arange(len(unit))
    refs = _refs_of(unit, order)
    own = refs >= 0
    refs[own] = positions[refs[own]]
    return _select(unit, order, refs)


def extract(unit: WorkUnit, positions: NDArray[Any]) -> WorkUnit:
    """Return some values of a unit, ascending, and their inputs; none takes another of the rest."""
    refs = _refs_of(unit, positions)
    is_constant = refs < 0
    constants, inverse = np.unique(~refs[is_constant], return_inverse=True)
    refs[~is_constant] = np.searchsorted(positions, refs[~is_constant])
    refs[is_constant] = ~inverse.astype(np.int32)
    return replace(
        _select(unit, positions, refs),
        constant_ids=unit.constant_ids.take(constants),
        constant_known=unit.constant_known[constants],
        constant_texts=unit.constant_texts.take(constants),
    )


def with_inputs(unit: WorkUnit, position: int) -> NDArray[np.int64]:
    """Return the position of a value, and of all its direct and indirect inputs, ascending."""
    ends = unit.widths().cumsum()
    found, beyond = {position}, [position]
    while beyond:
        last = beyond.pop()
        refs = unit.refs[ends[last - 1] if last else 0 : ends[last]].tolist()
        new = {ref for ref in refs if ref >= 0} - found
        found |= new
        beyond += new
    return np.array(sorted(found), np.int64)


def _refs_of(unit: WorkUnit, positions: NDArray[Any]) -> NDArray[np.int32]:
    widths = unit.widths()
    starts = np.cumsum(widths) - widths
    taken = widths[positions]
    ends = np.cumsum(taken)
    within = np.arange(int(taken.sum())) - np.repeat(ends - taken, taken)
    refs: NDArray[np.int32] = unit.refs[np.repeat(starts[positions], taken) + within]
    return refs


def _select(unit: WorkUnit, positions: NDArray[Any], refs: NDArray[np.int32]) -> WorkUnit:
    return replace(
        unit,
        ids=unit.ids.take(positions),
        signature_indices=unit.signature_indices[positions],
        statuses=unit.statuses[positions],
        texts=unit.texts.take(positions),
        must_compute=unit.must_compute[positions],
        refs=refs,
        known_results=_known(unit, positions),
    )


def _known(unit: WorkUnit, positions: NDArray[Any]) -> pa.LargeListArray | None:
    known = unit.known_results
    return None if known is None else known.take(pa.array(positions))


FAILED_RUNTIME: Final = "failed"
"""Runtime of a stand-in for a function that fails its values; the code is the message."""
MAX_CULPRITS: Final = 16
"""Maximum number of crashing values in a unit; with more, the machine is to blame."""
TOO_MANY_CULPRITS: Final = f"more than {MAX_CULPRITS} values ended the evaluator"
"""Text of the error about such a unit, since the error comes from another process."""


class IncrementalSplit:
    """A unit, and the results of its values from the first up to `done`."""

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
            unit.remembered,
            None if unit.known_results is None else unit.known_results[start:stop],
            unit.code,
        )

    def record(self, stop: int, changes: pa.Table) -> None:
        """Record the changed results of the values from `done` up to `stop`.

        `changes` has columns as `results.SCHEMA` has them, with positions of the whole unit.
        """
        self.done = stop
        if stop == len(self._unit):
            return  # no value is left that could take any of it
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
        """Return which values are forced, or take one of an earlier piece that changed."""
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
        """Return ids, whether known, and texts of the cells of refs into the whole unit."""
        unit = self._unit
        settled, given = outside[outside >= 0], ~outside[outside < 0]
        rows = self._rows[settled]
        texts: list[pa.LargeStringArray] = [
            strings(unit.texts.take(pa.array(settled[rows < 0]))),
            strings(pa.chunked_array(self._found, STRING_TYPE).take(pa.array(rows[rows >= 0]))),
        ]
        # Both parts, sorted back into the order of `settled`.
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
    """Return refs as a piece that begins at `start` has them, and its constants, in order."""
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
    """Return the results of a piece that begins at `by`, with positions of the whole unit."""
    position = pc.add(changes.column("place"), pa.scalar(by, pa.int32()))
    return changes.set_column(
        changes.schema.get_field_index("place"), changes.field("place"), position
    )

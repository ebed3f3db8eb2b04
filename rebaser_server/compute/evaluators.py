"""Evaluators of a unit: value by value, or many values of one signature at once.

All of it works on the state of one evaluation, which no other module may touch: hence its length.
`ScalarEvaluator` computes values one by one, each by a call of its function; generated code calls a
function again and again with the cells of its arguments. `VectorEvaluator` computes many values of
one signature at once, if their function has a form for that.

An installed function is called in a new, empty context each time. A copy of a context would not do:
it shares decimal's settings with its origin, once they were looked at there.
"""

import time
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import Context
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from time import perf_counter
from types import CodeType, NoneType
from typing import Any, Final, Self, TypeAlias

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from rebaser_server.compute.call_watchdog import CallWatchdog
from rebaser_server.compute.errors import FunctionMissing, ResultTooLarge, describe_call, truncate
from rebaser_server.compute.functions.runtimes import INSTALLED
from rebaser_server.compute.functions.vectorised import (
    ArgumentBuffers,
    UniformResult,
    VectorFunction,
    VectorResult,
    any_in_row,
    gather_arguments,
)
from rebaser_server.compute.isolation import IDLE, VECTORISED
from rebaser_server.compute.json_values import (
    Content,
    ReadOnlyDict,
    ReadOnlyList,
    as_result,
    content_of,
    has_content,
    size_of,
)
from rebaser_server.compute.recall import UNKNOWN, Recall
from rebaser_server.compute.value_buffers import (
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
from rebaser_server.compute.work_unit import (
    BLOCKED,
    FAILED,
    OK,
    VECTOR_THRESHOLD,
    ArgumentSpec,
    WorkUnit,
)
from rebaser_server.values.canonical_json import dumps

_LARGE_TEXT: Final = 1 << 16
"""Size of a result, in bytes, from which its text is not made within the memory that a call may
take."""

_KINDS: Final[dict[type, int]] = {type(None): NULL, bool: BOOL, int: INT, float: FLOAT}


@dataclass(frozen=True, slots=True)
class CallFailure:
    message: str


@dataclass(frozen=True, slots=True, eq=False)
class EvaluationState:
    """Shared state of the evaluation of one unit. Positions: values, then constants."""

    unit: WorkUnit
    watchdog: CallWatchdog
    buffers: ValueBuffers
    refs: Positions
    """Position of each ref."""
    starts: Positions
    """Start of each value's refs, and the end of the last one's."""
    changed: bytearray
    """Whether each value came out changed."""
    is_changed: NDArray[np.bool_]
    """Whether each value came out changed, as an array in the memory of `changed`."""

    @classmethod
    def of(cls, unit: WorkUnit, watchdog: CallWatchdog) -> Self:
        count = len(unit)
        starts = np.zeros(count + 1, np.int64)
        np.cumsum(unit.widths(), out=starts[1:])
        refs = unit.refs.astype(np.int64)
        np.subtract(count - 1, refs, out=refs, where=refs < 0)
        changed = bytearray(count + len(unit.constant_known))
        is_changed = np.frombuffer(changed, np.bool_)
        return cls(unit, watchdog, ValueBuffers(unit), refs, starts, changed, is_changed)


class _ResultWriter:
    """Writes values into the buffers, and collects failed and blocked ones."""

    def __init__(self, state: EvaluationState) -> None:
        self._unit = state.unit
        self._buffers = state.buffers
        self._changed = state.changed
        self._is_changed = state.is_changed
        self._watchdog = state.watchdog
        self.blocked = 0
        self.positions: list[int] = []
        """Positions of failed and blocked values; `statuses` and `texts` run parallel."""
        self.statuses: list[int] = []
        self.texts: list[str] = []

    @property
    def mark(self) -> int:
        """Number of values that were noted as failed or blocked."""
        return len(self.positions)

    def changes(self, mark: int) -> list[Any]:
        """Return what was noted since there was this mark, for `take` in another process."""
        return [
            self.blocked,
            *(column[mark:] for column in (self.positions, self.statuses, self.texts)),
        ]

    def take(self, changes: list[Any]) -> None:
        self.blocked, positions, statuses, texts = changes
        self.positions += positions
        self.statuses += statuses
        self.texts += texts

    def to_failure(self, error: BaseException) -> CallFailure:
        if type(error) is FunctionMissing:
            return CallFailure(str(error))
        return CallFailure(self._watchdog.violation_message(error) or describe_call(error))

    def write_all(self, positions: Positions, returned: list[Any]) -> None:
        """Write the results, or failures, of calls for values at ascending positions."""
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
                value = as_result(value)
            except BaseException as error:  # a result's own code, or its threads'
                value = self.to_failure(error)
            else:
                self.write(position, value)
                return
        self.write_failure(position, value)

    def write(self, position: int, value: Any) -> None:
        """Write a value that is JSON, and read-only. One that is too large fails."""
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
                bits[position] = value or 0  # null has bits 0, too
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
        """Return the text of a value; raise `ResultTooLarge` early if its size shows."""
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
        """Write a blocked value, whose first input without a value is `ref`."""
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
    """Return the kind and the bits of values that are all sound, of one kind, and not TEXT."""
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


Call = Callable[[Callable[..., Any], list[Any]], Any]
"""Function that calls another one with the objects of its refs, argument after argument."""
CallLoop = Callable[[Callable[..., Any], memoryview, Callable[[Any], None], Iterable[Any]], None]
"""Function that calls another one for each row of a position and its arguments: it notes the
position in the first item of the memory, and hands on the result."""

_UNCHANGEABLE: Final = frozenset({NoneType, bool, int, float, str})
_MAX_GENERATED: Final = 1_000
"""Number of calls that a process keeps compiled: there is one for each length of a list."""


def _compile_call(
    function: Callable[..., Any], specs: list[ArgumentSpec], *, is_installed: bool
) -> Call:
    """Compile a call with named arguments, which costs half of one with a dict."""
    if not _can_be_generated(function, specs):
        if is_installed:
            return lambda function, given: Context().run(
                function, **_keyword_arguments(specs, given)
            )
        return lambda function, given: function(**_keyword_arguments(specs, given))
    arguments, start = [], 0
    for name, count in specs:
        end = start + (1 if count is None else count)
        arguments.append(f"{name}=given[{start if count is None else f'{start}:{end}'}]")
        start = end
    return _generate_call(
        ("Context().run(function, " if is_installed else "function(") + ", ".join(arguments)
    )


def _compile_loop(
    function: Callable[..., Any], specs: list[ArgumentSpec], *, is_installed: bool
) -> CallLoop:
    """Compile a loop of calls with nothing between them that could be done before or after."""
    names = tuple(name for name, _ in specs)
    call = _call_installed if is_installed else _call_own
    if _can_be_generated(function, specs):
        return _generate_loop(names, is_installed=is_installed)

    def loop(
        function: Callable[..., Any],
        watched: memoryview,
        collect: Callable[[Any], None],
        rows: Iterable[Any],
    ) -> None:
        for position, *given in rows:
            watched[0] = position
            collect(call(function, **dict(zip(names, given, strict=True))))

    return loop


def _call_own(function: Callable[..., Any], **arguments: Any) -> Any:
    return function(**arguments)


def _call_installed(function: Callable[..., Any], **arguments: Any) -> Any:
    result = Context().run(function, **arguments)
    return result if type(result) in _UNCHANGEABLE else as_result(result)


def _can_be_generated(function: Callable[..., Any], specs: list[ArgumentSpec]) -> bool:
    """Whether all names are of parameters, as the installed code declares them."""
    try:
        code = getattr(function, "__code__", None)
    except Exception:  # an installed object's own code
        code = None
    if not isinstance(code, CodeType):
        return not specs
    own = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    return all(name in own for name, _ in specs)


@lru_cache(_MAX_GENERATED)
def _generate_call(expression: str) -> Call:
    source = f"def call(function, given):\n    return {expression})\n"
    call: Call = _define(source, "call")
    return call


@lru_cache(_MAX_GENERATED)
def _generate_loop(names: tuple[str, ...], *, is_installed: bool) -> CallLoop:
    given = "".join(f", given{n}" for n in range(len(names)))
    arguments = ", ".join(f"{name}=given{n}" for n, name in enumerate(names))
    collect = f"collect(function({arguments}))"
    if is_installed:
        # The next call may change a returned object that is not read yet.
        collect = (
            f"result = Context().run(function, {arguments})\n"
            "        collect(result if type(result) in UNCHANGEABLE else as_result(result))"
        )
    source = (
        "def loop(function, watched, collect, rows):\n"
        f"    for position{given or ','} in rows:\n"
        "        watched[0] = position\n"
        f"        {collect}\n"
    )
    loop: CallLoop = _define(source, "loop")
    return loop


def _define(source: str, name: str) -> Any:
    namespace = {"Context": Context, "UNCHANGEABLE": _UNCHANGEABLE, "as_result": as_result}
    exec(source, namespace)  # noqa: S102 - ours, but for names that installed code declares
    return namespace[name]


def _keyword_arguments(specs: list[ArgumentSpec], given: list[Any]) -> dict[str, Any]:
    arguments: dict[str, Any] = {}
    start = 0
    for name, count in specs:
        if count is None:
            arguments[name] = given[start]
            start += 1
        else:
            arguments[name] = given[start : start + count]
            start += count
    return arguments


CHUNK: Final = 1024
"""Number of values whose inputs are made Python objects at once."""
_TIMED_EVERY: Final = 16
"""Number of calls in a row of a function, of which one is timed."""
_CONTAINERS: Final = frozenset({ReadOnlyDict, ReadOnlyList})
_CHANGED_ARGUMENTS: Final = CallFailure("TypeError: inputs are read-only: change a copy() of them")


class ScalarEvaluator:
    """Calls a function for one value after the other; its writer gets the results."""

    def __init__(self, state: EvaluationState) -> None:
        self._unit = state.unit
        self._buffers = state.buffers
        self._refs, self._starts = state.refs, state.starts
        self._changed = state.changed
        self._is_changed = state.is_changed
        self._functions: Sequence[Callable[..., Any]] = ()
        self._watchdog = state.watchdog
        self._position = state.watchdog.position
        self._content: dict[int, Content] = {}
        """Content of lists and objects that installed functions were given, by position."""
        self._is_installed = [runtime in INSTALLED for runtime, _ in state.unit.functions]
        self._calls: list[tuple[int, Callable[..., Any], Call]] = []
        self.writer = _ResultWriter(state)
        self.recall = Recall(state.unit, state.buffers) if state.unit.remembered else None
        self.returned: list[Any] = []
        """Results of the calls that are made together now."""
        count = len(state.unit.functions)
        self.calls = [0] * count
        """Number of calls by function; number and seconds of those that were timed."""
        self.timed_calls = [0] * count
        self.timed_seconds = [0.0] * count

    def use(self, functions: Sequence[Callable[..., Any]]) -> None:
        """Call these functions from now on, which stand in the unit's order."""
        self._functions = functions
        self._calls = [
            (
                number,
                functions[number],
                _compile_call(functions[number], specs, is_installed=self._is_installed[number]),
            )
            for number, specs in self._unit.signatures
        ]

    def changes(self, start: int, mark: int) -> list[Any]:
        """Return what computing the values from `start` on changed, for `take`."""
        recall = None if self.recall is None else self.recall.changes(start)
        costs = self.calls, self.timed_calls, self.timed_seconds
        return [self.writer.changes(mark), recall, costs]

    def take(self, changes: list[Any]) -> None:
        written, recall, (self.calls, self.timed_calls, self.timed_seconds) = changes
        if self.recall is not None:
            self.recall.take(recall)
        self.writer.take(written)

    def fail(self, position: int, message: str) -> None:
        """Let a value fail whose call ended its process."""
        number, _ = self._unit.signatures[self._unit.signature_indices[position]]
        self.calls[number] += 1
        self._materialise(self._refs[:0])
        self.writer.write_failure(position, CallFailure(message))

    def take_known(
        self, recall: Recall, positions: Positions, refs: Positions, call: int
    ) -> NDArray[np.bool_]:
        """Write the known results of these values; return the values that are to be computed."""
        left = np.ones(len(positions), np.bool_)
        self._materialise(refs)
        complete = np.flatnonzero(~any_in_row(self._buffers.kinds[refs] == NONE))
        for row, position in zip(complete.tolist(), positions[complete].tolist(), strict=True):
            result = recall.look_up(position, call, refs[row].tolist())
            if result is not UNKNOWN:
                self.writer.write(position, result)
                left[row] = False
        return left

    def evaluate_same_signature(self, positions: Positions, refs: Positions) -> None:
        """Compute these values, of one signature and ascending; a row of refs for each."""
        for first in range(0, len(positions), CHUNK):
            chunk = slice(first, first + CHUNK)
            self._evaluate_chunk(positions[chunk], refs[chunk])

    def _evaluate_chunk(self, positions: Positions, refs: Positions) -> None:
        """Compute a chunk of values.

        Arguments are prepared for the whole chunk: per call it would cost more than the call.
        """
        self._materialise(refs)
        nothing = self._buffers.kinds[refs] == NONE
        if nothing.any():
            blocked = any_in_row(nothing)
            blocking = refs[blocked, nothing[blocked].argmax(1)]
            for position, ref in zip(positions[blocked].tolist(), blocking.tolist(), strict=True):
                self.writer.write_blocked(position, ref)
            positions, refs = positions[~blocked], refs[~blocked]
        if not len(positions):
            return
        call = int(self._unit.signature_indices[positions[0]])
        if self._is_installed[self._calls[call][0]] and self._has_containers(refs):
            # A call may change its arguments: the next call takes them as they were.
            with self._watchdog.limiting_memory():
                for position, taken in zip(positions.tolist(), refs.tolist(), strict=True):
                    self._compute(position, call, taken)
        else:
            self.writer.write_all(positions, self._call_each(positions, refs))

    def _has_containers(self, refs: Positions) -> bool:
        texts = np.unique(refs[self._buffers.kinds[refs] == TEXT]).tolist()
        return any(type(self._buffers.objects[ref]) in _CONTAINERS for ref in texts)

    def _call_each(self, positions: Positions, refs: Positions) -> list[Any]:
        """Return the result of each call, or its failure."""
        number, specs = self._unit.signatures[self._unit.signature_indices[positions[0]]]
        function, is_installed = self._functions[number], self._is_installed[number]
        loop = _compile_loop(function, specs, is_installed=is_installed)
        returned = self.returned
        started = perf_counter()
        with self._watchdog.limiting_memory():
            self._call_rows(loop, function, specs, positions, refs)
        self.calls[number] += len(returned)
        self.timed_calls[number] += len(returned)
        self.timed_seconds[number] += perf_counter() - started
        self.returned = []
        return returned

    def _call_rows(
        self,
        loop: CallLoop,
        function: Callable[..., Any],
        specs: list[ArgumentSpec],
        positions: Positions,
        refs: Positions,
    ) -> None:
        """Add the results of calls, or their failures, for values at ascending positions."""
        columns = [positions.tolist(), *_argument_columns(specs, refs, self._buffers.objects)]
        returned, watched, count = self.returned, self._position, len(positions)
        before = len(returned)
        # An error ends the inner loop at its value, and the next round goes on from there.
        while (start := len(returned) - before) < count:
            rows = zip(*(column[start:] for column in columns), strict=True)
            try:
                loop(function, watched, returned.append, rows)
                watched[0] = IDLE
            except BaseException as error:  # its value's alone
                # A late call may have returned by now.
                position, failure = watched[0], self._to_failure(error)
                is_memory = issubclass(type(error), MemoryError)
                watched[0] = IDLE
            else:
                continue
            is_retried = is_memory and self._watchdog.may_retry(position)
            returned[before + bisect_left(columns[0], position) :] = [] if is_retried else [failure]

    def _to_failure(self, error: BaseException) -> CallFailure:
        """Make the failure for an error in another context, since that calls the error's code."""
        return Context().run(self.writer.to_failure, error)

    def evaluate_in_order(self, start: int, end: int) -> None:
        """Compute the values in `[start, end)` that must be computed or have a changed input."""
        for first in range(start, end, CHUNK):
            last = min(first + CHUNK, end)
            refs = self._refs[self._starts[first] : self._starts[last]]
            if self._unit.must_compute[first:last].any() or self._is_changed[refs].any():
                self._materialise(refs)
                with self._watchdog.limiting_memory():
                    self._compute_due(slice(first, last), refs.tolist())

    def _materialise(self, refs: Positions) -> None:
        unboxed = refs[~self._buffers.is_materialised[refs]]
        if len(unboxed) or not self._buffers.objects:
            self._buffers.materialise(unboxed)

    def _compute_due(self, where: slice, refs: list[int]) -> None:
        ends = (self._starts[where.start : where.stop + 1] - self._starts[where.start]).tolist()
        rows = zip(
            range(where.start, where.stop),
            self._unit.signature_indices[where].tolist(),
            ends,
            ends[1:],
            self._unit.must_compute[where].tolist(),
            strict=False,
        )
        kinds, compute, recall = self._buffers.kind_bytes, self._compute, self.recall
        is_changed = self._changed.__getitem__
        for position, call, start, end, must_compute in rows:
            taken = refs[start:end]
            if not (must_compute or any(map(is_changed, taken))):
                continue
            for ref in taken:
                if kinds[ref] == NONE:
                    self.writer.write_blocked(position, ref)
                    break
            else:
                known = UNKNOWN if recall is None else recall.look_up(position, call, taken)
                if known is UNKNOWN:
                    compute(position, call, taken)
                else:
                    self.writer.write(position, known)

    def _compute(self, position: int, call: int, taken: list[int]) -> None:
        number, function, make = self._calls[call]
        given = [self._buffers.objects[ref] for ref in taken]
        is_handed = self._is_installed[number] and not _CONTAINERS.isdisjoint(map(type, given))
        if is_handed:
            self._keep_content(taken)
        watched = self._position
        self.calls[number] += 1
        try:
            watched[0] = position
            if position % _TIMED_EVERY and self.timed_calls[number]:
                value = make(function, given)
            else:
                value = self._call_timed(number, function, make, given)
            if type(value) is not float or value - value != 0:  # not so for what is not finite
                value = as_result(value)
            watched[0] = IDLE
        except BaseException as error:  # its value's alone
            failure = self._to_failure(error)  # still watched: it calls the error's own code
            is_memory = issubclass(type(error), MemoryError)
            watched[0] = IDLE
        else:
            if is_handed and not self._restore_arguments(taken):
                self.writer.write_failure(position, _CHANGED_ARGUMENTS)
            else:
                self.writer.write(position, value)
            return
        if is_handed and not self._restore_arguments(taken):
            failure, is_memory = _CHANGED_ARGUMENTS, False
        if is_memory and self._watchdog.may_retry(position):
            self.calls[number] -= 1  # a value is counted once
            self._compute(position, call, taken)
        else:
            self.writer.write_failure(position, failure)

    def _keep_content(self, refs: list[int]) -> None:
        """Keep the content of lists and objects that an installed function is given."""
        for ref in refs:
            if ref not in self._content and type(self._buffers.objects[ref]) in _CONTAINERS:
                self._content[ref] = content_of(self._buffers.objects[ref])

    def _restore_arguments(self, refs: list[int]) -> bool:
        """Whether the lists and objects of a call are unchanged; if not, they are made anew."""
        handed = {ref for ref in refs if ref in self._content}
        changed = [ref for ref in handed if not has_content(self._content[ref])]
        if changed:
            self._buffers.materialise(np.array(changed, np.int64))
            for ref in changed:
                del self._content[ref]
        return not changed

    def _call_timed(
        self, number: int, function: Callable[..., Any], make: Call, given: list[Any]
    ) -> Any:
        started = perf_counter()
        try:
            return make(function, given)
        finally:
            self.timed_calls[number] += 1
            self.timed_seconds[number] += perf_counter() - started


def _argument_columns(
    specs: list[ArgumentSpec], refs: Positions, objects: list[Any]
) -> list[list[Any]]:
    """Return the calls' cells, argument by argument; each list argument gets a new list."""
    given = list(map(objects.__getitem__, refs.ravel().tolist()))
    width, columns, start = refs.shape[1], [], 0
    for _, count in specs:
        if count is None:
            columns.append(given[start::width])
        else:
            firsts = [row * width + start for row in range(len(refs))]
            columns.append([given[first : first + count] for first in firsts])
        start += 1 if count is None else count
    return columns


_PositionSet: TypeAlias = "slice | Positions"
"""Positions: a slice if they follow one another, which costs much less."""


_FEW: Final = 32
"""Average number of values of one signature up to which they are computed faster one by one."""


class VectorEvaluator:
    """Calls a function for many values at once; for others it asks the scalar evaluator."""

    def __init__(self, state: EvaluationState, scalar: ScalarEvaluator) -> None:
        self._unit = state.unit
        self._buffers = state.buffers
        self._refs, self._starts = state.refs, state.starts
        self._changed = state.is_changed
        self._vector_functions: list[VectorFunction | None] = []
        self._scalar = scalar
        self._watchdog = state.watchdog
        self._must_compute_all = bool(state.unit.must_compute.all())
        self.recomputed = 0
        self.calls = [0] * len(state.unit.functions)
        """Number of calls by function; and the seconds that they took in all."""
        self.seconds = [0.0] * len(state.unit.functions)

    def use(self, vector_functions: list[VectorFunction | None]) -> None:
        """Call these functions from now on, which stand in the unit's order."""
        self._vector_functions = vector_functions

    def changes(self) -> list[Any]:
        """Return the counters, for `take` in another process."""
        return [self.recomputed, self.calls, self.seconds]

    def take(self, changes: list[Any]) -> None:
        self.recomputed, self.calls, self.seconds = changes

    def evaluate(self, start: int, end: int) -> None:
        """Compute the due values in `[start, end)`, none of which is an input of another."""
        calls = self._unit.signature_indices[start:end]
        if (calls == calls[0]).all():
            self._evaluate_same_signature(int(calls[0]), slice(start, end))
            return
        positions = np.arange(start, end)
        if (np.diff(calls) < 0).any():
            positions = positions[np.argsort(calls, kind="stable")]
            calls = self._unit.signature_indices[positions]
        bounds = [0, *(np.flatnonzero(np.diff(calls)) + 1).tolist(), len(calls)]
        if len(bounds) * _FEW > end - start:
            self._scalar.evaluate_in_order(start, end)
            return
        for first, last in pairwise(bounds):
            one, other = int(positions[first]), int(positions[last - 1]) + 1
            together = other - one == last - first
            where = slice(one, other) if together else positions[first:last]
            self._evaluate_same_signature(int(calls[first]), where)

    def _evaluate_same_signature(self, call: int, where: _PositionSet) -> None:
        refs = self._refs_of(where)
        if not self._must_compute_all:
            must_compute = self._unit.must_compute[where]
            if not must_compute.all():
                due = must_compute | any_in_row(self._changed[refs])
                if not due.all():
                    where, refs = _to_positions(where)[due], refs[due]
        recall = self._scalar.recall
        if recall is not None and recall.is_for(call):
            left = self._scalar.take_known(recall, _to_positions(where), refs, call)
            where, refs = _to_positions(where)[left], refs[left]
        vector_function = self._vector_functions[self._unit.signatures[call][0]]
        if vector_function is not None and len(refs) >= VECTOR_THRESHOLD:
            rest = self._call_vectorised(vector_function, call, where, refs)
            if rest is None:
                return
            where, refs = _to_positions(where)[rest], refs[rest]
        if len(refs):
            self._scalar.evaluate_same_signature(_to_positions(where), refs)

    def _refs_of(self, where: _PositionSet) -> Positions:
        """Return a row of refs for each position."""
        starts = self._starts
        if isinstance(where, slice):
            some = self._refs[starts[where.start] : starts[where.stop]]
            return some.reshape(where.stop - where.start, -1) if len(some) else _no_refs(where)
        width = int(starts[where[0] + 1] - starts[where[0]])
        return self._refs.take(starts[where][:, None] + np.arange(width))

    def _call_vectorised(
        self, vector_function: VectorFunction, call: int, where: _PositionSet, refs: Positions
    ) -> Positions | None:
        """Compute as many as the vector form can; return the others, by position, if any."""
        function, specs = self._unit.signatures[call]
        count = len(refs)
        started = time.perf_counter()
        arguments, complete = gather_arguments(self._buffers, specs, refs)
        is_installed = self._unit.functions[function][0] == "python"
        try:
            if is_installed:
                with self._limiting_calls():
                    result = Context().run(_call, vector_function, arguments, count)
            else:
                result = _call(vector_function, arguments, count)
        except BaseException:  # one by one, each tells what is wrong
            return np.arange(count)
        left = None
        if isinstance(result, UniformResult) and complete is None:
            self._write_uniform(where, result)
        else:
            result = result.expand() if isinstance(result, UniformResult) else result
            left = self._write(where, result, complete)
        count -= 0 if left is None else len(left)
        self.calls[function] += count
        self.recomputed += count
        self.seconds[function] += time.perf_counter() - started
        return left

    @contextmanager
    def _limiting_calls(self) -> Iterator[None]:
        """Hold all calls at once to the limits of one: beyond, they are made one by one."""
        position = self._watchdog.position
        with self._watchdog.limiting_memory():
            try:
                position[0] = VECTORISED
                yield
            finally:
                position[0] = IDLE

    def _write_uniform(self, where: _PositionSet, result: UniformResult) -> None:
        buffers = self._buffers
        is_new = buffers.bits[where] != result.bits
        is_new |= buffers.kinds[where] != result.kind
        bits = result.bits
        if not is_new.all():
            where, bits = _to_positions(where)[is_new], bits[is_new]
        buffers.bits[where] = bits
        buffers.kinds[where] = result.kind
        self._changed[where] = True

    def _write(
        self, where: _PositionSet, result: VectorResult, complete: NDArray[np.bool_] | None
    ) -> Positions | None:
        buffers = self._buffers
        self._drop_invalid_texts(result)
        # A value with an input without value is blocked, also if the form gives it a result.
        done = result.kinds != NONE
        if complete is not None:
            done &= complete
        is_new = (buffers.kinds[where] != result.kinds) | (buffers.bits[where] != result.bits)
        positions = _to_positions(where)
        if result.chosen is not None:
            same = np.flatnonzero(done & ~is_new & (result.kinds == TEXT))
            if len(same):
                one, other = (
                    buffers.texts_at(positions[same]),
                    buffers.texts_at(result.chosen[same]),
                )
                is_new[same] = pa.compute.not_equal(one, other).to_numpy(zero_copy_only=False)
        is_new &= done
        written = positions[is_new]
        buffers.kinds[written] = result.kinds[is_new]
        buffers.bits[written] = result.bits[is_new]
        if result.chosen is not None:
            buffers.alias_texts(written, result.chosen[is_new])
        self._changed[written] = True
        return None if done.all() else np.flatnonzero(~done)

    def _drop_invalid_texts(self, result: VectorResult) -> None:
        """Drop texts beyond the limits of a value, which are no results."""
        if result.chosen is None:
            return
        texts = np.flatnonzero(result.kinds == TEXT)
        if len(texts):
            chosen = result.chosen[texts]
            self._buffers.drop_too_deep(np.unique(chosen))
            is_too_large = self._buffers.longer_than(chosen, self._watchdog.value_bytes)
            result.kinds[texts[is_too_large | (self._buffers.kinds[chosen] == NONE)]] = NONE


def _to_positions(where: _PositionSet) -> Positions:
    return np.arange(where.start, where.stop) if isinstance(where, slice) else where


def _no_refs(where: slice) -> Positions:
    return np.empty((where.stop - where.start, 0), np.int64)


def _call(
    function: VectorFunction, arguments: dict[str, ArgumentBuffers], count: int
) -> VectorResult | UniformResult:
    with np.errstate(all="ignore"):
        return function(arguments, count)

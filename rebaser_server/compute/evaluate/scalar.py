"""Computes values one by one, each by a call of its function."""

import os
from bisect import bisect_left
from collections.abc import Callable, Sequence
from contextvars import Context
from dataclasses import dataclass
from functools import partial
from math import inf
from time import perf_counter
from typing import Any, Final

import numpy as np

from rebaser_server.compute.evaluate.call_codegen import Call, CallLoop, compile_call, compile_loop
from rebaser_server.compute.evaluate.call_watchdog import IDLE
from rebaser_server.compute.evaluate.process_guard import CUT_OFF, ProcessGuard, Spoilt
from rebaser_server.compute.evaluate.result_writer import (
    CallFailure,
    EvaluationState,
    ResultWriter,
    SavedValues,
)
from rebaser_server.compute.functions.vector_functions import any_in_row
from rebaser_server.compute.json_values import (
    Content,
    ReadOnlyDict,
    ReadOnlyList,
    content_of,
    has_content,
    read_only,
)
from rebaser_server.compute.units.value_buffers import NONE, NOTHING, TEXT, Positions
from rebaser_server.compute.units.work_unit import ArgumentSpec

CHUNK: Final = 1024
"""Values whose inputs are made Python objects at once."""
_TIMED_EVERY: Final = 16
"""Of so many calls of a function that are made one after the other one is timed."""
_STRICT_ROWS: Final = 64
"""Values that are computed at once, if a call of an installed function does not end that."""
_len: Final = len
"""Python's own `len`, for use between a call and the look at what it changed."""
_GROUP_SECONDS: Final = 0.0005
"""Seconds of calls after which it costs little to see what they changed in the process."""
_CONTAINERS: Final = frozenset({ReadOnlyDict, ReadOnlyList})
_Row = tuple[int, int, int, int, bool]
"""A position, its signature, where its refs begin and end, and whether it must be computed."""


class _ArgumentsChanged(Exception):
    """A function changed its arguments, although they refuse that in Python."""


_CHANGED_ARGUMENTS: Final = CallFailure("TypeError: inputs are read-only: change a copy() of them")


@dataclass(frozen=True, slots=True)
class _Saved:
    """State of values, and of the counters, before the values were computed."""

    written: SavedValues
    calls: list[int]
    timed_calls: list[int]
    timed_seconds: list[float]


class ScalarEvaluator:
    """Calls a function for one value after the other; its writer has what they come to."""

    def __init__(self, state: EvaluationState, functions: Sequence[Callable[..., Any]]) -> None:
        self._unit = state.unit
        self._buffers = state.buffers
        self._refs, self._starts = state.refs, state.starts
        self._changed = state.changed
        self._is_changed = state.is_changed
        self._functions = functions
        self._guard = state.guard
        self._handed: set[int] = set()
        """Positions of the lists and objects that the current calls were given."""
        self._content: dict[int, Content] = {}
        """Content of lists and objects that installed functions were given, by position."""
        self._group_sizes = [1] * len(functions)
        """Number of calls, by function, after which the process is looked at."""
        self._watchdog = state.watchdog
        self._position = state.watchdog.position
        self._is_installed = [runtime == "python" for runtime, _ in state.unit.functions]
        self._calls = [
            (
                number,
                functions[number],
                compile_call(functions[number], specs, is_installed=self._is_installed[number]),
            )
            for number, specs in state.unit.signatures
        ]
        self.writer = ResultWriter(state)
        self.returned: list[Any] = []
        """What was returned to the calls that are made together now."""
        self.calls = [0] * len(functions)
        """By function; and of those that were timed how many they were and the seconds in all."""
        self.timed_calls = [0] * len(functions)
        self.timed_seconds = [0.0] * len(functions)

    def evaluate_same_signature(self, positions: Positions, refs: Positions) -> None:
        """Compute these values, of one signature and ascending; a row of refs for each."""
        for first in range(0, len(positions), CHUNK):
            chunk = slice(first, first + CHUNK)
            self._evaluate_chunk(positions[chunk], refs[chunk])

    def _evaluate_chunk(self, positions: Positions, refs: Positions) -> None:
        """What surrounds the calls is done for all at once: it would take longer than they."""
        self._materialise(refs)
        nothing = self._buffers.kinds[refs] == NONE
        if nothing.any():
            blocked = any_in_row(nothing)
            blocking = refs[blocked, nothing[blocked].argmax(1)]
            for position, ref in zip(positions[blocked].tolist(), blocking.tolist(), strict=True):
                self.writer.write_blocked(position, ref)
            positions, refs = positions[~blocked], refs[~blocked]
        if len(positions):
            self.writer.write_all(positions, self._call_each(positions, refs))

    def _call_each(self, positions: Positions, refs: Positions) -> list[Any]:
        """Result of each call, or its failure.

        Raises:
            Spoilt: nothing of these values is computed.
        """
        number, specs = self._unit.signatures[self._unit.signature_indices[positions[0]]]
        function, is_installed = self._functions[number], self._is_installed[number]
        loop = compile_loop(function, specs, is_installed=is_installed)
        call = partial(self._call_rows, loop, function, specs)
        returned = self.returned
        started = perf_counter()
        with self._watchdog.limiting_memory():
            if self._guard is None or not is_installed:
                call(positions, refs)
            else:
                try:
                    self._call_in_groups(self._guard, call, positions, refs)
                except Spoilt:
                    self.returned = []
                    raise
        self.calls[number] += len(returned)
        self.timed_calls[number] += len(returned)
        self.timed_seconds[number] += perf_counter() - started
        self.returned = []
        return returned

    def _call_in_groups(
        self,
        guard: ProcessGuard,
        call: Callable[[Positions, Positions], None],
        positions: Positions,
        refs: Positions,
    ) -> None:
        """Calls that follow one another, until they take longer than to see what they changed.

        What changed anything is made again, one by one: so each begins in a process where none
        of the others was.
        """
        returned, start = self.returned, 0
        number, _ = self._unit.signatures[self._unit.signature_indices[positions[0]]]
        while start < len(positions):
            size = self._group_sizes[number]
            stop = min(start + size, len(positions))
            taken = refs[start:stop]
            self._hand_over(np.unique(taken[self._buffers.kinds[taken] == TEXT]).tolist())
            began = perf_counter()
            call(positions[start:stop], taken)
            seconds = perf_counter() - began
            try:
                is_alone = stop - start == 1
                stands = self._is_sound(guard, int(positions[start]), is_alone=is_alone)
            except _ArgumentsChanged:
                returned[start:], stands = [_CHANGED_ARGUMENTS], True
            if stands:
                start = stop
                if seconds < _GROUP_SECONDS / 2 and not guard.is_strict:
                    self._group_sizes[number] = min(2 * size, CHUNK)
            else:
                del returned[start:]
                self._group_sizes[number] = 1
            if seconds > _GROUP_SECONDS:
                self._group_sizes[number] = max(1, size // 2)

    def _hand_over(self, refs: list[int]) -> None:
        """Remember what is in the lists and objects that an installed function is given."""
        for ref in refs:
            if type(cell := self._buffers.objects[ref]) in _CONTAINERS:
                self._handed.add(ref)
                if ref not in self._content:
                    self._content[ref] = content_of(cell)

    def _restore_arguments(self) -> bool:
        """Whether those handed over are as they were; if not, they are made anew."""
        changed = [ref for ref in self._handed if not has_content(self._content[ref])]
        self._handed.clear()
        if changed:
            self._buffers.materialise(np.array(changed, np.int64))
            for ref in changed:
                del self._content[ref]
        return not changed

    def _is_sound(self, guard: ProcessGuard, position: int, *, is_alone: bool) -> bool:
        """Whether what calls came to stands, of which one was for the value at `position`.

        `is_alone`: it was the only one, and nothing came after it.

        Raises:
            Spoilt: it does not, and this process cannot compute them again.
            _ArgumentsChanged: the only call has changed its arguments.
        """
        is_clean = guard.is_clean()
        are_arguments_same = not self._handed or self._restore_arguments()
        if is_clean and are_arguments_same:
            return True
        changed = guard.put_back()
        self._watchdog.restart()
        if guard.is_cut_off:
            self._position[0] = position  # whose fault it is, if it is a value by itself
            os._exit(CUT_OFF)
        if changed and is_alone:
            number, _ = self._unit.signatures[self._unit.signature_indices[position]]
            value = self._unit.ids[position].as_py()
            guard.report(self._unit.functions[number][1], f"at value {value}", changed)
        if guard.spoilt and not guard.is_strict:
            raise Spoilt
        if is_alone and not are_arguments_same:
            raise _ArgumentsChanged
        return is_alone

    def _call_rows(
        self,
        loop: CallLoop,
        function: Callable[..., Any],
        specs: list[ArgumentSpec],
        positions: Positions,
        refs: Positions,
    ) -> None:
        """Add what calls return, or their failures, for values at ascending positions."""
        columns = [positions.tolist(), *_argument_columns(specs, refs, self._buffers.objects)]
        returned, watched, count = self.returned, self._position, len(positions)
        before = len(returned)
        while (start := _len(returned) - before) < count:
            rows = zip(*(column[start:] for column in columns), strict=True)
            try:
                loop(function, watched, returned.append, rows)
                watched[0] = IDLE
            except BaseException as error:  # its value's alone
                # What is late may have returned by now.
                position, failure = watched[0], self._to_failure(error)
                is_memory = issubclass(type(error), MemoryError)
                watched[0] = IDLE
            else:
                continue
            is_retried = is_memory and self._watchdog.may_retry(position)
            returned[before + bisect_left(columns[0], position) :] = [] if is_retried else [failure]

    def _to_failure(self, error: BaseException) -> CallFailure:
        """Failure for an error, made in a context of its own: that calls the error's code."""
        return Context().run(self.writer.to_failure, error)

    def evaluate_in_order(self, start: int, end: int) -> int:
        """Compute those values from `start` to `end` that are due, which is seen on the way.

        Returns:
            Before which all is computed: `end`, or less if the process was spoilt.

        Raises:
            Spoilt: likewise, and it does not stand what some of the values came to.
        """
        for first in range(start, end, CHUNK):
            last = min(first + CHUNK, end)
            refs = self._refs[self._starts[first] : self._starts[last]]
            if self._unit.must_compute[first:last].any() or self._is_changed[refs].any():
                self._materialise(refs)
                with self._watchdog.limiting_memory():
                    done = self._compute_due(slice(first, last), refs.tolist())
                if done < last:
                    return done
        return end

    def _materialise(self, refs: Positions) -> None:
        unboxed = refs[~self._buffers.is_materialised[refs]]
        if len(unboxed) or not self._buffers.objects:
            self._buffers.materialise(unboxed)

    def _compute_due(self, where: slice, refs: list[int]) -> int:
        """The position before which all is computed."""
        start: int = where.start
        ends = (self._starts[where.start : where.stop + 1] - self._starts[where.start]).tolist()
        rows = list(
            zip(
                range(where.start, where.stop),
                self._unit.signature_indices[where].tolist(),
                ends,
                ends[1:],
                self._unit.must_compute[where].tolist(),
                strict=False,
            )
        )
        guard, done = self._guard, 0
        if guard is None:
            self._compute_rows(rows, refs, inf)
            return start + len(rows)
        size = _STRICT_ROWS if guard.is_strict else 1
        while done < len(rows):
            group = rows[done : done + size]
            before = self._save(group[0][0], group[-1][0] + 1)
            until = 0.0 if guard.is_strict else perf_counter() + _GROUP_SECONDS
            count, calls, last = self._compute_rows(group, refs, until)
            # Behind a call even Rebaser's own functions may have met what it changed.
            is_alone = calls == 1 and last == group[count - 1][0]
            try:
                stands = not calls or self._is_sound(guard, last, is_alone=is_alone)
            except _ArgumentsChanged:
                self._restore(before)
                self._compute_rows(group[: count - 1], refs, inf)
                self._count_changed_arguments(last, group[count - 1][1])
                stands = True
            if stands:
                done += count
                size = size if guard.is_strict else 2 * size
            else:
                self._restore(before)
                size = 1
            if guard.is_over:
                break
        return start + done

    def _count_changed_arguments(self, position: int, call: int) -> None:
        self.calls[self._calls[call][0]] += 1
        self.writer.write_failure(position, _CHANGED_ARGUMENTS)

    def _compute_rows(
        self, rows: list[_Row], refs: list[int], until: float
    ) -> tuple[int, int, int]:
        """Number of rows done and of calls of installed functions, and the last call's position.

        `until`: after a call of such a function that ends later, the other rows are left.
        """
        objects, compute, is_installed = self._buffers.objects, self._compute, self._is_installed
        is_changed, count, calls, last = self._changed.__getitem__, len(rows), 0, -1
        for position, call, start, end, must_compute in rows:
            taken = refs[start:end]
            if not (must_compute or any(map(is_changed, taken))):
                continue
            given = [objects[ref] for ref in taken]
            for cell in given:
                if cell is NOTHING:
                    self.writer.write_blocked(position, taken[given.index(NOTHING)])
                    break
            else:
                if not is_installed[self._calls[call][0]]:
                    compute(position, call, given)
                    continue
                self._hand_over(taken)
                calls, last = calls + 1, position
                compute(position, call, given)
                if perf_counter() > until:
                    return position - rows[0][0] + 1, calls, last
        return count, calls, last

    def _save(self, start: int, end: int) -> _Saved:
        """Copy of what computing the values from `start` to `end` changes."""
        counts = self.calls[:], self.timed_calls[:], self.timed_seconds[:]
        return _Saved(self.writer.save(start, end), *counts)

    def _restore(self, saved: _Saved) -> None:
        self.writer.restore(saved.written)
        for position in range(saved.written.start, saved.written.end):
            self._content.pop(position, None)
        self.calls[:], self.timed_calls[:] = saved.calls, saved.timed_calls
        self.timed_seconds[:] = saved.timed_seconds

    def _compute(self, position: int, call: int, given: list[Any]) -> None:
        number, function, make = self._calls[call]
        watched = self._position
        self.calls[number] += 1
        try:
            watched[0] = position
            if position % _TIMED_EVERY and self.timed_calls[number]:
                value = make(function, given)
            else:
                value = self._call_timed(number, function, make, given)
            if type(value) is not float or value - value != 0:  # not so for what is not finite
                value = read_only(value)
            watched[0] = IDLE
        except BaseException as error:  # its value's alone
            failure = self._to_failure(error)  # still watched: it calls the error's own code
            is_memory = issubclass(type(error), MemoryError)
            watched[0] = IDLE
        else:
            self.writer.write(position, value)
            return
        if is_memory and self._watchdog.may_retry(position):
            self.calls[number] -= 1  # of a value that is counted once
            self._compute(position, call, given)
        else:
            self.writer.write_failure(position, failure)

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
    """Argument by argument what each call is given, a list of its own for each that takes one."""
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

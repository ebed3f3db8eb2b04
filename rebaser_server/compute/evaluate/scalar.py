"""Computes values one by one, each by a call of its function."""

import time
from bisect import bisect_left
from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np

from rebaser_server.compute.evaluate.call_codegen import Call, compile_call, compile_loop
from rebaser_server.compute.evaluate.call_watchdog import IDLE
from rebaser_server.compute.evaluate.result_writer import EvaluationState, ResultWriter
from rebaser_server.compute.functions.vector_functions import any_in_row
from rebaser_server.compute.json_values import read_only
from rebaser_server.compute.units.value_buffers import NONE, NOTHING, Positions
from rebaser_server.compute.units.work_unit import ArgumentSpec

CHUNK: Final = 1024
"""Values whose inputs are made Python objects at once."""
_TIMED_EVERY: Final = 16
"""Of so many calls of a function that are made one after the other one is timed."""


class ScalarEvaluator:
    """Calls a function for one value after the other; its writer has what they come to."""

    def __init__(self, state: EvaluationState, functions: Sequence[Callable[..., Any]]) -> None:
        self._unit = state.unit
        self._buffers = state.buffers
        self._refs, self._starts = state.refs, state.starts
        self._changed = state.changed
        self._is_changed = state.is_changed
        self._functions = functions
        self._watchdog = state.watchdog
        self._position = state.watchdog.position
        self._calls = [
            (number, functions[number], compile_call(functions[number], specs))
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
        """What each call returns, or its failure."""
        number, specs = self._unit.signatures[self._unit.signature_indices[positions[0]]]
        function, watched = self._functions[number], self._position
        loop = compile_loop(function, specs)
        columns = [positions.tolist(), *_argument_columns(specs, refs, self._buffers.objects)]
        returned = self.returned
        started = time.perf_counter()
        with self._watchdog.limiting_memory():
            while len(returned) < len(positions):
                rows = zip(*(column[len(returned) :] for column in columns), strict=True)
                try:
                    loop(function, watched, returned.append, rows)
                    watched[0] = IDLE
                except BaseException as error:  # its value's alone
                    # What is late may have returned by now.
                    position, failure = watched[0], self.writer.to_failure(error)
                    is_memory = isinstance(error, MemoryError)
                    watched[0] = IDLE
                else:
                    continue
                is_retried = is_memory and self._watchdog.may_retry(position)
                returned[bisect_left(columns[0], position) :] = [] if is_retried else [failure]
        self.calls[number] += len(returned)
        self.timed_calls[number] += len(returned)
        self.timed_seconds[number] += time.perf_counter() - started
        self.returned = []
        return returned

    def evaluate_in_order(self, start: int, end: int) -> None:
        """Compute those values from `start` to `end` that are due, which is seen on the way."""
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
        objects, compute = self._buffers.objects, self._compute
        is_changed = self._changed.__getitem__
        columns = zip(
            range(where.start, where.stop),
            self._unit.signature_indices[where].tolist(),
            np.diff(self._starts[where.start : where.stop + 1]).tolist(),
            self._unit.must_compute[where].tolist(),
            strict=True,
        )
        end = 0
        for position, call, width, must_compute in columns:
            start, end = end, end + width
            taken = refs[start:end]
            if not (must_compute or any(map(is_changed, taken))):
                continue
            given = [objects[ref] for ref in taken]
            for cell in given:
                if cell is NOTHING:
                    self.writer.write_blocked(position, taken[given.index(NOTHING)])
                    break
            else:
                compute(position, call, given)

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
            failure = self.writer.to_failure(error)  # still watched: it calls the error's own code
            is_memory = isinstance(error, MemoryError)
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
        started = time.perf_counter()
        try:
            return make(function, given)
        finally:
            self.timed_calls[number] += 1
            self.timed_seconds[number] += time.perf_counter() - started


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

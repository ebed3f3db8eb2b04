"""Computes many values of one signature at once, where their function has a form for that."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import Context
from itertools import pairwise
from typing import TypeAlias

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from rebaser_server.compute.evaluate.call_watchdog import IDLE
from rebaser_server.compute.evaluate.process_guard import Spoilt
from rebaser_server.compute.evaluate.result_writer import EvaluationState
from rebaser_server.compute.evaluate.scalar import ScalarEvaluator
from rebaser_server.compute.functions.vector_functions import (
    ArgumentBuffers,
    UniformResult,
    VectorFunction,
    VectorResult,
    any_in_row,
    gather_arguments,
)
from rebaser_server.compute.units.segments import VECTOR_THRESHOLD
from rebaser_server.compute.units.value_buffers import NONE, TEXT, Positions

PositionSet: TypeAlias = "slice | Positions"
"""Places: a slice of those that follow one another, which costs much less."""


class VectorEvaluator:
    """Calls a function for many values at once; for others it has the scalar evaluator do it."""

    def __init__(
        self,
        state: EvaluationState,
        vector_functions: list[VectorFunction | None],
        scalar: ScalarEvaluator,
    ) -> None:
        self._unit = state.unit
        self._buffers = state.buffers
        self._refs, self._starts = state.refs, state.starts
        self._changed = state.is_changed
        self._vector_functions = vector_functions
        self._scalar = scalar
        self._watchdog = state.watchdog
        self._guard = state.guard
        self._must_compute_all = bool(state.unit.must_compute.all())
        self.recomputed = 0
        self.calls = [0] * len(vector_functions)
        """By function; and the seconds that they took in all."""
        self.seconds = [0.0] * len(vector_functions)

    def evaluate(self, start: int, end: int) -> None:
        """Compute the values from `start` to `end` that are due; none is an input of another."""
        calls = self._unit.signature_indices[start:end]
        if (calls == calls[0]).all():
            self._evaluate_same_signature(int(calls[0]), slice(start, end))
            return
        positions = np.arange(start, end)
        if (np.diff(calls) < 0).any():
            positions = positions[np.argsort(calls, kind="stable")]
            calls = self._unit.signature_indices[positions]
        bounds = [0, *(np.flatnonzero(np.diff(calls)) + 1).tolist(), len(calls)]
        for first, last in pairwise(bounds):
            one, other = int(positions[first]), int(positions[last - 1]) + 1
            together = other - one == last - first
            where = slice(one, other) if together else positions[first:last]
            self._evaluate_same_signature(int(calls[first]), where)

    def _evaluate_same_signature(self, call: int, where: PositionSet) -> None:
        refs = self._refs_of(where)
        if not self._must_compute_all:
            must_compute = self._unit.must_compute[where]
            if not must_compute.all():
                due = must_compute | any_in_row(self._changed[refs])
                if not due.all():
                    where, refs = _to_positions(where)[due], refs[due]
        vector_function = self._vector_functions[self._unit.signatures[call][0]]
        if vector_function is not None and len(refs) >= VECTOR_THRESHOLD:
            left = self._call_vectorised(vector_function, call, where, refs)
            if left is None:
                return
            where, refs = _to_positions(where)[left], refs[left]
        if len(refs):
            self._scalar.evaluate_same_signature(_to_positions(where), refs)

    def _refs_of(self, where: PositionSet) -> Positions:
        """A row for each."""
        starts = self._starts
        if isinstance(where, slice):
            some = self._refs[starts[where.start] : starts[where.stop]]
            return some.reshape(where.stop - where.start, -1) if len(some) else _no_refs(where)
        width = int(starts[where[0] + 1] - starts[where[0]])
        return self._refs.take(starts[where][:, None] + np.arange(width))

    def _call_vectorised(
        self, vector_function: VectorFunction, call: int, where: PositionSet, refs: Positions
    ) -> Positions | None:
        """Compute those of these that the form can; return the others, by position, if any."""
        function, specs = self._unit.signatures[call]
        count = len(refs)
        started = time.perf_counter()
        arguments, complete = gather_arguments(self._buffers, specs, refs)
        is_installed = self._unit.functions[function][0] == "python"
        try:
            if is_installed:
                with self._limiting_calls(where):
                    result = Context().run(_call, vector_function, arguments, count)
            else:
                result = _call(vector_function, arguments, count)
        except BaseException:  # one by one, each tells what is wrong
            return np.arange(count)
        finally:
            if is_installed:
                self._put_process_back(function, where)
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
    def _limiting_calls(self, where: PositionSet) -> Iterator[None]:
        """Hold all calls at once to the limits of one: beyond, they are made one by one."""
        position = self._watchdog.position
        with self._watchdog.limiting_memory():
            try:
                position[0] = where.start if isinstance(where, slice) else where[0]
                yield
            finally:
                position[0] = IDLE
                self._watchdog.restart()

    def _put_process_back(self, function: int, where: PositionSet) -> None:
        """Raises `Spoilt`."""
        if self._guard is not None and not self._guard.is_clean():
            changed = self._guard.put_back()
            first = where.start if isinstance(where, slice) else int(where[0])
            name, value = self._unit.functions[function][1], self._unit.ids[first].as_py()
            self._guard.report(name, f"at value {value}", changed)
            if self._guard.spoilt:
                raise Spoilt

    def _write_uniform(self, where: PositionSet, result: UniformResult) -> None:
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
        self, where: PositionSet, result: VectorResult, complete: NDArray[np.bool_] | None
    ) -> Positions | None:
        buffers = self._buffers
        self._drop_invalid_texts(result)
        # What has an input without a value is blocked, whatever the form makes of that.
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
        """What is beyond the limits of a value is no result."""
        if result.chosen is None:
            return
        texts = np.flatnonzero(result.kinds == TEXT)
        if len(texts):
            chosen = result.chosen[texts]
            self._buffers.drop_too_deep(np.unique(chosen))
            is_too_large = self._buffers.longer_than(chosen, self._watchdog.value_bytes)
            result.kinds[texts[is_too_large | (self._buffers.kinds[chosen] == NONE)]] = NONE


def _to_positions(where: PositionSet) -> Positions:
    return np.arange(where.start, where.stop) if isinstance(where, slice) else where


def _no_refs(where: slice) -> Positions:
    return np.empty((where.stop - where.start, 0), np.int64)


def _call(
    function: VectorFunction, arguments: dict[str, ArgumentBuffers], count: int
) -> VectorResult | UniformResult:
    with np.errstate(all="ignore"):
        return function(arguments, count)

"""Functions of many values at once: what forms they have, and how cells become their arrays.

A Python function `f` may have an attribute `vectorised`, a function of the same arguments: for
each value an array with an item for each call, for each list a matrix with a row for each call.
It returns an array with the results, masked where it has none. See `docs/functions.md`.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final, Self

import numpy as np
from numpy.typing import NDArray

from rebaser_server.compute.units.segments import VECTOR_THRESHOLD
from rebaser_server.compute.units.value_buffers import (
    BOOL,
    FLOAT,
    INT,
    NONE,
    Bits,
    Kinds,
    Positions,
    ValueBuffers,
)
from rebaser_server.compute.units.work_unit import ArgumentSpec

_NARROW: Final = 16

MAX_INTEGER: Final = 2**31
"""Magnitude below which integers are given to a vectorised function, unless it says otherwise in
an attribute `integers`: two of them multiplied, or as many of them added, are right in 64 bits."""


def any_in_row(matrix: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Whether one of each row is true; NumPy's own is slow where rows are short."""
    if not 0 < matrix.shape[1] <= _NARROW:
        any_true: NDArray[np.bool_] = np.any(matrix, 1)
        return any_true
    any_true = matrix[:, 0].copy()
    for column in range(1, matrix.shape[1]):
        any_true |= matrix[:, column]
    return any_true


def all_in_row(matrix: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Whether all of each row are true."""
    return ~any_in_row(~matrix)


@dataclass(slots=True)
class ArgumentBuffers:
    """One argument of many calls: a row for each call, a column for each cell."""

    kinds: NDArray[np.uint8]
    bits: NDArray[np.int64]
    positions: Positions
    is_list: bool
    kind: int = NONE
    """Of all cells, if it is known that they are of one."""

    @property
    def floats(self) -> NDArray[np.float64]:
        """Integers become the nearest floats; of other kinds, anything."""
        numbers = self.bits.view(np.float64)
        if self.all_are(FLOAT):
            return numbers
        return np.where(self.kinds == INT, self.bits, numbers)

    def is_uniform(self, limit: int) -> bool:
        """Whether all cells are numbers or booleans of one kind, and integers below `limit`."""
        if not self.kinds.size:
            return True
        kind = self.kind or int(self.kinds[0, 0])
        if not BOOL <= kind <= FLOAT or not self.all_are(kind):
            return False
        return bool(kind != INT or (self.bits.max() < limit and self.bits.min() > -limit))

    def all_are(self, kind: int) -> bool:
        """Whether all cells of all calls are of this kind."""
        if self.kind:
            return self.kind == kind
        return bool((self.kinds == kind).all())


@dataclass(slots=True)
class VectorResult:
    """A result for each call; of kind NONE where it has to be computed by itself."""

    kinds: Kinds
    bits: Bits
    chosen: Positions | None = None
    """The cell that it is, for a result that may be TEXT."""

    @classmethod
    def none(cls, count: int) -> Self:
        return cls(np.zeros(count, np.uint8), np.zeros(count, np.int64))

    @classmethod
    def choose(
        cls, arguments: list[ArgumentBuffers], which: NDArray[Any], where: NDArray[np.bool_]
    ) -> Self:
        """For each call the cell in a column of all arguments' columns, or nothing."""
        rows = np.arange(len(which))
        kinds = np.concatenate([a.kinds for a in arguments], 1)[rows, which]
        bits = np.concatenate([a.bits for a in arguments], 1)[rows, which]
        positions = np.concatenate([a.positions for a in arguments], 1)[rows, which]
        return cls(np.where(where, kinds, NONE).astype(np.uint8), bits, positions)

    def set_floats(self, where: NDArray[np.bool_], numbers: NDArray[np.float64]) -> None:
        """Set these results to floats; those that are not finite stay to be computed."""
        sound = where & np.isfinite(numbers)
        self.kinds[sound] = FLOAT
        self.bits[sound] = numbers[sound].view(np.int64)

    def set_integers(self, where: NDArray[np.bool_], numbers: NDArray[np.int64]) -> None:
        self.kinds[where] = INT
        self.bits[where] = numbers[where]

    def set_booleans(self, where: NDArray[np.bool_], truths: NDArray[np.bool_]) -> None:
        self.kinds[where] = BOOL
        self.bits[where] = truths[where]


@dataclass(slots=True)
class UniformResult:
    """A result for each call, and all of one kind, which is not TEXT."""

    kind: int
    bits: Bits

    def expand(self) -> VectorResult:
        return VectorResult(np.full(len(self.bits), self.kind, np.uint8), self.bits)


VectorFunction = Callable[[dict[str, ArgumentBuffers], int], VectorResult | UniformResult]
"""Arguments and the number of calls → results. Raises `TypeError` for what it does not know."""


def gather_arguments(
    buffers: ValueBuffers, specs: list[ArgumentSpec], refs: Positions
) -> tuple[dict[str, ArgumentBuffers], NDArray[np.bool_] | None]:
    """The arguments of calls, whose cells are the rows of `refs`; and which calls have them all.

    None stands for all calls.
    """
    kinds, bits = buffers.kinds.take(refs), buffers.bits.take(refs)
    kind = int(kinds[0, 0]) if kinds.size else NONE
    if kind != NONE and not (kinds == kind).all():
        kind = NONE
    arguments, start = {}, 0
    for name, count in specs:
        end = start + (1 if count is None else count)
        arguments[name] = ArgumentBuffers(
            kinds[:, start:end], bits[:, start:end], refs[:, start:end], count is not None, kind
        )
        start = end
    if kind != NONE:
        return arguments, None
    is_present = kinds != NONE
    return arguments, None if is_present.all() else all_in_row(is_present)


def vector_function_of(function: Callable[..., Any]) -> VectorFunction | None:
    """The form of a Python function that offers one."""
    offered = getattr(function, "vectorised", None)
    if not callable(offered):
        return None
    limit = getattr(function, "integers", MAX_INTEGER)

    def form(arguments: dict[str, ArgumentBuffers], count: int) -> VectorResult | UniformResult:
        if all(argument.is_uniform(limit) for argument in arguments.values()):
            arrays = {name: _to_array(each, each.bits) for name, each in arguments.items()}
            return _read_results(offered(**arrays), count)
        result = VectorResult.none(count)
        for rows, arrays in _uniform_groups(arguments, count, limit):
            part = _read_results(offered(**arrays), len(rows))
            part = part.expand() if isinstance(part, UniformResult) else part
            result.kinds[rows], result.bits[rows] = part.kinds, part.bits
        return result

    return form


def _uniform_groups(
    arguments: dict[str, ArgumentBuffers], count: int, limit: int
) -> Iterator[tuple[Positions, dict[str, NDArray[Any]]]]:
    """The calls, by position, all of whose arguments are of one kind each, and of many calls."""
    code = np.zeros(count, np.int64)
    fits = np.ones(count, np.bool_)
    for argument in arguments.values():
        if argument.kinds.shape[1]:
            first = argument.kinds[:, 0]
            fits &= (
                all_in_row(argument.kinds == first[:, None]) & (first >= BOOL) & (first <= FLOAT)
            )
            integers = argument.kinds == INT
            if integers.any():
                large = (argument.bits >= limit) | (argument.bits <= -limit)
                fits &= ~any_in_row(integers & large)
            code = code * 8 + first
    for one in np.unique(code[fits]).tolist():
        rows = np.flatnonzero(fits & (code == one))
        if len(rows) >= VECTOR_THRESHOLD:
            yield (
                rows,
                {
                    name: _to_array(each, each.bits[rows], rows[0])
                    for name, each in arguments.items()
                },
            )


def _to_array(argument: ArgumentBuffers, bits: Bits, row: int = 0) -> NDArray[Any]:
    kind = (argument.kind or argument.kinds[row, 0]) if bits.shape[1] else INT
    array: NDArray[Any] = bits.view(np.float64) if kind == FLOAT else bits
    if kind == BOOL:
        array = bits.astype(np.bool_)
    return array if argument.is_list else array[:, 0]


def _read_results(results: Any, count: int) -> VectorResult | UniformResult:
    """What a vectorised function returned for so many calls."""
    mask, results = np.ma.getmask(results), np.ma.getdata(results)
    if results.shape != (count,):
        raise TypeError(f"{(count,)} results expected, not {results.shape}")
    match results.dtype.kind:
        case "b":
            kind, bits, sound = BOOL, results.astype(np.int64), None
        case "i":
            kind, bits, sound = INT, results.astype(np.int64, copy=False), None
        case "f":
            floats = results.astype(np.float64, copy=False)
            kind, bits, sound = FLOAT, floats.view(np.int64), np.isfinite(floats)
        case _:
            raise TypeError(f"results of {results.dtype} are no numbers and no booleans")
    if mask is np.ma.nomask and (sound is None or sound.all()):
        return UniformResult(kind, bits)
    done = ~mask if sound is None else sound & ~mask
    return VectorResult(np.where(done, kind, NONE).astype(np.uint8), np.where(done, bits, 0))

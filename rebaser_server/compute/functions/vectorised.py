"""Builtin functions of many values at once: what `builtin` says of each holds for these, too.

Each computes the cases in which it gives exactly the scalar result, to the last digit, and leaves
the rest to the scalar function: numbers that would overflow, kinds that do not fit, and all that
raises.

A Python function `f` may have an attribute `vectorised`, a function with these arguments: for each
value an array with an item for each call, for each list a matrix with a row for each call. It
returns an array with the results, masked where it has none. See `docs/functions.md`.

Sums of many floats are correctly rounded, as by `math.fsum`, or left out.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final, Self

import numpy as np
from numpy.typing import NDArray

from rebaser_server.compute.value_buffers import (
    BOOL,
    FLOAT,
    INT,
    NONE,
    NULL,
    TEXT,
    Bits,
    Kinds,
    Positions,
    ValueBuffers,
)
from rebaser_server.compute.work_unit import VECTOR_THRESHOLD, ArgumentSpec

_NARROW: Final = 16

_MAX_INTEGER: Final = 2**31
"""Magnitude below which integers are given to a vectorised function, unless it has another one in
an attribute `integers`: two of them multiplied, or this many of them added, are right in 64
bits."""


def any_in_row(matrix: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Whether one of each row is true; NumPy's own function is slow if rows are short."""
    if not 0 < matrix.shape[1] <= _NARROW:
        any_true: NDArray[np.bool_] = np.any(matrix, 1)
        return any_true
    any_true = matrix[:, 0].copy()
    for column in range(1, matrix.shape[1]):
        any_true |= matrix[:, column]
    return any_true


def _all_in_row(matrix: NDArray[np.bool_]) -> NDArray[np.bool_]:
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
    """Kind of all cells, if they are known to have one."""

    @property
    def floats(self) -> NDArray[np.float64]:
        """Cells as floats: integers become the nearest floats; other kinds, anything."""
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
    """A result for each call; of kind NONE if it has to be computed by itself."""

    kinds: Kinds
    bits: Bits
    chosen: Positions | None = None
    """Position of the cell that is the result, for a result that may be TEXT."""

    @classmethod
    def none(cls, count: int) -> Self:
        return cls(np.zeros(count, np.uint8), np.zeros(count, np.int64))

    @classmethod
    def choose(
        cls, arguments: list[ArgumentBuffers], which: NDArray[Any], where: NDArray[np.bool_]
    ) -> Self:
        """Choose for each call the cell in a column of all arguments' columns, or nothing."""
        rows = np.arange(len(which))
        kinds = np.concatenate([a.kinds for a in arguments], 1)[rows, which]
        bits = np.concatenate([a.bits for a in arguments], 1)[rows, which]
        positions = np.concatenate([a.positions for a in arguments], 1)[rows, which]
        return cls(np.where(where, kinds, NONE).astype(np.uint8), bits, positions)

    def set_floats(self, where: NDArray[np.bool_], numbers: NDArray[np.float64]) -> None:
        """Set these results to floats; results that are not finite stay to be computed."""
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
"""Function from arguments and the number of calls to results. Raises `TypeError` for unknown
kinds."""


def gather_arguments(
    buffers: ValueBuffers, specs: list[ArgumentSpec], refs: Positions
) -> tuple[dict[str, ArgumentBuffers], NDArray[np.bool_] | None]:
    """Return the arguments of calls, whose cells are the rows of `refs`, and which calls have all.

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
    return arguments, None if is_present.all() else _all_in_row(is_present)


def vector_function_of(function: Callable[..., Any]) -> VectorFunction | None:
    """Return the vector form of a Python function, if it offers one."""
    offered = getattr(function, "vectorised", None)
    if not callable(offered):
        return None
    limit = getattr(function, "integers", _MAX_INTEGER)

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
    """Yield groups of calls, by position, with one kind for each argument; groups of many calls."""
    code = np.zeros(count, np.int64)
    fits = np.ones(count, np.bool_)
    for argument in arguments.values():
        if argument.kinds.shape[1]:
            first = argument.kinds[:, 0]
            fits &= (
                _all_in_row(argument.kinds == first[:, None]) & (first >= BOOL) & (first <= FLOAT)
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


_LISTS: Final = {"values", "table"}


class VectorRegistry(dict[str, VectorFunction]):
    """Functions by name, each called with its arguments by name and with the number of calls."""

    def register(
        self, name: str, *required: str, optional: tuple[str, ...] = ()
    ) -> Callable[[Callable[..., VectorResult]], Callable[..., VectorResult]]:
        """Register a function; calls with other arguments are left to the scalar one, which raises.

        `values` and `table` are lists, the others are not.
        """

        def add(function: Callable[..., VectorResult]) -> Callable[..., VectorResult]:
            def checked(arguments: dict[str, ArgumentBuffers], count: int) -> VectorResult:
                names = set(arguments)
                fits = names >= set(required) and names <= {*required, *optional}
                if not fits or any((n in _LISTS) != arguments[n].is_list for n in names):
                    return VectorResult.none(count)
                return function(count=count, **arguments)

            self[name] = checked
            return function

        return add


Floats = NDArray[np.float64]

_EPSILON: Final = 2.0**-53
_ROUNDED_ONCE: Final = 2
"""Number of items whose sum is rounded once, which is right by itself."""


def sum_rows_exact(matrix: Floats) -> tuple[Floats, NDArray[np.bool_]]:
    """Return the sum of each row, and whether it is surely the float nearest to the exact sum.

    The rounding error of each addition is known exactly (Knuth's TwoSum), so the sum is known to
    about twice the digits; it is sure unless the rest is too near to the middle of two floats. A
    zero may have the wrong sign.
    """
    count, width = matrix.shape
    total, rest, rests = np.zeros(count), np.zeros(count), np.zeros(count)
    is_exact = np.ones(count, np.bool_)
    for column in range(width):
        total, lost = _two_sum(total, matrix[:, column])
        if column > 1:
            rest, lost_again = _two_sum(rest, lost)
            is_exact &= lost_again == 0
            rests += np.abs(lost)
        elif column:
            rest, rests = lost, np.abs(lost)
    if width <= _ROUNDED_ONCE:
        return total, np.isfinite(total)
    rounded, beside = _two_sum(total, rest)
    doubt = 2 * width * _EPSILON * rests
    half = np.spacing(np.nextafter(np.abs(rounded), 0.0)) / 2
    sure = is_exact | (np.abs(beside) + doubt < half)
    return rounded, sure & np.isfinite(rounded)


def _two_sum(one: Floats, other: Floats) -> tuple[Floats, Floats]:
    """Return the sum as rounded, and the rounding error; both exact."""
    total = one + other
    back = total - one
    return total, (one - (total - back)) + (other - back)


_Mask = NDArray[np.bool_]

VECTOR_BUILTINS: Final = VectorRegistry()

vectorised: Final = VECTOR_BUILTINS.register

_EXACT: Final = 2**53
"""Magnitude up to which every integer is a float."""
_ROOM: Final = float(2**62)
"""Bound of a float result below which the integers' result is surely below 2⁶³."""


def _numbers(argument: ArgumentBuffers) -> tuple[_Mask, _Mask]:
    """Return which cells are not null, and in which calls all of these are numbers."""
    present = argument.kinds != NULL
    is_number = (argument.kinds == INT) | (argument.kinds == FLOAT)
    return present, _all_in_row(is_number | ~present)


def _is_comparable(argument: ArgumentBuffers) -> _Mask:
    """Return in which calls all numbers compare as floats as they are."""
    large = (argument.bits > _EXACT) | (argument.bits < -_EXACT)
    return ~any_in_row((argument.kinds == INT) & large)


@vectorised("identity", "value")
def _identity(value: ArgumentBuffers, count: int) -> VectorResult:
    return VectorResult.choose([value], np.zeros(count, np.int64), np.ones(count, np.bool_))


@vectorised("sum", "values")
def _sum(values: ArgumentBuffers, count: int) -> VectorResult:
    result = VectorResult.none(count)
    if values.all_are(FLOAT):  # the code below gives an equal result, and takes longer
        total, is_exact = sum_rows_exact(values.floats)
        result.set_floats(is_exact & (total != 0), total)
        return result
    present, fits = _numbers(values)
    is_float = any_in_row(values.kinds == FLOAT)
    floats = np.where(present, values.floats, 0.0)
    small = np.abs(floats).sum(1) < _ROOM
    whole = np.where(present & (values.kinds == INT), values.bits, 0).sum(1)
    result.set_integers(fits & ~is_float & small, whole)
    total, is_exact = sum_rows_exact(floats)
    # The sign of zeros is decided elsewhere.
    result.set_floats(fits & is_float & is_exact & (total != 0), total)
    return result


@vectorised("mean", "values")
def _mean(values: ArgumentBuffers, count: int) -> VectorResult:
    total = _sum(values, count)
    present, _ = _numbers(values)
    result = VectorResult.none(count)
    items = present.sum(1)
    result.kinds[(items == 0)] = NULL
    some = np.maximum(items, 1)
    sure = (total.kinds == INT) & (np.abs(total.bits) < _EXACT) & (items > 0)
    result.set_floats(sure, total.bits / some)
    result.set_floats(total.kinds == FLOAT, total.bits.view(np.float64) / some)
    return result


@vectorised("product", "values")
def _product(values: ArgumentBuffers, count: int) -> VectorResult:
    result = VectorResult.none(count)
    present, fits = _numbers(values)
    is_float = (values.kinds == FLOAT) | ~present
    floats = np.where(present, values.floats, 1.0)
    whole = np.where(present & (values.kinds == INT), values.bits, 1)
    product, magnitude, integers = np.ones(count), np.ones(count), np.ones(count, np.int64)
    for column in range(floats.shape[1]):  # in the order in which the scalar function multiplies
        product = product * floats[:, column]
        magnitude = magnitude * np.maximum(np.abs(floats[:, column]), 1.0)
        integers = integers * whole[:, column]
    any_float = any_in_row(values.kinds == FLOAT)
    result.set_integers(fits & ~any_float & (magnitude < _ROOM), integers)
    result.set_floats(fits & any_float & _all_in_row(is_float), product)
    return result


def _extreme(values: ArgumentBuffers, count: int, sign: int) -> VectorResult:
    if not values.kinds.shape[1]:
        return VectorResult(np.full(count, NULL, np.uint8), np.zeros(count, np.int64))
    present, fits = _numbers(values)
    numbers = np.where(present, sign * values.floats, np.inf)
    return VectorResult.choose([values], numbers.argmin(1), fits & _is_comparable(values))


@vectorised("min", "values")
def _min(values: ArgumentBuffers, count: int) -> VectorResult:
    return _extreme(values, count, 1)


@vectorised("max", "values")
def _max(values: ArgumentBuffers, count: int) -> VectorResult:
    return _extreme(values, count, -1)


@vectorised("count", "values")
def _count(values: ArgumentBuffers, count: int) -> VectorResult:
    result = VectorResult.none(count)
    result.set_integers(np.ones(count, np.bool_), (values.kinds != NULL).sum(1))
    return result


def _of_booleans(
    values: ArgumentBuffers, count: int, truths: Callable[[_Mask], _Mask]
) -> VectorResult:
    result = VectorResult.none(count)
    fits = _all_in_row((values.kinds == BOOL) | (values.kinds == NULL))
    result.set_booleans(fits, truths(values.bits != 0))
    return result


@vectorised("any", "values")
def _any(values: ArgumentBuffers, count: int) -> VectorResult:
    return _of_booleans(values, count, any_in_row)


@vectorised("all", "values")
def _all(values: ArgumentBuffers, count: int) -> VectorResult:
    return _of_booleans(values, count, lambda given: _all_in_row(given | (values.kinds == NULL)))


@vectorised("not", "value")
def _not(value: ArgumentBuffers, count: int) -> VectorResult:
    result = VectorResult.none(count)
    result.set_booleans(value.kinds[:, 0] == BOOL, value.bits[:, 0] == 0)
    return result


def _pair(left: ArgumentBuffers, right: ArgumentBuffers) -> tuple[_Mask, _Mask]:
    """Return in which calls both are numbers, and in which both are integers."""
    kinds = np.concatenate([left.kinds, right.kinds], 1)
    return _all_in_row((kinds == INT) | (kinds == FLOAT)), _all_in_row(kinds == INT)


@vectorised("subtract", "left", "right")
def _subtract(left: ArgumentBuffers, right: ArgumentBuffers, count: int) -> VectorResult:
    result = VectorResult.none(count)
    fits, whole = _pair(left, right)
    one, other = left.floats[:, 0], right.floats[:, 0]
    small = np.abs(one) + np.abs(other) < _ROOM
    result.set_integers(whole & small, left.bits[:, 0] - right.bits[:, 0])
    result.set_floats(fits & ~whole, one - other)
    return result


@vectorised("divide", "left", "right")
def _divide(left: ArgumentBuffers, right: ArgumentBuffers, count: int) -> VectorResult:
    result = VectorResult.none(count)
    fits, _ = _pair(left, right)
    exact = _is_comparable(left) & _is_comparable(right)
    one, other = left.floats[:, 0], right.floats[:, 0]
    result.set_floats(fits & exact & (other != 0), one / np.where(other == 0, 1.0, other))
    return result


@vectorised("round", "value")
def _round(value: ArgumentBuffers, count: int) -> VectorResult:
    result = VectorResult.none(count)
    number = value.floats[:, 0]
    kinds = value.kinds[:, 0]
    small = (kinds == FLOAT) & (np.abs(number) < _EXACT)
    result.set_integers(small, np.rint(np.where(small, number, 0.0)).astype(np.int64))
    result.set_integers(kinds == INT, value.bits[:, 0])
    return result


@vectorised("equal", "left", "right")
def _equal(left: ArgumentBuffers, right: ArgumentBuffers, count: int) -> VectorResult:
    result = VectorResult.none(count)
    one, other = left.kinds[:, 0], right.kinds[:, 0]
    truths = (one == other) & (left.bits[:, 0] == right.bits[:, 0])
    result.set_booleans((one != TEXT) | (other != TEXT), truths)
    return result


@vectorised("less", "left", "right")
def _less(left: ArgumentBuffers, right: ArgumentBuffers, count: int) -> VectorResult:
    result = VectorResult.none(count)
    fits, _ = _pair(left, right)
    exact = _is_comparable(left) & _is_comparable(right)
    result.set_booleans(fits & exact, left.floats[:, 0] < right.floats[:, 0])
    return result


@vectorised("if", "condition", "then", optional=("otherwise",))
def _if(
    condition: ArgumentBuffers,
    then: ArgumentBuffers,
    count: int,
    otherwise: ArgumentBuffers | None = None,
) -> VectorResult:
    fits = condition.kinds[:, 0] == BOOL
    holds = condition.bits[:, 0] != 0
    if otherwise is not None:
        return VectorResult.choose([then, otherwise], np.where(holds, 0, 1), fits)
    result = VectorResult.choose([then], np.zeros(count, np.int64), fits)
    result.kinds[fits & ~holds] = NULL
    result.bits[fits & ~holds] = 0
    return result


@vectorised("coalesce", "values")
def _coalesce(values: ArgumentBuffers, count: int) -> VectorResult:
    if not values.kinds.shape[1]:
        return VectorResult(np.full(count, NULL, np.uint8), np.zeros(count, np.int64))
    return VectorResult.choose([values], (values.kinds != NULL).argmax(1), np.ones(count, np.bool_))


@vectorised("lookup", "table", "key")
def _lookup(table: ArgumentBuffers, key: ArgumentBuffers, count: int) -> VectorResult:
    size = table.kinds.shape[1]
    if not size:
        return VectorResult.none(count)
    index = key.bits[:, 0]
    fits = (key.kinds[:, 0] == INT) & (index >= 0) & (index < size)
    return VectorResult.choose([table], np.where(fits, index, 0), fits)

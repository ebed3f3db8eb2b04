"""Builtin functions of many values at once: what `builtin` says of each holds for these, too.

Each computes what it can compute exactly as the other would, to the last digit, and leaves the
rest to it: numbers that would overflow, kinds that do not fit, and all that raises.
"""

from collections.abc import Callable
from typing import Final

import numpy as np
from numpy.typing import NDArray

from rebaser_server.compute.functions.exact_sum import sum_rows_exact
from rebaser_server.compute.functions.vector_functions import (
    ArgumentBuffers,
    VectorResult,
    all_in_row,
    any_in_row,
)
from rebaser_server.compute.functions.vector_registry import VectorRegistry
from rebaser_server.compute.units.value_buffers import BOOL, FLOAT, INT, NULL, TEXT

Mask = NDArray[np.bool_]

VECTOR_BUILTINS: Final = VectorRegistry()
"""By the name of the builtin function."""

vectorised: Final = VECTOR_BUILTINS.register

_EXACT: Final = 2**53
"""Up to this magnitude every integer is a float."""
_ROOM: Final = float(2**62)
"""Integers whose result is below this by floats are below 2⁶³ by all means."""


def _numbers(argument: ArgumentBuffers) -> tuple[Mask, Mask]:
    """Which cells are there, not null; in which calls all of these are numbers."""
    present = argument.kinds != NULL
    is_number = (argument.kinds == INT) | (argument.kinds == FLOAT)
    return present, all_in_row(is_number | ~present)


def _is_comparable(argument: ArgumentBuffers) -> Mask:
    """In which calls as floats all numbers compare as they are."""
    large = (argument.bits > _EXACT) | (argument.bits < -_EXACT)
    return ~any_in_row((argument.kinds == INT) & large)


@vectorised("identity", "value")
def _identity(value: ArgumentBuffers, count: int) -> VectorResult:
    return VectorResult.choose([value], np.zeros(count, np.int64), np.ones(count, np.bool_))


@vectorised("sum", "values")
def _sum(values: ArgumentBuffers, count: int) -> VectorResult:
    result = VectorResult.none(count)
    if values.all_are(FLOAT):  # what is below says the same, and takes longer
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
    # Of zeros, the sign is decided elsewhere.
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
    for column in range(floats.shape[1]):  # in the order that the other multiplies in
        product = product * floats[:, column]
        magnitude = magnitude * np.maximum(np.abs(floats[:, column]), 1.0)
        integers = integers * whole[:, column]
    any_float = any_in_row(values.kinds == FLOAT)
    result.set_integers(fits & ~any_float & (magnitude < _ROOM), integers)
    result.set_floats(fits & any_float & all_in_row(is_float), product)
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
    values: ArgumentBuffers, count: int, truths: Callable[[Mask], Mask]
) -> VectorResult:
    result = VectorResult.none(count)
    fits = all_in_row((values.kinds == BOOL) | (values.kinds == NULL))
    result.set_booleans(fits, truths(values.bits != 0))
    return result


@vectorised("any", "values")
def _any(values: ArgumentBuffers, count: int) -> VectorResult:
    return _of_booleans(values, count, any_in_row)


@vectorised("all", "values")
def _all(values: ArgumentBuffers, count: int) -> VectorResult:
    return _of_booleans(values, count, lambda given: all_in_row(given | (values.kinds == NULL)))


@vectorised("not", "value")
def _not(value: ArgumentBuffers, count: int) -> VectorResult:
    result = VectorResult.none(count)
    result.set_booleans(value.kinds[:, 0] == BOOL, value.bits[:, 0] == 0)
    return result


def _pair(left: ArgumentBuffers, right: ArgumentBuffers) -> tuple[Mask, Mask]:
    """In which calls both are numbers, and in which both are integers."""
    kinds = np.concatenate([left.kinds, right.kinds], 1)
    return all_in_row((kinds == INT) | (kinds == FLOAT)), all_in_row(kinds == INT)


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

"""Builtin functions of many values at once: what `builtin` says of each holds for these, too.

Each computes what it can compute exactly as the other would, to the last digit, and leaves the
rest to it: numbers that would overflow, kinds that do not fit, and all that raises.
"""

from collections.abc import Callable
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from rebaser_server.compute.functions.exact_sum import added
from rebaser_server.compute.functions.vector_functions import Argument, Form, Found, all_of, any_of
from rebaser_server.compute.units.value_buffers import BOOL, FLOAT, INT, NONE, NULL, TEXT

Mask = NDArray[np.bool_]

FORMS: Final[dict[str, Form]] = {}
"""By the name of the builtin function."""

_EXACT: Final = 2**53
"""Up to this magnitude every integer is a float."""
_ROOM: Final = float(2**62)
"""Integers whose result is below this by floats are below 2⁶³ by all means."""


def form(
    name: str, *required: str, optional: tuple[str, ...] = ()
) -> Callable[[Callable[..., Found]], Callable[..., Found]]:
    """Of calls with other arguments than these, the function itself says what is wrong.

    `values` and `table` are lists, the others are not.
    """

    def register(function: Callable[..., Found]) -> Callable[..., Found]:
        def checked(arguments: dict[str, Argument], count: int) -> Found:
            names = set(arguments)
            fits = names >= set(required) and names <= {*required, *optional}
            if not fits or any((n in _LISTS) != arguments[n].is_list for n in names):
                return Found.nothing(count)
            return function(count=count, **arguments)

        FORMS[name] = checked
        return function

    return register


_LISTS: Final = {"values", "table"}


def _chosen(arguments: list[Argument], which: NDArray[Any], where: Mask) -> Found:
    """For each call the cell in a column of all arguments' columns, or nothing."""
    rows = np.arange(len(which))
    kinds = np.concatenate([a.kinds for a in arguments], 1)[rows, which]
    bits = np.concatenate([a.bits for a in arguments], 1)[rows, which]
    places = np.concatenate([a.places for a in arguments], 1)[rows, which]
    return Found(np.where(where, kinds, NONE).astype(np.uint8), bits, places)


def _numbers(argument: Argument) -> tuple[Mask, Mask]:
    """Which cells are there, not null; in which calls all of these are numbers."""
    present = argument.kinds != NULL
    is_number = (argument.kinds == INT) | (argument.kinds == FLOAT)
    return present, all_of(is_number | ~present)


def _is_comparable(argument: Argument) -> Mask:
    """In which calls as floats all numbers compare as they are."""
    large = (argument.bits > _EXACT) | (argument.bits < -_EXACT)
    return ~any_of((argument.kinds == INT) & large)


@form("identity", "value")
def _identity(value: Argument, count: int) -> Found:
    return _chosen([value], np.zeros(count, np.int64), np.ones(count, np.bool_))


@form("sum", "values")
def _sum(values: Argument, count: int) -> Found:
    found = Found.nothing(count)
    if values.all_are(FLOAT):  # what is below says the same, and takes longer
        total, is_exact = added(values.floats)
        found.floats(is_exact & (total != 0), total)
        return found
    present, fits = _numbers(values)
    is_float = any_of(values.kinds == FLOAT)
    floats = np.where(present, values.floats, 0.0)
    small = np.abs(floats).sum(1) < _ROOM
    whole = np.where(present & (values.kinds == INT), values.bits, 0).sum(1)
    found.integers(fits & ~is_float & small, whole)
    total, is_exact = added(floats)
    # Of zeros, the sign is decided elsewhere.
    found.floats(fits & is_float & is_exact & (total != 0), total)
    return found


@form("mean", "values")
def _mean(values: Argument, count: int) -> Found:
    total = _sum(values, count)
    present, _ = _numbers(values)
    found = Found.nothing(count)
    items = present.sum(1)
    found.kinds[(items == 0)] = NULL
    some = np.maximum(items, 1)
    sure = (total.kinds == INT) & (np.abs(total.bits) < _EXACT) & (items > 0)
    found.floats(sure, total.bits / some)
    found.floats(total.kinds == FLOAT, total.bits.view(np.float64) / some)
    return found


@form("product", "values")
def _product(values: Argument, count: int) -> Found:
    found = Found.nothing(count)
    present, fits = _numbers(values)
    is_float = (values.kinds == FLOAT) | ~present
    floats = np.where(present, values.floats, 1.0)
    whole = np.where(present & (values.kinds == INT), values.bits, 1)
    product, magnitude, integers = np.ones(count), np.ones(count), np.ones(count, np.int64)
    for column in range(floats.shape[1]):  # in the order that the other multiplies in
        product = product * floats[:, column]
        magnitude = magnitude * np.maximum(np.abs(floats[:, column]), 1.0)
        integers = integers * whole[:, column]
    any_float = any_of(values.kinds == FLOAT)
    found.integers(fits & ~any_float & (magnitude < _ROOM), integers)
    found.floats(fits & any_float & all_of(is_float), product)
    return found


def _extreme(values: Argument, count: int, sign: int) -> Found:
    if not values.kinds.shape[1]:
        return Found(np.full(count, NULL, np.uint8), np.zeros(count, np.int64))
    present, fits = _numbers(values)
    numbers = np.where(present, sign * values.floats, np.inf)
    return _chosen([values], numbers.argmin(1), fits & _is_comparable(values))


@form("min", "values")
def _min(values: Argument, count: int) -> Found:
    return _extreme(values, count, 1)


@form("max", "values")
def _max(values: Argument, count: int) -> Found:
    return _extreme(values, count, -1)


@form("count", "values")
def _count(values: Argument, count: int) -> Found:
    found = Found.nothing(count)
    found.integers(np.ones(count, np.bool_), (values.kinds != NULL).sum(1))
    return found


def _of_booleans(values: Argument, count: int, truths: Callable[[Mask], Mask]) -> Found:
    found = Found.nothing(count)
    fits = all_of((values.kinds == BOOL) | (values.kinds == NULL))
    found.booleans(fits, truths(values.bits != 0))
    return found


@form("any", "values")
def _any(values: Argument, count: int) -> Found:
    return _of_booleans(values, count, any_of)


@form("all", "values")
def _all(values: Argument, count: int) -> Found:
    return _of_booleans(values, count, lambda given: all_of(given | (values.kinds == NULL)))


@form("not", "value")
def _not(value: Argument, count: int) -> Found:
    found = Found.nothing(count)
    found.booleans(value.kinds[:, 0] == BOOL, value.bits[:, 0] == 0)
    return found


def _pair(left: Argument, right: Argument) -> tuple[Mask, Mask]:
    """In which calls both are numbers, and in which both are integers."""
    kinds = np.concatenate([left.kinds, right.kinds], 1)
    return all_of((kinds == INT) | (kinds == FLOAT)), all_of(kinds == INT)


@form("subtract", "left", "right")
def _subtract(left: Argument, right: Argument, count: int) -> Found:
    found = Found.nothing(count)
    fits, whole = _pair(left, right)
    one, other = left.floats[:, 0], right.floats[:, 0]
    small = np.abs(one) + np.abs(other) < _ROOM
    found.integers(whole & small, left.bits[:, 0] - right.bits[:, 0])
    found.floats(fits & ~whole, one - other)
    return found


@form("divide", "left", "right")
def _divide(left: Argument, right: Argument, count: int) -> Found:
    found = Found.nothing(count)
    fits, _ = _pair(left, right)
    exact = _is_comparable(left) & _is_comparable(right)
    one, other = left.floats[:, 0], right.floats[:, 0]
    found.floats(fits & exact & (other != 0), one / np.where(other == 0, 1.0, other))
    return found


@form("round", "value")
def _round(value: Argument, count: int) -> Found:
    found = Found.nothing(count)
    number = value.floats[:, 0]
    kinds = value.kinds[:, 0]
    small = (kinds == FLOAT) & (np.abs(number) < _EXACT)
    found.integers(small, np.rint(np.where(small, number, 0.0)).astype(np.int64))
    found.integers(kinds == INT, value.bits[:, 0])
    return found


@form("equal", "left", "right")
def _equal(left: Argument, right: Argument, count: int) -> Found:
    found = Found.nothing(count)
    one, other = left.kinds[:, 0], right.kinds[:, 0]
    truths = (one == other) & (left.bits[:, 0] == right.bits[:, 0])
    found.booleans((one != TEXT) | (other != TEXT), truths)
    return found


@form("less", "left", "right")
def _less(left: Argument, right: Argument, count: int) -> Found:
    found = Found.nothing(count)
    fits, _ = _pair(left, right)
    exact = _is_comparable(left) & _is_comparable(right)
    found.booleans(fits & exact, left.floats[:, 0] < right.floats[:, 0])
    return found


@form("if", "condition", "then", optional=("otherwise",))
def _if(
    condition: Argument, then: Argument, count: int, otherwise: Argument | None = None
) -> Found:
    fits = condition.kinds[:, 0] == BOOL
    holds = condition.bits[:, 0] != 0
    if otherwise is not None:
        return _chosen([then, otherwise], np.where(holds, 0, 1), fits)
    found = _chosen([then], np.zeros(count, np.int64), fits)
    found.kinds[fits & ~holds] = NULL
    found.bits[fits & ~holds] = 0
    return found


@form("coalesce", "values")
def _coalesce(values: Argument, count: int) -> Found:
    if not values.kinds.shape[1]:
        return Found(np.full(count, NULL, np.uint8), np.zeros(count, np.int64))
    return _chosen([values], (values.kinds != NULL).argmax(1), np.ones(count, np.bool_))


@form("lookup", "table", "key")
def _lookup(table: Argument, key: Argument, count: int) -> Found:
    size = table.kinds.shape[1]
    if not size:
        return Found.nothing(count)
    index = key.bits[:, 0]
    fits = (key.kinds[:, 0] == INT) & (index >= 0) & (index < size)
    return _chosen([table], np.where(fits, index, 0), fits)

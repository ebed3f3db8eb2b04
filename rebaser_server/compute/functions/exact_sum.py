"""Sums of floats, many at once, each correctly rounded: what `math.fsum` gives, or nothing."""

from typing import Final

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

_EPSILON: Final = 2.0**-53
_ROUNDED_ONCE: Final = 2
"""Items whose sum is rounded once, which is right by itself."""


def sum_rows_exact(matrix: Floats) -> tuple[Floats, NDArray[np.bool_]]:
    """The sum of each row, and whether it is sure to be the float nearest to the exact sum.

    What each addition rounds off is known exactly (Knuth's TwoSum), so the sum is known to
    about twice the digits; it is sure unless the rest is too near to the middle of two floats.
    A zero may have the wrong sign.
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
    """The sum as rounded, and what rounding lost; both exact."""
    total = one + other
    back = total - one
    return total, (one - (total - back)) + (other - back)

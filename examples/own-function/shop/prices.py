"""Prices. Plain functions of plain JSON: they need not know of Rebaser."""

from collections.abc import Sequence
from typing import Any


def price(*, net: float, rate: float, discounts: Sequence[float] = ()) -> float:
    """What a customer pays: `net` less all discounts, and tax on what is left.

    Raises:
        ValueError: more discount than price; the value fails with this message.
    """
    left = net - sum(discounts)
    if left < 0:
        raise ValueError(f"discounts of {sum(discounts)} on {net}")
    return round(left * (1 + rate), 2)


def _many(*, net: Any, rate: Any, discounts: Any) -> Any:
    """As `price`, of NumPy arrays; what comes out negative is left to `price` to refuse."""
    import numpy as np  # installed where values are computed

    left = net - discounts.sum(axis=1)
    return np.ma.masked_array(np.round(left * (1 + rate), 2), left < 0)


price.vectorised = _many  # type: ignore[attr-defined]

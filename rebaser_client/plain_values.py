"""Values of Python and its libraries as plain JSON: one rule for drafts, batches and tables.

Missing cells become null: None, NaN, and pandas' NA and NaT. NumPy's scalars and arrays, tuples and
mappings become plain items, dates and times their ISO 8601 text. All else stays as it is, and a
later check refuses it: infinities, decimals, time spans, sets, bytes.
"""

from collections.abc import Callable, Mapping
from datetime import date, time
from enum import Enum
from math import isnan
from typing import Any, Final

from rebaser_core.codecs import MAX_MESSAGE_DEPTH

_MISSING: Final = ("NAType", "NaTType")
"""Types of missing cells in pandas, in addition to NaN."""

_PLAIN_KINDS: Final = "biufUO"
"""Kinds of NumPy's types whose items become equal Python items. Dates would become numbers."""

INDEX: Final = (
    "the index of the frame is not 0, 1, 2, …: give frame.reset_index(), where it is a column, or "
    "frame.reset_index(drop=True), which leaves it out"
)
"""Message about an index of pandas that is neither named nor the numbers of rows."""


class _TooDeepError(Exception):
    """Data is nested deeper than a value may be, perhaps because it contains itself."""


def plain(value: Any) -> Any:
    """The value as JSON has it, as far as the rule goes. Raises nothing."""
    try:
        return _plain(value, 0)
    except _TooDeepError:
        return value


def _plain(value: Any, depth: int) -> Any:
    kind: Any = type(value)
    if kind is str or kind is int or kind is bool or value is None:
        return value
    if depth > MAX_MESSAGE_DEPTH:
        raise _TooDeepError
    if isinstance(value, Mapping):
        return {_plain(key, depth): _plain(item, depth + 1) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item, depth + 1) for item in value]
    if (kind := _numpy_kind(value)) is not None and getattr(value, "shape", None):
        items = value.tolist() if kind in _PLAIN_KINDS else list(value)
        return [_plain(item, depth + 1) for item in items]
    return _plain_scalar(value)


def _numpy_kind(value: Any) -> Any:
    """The letter of the value's type in NumPy; None for other libraries' arrays, and memory."""
    return getattr(getattr(value, "dtype", None), "kind", None)


def _plain_scalar(value: Any) -> Any:
    if isinstance(value, Enum):
        value = value.value
    if type(value).__name__ in _MISSING:
        return None
    for kind, convert in _SCALARS:
        if isinstance(value, kind):
            return convert(value)
    kind = _numpy_kind(value)
    if kind == "M":
        return None if str(value) == "NaT" else str(value)
    item = value.item() if kind is not None and kind in _PLAIN_KINDS else value
    return None if isinstance(item, float) and isnan(item) else item


_SCALARS: Final[tuple[tuple[Any, Callable[[Any], Any]], ...]] = (
    (bool, bool),
    (int, int),
    (float, lambda number: None if isnan(number) else float(number)),
    (str, str.__str__),
    (date | time, lambda moment: moment.isoformat()),
)

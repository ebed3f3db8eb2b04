"""What builtin functions accept, and what they say to anything else."""

import json
from typing import Any, Final

_NUMBERS: Final = {int, float}


def non_null(values: Any) -> list[Any]:
    """A list's items that are not null."""
    return [item for item in require_kinds([values], list, "a list")[0] if item is not None]


def require_numbers(values: Any) -> list[Any]:
    if type(values) is list and _NUMBERS.issuperset(map(type, values)):
        return values  # as nearly always
    return require_kinds(non_null(values), (int, float), "numbers")


def require_comparable(values: Any) -> list[Any]:
    """What can be compared with each other."""
    items = non_null(values)
    kinds = str if items and isinstance(items[0], str) else (int, float)
    return require_kinds(items, kinds, "numbers, or strings")


def require_kinds(values: list[Any], kinds: type | tuple[type, ...], words: str) -> list[Any]:
    """`values`, which are all of these kinds; in JSON, unlike Python, true is not a number."""
    for value in values:
        if not isinstance(value, kinds) or (isinstance(value, bool) and kinds is not bool):
            raise TypeError(f"expected {words}, not {json.dumps(value)[:50]}")
    return values

"""What builtin functions accept, and what they say to anything else."""

import json
from typing import Any, Final

_NUMBERS: Final = {int, float}


def present(values: Any) -> list[Any]:
    """A list's items that are not null."""
    return [item for item in expected([values], list, "a list")[0] if item is not None]


def numbers(values: Any) -> list[Any]:
    if type(values) is list and _NUMBERS.issuperset(map(type, values)):
        return values  # as nearly always
    return expected(present(values), (int, float), "numbers")


def ordered(values: Any) -> list[Any]:
    """What can be compared with each other."""
    items = present(values)
    kinds = str if items and isinstance(items[0], str) else (int, float)
    return expected(items, kinds, "numbers, or strings")


def expected(values: list[Any], kinds: type | tuple[type, ...], words: str) -> list[Any]:
    """`values`, which are all of these kinds; in JSON, unlike Python, true is not a number."""
    for value in values:
        if not isinstance(value, kinds) or (isinstance(value, bool) and kinds is not bool):
            raise TypeError(f"expected {words}, not {json.dumps(value)[:50]}")
    return values

"""How deep and how large JSON data may be, and when two values are the same."""

from math import copysign
from typing import Any, Final

MAX_DEPTH: Final = 64
"""Arrays and objects within one another: of a value, wherever it travels."""

INT_MIN: Final = -(2**63)
INT_MAX: Final = 2**63 - 1


def json_equal(one: Any, other: Any) -> bool:
    """Whether both are the same JSON: 1, 1.0 and true are three, 0.0 and -0.0 two different values.

    The order of an object's keys does not matter.
    """
    if isinstance(one, dict):
        return (
            isinstance(other, dict)
            and one.keys() == other.keys()
            and all(json_equal(item, other[key]) for key, item in one.items())
        )
    if isinstance(one, list):
        return (
            isinstance(other, list) and len(one) == len(other) and all(map(json_equal, one, other))
        )
    if type(one) is not type(other) or one != other:
        return False
    return type(one) is not float or copysign(1.0, one) == copysign(1.0, other)

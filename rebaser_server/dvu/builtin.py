"""The functions that come with Rebaser. `docs/functions.md` is their manual.

Each takes one keyword argument an input, and changes none of them.
"""

from __future__ import annotations

import json
from functools import reduce
from itertools import chain
from math import fsum, prod
from typing import TYPE_CHECKING, Any, Final

from rebaser_server.dvu.json_data import same

if TYPE_CHECKING:
    from collections.abc import Callable

BUILTINS: Final[dict[str, Callable[..., Any]]] = {}
"""By name."""


def builtin(name: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Its argument names and defaults are part of what users rely on."""

    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        function.__qualname__ = name  # in the messages of missing arguments
        BUILTINS[name] = function
        return function

    return register


@builtin("identity")
def _identity(*, value: Any) -> Any:
    return value


@builtin("collect")
def _collect(*, values: list[Any]) -> list[Any]:
    return values


@builtin("sum")
def _sum(*, values: list[Any]) -> int | float:
    numbers = _numbers(values)
    # Floats without loss of digits, hence alike on every version of Python.
    return fsum(numbers) if any(type(n) is float for n in numbers) else sum(numbers)


@builtin("product")
def _product(*, values: list[Any]) -> Any:
    return prod(_numbers(values))


@builtin("mean")
def _mean(*, values: list[Any]) -> float | None:
    numbers = _numbers(values)
    total = fsum(numbers) if any(type(n) is float for n in numbers) else sum(numbers)
    return total / len(numbers) if numbers else None


@builtin("min")
def _min(*, values: list[Any]) -> Any:
    return min(_ordered(values), default=None)


@builtin("max")
def _max(*, values: list[Any]) -> Any:
    return max(_ordered(values), default=None)


@builtin("count")
def _count(*, values: list[Any]) -> int:
    return len(_present(values))


@builtin("subtract")
def _subtract(*, left: float, right: float) -> int | float:
    left, right = _expected([left, right], (int, float), "numbers")
    return left - right


@builtin("divide")
def _divide(*, left: float, right: float) -> float:
    left, right = _expected([left, right], (int, float), "numbers")
    return left / right


@builtin("round")
def _round(*, value: float, digits: int = 0) -> int | float:
    (value,) = _expected([value], (int, float), "numbers")
    return round(value, digits) if digits > 0 else round(round(value, digits))


@builtin("any")
def _any(*, values: list[bool | None]) -> bool:
    return any(_expected(_present(values), bool, "booleans"))


@builtin("all")
def _all(*, values: list[bool | None]) -> bool:
    return all(_expected(_present(values), bool, "booleans"))


@builtin("not")
def _not(*, value: bool) -> bool:
    (value,) = _expected([value], bool, "booleans")
    return not value


@builtin("equal")
def _equal(*, left: Any, right: Any) -> bool:
    return same(left, right)


@builtin("less")
def _less(*, left: Any, right: Any) -> bool:
    kinds = str if isinstance(left, str) else (int, float)
    left, right = _expected([left, right], kinds, "two numbers, or two strings")
    return bool(left < right)


@builtin("if")
def _if(*, condition: bool, then: Any, otherwise: Any = None) -> Any:
    (condition,) = _expected([condition], bool, "booleans")
    return then if condition else otherwise


@builtin("coalesce")
def _coalesce(*, values: list[Any]) -> Any:
    return next(iter(_present(values)), None)


@builtin("concat")
def _concat(*, values: list[Any], separator: str = "") -> str | list[Any]:
    parts = _present(values)
    if parts and isinstance(parts[0], list):
        return list(chain.from_iterable(_expected(parts, list, "strings, or lists")))
    return separator.join(_expected(parts, str, "strings, or lists"))


@builtin("lookup")
def _lookup(*, table: dict[str, Any] | list[Any], key: str | int, default: Any = None) -> Any:
    if isinstance(table, dict) and isinstance(key, str):
        return table.get(key, default)
    if isinstance(table, list) and type(key) is int:
        return table[key] if 0 <= key < len(table) else default
    raise TypeError("expected an object and a string, or a list and an integer")


@builtin("json_get")
def _json_get(*, document: Any, pointer: str, default: Any = None) -> Any:
    """RFC 6901."""
    if pointer and not pointer.startswith("/"):
        raise ValueError("a JSON pointer is empty or begins with '/'")
    for escaped in pointer.split("/")[1:]:
        key = escaped.replace("~1", "/").replace("~0", "~")
        if isinstance(document, dict) and key in document:
            document = document[key]
        elif isinstance(document, list) and key.isdecimal() and int(key) < len(document):
            document = document[int(key)]
        else:
            return default
    return document


@builtin("json_merge")
def _json_merge(*, values: list[Any]) -> Any:
    return reduce(_merged, _present(values), None)


def _merged(target: Any, patch: Any) -> Any:
    """RFC 7396."""
    if not isinstance(patch, dict):
        return patch
    old = target if isinstance(target, dict) else {}
    new = {key: _merged(old.get(key), item) for key, item in patch.items() if item is not None}
    return {key: item for key, item in old.items() if key not in patch} | new


def _present(values: Any) -> list[Any]:
    return [item for item in _expected([values], list, "a list")[0] if item is not None]


def _numbers(values: Any) -> list[Any]:
    return _expected(_present(values), (int, float), "numbers")


def _ordered(values: Any) -> list[Any]:
    """What can be compared with each other."""
    present = _present(values)
    kinds = str if present and isinstance(present[0], str) else (int, float)
    return _expected(present, kinds, "numbers, or strings")


def _expected(values: list[Any], kinds: type | tuple[type, ...], words: str) -> list[Any]:
    """`values`, which are all of these kinds; in JSON, unlike Python, true is not a number."""
    for value in values:
        if not isinstance(value, kinds) or (isinstance(value, bool) and kinds is not bool):
            raise TypeError(f"expected {words}, not {json.dumps(value)[:50]}")
    return values

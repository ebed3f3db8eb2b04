"""The functions that come with Rebaser. `docs/functions.md` is their manual.

Each takes one keyword argument an input, and changes none of them. JSON pointers (RFC 6901) and
merge patches (RFC 7396) are here, too.
"""

import json
import re
from collections.abc import Callable
from functools import reduce
from itertools import chain, takewhile
from math import fsum, prod
from typing import Any, Final

from rebaser_core.codecs import json_equal
from rebaser_core.references import REFERENCE

_NUMBERS: Final = {int, float}


def _non_null(values: Any) -> list[Any]:
    return [item for item in _require_kinds([values], list, "a list")[0] if item is not None]


def _require_numbers(values: Any) -> list[Any]:
    if type(values) is list and _NUMBERS.issuperset(map(type, values)):
        return values  # as nearly always
    return _require_kinds(_non_null(values), (int, float), "numbers")


def _require_comparable(values: Any) -> list[Any]:
    """Return the items that can be compared with each other, or raise."""
    items = _non_null(values)
    kinds = str if items and isinstance(items[0], str) else (int, float)
    return _require_kinds(items, kinds, "numbers, or strings")


def _require_kinds(values: list[Any], kinds: type | tuple[type, ...], words: str) -> list[Any]:
    """Return `values`, which must be of these kinds; in JSON, true is not a number."""
    for value in values:
        if not isinstance(value, kinds) or (isinstance(value, bool) and kinds is not bool):
            is_table = isinstance(value, dict) and REFERENCE in value
            what = "a table" if is_table else json.dumps(value)[:50]
            raise TypeError(f"expected {words}, not {what}")
    return values


_INDEX: Final = re.compile("0|[1-9][0-9]{,17}")


def _resolve_pointer(document: Any, pointer: str, default: Any) -> Any:
    if pointer and not pointer.startswith("/"):
        raise ValueError("a JSON pointer is empty or begins with '/'")
    for escaped in pointer.split("/")[1:]:
        key = escaped.replace("~1", "/").replace("~0", "~")
        if isinstance(document, dict) and key in document:
            document = document[key]
        elif isinstance(document, list) and _INDEX.fullmatch(key) and int(key) < len(document):
            document = document[int(key)]
        else:
            return default
    return document


def _merge_patch(target: Any, patch: Any) -> Any:
    """Return `target` with the patch merged into it. Its objects are those of earlier merges."""
    if not isinstance(patch, dict):
        return patch
    merged = target if isinstance(target, dict) else {}
    for key, item in patch.items():
        if item is None:
            merged.pop(key, None)
        else:
            merged[key] = _merge_patch(merged.get(key), item)
    return merged


BUILTINS: Final[dict[str, Callable[..., Any]]] = {}
"""Builtin functions by name."""


def builtin(name: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Register a builtin. Its argument names and defaults are part of what users rely on."""

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
    return _total(_require_numbers(values))


@builtin("product")
def _product(*, values: list[Any]) -> Any:
    items = _require_numbers(values)
    whole = list(takewhile(lambda item: type(item) is int, items))
    start = int(0 not in whole)
    for item in whole if start else ():
        start *= item
        if start.bit_length() > _LARGEST_BITS:  # hours pass before a list of them is multiplied
            raise OverflowError("the product is larger than any number of JSON")
    return prod(items[len(whole) :], start=start)


_LARGEST_BITS: Final = 1024
"""Bits of an integer beyond which it is no float, either."""


@builtin("mean")
def _mean(*, values: list[Any]) -> float | None:
    items = _require_numbers(values)
    return _total(items) / len(items) if items else None


def _total(items: list[Any]) -> int | float:
    # Floats without loss of digits, hence alike on every version of Python.
    return fsum(items) if float in map(type, items) else sum(items)


@builtin("min")
def _min(*, values: list[Any]) -> Any:
    return min(_require_comparable(values), default=None)


@builtin("max")
def _max(*, values: list[Any]) -> Any:
    return max(_require_comparable(values), default=None)


@builtin("count")
def _count(*, values: list[Any]) -> int:
    return len(_non_null(values))


@builtin("subtract")
def _subtract(*, left: float, right: float) -> int | float:
    left, right = _require_kinds([left, right], (int, float), "numbers")
    return left - right


@builtin("divide")
def _divide(*, left: float, right: float) -> float:
    left, right = _require_kinds([left, right], (int, float), "numbers")
    return left / right


@builtin("round")
def _round(*, value: float, digits: int = 0) -> int | float:
    (value,) = _require_kinds([value], (int, float), "numbers")
    if digits > 0:
        return round(value, digits)
    return round(round(value, max(digits, _FEWEST_DIGITS)))


_FEWEST_DIGITS: Final = -400
"""Negative digits by which every number is 0."""


@builtin("any")
def _any(*, values: list[bool | None]) -> bool:
    return any(_require_kinds(_non_null(values), bool, "booleans"))


@builtin("all")
def _all(*, values: list[bool | None]) -> bool:
    return all(_require_kinds(_non_null(values), bool, "booleans"))


@builtin("not")
def _not(*, value: bool) -> bool:
    (value,) = _require_kinds([value], bool, "booleans")
    return not value


@builtin("equal")
def _equal(*, left: Any, right: Any) -> bool:
    return json_equal(left, right)


@builtin("less")
def _less(*, left: Any, right: Any) -> bool:
    kinds = str if isinstance(left, str) else (int, float)
    left, right = _require_kinds([left, right], kinds, "two numbers, or two strings")
    return bool(left < right)


@builtin("if")
def _if(*, condition: bool, then: Any, otherwise: Any = None) -> Any:
    (condition,) = _require_kinds([condition], bool, "booleans")
    return then if condition else otherwise


@builtin("coalesce")
def _coalesce(*, values: list[Any]) -> Any:
    return next(iter(_non_null(values)), None)


@builtin("concat")
def _concat(*, values: list[Any], separator: str = "") -> str | list[Any]:
    parts = _non_null(values)
    if parts and isinstance(parts[0], list):
        return list(chain.from_iterable(_require_kinds(parts, list, "strings, or lists")))
    return separator.join(_require_kinds(parts, str, "strings, or lists"))


@builtin("lookup")
def _lookup(*, table: dict[str, Any] | list[Any], key: str | int, default: Any = None) -> Any:
    if isinstance(table, dict) and isinstance(key, str):
        return table.get(key, default)
    if isinstance(table, list) and type(key) is int:
        return table[key] if 0 <= key < len(table) else default
    raise TypeError("expected an object and a string, or a list and an integer")


@builtin("json_get")
def _json_get(*, document: Any, pointer: str, default: Any = None) -> Any:
    return _resolve_pointer(document, pointer, default)


@builtin("json_merge")
def _json_merge(*, values: list[Any]) -> Any:
    return reduce(_merge_patch, _non_null(values), None)

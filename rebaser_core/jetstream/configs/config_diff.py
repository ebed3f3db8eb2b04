"""How a configuration at the server differs from the one we want."""

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple, TypeVar

from rebaser_core.jetstream.configs.configuration import Configuration

C = TypeVar("C", bound=Configuration)

_UNSET = (None, False, 0, -1, "")


class Drift(NamedTuple):
    """`field` of the stream or consumer `name` is `actual` and not `expected`, as in JSON."""

    name: str
    field: str
    expected: Any
    actual: Any

    def __str__(self) -> str:
        return f"{self.name}: {self.field} is {self.actual!r}, not {self.expected!r}"


def diff_config(name: str, expected: C, actual: C) -> list[Drift]:
    """Compare what `expected` says, and nothing else: what it leaves open may be anything.

    The server leaves out what is false, zero or empty and writes -1 for "no limit";
    these are equal. The order of subjects does not matter.
    """
    differences = _differences("", expected.to_json(), actual.to_json())
    return [Drift(name, *each) for each in differences]


def _differences(
    path: str, expected: Mapping[str, Any], actual: Mapping[str, Any]
) -> Iterator[tuple[str, Any, Any]]:
    for field, wanted in expected.items():
        found = actual.get(field)
        if isinstance(wanted, Mapping) and isinstance(found, Mapping):
            yield from _differences(f"{path}{field}.", wanted, found)
        elif not _equal(wanted, found):
            yield path + field, wanted, found


def _equal(wanted: Any, found: Any) -> bool:
    if wanted == found or (_is_unset(wanted) and _is_unset(found)):
        return True
    if isinstance(wanted, str) and isinstance(found, str):
        return _equal_time(wanted, found)
    if isinstance(wanted, Sequence) and isinstance(found, Sequence):
        return sorted(map(repr, wanted)) == sorted(map(repr, found))
    return False


def _is_unset(value: Any) -> bool:
    return value in _UNSET or value in ([], {}, ())


def _equal_time(wanted: str, found: str) -> bool:
    try:
        return datetime.fromisoformat(wanted) == datetime.fromisoformat(found)
    except (ValueError, TypeError):
        return False

"""How a configuration at the server differs from the one we want."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, Final, NamedTuple, TypeVar

from rebaser_core.jetstream.configs.configuration import Configuration

C = TypeVar("C", bound=Configuration)

_UNSET = (None, False, 0, -1, "")

_FILLED_IN: Final[Mapping[str, Sequence[object]]] = {
    "ack_wait": (0,),
    "max_ack_pending": (0,),
    "max_waiting": (0, -1),
    "inactive_threshold": (0,),
    "priority_timeout": (0,),
    "num_replicas": (0,),
    "duplicate_window": (0,),
    "subjects": ([],),
    "republish.src": ("",),
}
"""Fields in whose place the server puts a default of its own, if they are said to be this."""

_IMPLIED: Final = {
    "allow_msg_ttl": ("subject_delete_marker_ttl",),
    "allow_rollup_hdrs": ("subject_delete_marker_ttl", "allow_msg_schedules"),
}
"""Fields that the server makes true, even against the request, if one of the others is set."""

_DEFAULTS: Final[Mapping[str, Any]] = {
    "retention": "limits",
    "storage": "file",
    "discard": "old",
    "compression": "none",
    "num_replicas": 1,
    "deliver_policy": "all",
    "replay_policy": "instant",
}
"""What the server says of fields that nothing was said of, where that is not zero or empty."""

_SAYS_NOTHING: Final = {"priority_policy": "none", "persist_mode": "default"}
"""Texts in whose place the server says nothing."""


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
    these are equal. The order of subjects does not matter. What the server fills in where a
    configuration says nothing of its own, as `max_ack_pending: 0`, is open as well.
    """
    wanted = expected.to_json()
    differences = _differences("", wanted, actual.to_json())
    return [Drift(name, *each) for each in differences if not _is_filled_in(wanted, *each)]


def excess_config(name: str, expected: C, actual: C, besides: Collection[str] = ()) -> list[Drift]:
    """What `actual` has beyond `expected`, which leaves it open, but for the fields `besides`.

    Also fields of a newer server. What the server has where nothing is said is no excess.
    """
    wanted = expected.to_json()
    return [
        Drift(name, field, _DEFAULTS.get(field), found)
        for field, found in actual.to_json().items()
        if field not in wanted
        and field not in besides
        and found != _DEFAULTS.get(field)
        and not _is_unset(found)
    ]


def _is_filled_in(wanted: Mapping[str, Any], field: str, value: Any, found: Any) -> bool:
    """Whether the server puts `found` in the place of the value, and would do so again."""
    if field == "ack_wait" and wanted.get("backoff"):
        return bool(found == wanted["backoff"][0])
    if found is True and any(not _is_unset(wanted.get(each)) for each in _IMPLIED.get(field, ())):
        return True
    return value in _FILLED_IN.get(field, ()) or (
        found is None and value == _SAYS_NOTHING.get(field)
    )


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
        if any(isinstance(each, int) for each in wanted):
            return False  # the order of durations matters
        return sorted(map(_text, wanted)) == sorted(map(_text, found))
    return False


def _is_unset(value: Any) -> bool:
    if isinstance(value, Mapping):
        return all(map(_is_unset, value.values()))
    return value in _UNSET or value in ([], ())


def _text(value: Any) -> str:
    """Return a text that is the same for what is equal in a list."""
    if isinstance(value, Mapping):
        said = sorted((name, _text(each)) for name, each in value.items() if not _is_unset(each))
        return repr(said)
    return repr(value)


def _equal_time(wanted: str, found: str) -> bool:
    try:
        return datetime.fromisoformat(wanted) == datetime.fromisoformat(found)
    except (ValueError, TypeError):
        return False

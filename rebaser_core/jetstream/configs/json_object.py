"""What all configurations have in common: their JSON is read and written without loss."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from datetime import datetime, timedelta
from functools import cache
from types import NoneType
from typing import Any, Final, Literal, Self, get_args, get_origin, get_type_hints

from rebaser_core.jetstream.errors import NotJetStream

_MICROSECOND: Final = timedelta(microseconds=1)
_IN_JSON: Final[Mapping[Any, type]] = {
    timedelta: int,  # nanoseconds
    datetime: str,  # RFC 3339
    Literal: str,
    Mapping: dict,
    Sequence: list,
}
_trailing_zeros: Final = re.compile(r"(?<=\.)(\d*?)0+(?=[+-])")


@dataclass(frozen=True, kw_only=True)
class Configuration:
    """What is None is not said: the server then has its default, and a comparison leaves it out.

    `a | b` is `a` with all that `b` says in its place.
    """

    unknown: Mapping[str, Any] = field(default_factory=dict)
    """What the server said beyond the fields above, or not as they have it: what a newer server
    knows, for instance, or part of a microsecond. Sent as it is; a field above takes precedence."""

    @classmethod
    def from_json(cls, said: Mapping[str, Any]) -> Self:
        """Read what the server says; `to_json` returns just that again.

        Raises:
            NotJetStream: it is no configuration at all.
        """
        if not isinstance(said, Mapping):
            raise NotJetStream(f"not a configuration: {str(said)[:100]}")
        kinds, known, unknown = cls._kinds(), {}, {}
        for name, value in said.items():
            try:
                known[name] = _read(kinds[name], value)
            except (KeyError, TypeError, ValueError, OverflowError):
                unknown[name] = value
        return cls(**known, unknown=unknown)

    @classmethod
    @cache
    def _kinds(cls) -> Mapping[str, Any]:
        """The type of each field, without the None that each may be."""
        hints = get_type_hints(cls)
        del hints["unknown"]
        return {
            name: next(each for each in get_args(hint) if each is not NoneType)
            for name, hint in hints.items()
        }

    def to_json(self) -> dict[str, Any]:
        """Return it as the server has it; durations in nanoseconds.

        Raises:
            ValueError: a time without a zone.
        """
        values = {each.name: getattr(self, each.name) for each in fields(self)}
        del values["unknown"]
        said = {name: _write(value) for name, value in values.items() if value is not None}
        return {**self.unknown, **said}

    def __or__(self, other: Self) -> Self:
        return self.from_json({**self.to_json(), **other.to_json()})


def _read(kind: Any, value: Any) -> Any:
    """Raises `ValueError`, or another, unless `_write` makes just this of what is returned."""
    origin = get_origin(kind) or kind
    is_nested = isinstance(origin, type) and issubclass(origin, Configuration)
    expected: Any = dict if is_nested else _IN_JSON.get(origin, origin)
    if type(value) is not expected:
        raise TypeError(f"{value!r} is of another type")
    found: Any = value
    if is_nested:
        found = kind.from_json(value)
    elif kind is timedelta:
        found = timedelta(microseconds=value // 1000)
    elif kind is datetime:
        found = datetime.fromisoformat(value)
    elif origin is Sequence:
        found = [_read(get_args(kind)[0], each) for each in value]
    if _write(found) != value:
        raise ValueError(f"{value!r} is not to be had exactly")
    return found


def _write(value: Any) -> Any:
    if isinstance(value, Configuration):
        return value.to_json()
    if isinstance(value, timedelta):
        return value // _MICROSECOND * 1000
    if isinstance(value, datetime):
        return _write_time(value)
    if isinstance(value, list | tuple):
        return [_write(each) for each in value]
    return value


def _write_time(time: datetime) -> str:
    if time.tzinfo is None:
        raise ValueError(f"{time} has no time zone")
    return _trailing_zeros.sub(r"\1", time.isoformat()).replace("+00:00", "Z")

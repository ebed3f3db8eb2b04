"""JSON objects of the server, typed: fields that a newer server adds are kept."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields
from datetime import datetime, timedelta
from functools import cache
from types import NoneType, UnionType
from typing import Any, ClassVar, Final, Literal, Self, Union, get_args, get_origin, get_type_hints

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
class JsonObject:
    """What the server says of one thing, by its names."""

    unknown: Mapping[str, Any] = field(default_factory=dict)
    """What the server said beyond the fields above, or not as they have it: what a newer server
    knows, for instance."""

    is_exact: ClassVar[bool] = True
    """Whether a value that cannot be kept whole, such as part of a microsecond, is `unknown`.
    Otherwise it is cut."""

    @classmethod
    def from_json(cls, said: Mapping[str, Any]) -> Self:
        """Read what the server says.

        Raises:
            NotJetStream: it is no such thing at all.
        """
        if not isinstance(said, Mapping):
            raise NotJetStream(f"not a {cls.__name__}: {str(said)[:100]}")
        kinds, known, unknown = cls._kinds(), {}, {}
        for name, value in said.items():
            try:
                known[name] = _read(kinds[name], value, is_exact=cls.is_exact)
            except (KeyError, TypeError, ValueError, OverflowError):
                unknown[name] = value
        if missing := cls._required() - known.keys():
            raise NotJetStream(f"a {cls.__name__} without {', '.join(sorted(missing))}")
        return cls(**known, unknown=unknown)

    @classmethod
    @cache
    def _kinds(cls) -> Mapping[str, Any]:
        """The type of each field, without the None that it may be."""
        hints = get_type_hints(cls)
        del hints["unknown"], hints["is_exact"]
        return {name: _without_none(hint) for name, hint in hints.items()}

    @classmethod
    @cache
    def _required(cls) -> frozenset[str]:
        """The fields that the server always says."""
        defaults = ((each.name, {each.default, each.default_factory}) for each in fields(cls))
        return frozenset(name for name, default in defaults if default == {MISSING})

    def to_json(self) -> dict[str, Any]:
        """Return it as the server has it; durations in nanoseconds. What is None is left out.

        Raises:
            ValueError: a time without a zone.
        """
        values = {each.name: getattr(self, each.name) for each in fields(self)}
        del values["unknown"]
        said = {name: _write(value) for name, value in values.items() if value is not None}
        return {**self.unknown, **said}


def _without_none(hint: Any) -> Any:
    if isinstance(hint, UnionType) or get_origin(hint) is Union:
        return next(each for each in get_args(hint) if each is not NoneType)
    return hint


def _read(kind: Any, value: Any, *, is_exact: bool) -> Any:
    """Raises `ValueError`, or another, if it is not of this kind.

    Also, if it is to be exact, unless `_write` makes just this of what is returned.
    """
    if type(value) is kind:  # the shortest way for most of them
        return value
    origin = get_origin(kind) or kind
    is_nested = isinstance(origin, type) and issubclass(origin, JsonObject)
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
        found = [_read(get_args(kind)[0], each, is_exact=is_exact) for each in value]
    if is_exact and _write(found) != value:
        raise ValueError(f"{value!r} is not to be had exactly")
    return found


def _write(value: Any) -> Any:
    if isinstance(value, JsonObject):
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

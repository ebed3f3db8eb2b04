"""Arbitrary messages, drawn as the types of their fields say, and what may be wrong with them."""

from collections.abc import Callable, Iterable, Sequence
from datetime import UTC
from enum import Enum
from types import NoneType, UnionType
from typing import Annotated, Any, Final, Literal, Union, get_args, get_origin

from annotated_types import Ge, Le
from hypothesis import settings
from hypothesis import strategies as st
from pydantic import BaseModel, StringConstraints
from pydantic.fields import FieldInfo

from rebaser_core import codecs
from rebaser_core.ids import RequestId
from rebaser_core.messages import EnqueueUpdatesResponseV1
from rebaser_core.records import WorkspaceRecordV1
from rebaser_core.updates import (
    PutFunc,
    PutValue,
    RemoveFunc,
    RemoveValue,
    SetComputed,
    SetInputs,
    SetValue,
)
from tests.wire.samples import TYPES

unhurried: Final = settings(deadline=None, max_examples=50)

content_types = st.sampled_from(sorted(codecs.CONTENT_TYPES))

_text = st.text(max_size=12)
_leaves = (
    st.none()
    | st.booleans()
    | st.integers(codecs.INT_MIN, codecs.INT_MAX)
    | st.floats(allow_nan=False, allow_infinity=False)
    | _text
)


def _made(shape: Any, **fields: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """As `st.builds`, which would guess what pydantic's signatures leave open."""
    return st.fixed_dictionaries(fields).map(lambda values: shape(**values))


def _wrapped(leaf: Any, depth: int, lists: int) -> Any:
    for bit in range(depth):
        leaf = [leaf] if lists >> bit & 1 else {"in": leaf}
    return leaf


def nested(depth: int) -> st.SearchStrategy[Any]:
    """A leaf in exactly so many lists and objects."""
    return st.builds(_wrapped, _leaves, st.just(depth), st.integers(0, 2**depth - 1))


json_values = (
    st.recursive(
        _leaves,
        lambda inner: st.lists(inner, max_size=4) | st.dictionaries(_text, inner, max_size=4),
        max_leaves=12,
    )
    | st.integers(1, codecs.MAX_DEPTH).flatmap(nested)
    | nested(codecs.MAX_DEPTH)
)


def _ids(kind: Any) -> st.SearchStrategy[Any]:
    return st.binary(min_size=16, max_size=16).map(kind.from_bytes)


ids = _ids(RequestId).map(str)
_names = st.text(min_size=1, max_size=20)
_inputs = st.dictionaries(_names, ids | st.lists(ids, max_size=3), max_size=3)
_maybe = st.none().__or__

updates = st.one_of(
    _made(
        PutFunc,
        func_id=ids,
        name=_names,
        runtime=st.sampled_from(["python", "cel", "sql", "arrow", "pyspark"]),
    ),
    _made(PutFunc, func_id=ids, name=_names, runtime=st.just("builtin"), code=_text),
    _made(RemoveFunc, func_id=ids),
    _made(PutValue, value_id=ids, name=_maybe(_names), value=json_values),
    _made(PutValue, value_id=ids, func_id=ids, inputs=_maybe(_inputs)),
    _made(SetValue, value_id=ids, value=json_values),
    _made(SetInputs, value_id=ids, inputs=_inputs),
    _made(RemoveValue, value_id=ids),
    _made(SetComputed, value_id=ids, value=json_values),
    _made(SetComputed, value_id=ids, failed=_maybe(_text), blocked_by=_maybe(ids)),
)

_moments = st.datetimes(timezones=st.just(UTC)).map(
    lambda moment: moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")
)
_stripped = st.text(st.characters(exclude_categories=["C", "Z"]), min_size=1, max_size=20)
_printed = st.text(st.characters(exclude_categories=["Cc", "Cs"]), min_size=1, max_size=20)


def _pattern(shape: type[BaseModel], name: str) -> str:
    [constraints] = shape.model_fields[name].metadata
    return str(constraints.pattern)


_TEXTS: Final = {
    _pattern(PutFunc, "func_id"): ids,
    _pattern(WorkspaceRecordV1, "created_at"): _moments,
    _pattern(WorkspaceRecordV1, "name"): _printed,
}
"""By their patterns. Hypothesis would draw days that no month has, and characters of no text."""


def _string(constraints: StringConstraints) -> st.SearchStrategy[str]:
    if constraints.strip_whitespace:
        return _stripped
    if constraints.pattern is None:
        return st.text(min_size=constraints.min_length or 0, max_size=20)
    pattern = str(constraints.pattern)
    known = _TEXTS.get(pattern)
    return st.from_regex(pattern.strip("^$"), fullmatch=True) if known is None else known


def _limits(metadata: Iterable[Any]) -> tuple[int, int]:
    low, high = 0, codecs.INT_MAX
    for limit in metadata:
        low = limit.ge if isinstance(limit, Ge) else low
        high = limit.le if isinstance(limit, Le) else high
    return low, high


def _flat(metadata: Iterable[Any]) -> list[Any]:
    return [each for m in metadata for each in (m.metadata if isinstance(m, FieldInfo) else [m])]


def drawn(kind: Any, metadata: Sequence[Any] = ()) -> st.SearchStrategy[Any]:  # noqa: PLR0911 - one a kind
    """What a field of this type and these constraints may hold."""
    origin, parts = get_origin(kind) or kind, get_args(kind)
    if origin is Annotated:
        return drawn(parts[0], _flat(parts[1:]))
    if origin in (Union, UnionType):
        if PutFunc in parts:
            return updates
        return st.one_of(*(drawn(part) for part in sorted(parts, key=lambda p: p is not NoneType)))
    if origin in (list, tuple, Sequence):
        many = st.lists(drawn(parts[0]), max_size=2)
        return many.map(tuple) if origin is tuple else many
    if isinstance(origin, type) and issubclass(origin, BaseModel):
        return _made(
            origin, **{n: drawn(f.annotation, f.metadata) for n, f in origin.model_fields.items()}
        )
    if isinstance(origin, type) and issubclass(origin, Enum):
        return st.sampled_from(origin)
    texts = next((each for each in metadata if isinstance(each, StringConstraints)), None)
    plain: dict[Any, Callable[[], st.SearchStrategy[Any]]] = {
        Any: lambda: json_values,
        NoneType: st.none,
        bool: st.booleans,
        float: lambda: st.floats(0, 1e9),
        dict: lambda: st.dictionaries(*map(drawn, parts), max_size=2),
        int: lambda: st.integers(*_limits(metadata)),
        Literal: lambda: st.sampled_from(parts),
        str: lambda: _text if texts is None else _string(texts),
    }
    return plain[origin]() if origin in plain else _ids(origin)


messages = {name: drawn(kind.current) for name, kind in TYPES.items()}
old_responses = drawn(EnqueueUpdatesResponseV1)

"""JSON and CBOR (RFC 8949): bytes ⇄ plain data, with nothing left over and nothing else let in.

Plain data is what JSON can say: objects with text keys, arrays, text, integers of
64 bits, finite floats, booleans, null.
"""

import io
import json
import math
from collections.abc import Callable
from typing import Any, Final, NoReturn

import cbor2

from rebaser_core.errors import MalformedMessage

CBOR: Final = "application/cbor"
JSON: Final = "application/json"

MAX_DEPTH: Final = 64
"""Arrays and objects within one another, of a value and of a whole message alike."""

INT_MIN: Final = -(2**63)
INT_MAX: Final = 2**63 - 1

_SCALARS: Final = frozenset({str, bool, type(None)})


def dumps(content_type: str, data: Any) -> bytes:
    """`data`, which must be plain, in the encoding that `content_type` names."""
    return _ENCODERS[content_type](data)


def loads(content_type: str, payload: bytes) -> Any:
    """The plain data that `payload` is, all of it.

    Raises:
        MalformedMessage: not of this encoding, more than one document, nested deeper
            than `MAX_DEPTH`, or holding what JSON cannot say (tags, bytes, NaN, …).
    """
    try:
        data = _DECODERS[content_type](payload)
    except (ValueError, RecursionError, EOFError, cbor2.CBORDecodeError) as error:
        raise MalformedMessage(f"not {content_type}: {_brief(error)}") from error
    require_plain(data)
    return data


def require_plain(data: Any) -> None:
    """Raise `MalformedMessage` if `data` holds what JSON cannot say, or is nested too deep."""
    level, depth = [data], 0
    while level:
        if depth > MAX_DEPTH:
            raise MalformedMessage(f"nested deeper than {MAX_DEPTH}")
        below: list[Any] = []
        for item in level:
            kind = type(item)
            if kind is dict:
                if not all(type(key) is str for key in item):
                    raise MalformedMessage("an object's key is not text")
                below.extend(item.values())
            elif kind is list:
                below.extend(item)
            elif kind not in _SCALARS:
                _require_number(item)
        level, depth = below, depth + 1


def _require_number(item: Any) -> None:
    if type(item) is int:
        if not INT_MIN <= item <= INT_MAX:
            raise MalformedMessage("an integer beyond 64 bits; write it as text")
    elif type(item) is not float:
        raise MalformedMessage(f"{type(item).__name__} is not JSON")
    elif not math.isfinite(item):
        raise MalformedMessage(f"{item} is not JSON; write null or text")


def same(one: Any, other: Any) -> bool:
    """Whether two plain values are the same JSON: 1, 1.0 and true are three values."""
    return one is other or _canonical(one) == _canonical(other)


def _canonical(data: Any) -> bytes:
    return cbor2.dumps(data, canonical=True)


def _load_json(payload: bytes) -> Any:
    data = json.loads(payload, parse_constant=_no_constant, object_pairs_hook=_no_duplicates)
    if b"\\u" in payload:
        _dump_json(data)  # half of a surrogate pair is JSON by the grammar, and no text
    return data


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def _no_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    data = dict(pairs)
    if len(data) != len(pairs):
        raise ValueError("an object has a key twice")
    return data


def _dump_json(data: Any) -> bytes:
    return json.dumps(data, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()


def _no_tag(*_: Any) -> NoReturn:
    raise ValueError("tags are not allowed")


# Known tags would be turned into dates, regular expressions, shared references and
# more before anyone could look; unknown ones reach `tag_hook`.
_TAGS: Final = dict.fromkeys(
    [*range(6), 25, 28, 29, 30, 35, 36, 37, 52, 54, 100, 256, 258, 260, 261, 1004, 43000, 55799],
    _no_tag,
)


def _load_cbor(payload: bytes) -> Any:
    stream = io.BytesIO(payload)
    data = cbor2.CBORDecoder(
        stream,
        tag_hook=_no_tag,
        semantic_decoders=_TAGS,
        max_depth=MAX_DEPTH + 1,
        allow_duplicate_keys=False,
        strict_hashable_types=True,
    ).decode()
    if stream.tell() != len(payload):
        raise ValueError("bytes are left over after the document")
    return data


def _brief(error: BaseException) -> str:
    cause = error.__cause__ or error
    return str(cause)[:200]


_ENCODERS: Final[dict[str, Callable[[Any], bytes]]] = {CBOR: cbor2.dumps, JSON: _dump_json}
_DECODERS: Final[dict[str, Callable[[bytes], Any]]] = {CBOR: _load_cbor, JSON: _load_json}

CONTENT_TYPES: Final = frozenset(_DECODERS)

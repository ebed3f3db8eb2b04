"""JSON and CBOR (RFC 8949): bytes ⇄ plain data, with nothing left over and nothing else let in.

Plain data is what JSON can say: objects with text keys, arrays, text, integers of
64 bits, finite floats, booleans, null. Text is what UTF-8 can say.
"""

import io
import json
import math
from collections.abc import Callable, Iterable
from email.message import Message
from typing import Any, Final, NoReturn

import cbor2

from rebaser_core.errors import MalformedMessage
from rebaser_core.plain_json import INT_MAX, INT_MIN, MAX_DEPTH

CBOR: Final = "application/cbor"
JSON: Final = "application/json"

MAX_MESSAGE_DEPTH: Final = MAX_DEPTH + 16
"""The same of a whole message. What fits into one kind of message fits into every other."""


def dumps(content_type: str, data: Any) -> bytes:
    """`data`, which must be plain, in the encoding that `content_type` names.

    Raises:
        MalformedMessage: the encoding cannot say it. Not everything is looked for here:
            see `validate_json`.
    """
    try:
        return _ENCODERS[content_type](data)
    except (ValueError, TypeError, RecursionError, cbor2.CBOREncodeError) as error:
        raise MalformedMessage(f"not to be written as {content_type}: {_cause(error)}") from error


def loads(content_type: str, payload: bytes) -> Any:
    """The plain data that `payload` is, all of it.

    Raises:
        MalformedMessage: not of this encoding, more than one document, nested deeper
            than `MAX_MESSAGE_DEPTH`, or holding what JSON cannot say (tags, bytes, NaN, …).
    """
    try:
        data = _DECODERS[content_type](payload)
    except (ValueError, RecursionError, EOFError, cbor2.CBORDecodeError) as error:
        raise MalformedMessage(f"not {content_type}: {_cause(error)}") from error
    validate_json(data, MAX_MESSAGE_DEPTH)
    return data


def validate_json(data: Any, max_depth: int = MAX_DEPTH) -> None:
    """Raise `MalformedMessage` if `data` holds what JSON cannot say, or is nested too deep."""
    _validate_items((data,), 0, max_depth)


def _validate_items(items: Iterable[Any], depth: int, max_depth: int) -> None:
    """As `validate_json`, of each item of what is nested so deep."""
    for item in items:
        kind = type(item)
        if kind is str:
            if not item.isascii():  # most is, and there is much of it
                _require_text(item)
        elif kind is dict or kind is list:
            if depth >= max_depth:
                raise MalformedMessage(f"nested deeper than {max_depth}")
            if kind is dict:
                for key in item:
                    if type(key) is not str or not key.isascii():
                        _require_key(key)
            _validate_items(item.values() if kind is dict else item, depth + 1, max_depth)
        else:
            _REQUIRE.get(kind, _refuse)(item)


def _require_key(key: Any) -> None:
    if type(key) is not str:
        raise MalformedMessage("an object's key is not text")
    _require_text(key)


def _require_text(text: str) -> None:
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError:
            raise MalformedMessage("text with half of a surrogate pair") from None


def _require_integer(number: int) -> None:
    if not INT_MIN <= number <= INT_MAX:
        raise MalformedMessage("an integer beyond 64 bits; write it as text")


def _require_float(number: float) -> None:
    if not math.isfinite(number):
        raise MalformedMessage(f"{number} is not JSON; write null or text")


_REMEDIES: Final = {
    "Decimal": "; write float(x) for a number, or str(x) for its digits",
    "timedelta": "; write its total_seconds()",
    "Timedelta": "; write its total_seconds()",
    "timedelta64": "; write a number of seconds",
    "bytes": "; write text, for instance base64",
    "set": "; write a list",
    "frozenset": "; write a list",
    "UUID": "; write str(x)",
}
"""Type that programs often have → the end of the error, which says what to write instead."""


def _refuse(item: Any) -> NoReturn:
    kind = type(item).__name__
    raise MalformedMessage(f"{kind} is not JSON{_REMEDIES.get(kind, '')}")


def _accept(_: Any) -> None:
    pass


_REQUIRE: Final[dict[type, Callable[[Any], None]]] = {
    str: _require_text,
    int: _require_integer,
    float: _require_float,
    bool: _accept,
    type(None): _accept,
}


def _load_json(payload: bytes) -> Any:
    # Left to itself `json` also takes UTF-16, UTF-32 and a byte order mark (RFC 8259, 8.1).
    return json.loads(
        payload.decode(), parse_constant=_no_constant, object_pairs_hook=_no_duplicates
    )


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
        max_depth=MAX_MESSAGE_DEPTH,
        allow_duplicate_keys=False,
        strict_hashable_types=True,
    ).decode()
    if stream.tell() != len(payload):
        raise ValueError("bytes are left over after the document")
    return data


def _cause(error: BaseException) -> str:
    cause = error.__cause__ or error
    return str(cause)[:200]


_ENCODERS: Final[dict[str, Callable[[Any], bytes]]] = {CBOR: cbor2.dumps, JSON: _dump_json}
_DECODERS: Final[dict[str, Callable[[bytes], Any]]] = {CBOR: _load_cbor, JSON: _load_json}

CONTENT_TYPES: Final = frozenset(_DECODERS)


def parse_content_type(said: str) -> str:
    """Return which of `CONTENT_TYPES` a media type is, by MIME (RFC 2045).

    Case and parameters do not matter, except a charset: text is UTF-8.

    Raises:
        ValueError: it is another one; says which there are.
    """
    if said in CONTENT_TYPES:  # as nearly all are
        return said
    header = Message()
    header["Content-Type"] = said
    content_type, charset = header.get_content_type(), header.get_content_charset()
    if content_type not in CONTENT_TYPES:
        known = ", ".join(sorted(CONTENT_TYPES))
        raise ValueError(f"content type {said[:80]!r}; this build reads {known}")
    if charset not in (None, "utf-8", "utf8"):
        raise ValueError(
            f"content type {said[:80]!r}: messages are in UTF-8; encode it so, and leave the "
            "charset out"
        )
    return content_type


def content_type_or_default(content_type: str | None) -> str:
    """Return which of `CONTENT_TYPES` it is; the default if it is none of them."""
    try:
        return CBOR if content_type is None else parse_content_type(content_type)
    except ValueError:
        return CBOR

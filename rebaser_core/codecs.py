"""JSON and CBOR (RFC 8949): bytes ⇄ plain data, whole and nothing else.

Plain data is what JSON can express: objects with text keys, arrays, text in UTF-8, 64-bit integers,
finite floats, booleans, null.

A few bytes can take much memory: an empty array is 1 byte in CBOR and 72 in memory. So a reader of
foreign bytes first calls `require_affordable`, which estimates the memory. The prices are
CPython's, with some reserve; `docs/security.md` has figures.
"""

import io
import json
import math
import re
from collections.abc import Callable, Iterable
from email.message import Message
from math import copysign
from typing import Any, Final, NoReturn

import cbor2

from rebaser_core.errors import CostlyMessage, MalformedMessage

MAX_DEPTH: Final = 64
"""Maximum nesting of arrays and objects in a value, wherever it travels."""

INT_MIN: Final = -(2**63)
INT_MAX: Final = 2**63 - 1


def json_equal(one: Any, other: Any) -> bool:
    """Whether both are equal JSON: 1, 1.0 and true are three, 0.0 and -0.0 two different values.

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


CBOR: Final = "application/cbor"
JSON: Final = "application/json"

MAX_MESSAGE_DEPTH: Final = MAX_DEPTH + 16
"""Maximum nesting in a whole message. A value that fits into one kind of message fits into all."""


def dumps(content_type: str, data: Any) -> bytes:
    """Return `data`, which must be plain, in the encoding that `content_type` names.

    Raises:
        MalformedMessage: the encoding cannot express it. Not every mistake is found: see
            `validate_json`.
    """
    try:
        return _ENCODERS[content_type](data)
    except (ValueError, TypeError, RecursionError, cbor2.CBOREncodeError) as error:
        raise _mistake(f"cannot be written as {content_type}", error) from error
    except BaseException as error:
        if _panicked(error):
            raise _no_memory(error) from error
        raise


def loads(content_type: str, payload: bytes) -> Any:
    """Return the plain data in `payload`, which must be one whole document.

    Raises:
        MalformedMessage: not of this encoding, more than one document, nested deeper
            than `MAX_MESSAGE_DEPTH`, or holding what JSON cannot say (tags, bytes, NaN, …).
    """
    try:
        data = _DECODERS[content_type](payload)
    except (ValueError, RecursionError, EOFError, cbor2.CBORDecodeError) as error:
        raise _mistake(f"not {content_type}", error) from error
    except BaseException as error:
        if _panicked(error):
            raise _no_memory(error) from error
        raise
    validate_json(data, MAX_MESSAGE_DEPTH)
    return data


def validate_json(data: Any, max_depth: int = MAX_DEPTH) -> None:
    """Raise `MalformedMessage` if `data` holds what JSON cannot express, or is nested too deep."""
    _validate_items((data,), 0, max_depth)


def _validate_items(items: Iterable[Any], depth: int, max_depth: int) -> None:
    """Validate items that are nested `depth` deep, as `validate_json` does."""
    for item in items:
        kind = type(item)
        if kind is str:
            if not item.isascii():  # most text is ASCII, and there is much of it
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
    **dict.fromkeys(("bytes", "bytearray", "memoryview"), "; write text, for instance base64"),
    "set": "; write a list",
    "frozenset": "; write a list",
    "UUID": "; write str(x)",
}
"""Type that programs often have → the end of the error, which names a replacement."""


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
    return strict_json(payload.decode())


def strict_json(text: str) -> Any:
    """Read JSON. Raises `ValueError` for a key that an object has twice, and for NaN, too."""
    return json.loads(text, parse_constant=_no_constant, object_pairs_hook=_no_duplicates)


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
_REFUSED_TAGS: Final = dict.fromkeys(
    [*range(6), 25, 28, 29, 30, 35, 36, 37, 52, 54, 100, 256, 258, 260, 261, 1004, 43000, 55799],
    _no_tag,
)


def _load_cbor(payload: bytes) -> Any:
    stream = io.BytesIO(payload)
    data = cbor2.CBORDecoder(
        stream,
        tag_hook=_no_tag,
        semantic_decoders=_REFUSED_TAGS,
        max_depth=MAX_MESSAGE_DEPTH,
        allow_duplicate_keys=False,
        strict_hashable_types=True,
    ).decode()
    if stream.tell() != len(payload):
        raise ValueError("bytes are left over after the document")
    return data


def _mistake(what: str, error: Exception) -> MalformedMessage | MemoryError:
    if isinstance(error.__cause__, MemoryError):  # cbor2 says it in its own words
        return _no_memory(error)
    return MalformedMessage(f"{what}: {_cause(error)}")


def _no_memory(error: BaseException) -> MemoryError:
    """Return the error in place of cbor2's own or its panic: it is no fault of the message."""
    return MemoryError(f"no memory for a message: {error}")


def _panicked(error: BaseException) -> bool:
    return type(error).__module__ == "pyo3_runtime"


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
        ValueError: it is another one; the text lists the known ones.
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
    """Return the member of `CONTENT_TYPES` that it is; the default if it is none."""
    try:
        return CBOR if content_type is None else parse_content_type(content_type)
    except ValueError:
        return CBOR


FACTOR: Final = 24
"""Bytes of memory for each byte of a payload that are always allowed."""

FREE: Final = 64 * 1024 * 1024
"""Bytes of memory that are always allowed."""

SMALL: Final = 640 * 1024
"""Size of a payload, in bytes, that cannot cost more than `FREE`, so that it is not estimated."""

_SLOT: Final = 8  # a reference to an item, in its container
_NUMBER: Final = 32 + _SLOT
_TEXT: Final = 64 + _SLOT  # and its bytes
_ARRAY: Final = 72 + _SLOT
_MAP: Final = 208 + _SLOT  # a map of up to five entries
_EMPTY_MAP: Final = 72 + _SLOT
_ENTRY: Final = 100  # an entry of a larger map, whose table has up to 3 empty places each
_PAIR: Final = 64  # an entry while a JSON object is read
_FEW: Final = 5
_SHARED: Final = 1  # bytes of a text whose object Python shares: one character

_STEP: Final = 64 * 1024
_STRING: Final = rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"'
_STRINGS: Final = re.compile(_STRING, re.DOTALL)
_RUN: Final = re.compile(rb'(?:[^"]++|' + _STRING + rb"){1,10000}", re.DOTALL)


def require_affordable(content_type: str, payload: bytes) -> None:
    """Raise `CostlyMessage` for what takes more than `FREE`, and than `FACTOR` times its size.

    The payload may be malformed: the decoder takes no more memory before it finds that out.
    """
    if len(payload) <= SMALL:
        return
    most = max(FREE, FACTOR * len(payload))
    cost = _of_json(payload, most) if content_type == JSON else _of_cbor(payload, most)
    if cost > most:
        raise CostlyMessage(
            f"{len(payload)} bytes that would take more than {most} of memory: too many arrays, "
            "objects or short texts for its size; send it in smaller batches"
        )


def _of_json(payload: bytes, most: int) -> int:
    cost = _of_marks(payload) + len(payload)
    if cost > most:  # perhaps only because of what stands in texts
        cost = _of_marks_outside_texts(payload) + len(payload)
    return cost


def _of_marks_outside_texts(payload: bytes) -> int:
    """Return the price of JSON, one run of tokens at a time.

    Cutting all texts out of the payload at once could itself take the memory that this limits.
    """
    at = cost = 0
    while (run := _RUN.match(payload, at)) is not None:
        cost += _of_marks(_STRINGS.sub(b'""', run.group()))
        at = run.end()
    return cost  # a text without an end is malformed


def _of_marks(text: bytes) -> int:
    """Return the price of JSON without texts; a little too high if white space is between marks."""
    count = text.count
    maps, arrays = count(b"{"), count(b"[")
    inner = count(b",[") + count(b",{")  # these have been paid as numbers
    entries = max(0, count(b":") - _FEW * maps)
    return (
        _NUMBER * count(b",")
        + (_ARRAY + _NUMBER - _SLOT) * arrays
        - (_NUMBER - _SLOT) * (count(b"[]") + inner)
        + (_MAP + _NUMBER - _SLOT) * maps
        - (_MAP - _EMPTY_MAP + _NUMBER - _SLOT) * count(b"{}")
        + _TEXT * count(b'"') // 2
        + (_ENTRY + _PAIR) * entries
    )


def _of_cbor(payload: bytes, most: int) -> int:
    """Return the price of CBOR, or a lower bound as soon as that is more than `most`."""
    prices = _PRICES
    at, end, cost = 0, len(payload), 0
    while at < end and cost <= most:
        stop = min(at + _STEP, end)
        while at < stop:
            head = payload[at]
            cost += prices[head]
            step = _STEPS[head]
            if step:
                at += step
            elif head == _SHORT_TEXT and at + 1 < end:  # as every id is
                length = payload[at + 1]
                at += 2 + length
                cost += length
            elif head == _OPEN_MAP:
                prices = _PRICES_IN_OPEN_MAP  # an open map does not say how many entries follow
                at += 1
            else:
                width = 1 << (head & 3)
                length = int.from_bytes(payload[at + 1 : at + 1 + width])
                at += 1 + width
                if head >> 5 == _MAPS:
                    cost += _ENTRY * min(length, end)
                else:
                    at += length
                    cost += min(length, end)
    return cost


_SHORT_TEXT: Final = 0x78
_OPEN_MAP: Final = 0xBF
_BYTES, _TEXTS, _ARRAYS, _MAPS, _TAGS, _OTHERS = range(2, 8)
_IN_HEAD: Final = 24  # arguments below stand in the first byte
_OPEN: Final = 31


def _step(head: int) -> int:
    """Return the distance to the next item; 0 if it takes more than the first byte to know."""
    major, info = head >> 5, head & 31
    if info < _IN_HEAD:
        return 1 + info if major in (_BYTES, _TEXTS) else 1
    if head == _OPEN_MAP:
        return 0
    width = 1 << (info & 3) if info < _IN_HEAD + 4 else 0
    return 0 if width and major in (_BYTES, _TEXTS, _MAPS) else 1 + width


def _price(head: int) -> int:
    major, info = head >> 5, head & 31
    if major in (_BYTES, _TEXTS):
        in_head = info if info < _IN_HEAD else 2
        return _SLOT if in_head <= _SHARED else _TEXT + in_head
    if major == _ARRAYS:
        return _ARRAY
    if major == _MAPS:
        return _MAP + (_ENTRY * info if _FEW < info < _IN_HEAD else 0) if info else _EMPTY_MAP
    if major == _OTHERS:
        return _NUMBER if info in (25, 26, 27) else _SLOT
    shared = head <= _IN_HEAD or major == _TAGS
    return _SLOT if shared else _NUMBER


_STEPS: Final = [_step(head) for head in range(256)]
_PRICES: Final = [_price(head) for head in range(256)]
_PRICES_IN_OPEN_MAP: Final = [
    price + _ENTRY * (head >> 5 == _TEXTS) for head, price in enumerate(_PRICES)
]

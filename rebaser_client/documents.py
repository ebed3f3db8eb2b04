"""JSON, YAML and TOML as plain data, read strictly: each fault is named with its line and column.

Refused in every format are a key that an object has twice, a second document, a number that JSON
cannot express, and data that is nested too deep or too large.
"""

import json
import math
import re
import tomllib
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import date, datetime, time
from pathlib import Path
from typing import Any, Final

from rebaser_client.errors import InvalidDraft
from rebaser_core import codecs
from rebaser_core.codecs import INT_MAX, INT_MIN
from rebaser_core.errors import MalformedMessage, is_text

_SUFFIXES: Final = (".yaml", ".yml", ".json", ".toml")

MAX_SIZE: Final = 256 << 20
"""Limit of a file's bytes, and of the size of all its values together, see `size_of`."""

_EACH: Final = 16
"""Size that a value, list or object has in addition to that of its text."""

_MAX_DEPTH: Final = codecs.MAX_MESSAGE_DEPTH
_TOO_DEEP: Final = f"nested deeper than {_MAX_DEPTH}"


def _misread(line: int, column: int, what: str) -> InvalidDraft:
    """Error that names a place, both counted from 1."""
    return InvalidDraft(f"line {line}, column {column}: {what}")


def too_large(what: str = "it") -> InvalidDraft:
    """Error about data that is larger than `MAX_SIZE`."""
    return InvalidDraft(
        f"{what} stands for more than {MAX_SIZE >> 20} MiB of values; load it in parts"
    )


def size_of(text: str) -> int:
    """Size of a value with that text, as `MAX_SIZE` limits it."""
    return _EACH + len(text)


def read_text(path: Path) -> str:
    """The text of a file in UTF-8, with or without a byte order mark.

    Raises:
        InvalidDraft: it is not UTF-8, or larger than `MAX_SIZE`.
        OSError: it cannot be read.
    """
    with path.open("rb") as file:
        octets = file.read(MAX_SIZE + 1)
    if len(octets) > MAX_SIZE:
        raise too_large()
    return decode(octets)


def decode(octets: bytes) -> str:
    """UTF-8 as text, without a byte order mark.

    Raises:
        InvalidDraft: it is not UTF-8.
    """
    try:
        return octets.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = octets.count(b"\n", 0, error.start) + 1
        raise InvalidDraft(f"line {line}: not UTF-8 (byte {error.start})") from error


def read_document(path: Path) -> Any:
    """The plain data in a file of JSON, YAML or TOML, as its suffix says; None if it is empty.

    Raises:
        InvalidDraft: it is no such document, or breaks a strict rule.
        OSError: it cannot be read.
    """
    if path.is_dir():
        raise InvalidDraft("it is a folder; name a file in it")
    suffix = path.suffix.lower()
    if suffix not in _SUFFIXES:
        raise InvalidDraft(
            f"{suffix or 'no suffix'!r} is no format of graphs; use {', '.join(_SUFFIXES)}. Tables "
            "of values are .csv, .parquet or .jsonl"
        )
    text = read_text(path)
    if not text.strip():
        return None
    match suffix:
        case ".json":
            return parse_json(text)
        case ".toml":
            return parse_toml(text)
        case _:
            return parse_yaml(text)


def parse_json(text: str, first_line: int = 1) -> Any:
    """The plain data that a JSON text is; its first line is counted as `first_line`.

    Raises:
        InvalidDraft: it is no JSON, has a key twice, or a number of more than 64 bits.
    """
    try:
        data = codecs.strict_json(text)
        codecs.validate_json(data, _MAX_DEPTH)
    except json.JSONDecodeError as error:
        with suppress(ValueError, IndexError):  # in the middle of a word there may be anything
            fault = _first_fault(text[: error.pos])
            if fault is not None and fault[1] == _TOO_DEEP:
                line, column = _place(text, fault[0])
                raise _misread(first_line + line - 1, column, _TOO_DEEP) from error
        what = f"not JSON: {error.msg}"
        raise _misread(first_line + error.lineno - 1, error.colno, what) from error
    except (ValueError, RecursionError, MalformedMessage) as error:
        offset, what = _first_fault(text) or (0, str(error)[:200])
        line, column = _place(text, offset)
        raise _misread(first_line + line - 1, column, what) from error
    return data


def _place(text: str, offset: int) -> tuple[int, int]:
    start = text.rfind("\n", 0, offset) + 1
    return text.count("\n", 0, offset) + 1, offset - start + 1


_TOKEN: Final = re.compile(r'"(?:[^"\\]|\\.)*"|[{}\[\]]|[^\s{}\[\]:,"]+', re.DOTALL)
_BEFORE_VALUE: Final = re.compile(r"\s*:")


def _first_fault(text: str) -> tuple[int, str] | None:
    """Offset of the first fault in well-formed JSON, and its description."""
    keys: list[set[str]] = []
    for found in _TOKEN.finditer(text):
        word, offset = found[0], found.start()
        if word in "{[":
            keys.append(set())
            if len(keys) > _MAX_DEPTH:
                return offset, _TOO_DEEP
        elif word in "}]":
            keys.pop()
        elif not word.startswith('"'):
            if (what := _number_fault(word)) is not None:
                return offset, what
        else:
            said = json.loads(word)
            if not is_text(said):
                return offset, _HALF
            if keys and _BEFORE_VALUE.match(text, found.end()):
                if said in keys[-1]:
                    return offset, _twice(said)
                keys[-1].add(said)
    return None


_HALF: Final = "text with half of a surrogate pair"


def _twice(key: str, line: int | None = None) -> str:
    since = "" if line is None else f", first in line {line}"
    return f"the key {key!r:.80} stands here twice{since}; keep one of them"


def _number_fault(token: str) -> str | None:
    """Fault of a token that is a number, `null`, `true` or `false`; None if it has none."""
    if token in ("null", "true", "false"):
        return None
    if token.lstrip("-").isdecimal():
        return _TOO_LONG if _whole(token) is None else None
    try:
        return None if math.isfinite(float(token)) else f"{token[:40]} {_NO_NUMBER}"
    except ValueError:
        return f"{token[:40]} is not JSON"


_TOO_LONG: Final = "an integer beyond 64 bits; write it as text, in quotes"
_NO_NUMBER: Final = "is no number of JSON; write null, or text in quotes"
_LONGEST: Final = 80
"""Number of digits up to which a text is read as an integer; Python refuses some thousand."""


def _whole(digits: str, radix: int = 10) -> int | None:
    """Integer of those digits; None if it is not one of 64 bits."""
    significant = digits.lstrip("+-").lstrip("0") or "0"
    if len(significant) > _LONGEST:
        return None
    number = int(significant, radix) * (-1 if digits[0] == "-" else 1)
    return number if INT_MIN <= number <= INT_MAX else None


_TOML_PLACE: Final = re.compile(r"(.*) \(at line (\d+), column (\d+)\)", re.DOTALL)


def parse_toml(text: str) -> dict[str, Any]:
    """The plain data that a TOML text is.

    Raises:
        InvalidDraft: it is no TOML, or has dates or numbers that JSON does not have.
    """
    try:
        data = tomllib.loads(text)
        codecs.validate_json(data, _MAX_DEPTH)
    except tomllib.TOMLDecodeError as error:
        if (place := _TOML_PLACE.fullmatch(str(error))) is None:
            raise InvalidDraft(f"not TOML: {error}") from error
        raise _misread(int(place[2]), int(place[3]), f"not TOML: {place[1]}") from error
    except RecursionError as error:
        raise InvalidDraft(_TOO_DEEP) from error
    except MalformedMessage as error:
        raise InvalidDraft(next(_foreign(data, ()), str(error))) from error
    except ValueError as error:  # an integer with thousands of digits
        raise InvalidDraft(_TOO_LONG) from error
    return data


def _foreign(data: Any, path: tuple[str, ...]) -> Iterator[str]:
    """Faults of TOML data that JSON does not have, each with its place."""
    if len(path) > _MAX_DEPTH:
        yield f"{'.'.join(path)[:80]}…: {_TOO_DEEP}"
    elif isinstance(data, dict | list):
        items = data.items() if isinstance(data, dict) else enumerate(data)
        for key, item in items:
            yield from _foreign(item, (*path, str(key)))
    elif isinstance(data, date | datetime | time):
        yield f"{'.'.join(path)}: a date or time is no JSON; write it as text, in quotes"
    else:
        try:
            codecs.validate_json(data)
        except MalformedMessage as error:
            yield f"{'.'.join(path)}: {error}"


def parse_yaml(text: str) -> Any:
    """The plain data that a YAML text is, by the core schema of YAML 1.2; None if it is empty.

    In addition, `<<` merges the keys of other objects; keys of the object itself prevail.

    Raises:
        InvalidDraft: it is no YAML or not one document, has a key twice, a tag of another schema,
            or aliases that stand for more than `MAX_SIZE`.
    """
    try:
        from ruamel.yaml import YAML
        from ruamel.yaml.error import MarkedYAMLError
    except ModuleNotFoundError as error:
        raise InvalidDraft(
            "YAML needs ruamel.yaml: pip install 'rebaser[yaml]'; JSON and TOML need nothing"
        ) from error
    if (foreign := _FOREIGN_BREAK.search(text)) is not None:
        what = f"a line break of YAML 1.1; write it as {ascii(foreign[0])[1:-1]}, in double quotes"
        raise _misread(*_place(text, foreign.start()), what)
    reader = _YamlReader()
    try:
        for event in YAML(typ="safe", pure=True).parse(text):
            reader.take(event)
    except InvalidDraft:
        raise
    except MarkedYAMLError as error:
        what = f"not YAML: {_words(error.problem)}"
        if error.context:
            what = f"{what} ({_words(error.context)})"
        if (mark := error.problem_mark or error.context_mark) is None:
            raise InvalidDraft(what) from error
        raise _misread(mark.line + 1, mark.column + 1, what) from error
    except Exception as error:  # a character that YAML has not, or a fault of the library's
        line, column = _place(text, getattr(error, "position", 0))
        what = getattr(error, "reason", None) or f"{type(error).__name__}: {error!s:.200}"
        raise _misread(line, column, f"not YAML: {_words(what)}") from error
    return reader.document


def _words(text: object) -> str:
    return " ".join(str(text).split())


_FOREIGN_BREAK: Final = re.compile("[\x85\u2028\u2029]")
"""Line breaks for ruamel.yaml, but ordinary characters in YAML 1.2."""

_NO_KEY: Final = object()
_MERGE: Final = "<<"


class _Open:
    """A list or an object of YAML whose end is not read yet."""

    def __init__(self, event: Any, data: Any, size: int) -> None:
        self.start = event.start_mark
        self.anchor: str | None = event.anchor
        self.data: Any = data
        self.size_before = size
        self.key: Any = _NO_KEY
        self.lines: dict[str, int] = {}
        """Keys in it, and their lines."""
        self.merged: list[Any] = []

    def end(self) -> Any:
        """Data that was read, with the merged keys."""
        if not self.merged:
            return self.data
        whole: dict[str, Any] = {}
        for weaker in reversed(self.merged):
            whole |= weaker
        return whole | self.data


class _YamlReader:
    """Makes plain data of YAML's events; a list or an object that has aliases is shared."""

    def __init__(self) -> None:
        self.document: Any = None
        self._documents = 0
        self._stack: list[_Open] = []
        self._anchors: dict[str, tuple[Any, int]] = {}
        self._size = 0
        self._takers: dict[str, Callable[[Any], None]] = {
            "ScalarEvent": self._scalar,
            "MappingStartEvent": self._start,
            "SequenceStartEvent": self._start,
            "MappingEndEvent": self._end,
            "SequenceEndEvent": self._end,
            "AliasEvent": self._alias,
            "DocumentStartEvent": self._document,
        }

    def take(self, event: Any) -> None:
        taker = self._takers.get(type(event).__name__)
        if taker is not None:
            taker(event)

    def _document(self, event: Any) -> None:
        self._documents += 1
        if self._documents > 1:
            raise _at(event, "a second document; a file holds one")
        if event.version not in (None, (1, 2)):
            major, minor = event.version
            raise _at(event, f"this is said to be YAML {major}.{minor}; 1.2 is read: write 1.2")

    def _scalar(self, event: Any) -> None:
        text, tag = event.value, event.tag
        if not (text.isascii() or is_text(text)):
            raise _at(event, _HALF)
        if tag is not None:
            value = _tagged(event, tag, text)
        elif event.style is None and event.implicit[0]:
            if text.endswith(":"):  # ruamel.yaml takes the colon in [a:] for text
                raise _at(
                    event, "a colon ends this text; put the text in quotes, or a blank behind"
                )
            value = _plain(event, text)
        else:
            value = text
        before = self._size
        self._grow(event, size_of(text))
        if event.anchor is not None:
            self._anchors[event.anchor] = value, self._size - before
        merges = text == _MERGE and event.style is None and tag is None
        self._put(event, value, merges=merges)

    def _start(self, event: Any) -> None:
        is_object = type(event).__name__ == "MappingStartEvent"
        if event.tag not in (None, "!", f"{_CORE}{'map' if is_object else 'seq'}"):
            raise _at(event, f"the tag {event.tag!r:.80} is none of JSON's; leave it out")
        if len(self._stack) >= _MAX_DEPTH:
            raise _at(event, _TOO_DEEP)
        top = self._stack[-1] if self._stack else None
        if top is not None and isinstance(top.data, dict) and top.key is _NO_KEY:
            raise _at(event, "a key is text; this one is a list or an object")
        self._stack.append(_Open(event, {} if is_object else [], self._size))
        self._grow(event, size_of(""))

    def _end(self, event: Any) -> None:
        ended = self._stack.pop()
        data = ended.end()
        if ended.anchor is not None:
            self._anchors[ended.anchor] = data, self._size - ended.size_before
        self._put(event, data)

    def _alias(self, event: Any) -> None:
        if event.anchor not in self._anchors:
            raise _at(event, f"*{event.anchor!s:.80} stands for nothing that ended before it")
        value, size = self._anchors[event.anchor]
        self._grow(event, size)
        self._put(event, value)

    def _grow(self, event: Any, size: int) -> None:
        self._size += size
        if self._size > MAX_SIZE:
            raise _at(event, str(too_large("the file, up to here,")))

    def _put(self, event: Any, value: Any, *, merges: bool = False) -> None:
        """Put a value in its place: into a list, behind its key, or as a key itself."""
        if not self._stack:
            self.document = value
            return
        top = self._stack[-1]
        if isinstance(top.data, list):
            top.data.append(value)
        elif top.key is _NO_KEY:
            if type(value) is not str:
                raise _at(event, f"a key is text: write {json.dumps(value)[:80]} in quotes")
            line = event.start_mark.line + 1
            if value in top.lines:
                raise _at(event, _twice(value, top.lines[value]))
            top.lines[value] = line
            top.key = _MergeKey if merges else value
        else:
            key, top.key = top.key, _NO_KEY
            if key is _MergeKey:
                top.merged += _mergeable(event, value)
            else:
                top.data[key] = value


class _MergeKey:
    """Stands for `<<` that is not in quotes."""


def _mergeable(event: Any, value: Any) -> list[dict[str, Any]]:
    parts = value if isinstance(value, list) else [value]
    if not all(isinstance(part, dict) for part in parts):
        raise _at(event, "<< merges an object, or a list of them; as a key write '<<' in quotes")
    return parts


def _at(event: Any, what: str) -> InvalidDraft:
    return _misread(event.start_mark.line + 1, event.start_mark.column + 1, what)


_CORE: Final = "tag:yaml.org,2002:"
_CONSTANTS: Final[dict[str, bool | None]] = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL"), None),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
}
_WHOLE: Final = re.compile(r"[-+]?[0-9]+")
_RADIX: Final = re.compile(r"0(?:o([0-7]+)|x([0-9a-fA-F]+))")
_FRACTION: Final = re.compile(r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?")
_NOT_FINITE: Final = re.compile(r"[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)")
_NUMBERS_BEGIN: Final = frozenset("+-.0123456789")


def _plain(event: Any, text: str) -> Any:
    """Value of a scalar without quotes."""
    if text[:1] not in _NUMBERS_BEGIN:
        return _CONSTANTS.get(text, text)
    if _WHOLE.fullmatch(text):
        return _required(event, _whole(text), _TOO_LONG)
    if _FRACTION.fullmatch(text):
        number = float(text)
        return _required(event, number if math.isfinite(number) else None, f"{text} {_NO_NUMBER}")
    if (found := _RADIX.fullmatch(text)) is not None:
        octal, hexadecimal = found.groups()
        whole = _whole(octal, 8) if hexadecimal is None else _whole(hexadecimal, 16)
        return _required(event, whole, _TOO_LONG)
    if _NOT_FINITE.fullmatch(text):
        return _required(event, None, f"{text} {_NO_NUMBER}")
    return text


def _required(event: Any, number: float | None, what: str) -> float:
    if number is None:
        raise _at(event, what)
    return number


def _tagged(event: Any, tag: str, text: str) -> Any:
    """Value of a scalar with a tag of the core schema."""
    if tag in ("!", f"{_CORE}str"):
        return text
    plain = _plain(event, text)
    match tag.removeprefix(_CORE), plain:
        case ("null", None) | ("bool", bool()) | ("float", float()):
            return plain
        case "int", int() if not isinstance(plain, bool):
            return plain
        case "float", int() if not isinstance(plain, bool):
            return float(plain)
    raise _at(event, f"the tag {tag!r:.80} does not fit {text!r:.40} or is none of JSON's")

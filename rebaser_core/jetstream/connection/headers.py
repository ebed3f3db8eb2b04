"""The block of headers before a message's payload."""

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Final

import nats.errors

_VERSION: Final = "NATS/1.0"
_END: Final = "\r\n"
_TOKEN: Final = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
_LINE_BREAK: Final = re.compile(r"[\r\n]")
_SPACE: Final = " \t\r\n\v\f"
_STATUS: Final = re.compile(r" ([0-9]{3})(?: (.*))?", re.DOTALL)


def is_sendable(name: object) -> bool:
    """Whether a message may have a header of this name: a token, as in HTTP.

    Received messages may have other names, see `parse_headers`; those cannot be sent on.
    """
    return isinstance(name, str) and _TOKEN.fullmatch(name) is not None


def encode_headers(headers: Mapping[str, str]) -> bytes:
    """The octets of some headers; a line break in a value becomes a blank.

    Raises:
        BadHeaderError: a name is no token, or a value is no text.
    """
    try:
        lines = [f"{_checked_name(name)}: {value.strip()}\r\n" for name, value in headers.items()]
        block = f"{_VERSION}\r\n{''.join(lines)}\r\n"
        if not block.count("\r") == block.count("\n") == len(lines) + 2:
            lines = [_LINE_BREAK.sub(" ", line[:-2]) + "\r\n" for line in lines]
            block = f"{_VERSION}\r\n{''.join(lines)}\r\n"
        return block.encode()
    except (AttributeError, TypeError, UnicodeEncodeError) as error:
        raise nats.errors.BadHeaderError(f"{error}") from error


@lru_cache(1_000)
def _checked_name(name: str) -> str:
    if not is_sendable(name):
        raise nats.errors.BadHeaderError(name)
    return name


def parse_headers(block: bytes) -> dict[str, str] | None:
    """The headers, and a status as `Status` and `Description`; None if there are none.

    Takes any octets. Names are read without loss: of octets that are no UTF-8 each stands as
    the lone surrogate that Python's `surrogateescape` makes of it. In values they are replaced
    by U+FFFD. Of equal names the last one counts.
    """
    try:
        text = block.decode()
    except UnicodeDecodeError:
        found = _parse_text(block.decode(errors="surrogateescape"))
        return found and {name: _replace_surrogates(value) for name, value in found.items()}
    return _parse_text(text)


def _parse_text(text: str) -> dict[str, str] | None:
    if not text.startswith(_VERSION):
        return None
    first, *lines = text.split(_END)
    found = {}
    for line in lines:
        name, colon, value = line.partition(":")
        if colon:
            found[name.strip(_SPACE)] = value.strip(_SPACE)
    if len(first) > len(_VERSION) and (status := _STATUS.fullmatch(first, len(_VERSION))):
        found["Status"] = status[1]
        if status[2]:
            found["Description"] = status[2]
    return found or None


def _replace_surrogates(value: str) -> str:
    return value.encode(errors="surrogateescape").decode(errors="replace")

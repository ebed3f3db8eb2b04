"""The block of headers before a message's payload."""

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Final

import nats.errors

_VERSION: Final = "NATS/1.0\r\n"
_TOKEN: Final = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
_CONTROL: Final = re.compile(r"[\r\n]")


def is_sendable(name: object) -> bool:
    """Whether a message may have a header of this name: a token, as in HTTP.

    Messages of other makes may come with other names; those cannot be sent on.
    """
    return isinstance(name, str) and _TOKEN.fullmatch(name) is not None


def block_of(headers: Mapping[str, str]) -> bytes:
    """The octets of some headers; a line break in a value becomes a blank.

    Raises:
        BadHeaderError: a name is no token, or a value is no text.
    """
    try:
        lines = [f"{_sent(name)}: {_value(value.strip())}\r\n" for name, value in headers.items()]
        return f"{_VERSION}{''.join(lines)}\r\n".encode()
    except (AttributeError, TypeError, UnicodeEncodeError) as error:
        raise nats.errors.BadHeaderError(f"{error}") from error


@lru_cache(1_000)
def _sent(name: str) -> str:
    if not is_sendable(name):
        raise nats.errors.BadHeaderError(name)
    return name


def _value(value: str) -> str:
    return _CONTROL.sub(" ", value) if _CONTROL.search(value) else value

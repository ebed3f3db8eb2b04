"""Headers of queries over plain NATS, and answers in pieces."""

import re
from collections.abc import Iterator, Mapping
from typing import Final

from rebaser_core.errors import MalformedMessage
from rebaser_core.versioning import header

ACCEPTS_PIECES: Final = "X-Reply-Pieces"
"""Header of a query: `1` says that the asker joins an answer that comes in pieces."""

REPLY_TIMEOUT: Final = "X-Patience"
"""Header of a query: seconds for which the asker waits for the first message of the answer."""

PIECE: Final = "X-Piece"
"""Header of a message: `2/9` says that it is the second of nine pieces of one message."""

RETRY_AFTER: Final = "X-Ask-Again"
"""Header of an answer: the query was not looked at; seconds after which to ask it again."""

DEFAULT_REPLY_TIMEOUT: Final = 60.0
"""Seconds that an asker is taken to wait if it does not say how long."""

_SECONDS: Final = re.compile(r"[0-9]{1,4}(\.[0-9]{1,6})?")
_NUMBERS: Final = re.compile(r"([1-9][0-9]{0,5})/([1-9][0-9]{0,5})")


def parse_seconds(headers: Mapping[str, str], name: str, default: float) -> float:
    """Return the seconds that the header says; `default` if it is missing or not such a number."""
    text = header(headers, name) or ""
    return float(text) if _SECONDS.fullmatch(text) else default


def split_reply(payload: bytes, room: int) -> Iterator[tuple[str, bytes]]:
    """Return the payload in numbered pieces of at most `room` bytes, which is positive."""
    count = -(-len(payload) // room)
    for number in range(count):
        yield f"{number + 1}/{count}", payload[number * room : (number + 1) * room]


class ReplyAssembly:
    """A joiner of messages that come in pieces, one after the other and in order."""

    def __init__(self) -> None:
        self._headers: Mapping[str, str] = {}
        self._pieces: list[bytes] = []

    def add(
        self, headers: Mapping[str, str], payload: bytes
    ) -> tuple[Mapping[str, str], bytes] | None:
        """Return headers and payload of the message that this piece completes; None: more follows.

        Raises:
            MalformedMessage: a piece is missing, or its number is none.
        """
        said = header(headers, PIECE)
        if said is None and not self._pieces:
            return headers, payload
        numbers = _NUMBERS.fullmatch(said or "")
        number, count = map(int, numbers.groups()) if numbers else (0, 0)
        if number != len(self._pieces) + 1 or number > count:
            raise MalformedMessage(f"piece {said!r} after {len(self._pieces)} pieces")
        if number == 1:
            self._headers = headers
        self._pieces.append(payload)
        if number < count:
            return None
        whole, self._pieces = b"".join(self._pieces), []
        return self._headers, whole

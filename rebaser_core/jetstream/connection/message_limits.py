"""What fits into one message: the server closes the connection of a sender that exceeds it."""

from collections.abc import Mapping
from typing import Final

import nats.errors
from nats.aio.client import Client

from rebaser_core.jetstream.connection.headers import encode_headers
from rebaser_core.jetstream.connection.nats_errors import translate_errors

MAX_CONTROL_LINE: Final = 4096
"""Octets: the server's default of `max_control_line`, which it does not announce."""


class MessageLimits:
    """The size limits of one connection; get them as `js.message_limits`."""

    def __init__(self, nc: Client) -> None:
        self._nc = nc

    @property
    def max_control_line(self) -> int:
        """Octets that subject, reply subject and the two sizes may have together."""
        return int(getattr(self._nc, "max_control_line", MAX_CONTROL_LINE))

    @property
    def max_payload(self) -> int:
        """Octets that payload and headers may have together, as the server last announced."""
        return self._nc.max_payload

    def max_payload_for(
        self, subject: str, headers: Mapping[str, str] | None = None, reply: str = ""
    ) -> int:
        """Return how many octets of payload surely fit beside these headers.

        Zero or less: none do, since the headers, or subject and reply, are too long. Count
        all headers, also those that `publish` makes of its arguments.

        Raises:
            Unsendable: a header that no message may have.
        """
        with translate_errors():
            block = len(encode_headers(headers)) if headers else 0
            room = self.max_payload - block
            line = control_line(subject, reply, block, max(room, 0) + block)
        excess = len(line) - self.max_control_line
        return min(room, -excess) if excess > 0 else room

    def check(
        self,
        subject: str,
        payload: bytes = b"",
        headers: Mapping[str, str] | None = None,
        reply: str = "",
    ) -> None:
        """Raise what publishing the message would.

        Raises:
            Oversized: it does not fit.
            Unsendable: a header that no message may have.
        """
        with translate_errors():
            block = len(encode_headers(headers)) if headers else 0
            line = len(control_line(subject, reply, block, block + len(payload)))
            if block + len(payload) > self.max_payload or line > self.max_control_line:
                raise MessageTooLarge(line, block, len(payload), self.max_payload)


class MessageTooLarge(nats.errors.MaxPayloadError):
    """As `Oversized`, for callers of `Client.publish`. All in octets."""

    def __init__(self, line: int, block: int, payload: int, most: int) -> None:
        self._what = (
            f"does not fit into a message: {payload} of payload and {block} of headers,"
            f" {most} allowed; subjects and sizes {line}"
        )

    def __str__(self) -> str:
        return self._what


def control_line(subject: str, reply: str, block: int, size: int) -> bytes:
    """The arguments of PUB or HPUB; `block` octets of headers are part of the `size`.

    Raises:
        BadSubjectError: it has no octets.
    """
    line = f"{subject} {reply} {block} {size}" if block else f"{subject} {reply} {size}"
    try:
        return line.encode()
    except UnicodeEncodeError:
        return _surrogate_octets(line)


def _surrogate_octets(line: str) -> bytes:
    """A subject that was read as octets that are no UTF-8 is sent as these octets."""
    try:
        return line.encode(errors="surrogateescape")
    except UnicodeEncodeError:
        raise nats.errors.BadSubjectError from None

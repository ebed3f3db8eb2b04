"""Cuts what was read from a connection into messages and lines; the server's bytes end here.

Subjects, reply subjects, headers and payloads are chosen by clients, who may be hostile. So a
line is cut at blanks (0x20) alone, as the server writes it: to the server 0x0B and 0x0C, say,
are part of a subject. nats-py's parser takes them for blanks; it gets nothing to read here.
"""

import asyncio
import json
import logging
from typing import Any, Final, Protocol

import nats.errors
from nats.protocol.parser import Parser

log: Final = logging.getLogger(__name__)

_END: Final = b"\r\n"
_BLANK: Final = b" "
_WORD_COUNTS: Final = {b"MSG": (4, 5), b"HMSG": (5, 6)}
"""How many the line before a message has, without and with a reply."""

_MAX_LINE: Final = 1024 * 1024
"""Octets of a line, which is long only if it tells of many servers of a cluster."""

_MAX_DIGITS: Final = 18  # in ASCII, as `bytes.isdigit` looks for; no number is longer
_LOGGED_OCTETS: Final = 100
"""Octets of what was dropped that are logged."""

_ParsedMessage = tuple[int, bytes, bytes, bytes, bytes | None]
"""Subscription, subject, reply, payload and headers."""


class MessageReceiver(Protocol):
    """The client that gets what the parser cut out; nats-py's has the underscored methods."""

    def dispatch_inline(
        self, sid: int, subject: bytes, reply: bytes, data: bytes, headers: bytes | None
    ) -> bool: ...
    async def dispatch_queued(
        self, sid: int, subject: bytes, reply: bytes, data: bytes, headers: bytes | None
    ) -> None: ...
    async def _process_ping(self) -> None: ...
    async def _process_pong(self) -> None: ...
    async def _process_err(self, err_msg: str) -> None: ...
    async def _process_info(self, info: dict[str, Any]) -> None: ...


class FastParser(Parser):
    """In the place of nats-py's parser. Whatever one message holds, the next one is read."""

    nc: MessageReceiver
    _reader: asyncio.StreamReader | None = None
    _parsing = False
    _expected_size = 0
    """Octets of the message that `buf` begins with, as far as that is known."""

    def attach(self, reader: asyncio.StreamReader) -> None:
        """Have messages taken out of what `reader` is fed, before a task is woken to read it."""
        feed, self._reader = reader.feed_data, reader
        unread: bytearray = vars(reader)["_buffer"]  # the same one for as long as the reader lives

        def fed(data: bytes) -> None:
            if self._reader is reader and not self._parsing and not unread:
                data = self.feed(data)
            if data:
                feed(data)

        vars(reader)["feed_data"] = fed

    def reset(self) -> None:
        super().reset()
        self._expected_size = 0
        self._reader = None  # late data of that connection is dropped

    def feed(self, data: bytes) -> bytes:
        """Hand over the messages that come first; the rest, from the first that has to wait.

        None, but kept until more comes, if it ends within a message. Raises nothing.
        """
        rest = self.buf
        if rest:
            if len(rest) + len(data) < self._expected_size:
                rest.extend(data)
                return b""
            data = bytes(rest) + data
            rest.clear()
        at = self._expected_size = 0
        while (line_end := data.find(_END, at)) >= 0:
            try:
                message = parse_message(data, at, line_end)
            except nats.errors.ProtocolError:
                message = None  # which `parse` raises again
            if message is None:
                return data[at:]
            end, content = message
            if end > len(data):
                self._expected_size = end - at
                break
            if content is not None and not self.nc.dispatch_inline(*content):
                return data[at:]
            if self.buf is not rest:
                return b""  # begun anew meanwhile: the connection is another one
            at = end
        if line_end < 0 and len(data) - at > _MAX_LINE:
            return data[at:]
        rest.extend(data[at:])
        return b""

    async def parse(self, data: bytes = b"") -> None:
        """Hand over all that is whole of what came by now, and keep the rest.

        Raises:
            ProtocolError: the begin of the next message is unknown.
        """
        rest, self._parsing = self.buf, True
        try:
            while self.buf is rest and (data := self.feed(data)):
                if (line_end := data.find(_END)) < 0:
                    raise nats.errors.ProtocolError("nats: line too long")
                message = parse_message(data, 0, line_end)
                if message is None:
                    line, data = data[:line_end], data[line_end + 2 :]
                    await self._handle_line(line)
                else:
                    end, content = message
                    data = data[end:]
                    if content is not None:
                        await self.nc.dispatch_queued(*content)
        finally:
            self._parsing = False

    async def _handle_line(self, line: bytes) -> None:
        """Do what a line says that is before no message."""
        try:
            await self._dispatch_line(line)
        except (nats.errors.ProtocolError, OSError):
            raise
        except Exception:
            log.exception("line of NATS dropped: %r", line[:_LOGGED_OCTETS])

    async def _dispatch_line(self, line: bytes) -> None:
        word, _, rest = line.strip().partition(_BLANK)
        if word == b"PING":
            await self.nc._process_ping()
        elif word == b"PONG":
            await self.nc._process_pong()
        elif word == b"-ERR":
            await self.nc._process_err(rest.decode(errors="replace").lower())
        elif word == b"INFO":
            await self.nc._process_info(json.loads(rest))
        elif word != b"+OK":
            raise nats.errors.ProtocolError(f"nats: unknown line {line[:_LOGGED_OCTETS]!r}")


def parse_message(data: bytes, at: int, line_end: int) -> tuple[int, _ParsedMessage | None] | None:
    """The message whose line is from `at` to `line_end`: where it ends, and what it says.

    None if the line begins no message. It is whole if its end is within `data`. It says nothing
    (None) if only its end can be trusted.

    Raises:
        ProtocolError: it is not known where it ends.
    """
    words = data[at:line_end].split(_BLANK)
    counts = _WORD_COUNTS.get(words[0])
    if counts is None:
        if data.startswith((b"MSG", b"HMSG"), at):
            raise nats.errors.ProtocolError("nats: malformed MSG")
        return None
    size = words[-1]
    if len(words) not in counts or not size.isdigit() or len(size) > _MAX_DIGITS:
        raise nats.errors.ProtocolError("nats: malformed MSG")
    start = line_end + 2
    end = start + int(size)
    has_headers = words[0] == b"HMSG"
    body = start + _number(words[-2]) if has_headers else start
    sid = words[2]
    if body > end or not words[1] or not sid.isdigit() or len(sid) > _MAX_DIGITS:
        log.error("message of NATS dropped: %r", data[at : min(line_end, at + _LOGGED_OCTETS)])
        return end + 2, None
    reply = words[3] if len(words) == counts[1] else b""
    headers = data[start:body] if has_headers else None
    return end + 2, (int(sid), words[1], reply, data[body:end], headers)


def _number(text: bytes) -> int:
    if (
        not text.isdigit() or len(text) > _MAX_DIGITS
    ):  # `int` takes signs, blanks and underscores, too
        raise nats.errors.ProtocolError("nats: malformed MSG")
    return int(text)

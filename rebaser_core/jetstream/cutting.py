"""Cuts messages out of what was read from a connection; all else is for nats-py's parser."""

import asyncio
from typing import TYPE_CHECKING, Final

import nats.errors
from nats.protocol.parser import AWAITING_CONTROL_LINE, Parser

if TYPE_CHECKING:
    from rebaser_core.jetstream.quick import QuickClient

_END: Final = b"\r\n"
_WORDS: Final = {b"MSG": (4, 5), b"HMSG": (5, 6)}
"""How many the line before a message has, without and with a reply."""

_Content = tuple[int, bytes, bytes, bytes, bytes | None]
"""Subscription, subject, reply, payload and headers."""


class Cutter(Parser):
    """Takes whole messages out of what was read; leaves other lines to nats-py's parser."""

    nc: "QuickClient"
    _reader: asyncio.StreamReader | None = None
    _parsing = False

    def shorten(self, reader: asyncio.StreamReader) -> None:
        """Have messages taken out of what `reader` is fed, before a task is woken to read it."""
        feed, self._reader = reader.feed_data, reader

        def fed(data: bytes) -> None:
            if self._reader is reader and self._rests and not reader._buffer:  # type: ignore[attr-defined]  # noqa: SLF001
                data = self.take(data)
            if data:
                feed(data)

        vars(reader)["feed_data"] = fed

    def reset(self) -> None:
        super().reset()
        self._reader = None  # what still comes of that connection is for nobody

    @property
    def _rests(self) -> bool:
        """Whether nobody is in the midst of what came before."""
        return not self._parsing and self.state == AWAITING_CONTROL_LINE

    def take(self, data: bytes) -> bytes:
        """Hand over the messages that come first; the rest, from the first that has to wait.

        None, but kept until more comes, if it ends within a message.
        """
        rest = self.buf
        if rest:
            data = bytes(rest) + data
            rest.clear()
        at = 0
        while (line_end := data.find(_END, at)) >= 0:
            try:
                message = _cut(data, at, line_end)
            except nats.errors.ProtocolError:
                return data[at:]
            if message is None:
                return data[at:]
            end, content = message
            if end > len(data):
                break
            if not self.nc.handed_over(*content):
                return data[at:]
            if self.buf is not rest:
                return b""  # begun anew meanwhile: the connection is another one
            at = end
        rest.extend(data[at:])
        return b""

    async def parse(self, data: bytes = b"") -> None:
        if self.state != AWAITING_CONTROL_LINE:
            await super().parse(data)
            return
        rest, self._parsing = self.buf, True
        try:
            while self.buf is rest and (data := self.take(data)):
                line_end = data.find(_END)
                message = _cut(data, 0, line_end)
                if message is None:
                    line, data = data[: line_end + 2], data[line_end + 2 :]
                    await super().parse(line)
                else:
                    end, content = message
                    data = data[end:]
                    await self.nc.received(*content)
        finally:
            self._parsing = False


def _cut(data: bytes, at: int, line_end: int) -> tuple[int, _Content] | None:
    """The message whose line is from `at` to `line_end`: where it ends, and what it says.

    None if the line begins no message. It is whole if its end is within `data`.

    Raises:
        ProtocolError: it is malformed.
    """
    words = data[at:line_end].split()
    if not words or len(words) not in _WORDS.get(words[0], ()):
        return None
    start = line_end + 2
    end = start + _number(words[-1])
    has_headers = words[0] == b"HMSG"
    body = start + _number(words[-2]) if has_headers else start
    reply = words[3] if len(words) == _WORDS[words[0]][1] else b""
    headers = data[start:body] if has_headers else None
    return end + 2, (_number(words[2]), words[1], reply, data[body:end], headers)


def _number(text: bytes) -> int:
    try:
        return int(text)
    except ValueError:
        raise nats.errors.ProtocolError("nats: malformed MSG") from None

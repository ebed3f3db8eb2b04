"""nats-py's connection with a shorter way for messages, which are most of what goes over it.

They are cut out of what was read and handed over at once, without a queue and a task for each
subscription; what is published is put together in one go. Everything else is nats-py's doing.
"""

import asyncio
import re
from collections.abc import Callable, Coroutine, Mapping
from functools import lru_cache
from typing import Any, Final

import nats.errors
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.aio.transport import TcpTransport
from nats.protocol.parser import AWAITING_CONTROL_LINE, Parser

_VERSION: Final = "NATS/1.0\r\n"
_END: Final = b"\r\n"
_TOKEN: Final = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
_BLANK: Final = re.compile(r"[ \t\r\n]")
_SPACE: Final = " \t\r\n\v\f"
_CONTROL: Final = re.compile(r"[\r\n]")
_DIRECTLY: Final = "_directly"
_WORDS: Final = {b"MSG": (4, 5), b"HMSG": (5, 6)}
"""How many the line before a message has, without and with a reply."""

_ROOM: Final = 64 * 1024
"""Octets that may wait for the socket before who writes more has to wait."""

Callback = Callable[[Msg], Coroutine[Any, Any, None]]


def directly(receive: Callable[[Msg], None]) -> Callback:
    """A callback for `subscribe`, which a `QuickClient` calls as soon as it has read a message.

    `receive` must be short: nothing is read meanwhile. Other clients call it from a task.
    """

    async def received(message: Msg) -> None:
        receive(message)

    setattr(received, _DIRECTLY, receive)
    return received


class QuickClient(Client):
    """What nats-py does, in less time as far as it is about messages."""

    def __init__(self) -> None:
        super().__init__()
        self._ps = _QuickParser(self)
        self._flushes = False
        """Whether `_flush` is about to be called."""

    async def publish(
        self,
        subject: str,
        payload: bytes = b"",
        reply: str = "",
        headers: Mapping[str, str] | None = None,
    ) -> None:
        size = len(payload)
        if (
            self._status != Client.CONNECTED
            or not subject
            or size > self._max_payload
            or _BLANK.search(subject)
            or _BLANK.search(reply)
        ):  # which nats-py keeps for later, or knows what to raise for
            await super().publish(subject, payload, reply, dict(headers) if headers else None)
            return
        if headers:
            block = _block(headers)
            line = f"HPUB {subject} {reply} {len(block)} {len(block) + size}\r\n"
            command = b"".join((line.encode(), block, payload, _END))
        else:
            command = b"".join((f"PUB {subject} {reply} {size}\r\n".encode(), payload, _END))
        self.stats["out_msgs"] += 1
        self.stats["out_bytes"] += size
        await self._send_command(command)
        if not self._flushes:
            self._flushes = True
            asyncio.get_running_loop().call_soon(self._flush)

    def _flush(self) -> None:
        """Write what was published in this turn of the loop, or have nats-py wait with it."""
        self._flushes = False
        transport = self._transport
        if self._status != Client.CONNECTED or not self._pending:
            return  # it is written after the reconnect
        if isinstance(transport, TcpTransport) and _has_room(transport):
            transport.write(b"".join(self._pending))  # type: ignore[no-untyped-call]
            self._pending, self._pending_data_size = [], 0
        elif self._flush_queue is not None and self._flush_queue.empty():
            self._flush_queue.put_nowait(asyncio.get_running_loop().create_future())

    async def received(
        self, sid: int, subject: bytes, reply: bytes, data: bytes, headers: bytes | None
    ) -> None:
        """Hand over a message that came for subscription `sid`."""
        subscription = self._subs.get(sid)
        receive = getattr(subscription and subscription._cb, _DIRECTLY, None)  # noqa: SLF001
        if receive is None:
            await self._process_msg(sid, subject, reply, data, headers or b"")
            return
        self.stats["in_msgs"] += 1
        self.stats["in_bytes"] += len(data)
        said = _parsed(headers) if headers else None
        if said is None and headers:  # a status, perhaps
            said = await self._process_headers(headers)
        try:
            receive(Msg(self, subject.decode(), reply.decode(), data, said))
        except Exception as error:  # noqa: BLE001 - of a callback; it must not end the reading
            await self._error_cb(error)


def _has_room(transport: TcpTransport) -> bool:
    writer = transport._io_writer  # noqa: SLF001 - whose public face has only `drain`
    return writer is not None and writer.transport.get_write_buffer_size() < _ROOM


class _QuickParser(Parser):
    """Takes whole messages out of what was read; leaves other lines to nats-py's parser."""

    nc: QuickClient

    async def parse(self, data: bytes = b"") -> None:
        if self.state != AWAITING_CONTROL_LINE:
            await super().parse(data)
            return
        rest = self.buf
        if rest:
            data = bytes(rest) + data
            rest.clear()
        at = 0
        while (line_end := data.find(_END, at)) >= 0:
            words = data[at:line_end].split()
            start = line_end + 2
            if words and len(words) in _WORDS.get(words[0], ()):
                end = start + _number(words[-1])
                if end + 2 > len(data):
                    break
                at = end + 2
                has_headers = words[0] == b"HMSG"
                body = start + _number(words[-2]) if has_headers else start
                await self.nc.received(
                    _number(words[2]),
                    words[1],
                    words[3] if len(words) == _WORDS[words[0]][1] else b"",
                    data[body:end],
                    data[start:body] if has_headers else None,
                )
            else:
                line, at = data[at:start], start
                await super().parse(line)
            if self.buf is not rest:
                return  # begun anew meanwhile: the connection is another one
        rest.extend(data[at:])


def _number(text: bytes) -> int:
    try:
        return int(text)
    except ValueError:
        raise nats.errors.ProtocolError("nats: malformed MSG") from None


def _block(headers: Mapping[str, str]) -> bytes:
    """Raises `BadHeaderError` for a name that is none."""
    lines = [f"{_sent(name)}: {_value(value.strip())}\r\n" for name, value in headers.items()]
    return f"{_VERSION}{''.join(lines)}\r\n".encode()


@lru_cache(1_000)
def _sent(name: str) -> str:
    if not _TOKEN.fullmatch(name):
        raise nats.errors.BadHeaderError(name)
    return name


def _value(value: str) -> str:
    return _CONTROL.sub(" ", value) if _CONTROL.search(value) else value


def _parsed(block: bytes) -> dict[str, str] | None:
    """The headers, as nats-py reads them; None if they begin with a status, or there is none."""
    text = block.decode(errors="replace")
    if not text.startswith(_VERSION):
        return None
    found = {}
    for line in text.split("\r\n")[1:]:
        name, colon, value = line.partition(":")
        if colon and (name := _understood(name)):
            found[name] = value.strip(_SPACE)
    return found or None


@lru_cache(1_000)
def _understood(name: str) -> str:
    """The name; empty if it is none that anybody looks up."""
    name = name.strip(_SPACE)
    return name if name.isascii() and len(name.split()) == 1 else ""

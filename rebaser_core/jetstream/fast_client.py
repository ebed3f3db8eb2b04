"""nats-py's connection with a shorter way for messages, which are most of its traffic.

Messages are cut out of what was read and handed over at once, without a queue and a task for each
subscription; published messages are written together. nats-py does the rest.

Subjects, reply subjects, headers and payloads are chosen by clients, who may be hostile. So a line
is cut at blanks (0x20) alone, as the server writes it: to the server 0x0B and 0x0C, for example,
are part of a subject. nats-py's parser takes them for blanks; it gets nothing to read here.

`MessageLimits` says what fits into one message: the server closes the connection of a sender that
exceeds it.
"""

import asyncio
import json
import logging
import re
import secrets
from collections.abc import Callable, Coroutine, Mapping
from functools import lru_cache
from typing import Any, Final, Protocol

import nats.errors
from nats.aio.client import Client, Srv
from nats.aio.msg import Msg
from nats.aio.transport import TcpTransport
from nats.protocol.parser import Parser

from rebaser_core.jetstream.errors import translate_errors

log: Final = logging.getLogger(__name__)

_END: Final = b"\r\n"
_BLANK: Final = b" "
_WORD_COUNTS: Final = {b"MSG": (4, 5), b"HMSG": (5, 6)}
"""Numbers of words in the line before a message, without and with a reply subject."""

_MAX_LINE: Final = 1024 * 1024
"""Maximum bytes of a line; only one that names many servers of a cluster is long."""

_MAX_DIGITS: Final = 18  # in ASCII, as `bytes.isdigit` looks for; no number is longer
_LOGGED_OCTETS: Final = 100
"""Maximum bytes of dropped data that are logged."""

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
    """A parser in place of nats-py's.

    A malformed message does not keep the next one from being read.
    """

    nc: MessageReceiver
    _reader: asyncio.StreamReader | None = None
    _parsing = False
    _expected_size = 0
    """Bytes of the message that `buf` begins with, as far as that is known."""

    def attach(self, reader: asyncio.StreamReader) -> None:
        """Take messages out of what `reader` is fed, before a task is woken to read it."""
        feed, self._reader = reader.feed_data, reader
        unread: bytearray = vars(reader)["_buffer"]  # one object as long as the reader lives

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
        """Hand over the first messages; return the rest, from the first that has to wait.

        Data that ends within a message is kept until more comes, and nothing is returned. Raises
        nothing.
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
                message = _parse_message(data, at, line_end)
            except nats.errors.ProtocolError:
                message = None  # `parse` raises it again
            if message is None:
                return data[at:]
            end, content = message
            if end > len(data):
                self._expected_size = end - at
                break
            if content is not None and not self.nc.dispatch_inline(*content):
                return data[at:]
            if self.buf is not rest:
                return b""  # a new connection began meanwhile
            at = end
        if line_end < 0 and len(data) - at > _MAX_LINE:
            return data[at:]
        rest.extend(data[at:])
        return b""

    async def parse(self, data: bytes = b"") -> None:
        """Hand over all whole messages that have come, and keep the rest.

        Raises:
            ProtocolError: the next message's beginning is unknown.
        """
        rest, self._parsing = self.buf, True
        try:
            while self.buf is rest and (data := self.feed(data)):
                if (line_end := data.find(_END)) < 0:
                    raise nats.errors.ProtocolError("nats: line too long")
                message = _parse_message(data, 0, line_end)
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
        """Act on a line that precedes no message."""
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


def _parse_message(data: bytes, at: int, line_end: int) -> tuple[int, _ParsedMessage | None] | None:
    """Return the end of the message whose line is from `at` to `line_end`, and its content.

    The result is None if the line begins no message. The message is whole if its end is within
    `data`. Its content is None if only its end can be trusted.

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


_VERSION: Final = "NATS/1.0"
_LINE_END: Final = "\r\n"
_TOKEN: Final = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
_LINE_BREAK: Final = re.compile(r"[\r\n]")
_SPACE: Final = " \t\r\n\v\f"
_STATUS: Final = re.compile(r" ([0-9]{3})(?: (.*))?", re.DOTALL)


def is_sendable(name: object) -> bool:
    """Whether a message may have a header with this name: a token, as in HTTP.

    Received messages may have other names, see `parse_headers`; those cannot be sent on.
    """
    return isinstance(name, str) and _TOKEN.fullmatch(name) is not None


def _encode_headers(headers: Mapping[str, str]) -> bytes:
    """Return the bytes of some headers; a line break in a value becomes a blank.

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
    """Return the headers, with a status as `Status` and `Description`; None if there are none.

    Any bytes are taken. Names are read without loss: each byte that is not UTF-8 becomes the lone
    surrogate that Python's `surrogateescape` makes of it. In values such bytes become U+FFFD. If
    names are equal, the last header counts.
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
    first, *lines = text.split(_LINE_END)
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


MAX_CONTROL_LINE: Final = 4096
"""Server's default of `max_control_line`, in bytes, which it does not announce."""


class MessageLimits:
    """The size limits of one connection; get them as `js.message_limits`."""

    def __init__(self, nc: Client) -> None:
        self._nc = nc

    @property
    def max_control_line(self) -> int:
        """Maximum bytes of subject, reply subject and the two sizes together."""
        return int(getattr(self._nc, "max_control_line", MAX_CONTROL_LINE))

    @property
    def max_payload(self) -> int:
        """Maximum bytes of payload and headers together, as the server last announced."""
        return self._nc.max_payload

    def max_payload_for(
        self, subject: str, headers: Mapping[str, str] | None = None, reply: str = ""
    ) -> int:
        """Return how many bytes of payload surely fit beside these headers.

        Zero or less means none, since the headers, or subject and reply, are too long. Count all
        headers, also those that `publish` makes of its arguments.

        Raises:
            Unsendable: a header that no message may have.
        """
        with translate_errors():
            block = len(_encode_headers(headers)) if headers else 0
            room = self.max_payload - block
            line = _control_line(subject, reply, block, max(room, 0) + block)
        excess = len(line) - self.max_control_line
        return min(room, -excess) if excess > 0 else room

    def check(
        self,
        subject: str,
        payload: bytes = b"",
        headers: Mapping[str, str] | None = None,
        reply: str = "",
    ) -> None:
        """Raise the error that publishing the message would.

        Raises:
            Oversized: it does not fit.
            Unsendable: a header that no message may have.
        """
        with translate_errors():
            block = len(_encode_headers(headers)) if headers else 0
            line = len(_control_line(subject, reply, block, block + len(payload)))
            if block + len(payload) > self.max_payload or line > self.max_control_line:
                raise MessageTooLarge(line, block, len(payload), self.max_payload)


class MessageTooLarge(nats.errors.MaxPayloadError):
    """`Oversized`, for callers of `Client.publish`. Sizes are bytes."""

    def __init__(self, line: int, block: int, payload: int, most: int) -> None:
        self._what = (
            f"does not fit into a message: {payload} of payload and {block} of headers,"
            f" {most} allowed; subjects and sizes {line}"
        )

    def __str__(self) -> str:
        return self._what


def _control_line(subject: str, reply: str, block: int, size: int) -> bytes:
    """Return the arguments of PUB or HPUB; `block` bytes of headers are part of `size`.

    Raises:
        BadSubjectError: it cannot be encoded.
    """
    line = f"{subject} {reply} {block} {size}" if block else f"{subject} {reply} {size}"
    try:
        return line.encode()
    except UnicodeEncodeError:
        return _surrogate_octets(line)


def _surrogate_octets(line: str) -> bytes:
    """Return the bytes of a subject; those that were no UTF-8 when it was read are restored."""
    try:
        return line.encode(errors="surrogateescape")
    except UnicodeEncodeError:
        raise nats.errors.BadSubjectError from None


_FORBIDDEN: Final = re.compile(r"[\x00-\x20\x7f]")
"""Characters that no subject we send may have: some clients take \v and \f for blanks."""

_HARMLESS: Final = (
    "permissions violation",
    "invalid subject",
    "invalid publish subject",
    "maximum subscriptions",
)
"""Errors that the server reports without closing the connection."""

_READ_AT_ONCE: Final = 1 << 16
"""Bytes read in one turn of the loop: more than asyncio's 256 KiB would hold up others when a
socket brings many small messages."""
_TOKEN_BYTES: Final = 16  # bytes

_INLINE: Final = "_directly"
_LOW_TRAFFIC: Final = 3  # messages: what a request in hand makes its Rebaser write at a time

_CANCEL_AGAIN: Final = 0.05  # seconds until reconnecting that goes on is cancelled again

_SOCKET_BUFFER: Final = 64 * 1024
"""Bytes that may wait for the socket before a writer has to wait."""

Callback = Callable[[Msg], Coroutine[Any, Any, None]]
Headers = Mapping[str, str]


def inline_callback(receive: Callable[[Msg], None]) -> Callback:
    """A callback for `subscribe`, which a `FastClient` calls as soon as it has read a message.

    `receive` must be short: nothing is read meanwhile. Other clients call it from a task.
    """

    async def received(message: Msg) -> None:
        receive(message)

    setattr(received, _INLINE, receive)
    return received


class FastClient(Client):
    """nats-py's client, faster where it is about messages."""

    def __init__(self) -> None:
        super().__init__()
        self.max_control_line = MAX_CONTROL_LINE
        """Maximum bytes of subject, reply subject and the two sizes together."""
        self._ps = self._fast_parser = FastParser(self)
        self._flush_scheduled = False
        """Whether `_flush` is about to be called."""
        self._flushed_this_turn = False
        """Whether something was written in this turn of the loop."""
        self._low_traffic = True
        """Whether few messages were written together in the last turn of the loop."""

    async def publish(
        self, subject: str, payload: bytes = b"", reply: str = "", headers: Headers | None = None
    ) -> None:
        """Publish as `enqueue` does; wait while very much is to be sent."""
        if self.enqueue(subject, payload, reply, headers):
            await self._flush_pending(force_flush=True)

    def enqueue(self, subject: str, payload: bytes, reply: str, headers: Headers | None) -> bool:
        """Queue the message for sending, after the reconnect if the connection is down.

        Returns whether the caller should wait for a flush, since much waits to be sent.
        Raises `BadSubjectError`, `BadHeaderError` or `MaxPayloadError` if it cannot be sent.
        """
        if not subject or _FORBIDDEN.search(subject + reply):
            raise nats.errors.BadSubjectError
        block = _encode_headers(headers) if headers else b""
        size = len(block) + len(payload)
        line = _control_line(subject, reply, len(block), size)
        if size > self._max_payload or len(line) > self.max_control_line:
            raise MessageTooLarge(len(line), len(block), len(payload), self._max_payload)
        command = b"".join((b"HPUB " if block else b"PUB ", line, _END, block, payload, _END))
        if self._status != Client.CONNECTED:
            self._check_open(len(command))
        self.stats["out_msgs"] += 1
        self.stats["out_bytes"] += len(payload)
        self._pending.append(command)
        self._pending_data_size += len(command)
        if not self._flush_scheduled:
            self._flush_scheduled = True
            asyncio.get_running_loop().call_soon(self._flush)
        return 0 < self._max_pending_size < self._pending_data_size

    async def _connect_to_server(self, s: Srv) -> None:
        """Close the connection of an earlier attempt: nats-py forgets it, open as it is."""
        if self._transport:
            self._transport.close()
        await super()._connect_to_server(s)
        if isinstance(self._transport, TcpTransport) and self._transport._io_writer is not None:
            socket: Any = self._transport._io_writer.transport
            socket.max_size = _READ_AT_ONCE

    async def close(self) -> None:
        """Close as nats-py does, but only after its reconnecting has ended.

        Before Python 3.12 `wait_for` swallows a cancellation that comes with its result.
        """
        task = self._reconnection_task
        while task is not None and task is not asyncio.current_task() and not task.done():
            task.cancel()
            await asyncio.wait([task], timeout=_CANCEL_AGAIN)
        await super().close()

    def _check_open(self, size: int) -> None:
        """Raise what nats-py would, if the message cannot be kept until there is a connection."""
        if self.is_closed:
            raise nats.errors.ConnectionClosedError
        if self.is_draining_pubs:
            raise nats.errors.ConnectionDrainingError
        if not self.is_connected and self._pending_data_size + size > self._max_pending_size:
            raise nats.errors.OutboundBufferLimitError

    def new_inbox(self) -> str:
        """Return a subject that cannot be guessed: a client that knows it could forge a reply."""
        return f"{self._inbox_prefix.decode()}.{secrets.token_hex(_TOKEN_BYTES)}"

    def flush_now(self) -> None:
        """Write at once what was published: for a request whose caller waits.

        This happens once in a turn of the loop, and not while there is much to write: then one call
        for all is worth more than being a turn earlier.
        """
        if self._low_traffic and not self._flushed_this_turn:
            self._flushed_this_turn = True
            self._write()

    def _flush(self) -> None:
        self._flush_scheduled = self._flushed_this_turn = False
        self._low_traffic = len(self._pending) <= _LOW_TRAFFIC
        self._write()

    def _write(self) -> None:
        """Write what was published in this turn of the loop, or let nats-py wait with it."""
        transport = self._transport
        if self._status != Client.CONNECTED or not self._pending:
            return  # it is written after the reconnect
        if isinstance(transport, TcpTransport) and _socket_has_room(transport):
            transport.write(b"".join(self._pending))
            self._pending, self._pending_data_size = [], 0
        elif self._flush_queue is not None and self._flush_queue.empty():
            self._flush_queue.put_nowait(asyncio.get_running_loop().create_future())

    async def _read_loop(self) -> None:
        """Read as nats-py does, but only what could not be handed over on arrival."""
        transport = self._transport
        reader = transport._io_reader if isinstance(transport, TcpTransport) else None
        if reader is not None:
            self._fast_parser.attach(reader)
        await super()._read_loop()

    def dispatch_inline(
        self, sid: int, subject: bytes, reply: bytes, data: bytes, headers: bytes | None
    ) -> bool:
        """Whether the message is handled: by an `inline_callback`, or without a subscription."""
        subscription = self._subs.get(sid)
        if subscription is None:
            return True
        receive = getattr(subscription._cb, _INLINE, None)
        if receive is None:
            return False
        self.stats["in_msgs"] += 1
        self.stats["in_bytes"] += len(data)
        try:
            said = parse_headers(headers) if headers else None
            receive(Msg(self, _text(subject), _text(reply), data, said))
        except Exception as error:  # noqa: BLE001 - of a callback; it must not end the reading
            self._report_callback_error(subject, error)
        return True

    async def dispatch_queued(
        self, sid: int, subject: bytes, reply: bytes, data: bytes, headers: bytes | None
    ) -> None:
        """Let nats-py handle a message that was not: it goes through a queue to a task."""
        try:
            await self._process_msg(sid, subject, reply, data, headers or b"")
        except Exception as error:  # noqa: BLE001 - one message must not end the reading
            self._report_callback_error(subject, error)

    async def _process_headers(self, headers: bytes | None) -> dict[str, str] | None:
        return parse_headers(headers) if headers else None

    def _build_message(
        self, sid: int, subject: bytes, reply: bytes, data: bytes, headers: dict[str, str] | None
    ) -> Msg:
        return Msg(self, _text(subject), _text(reply), data, headers, _sid=sid)

    async def _process_pong(self) -> None:
        """Handle a pong; nats-py's method ends the reading if the caller of the request is gone."""
        if self._pongs and self._pongs[0].done():
            self._pongs[0] = asyncio.get_running_loop().create_future()
        await super()._process_pong()

    async def _process_err(self, err_msg: str) -> None:
        """Make a new connection where nats-py would end this one for good.

        The error may be about one message, or pass; credentials may be renewed.
        """
        said = err_msg.strip("'")
        self._err = error = nats.errors.Error(f"nats: {said}")
        await self._error_cb(error)
        if not any(word in err_msg for word in _HARMLESS):
            await self._process_op_err(error)

    async def _process_info(self, info: dict[str, Any], initial_connection: bool = False) -> None:
        if isinstance(most := info.get("max_payload"), int):
            self._max_payload = most
        await super()._process_info(info, initial_connection)

    def _report_callback_error(self, subject: bytes, error: Exception) -> None:
        context = {"message": f"message on {subject[:100]!r} not received", "exception": error}
        asyncio.get_running_loop().call_exception_handler(context)


def _socket_has_room(transport: TcpTransport) -> bool:
    writer = transport._io_writer
    return writer is not None and writer.transport.get_write_buffer_size() < _SOCKET_BUFFER


def _text(subject: bytes) -> str:
    """Return the subject; bytes that are no UTF-8 are kept, as `_surrogate_octets` needs them."""
    return subject.decode(errors="surrogateescape")

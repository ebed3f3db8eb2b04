"""nats-py's connection with a shorter way for messages, which are most of what goes over it.

They are cut out of what was read and handed over at once, without a queue and a task for each
subscription; what is published is put together in one go. All else is nats-py's doing.
"""

import asyncio
import re
import secrets
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, Final

import nats.errors
from nats.aio.client import Client, Srv
from nats.aio.msg import Msg
from nats.aio.transport import TcpTransport

from rebaser_core.jetstream.connection.fast_parser import FastParser
from rebaser_core.jetstream.connection.headers import encode_headers, parse_headers
from rebaser_core.jetstream.connection.message_limits import (
    MAX_CONTROL_LINE,
    MessageTooLarge,
    control_line,
)

_END: Final = b"\r\n"
_FORBIDDEN: Final = re.compile(r"[\x00-\x20\x7f]")
"""What no subject that we send may have: some clients take \\v and \\f for blanks."""

_HARMLESS: Final = (
    "permissions violation",
    "invalid subject",
    "invalid publish subject",
    "maximum subscriptions",
)
"""What it says without closing the connection."""

_TOKEN_BYTES: Final = 16  # octets

_INLINE: Final = "_directly"
_LOW_TRAFFIC: Final = 3  # messages: what a request in hand makes its Rebaser write at a time

_CANCEL_AGAIN: Final = 0.05  # seconds until reconnecting that goes on is cancelled again

_SOCKET_BUFFER: Final = 64 * 1024
"""Octets that may wait for the socket before who writes more has to wait."""

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
    """What nats-py does, in less time as far as it is about messages."""

    def __init__(self) -> None:
        super().__init__()
        self.max_control_line = MAX_CONTROL_LINE
        """Octets that subject, reply subject and the two sizes may have together."""
        self._ps = self._fast_parser = FastParser(self)
        self._flush_scheduled = False
        """Whether `_flush` is about to be called."""
        self._flushed_this_turn = False
        """Whether something was written in this turn of the loop."""
        self._low_traffic = True
        """Whether few were written together when it last ended."""

    async def publish(
        self, subject: str, payload: bytes = b"", reply: str = "", headers: Headers | None = None
    ) -> None:
        """As `enqueue`; waits while very much is to be sent."""
        if self.enqueue(subject, payload, reply, headers):
            await self._flush_pending(force_flush=True)

    def enqueue(self, subject: str, payload: bytes, reply: str, headers: Headers | None) -> bool:
        """Have the message sent, after the reconnect if the connection is down.

        Returns whether so much waits to be sent that the caller should wait until it is flushed.
        Raises `BadSubjectError`, `BadHeaderError` or `MaxPayloadError` if it cannot be sent.
        """
        if not subject or _FORBIDDEN.search(subject + reply):
            raise nats.errors.BadSubjectError
        block = encode_headers(headers) if headers else b""
        size = len(block) + len(payload)
        line = control_line(subject, reply, len(block), size)
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
        """Close what an attempt before this one opened: nats-py forgets it, open as it is."""
        if self._transport:
            self._transport.close()
        await super()._connect_to_server(s)

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

        Once in a turn of the loop, and not while there is much to write: one call for all costs
        less than it saves to be a turn earlier.
        """
        if self._low_traffic and not self._flushed_this_turn:
            self._flushed_this_turn = True
            self._write()

    def _flush(self) -> None:
        self._flush_scheduled = self._flushed_this_turn = False
        self._low_traffic = len(self._pending) <= _LOW_TRAFFIC
        self._write()

    def _write(self) -> None:
        """Write what was published in this turn of the loop, or have nats-py wait with it."""
        transport = self._transport
        if self._status != Client.CONNECTED or not self._pending:
            return  # it is written after the reconnect
        if isinstance(transport, TcpTransport) and _socket_has_room(transport):
            transport.write(b"".join(self._pending))
            self._pending, self._pending_data_size = [], 0
        elif self._flush_queue is not None and self._flush_queue.empty():
            self._flush_queue.put_nowait(asyncio.get_running_loop().create_future())

    async def _read_loop(self) -> None:
        """As nats-py's, which gets what cannot be handed over as soon as it was read."""
        transport = self._transport
        reader = transport._io_reader if isinstance(transport, TcpTransport) else None
        if reader is not None:
            self._fast_parser.attach(reader)
        await super()._read_loop()

    def dispatch_inline(
        self, sid: int, subject: bytes, reply: bytes, data: bytes, headers: bytes | None
    ) -> bool:
        """Whether the message is handled: by an `inline_callback`, or since no one subscribes."""
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
        """Have nats-py see to one that was not: it goes through a queue to a task."""
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
        """As nats-py's, which ends the reading if the caller of the request is gone."""
        if self._pongs and self._pongs[0].done():
            self._pongs[0] = asyncio.get_running_loop().create_future()
        await super()._process_pong()

    async def _process_err(self, err_msg: str) -> None:
        """Make a new connection where nats-py would end this one for good.

        The error may be on account of one message, or pass; credentials may be renewed.
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
    """The subject; octets that are no UTF-8 are sent back as they came, see `control_line`."""
    return subject.decode(errors="surrogateescape")

"""What is kept beside a connection: news of its state, and requests that can be cancelled."""

import asyncio
import contextlib
import logging
import math
import secrets
from collections.abc import Callable, Mapping
from typing import Any, Final

import nats.errors
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription

from rebaser_core.jetstream import deadlines
from rebaser_core.jetstream.connection.fast_client import FastClient, inline_callback
from rebaser_core.jetstream.connection.message_limits import MessageLimits
from rebaser_core.jetstream.connection.nats_errors import (
    propagate_cancellation,
    translate_error,
    translate_errors,
)
from rebaser_core.jetstream.connection.pending_replies import PendingReplies
from rebaser_core.jetstream.connection.pending_reply import check_reply
from rebaser_core.jetstream.errors import NatsUnreachable

log: Final = logging.getLogger(__name__)

POLL_INTERVAL: Final = 0.25  # seconds between looks at a connection whose callbacks are not ours
_TOKEN_BYTES: Final = 8
"""Random octets after an inbox of nats-py's: they cannot be guessed."""

_ATTRIBUTE: Final = "_jetstream_link"


class Connection:
    """One per connection; get it with `Connection.of`."""

    def __init__(self, nc: Client) -> None:
        self.nc = nc
        self.message_limits = MessageLimits(nc)
        """What fits into one message."""
        self.has_callbacks = False
        """Whether nats-py calls `notify`; otherwise waiters poll every `POLL_INTERVAL` seconds."""
        self.guard: Callable[[], None] = lambda: None
        """Called before each use; raises an error of the owner's if there must be none."""
        self._listeners: dict[Callable[[], None], None] = {}
        self.pending_replies = PendingReplies()
        self._inbox: str | None = None
        self._inbox_lock = asyncio.Lock()

    @classmethod
    def of(cls, nc: Client) -> "Connection":
        """Return the connection's link. It lives, and is forgotten, with the connection."""
        link = vars(nc).setdefault(_ATTRIBUTE, None) or cls(nc)
        vars(nc)[_ATTRIBUTE] = link
        return link

    @property
    def reconnects(self) -> int:
        """A number that differs after each reconnect."""
        return int(self.nc.stats["reconnects"])

    @property
    def is_connected(self) -> bool:
        return bool(self.nc.is_connected)

    @property
    def domain(self) -> str:
        """The JetStream domain of the server, empty if it has none."""
        return str(self.nc._server_info.get("domain", ""))

    async def notify(self) -> None:
        """Tell everyone who waits that the connection came up, went down or was closed."""
        if not self.is_connected:
            self.pending_replies.fail_all()
        for listener in tuple(self._listeners):
            listener()

    def add_listener(self, listener: Callable[[], None]) -> None:
        """Call `listener` at each change, until it is forgotten."""
        self._listeners[listener] = None

    def remove_listener(self, listener: Callable[[], None]) -> None:
        self._listeners.pop(listener, None)

    async def wait_connected(self) -> None:
        """Return once messages can be sent.

        Raises:
            NatsUnreachable: the connection was closed for good.
        """
        change = asyncio.Event()
        self.add_listener(change.set)
        try:
            while not self.is_connected:
                self._require_open()
                change.clear()
                with contextlib.suppress(TimeoutError):
                    async with deadlines.within(None if self.has_callbacks else POLL_INTERVAL):
                        await change.wait()
        finally:
            self.remove_listener(change.set)

    async def wait(self, *awaited: "asyncio.Future[Any]", timeout: float | None = None) -> None:
        """Return once one of them is done, or so many seconds have passed; none is cancelled.

        Raises:
            NatsUnreachable: the connection was closed for good, before or meanwhile.
        """
        loop = asyncio.get_running_loop()
        end = math.inf if timeout is None else loop.time() + timeout
        closed: asyncio.Future[None] = loop.create_future()

        def on_change() -> None:
            if self.nc.is_closed and not closed.done():
                closed.set_result(None)

        self.add_listener(on_change)
        try:
            is_over = False
            while not is_over:
                self._require_open()
                left = min(end - loop.time(), math.inf if self.has_callbacks else POLL_INTERVAL)
                done, _ = await asyncio.wait(
                    {closed, *awaited},
                    timeout=None if left == math.inf else left,
                    return_when=asyncio.FIRST_COMPLETED,
                )
                is_over = bool(done - {closed}) or loop.time() >= end
        finally:
            self.remove_listener(on_change)

    async def sleep(self, seconds: float) -> None:
        """Return after so many seconds; raise as `wait` does."""
        await self.wait(timeout=seconds)

    def _require_open(self) -> None:
        self.guard()
        if self.nc.is_closed:
            raise NatsUnreachable("connection closed")

    async def publish(
        self,
        subject: str,
        payload: bytes = b"",
        *,
        reply: str = "",
        headers: Mapping[str, str] | None = None,
    ) -> None:
        """Hand a message to the connection; while it is down, it is sent after the reconnect.

        Raises:
            Oversized: it does not fit into a message, see `room`; nothing was sent.
            Unsendable: a subject or header that no message may have; nothing was sent.
            NatsUnreachable: the connection was closed for good.
        """
        self.guard()
        nc = self.nc
        if not isinstance(nc, FastClient):  # which looks itself
            self.message_limits.check(subject, payload, headers, reply)
            with propagate_cancellation(), translate_errors():
                await nc.publish(subject, payload, reply, dict(headers) if headers else None)
            return
        try:  # by hand what the context does: most of what is ever done here ends with it
            is_full = nc.enqueue(subject, payload, reply, headers)
        except (nats.errors.Error, OSError) as error:
            raise translate_error(error) from error
        if is_full:
            with propagate_cancellation(), translate_errors():
                await nc._flush_pending(force_flush=True)

    async def request(
        self,
        subject: str,
        payload: bytes = b"",
        *,
        headers: Mapping[str, str] | None = None,
        timeout: float,
    ) -> Msg:
        """Return the answer. Unlike a request of nats-py, this one can always be cancelled.

        It is sent on a live connection or not at all, never minutes later.

        Raises:
            NoResponders: no one listens.
            NatsUnreachable: `timeout` seconds passed, or the connection went down.
            Unsendable: as of `publish`.
        """
        loop = asyncio.get_running_loop()
        end = loop.time() + timeout
        if self.is_connected and self._inbox is not None:  # sent without waiting for anything
            answer = await self.send_request(subject, payload, headers=headers, end=end)
        else:
            try:
                async with deadlines.until(end):
                    answer = await self.send_request(subject, payload, headers=headers, end=end)
            except TimeoutError:
                raise self._timeout_error(subject, timeout) from None
        if isinstance(self.nc, FastClient):
            self.nc.flush_now()
        message = await answer
        if message is None and loop.time() >= end:
            raise self._timeout_error(subject, timeout)
        if message is None:
            self.guard()
        return check_reply(subject, message)

    async def send_request(
        self,
        subject: str,
        payload: bytes = b"",
        *,
        headers: Mapping[str, str] | None = None,
        end: float | None = None,
    ) -> "asyncio.Future[Msg | None]":
        """Send a question once the connection is up; the future answer, None if it goes down.

        None, too, at `end`, by the loop's clock, if no answer came. Cancel the future to stop
        waiting. What was sent first arrives first.

        Raises:
            NatsUnreachable: the connection was closed for good, or as many answers are awaited
                already as ever will be; nothing was sent.
            Unsendable: as of `publish`.
        """
        self.guard()
        if not self.is_connected:
            await self.wait_connected()
        inbox = self._inbox or await self._open_inbox()
        token, answer = self.pending_replies.expect(end)
        try:
            await self.publish(subject, payload, reply=inbox + token, headers=headers)
        except BaseException:
            answer.cancel()
            raise
        return answer

    def new_inbox(self) -> str:
        """Return a subject that cannot be guessed, below what this user may subscribe to."""
        inbox: str = self.nc.new_inbox()  # a counter, of which another inbox tells much
        return inbox if isinstance(self.nc, FastClient) else inbox + secrets.token_hex(_TOKEN_BYTES)

    async def ping(self, timeout: float) -> bool:
        """Whether the server answers: it has read then what was sent before, and we what it sent.

        Not with `rtt` or `flush` of nats-py: an answer to one of these that was given up ends the
        reader, and the connection stays up without one; and they overtake what waits to be sent.
        """
        self.guard()
        pong: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        with propagate_cancellation(), translate_errors():
            self._flush()
            await self.nc._send_ping(pong)
        await self.wait(pong, timeout=timeout)
        return pong.done()

    async def send_unsubscribe(self, subscription: Subscription) -> None:
        """Have the server send nothing more; what is under way still arrives.

        `drain` of nats-py cannot be bounded: given up half-way, the subscription is never removed.
        """
        with propagate_cancellation(), translate_errors():
            await self.nc._send_unsubscribe(subscription._id)

    def _timeout_error(self, subject: str, timeout: float) -> NatsUnreachable:
        if self.is_connected:
            return NatsUnreachable(f"no answer on {subject} within {timeout} s")
        return NatsUnreachable(f"no connection to NATS within {timeout} s: {self.nc.last_error}")

    def _flush(self) -> None:
        nc = self.nc
        if nc.is_connected and nc._transport:
            nc._transport.writelines(nc._pending)
            nc._pending, nc._pending_data_size = [], 0

    async def _open_inbox(self) -> str:
        async with self._inbox_lock:
            if self._inbox is None:
                inbox = self.new_inbox() + "."
                with propagate_cancellation(), translate_errors():
                    await self.nc.subscribe(
                        inbox + "*",
                        cb=inline_callback(self._on_reply),
                        pending_msgs_limit=0,
                        pending_bytes_limit=0,
                    )
                self._inbox = inbox
            return self._inbox

    def _on_reply(self, message: Msg) -> None:
        inbox = self._inbox
        if inbox is None or not message.subject.startswith(inbox):
            log.error("message on %.100a is no answer: dropped", message.subject)
            return
        self.pending_replies.deliver(message.subject[len(inbox) :], message)

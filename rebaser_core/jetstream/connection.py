"""State kept beside a connection: its news, pending requests, and subscriptions.

`Connection` tells who waits when the connection changes, and sends requests that can be cancelled.
`PendingReplies` holds the awaited replies, each by a token that ends its subject. `subscribed` and
`request_all` subscribe while a body runs.

`subscribe_inline` hands messages of a `FastClient` over as they are read. nats-py makes a task and
wakes another for each subscription, which is most of the cost of one that lasts milliseconds.
"""

import asyncio
import contextlib
import heapq
import logging
import math
import secrets
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Any, Final, Generic, TypeVar

import nats.errors
from nats.aio.client import Client, _validate_subject
from nats.aio.msg import Msg
from nats.aio.subscription import DEFAULT_SUB_PENDING_BYTES_LIMIT, Subscription
from nats.protocol.command import sub_cmd, unsub_cmd

from rebaser_core.jetstream import deadlines
from rebaser_core.jetstream.errors import (
    NatsUnreachable,
    NoResponders,
    propagate_cancellation,
    translate_error,
    translate_errors,
)
from rebaser_core.jetstream.fast_client import Callback, FastClient, MessageLimits, inline_callback

T = TypeVar("T")


class PendingReply(Generic[T]):
    """A reply that its caller awaits once by `result`, or gives up by `cancel`.

    No task runs meanwhile.
    """

    __slots__ = ("_future", "_read", "_subject")

    def __init__(
        self, subject: str, future: "asyncio.Future[Msg | None]", read: Callable[[Msg], T]
    ) -> None:
        self._subject = subject
        self._future = future
        self._read = read

    @property
    def done(self) -> bool:
        """Whether `result` would return without waiting."""
        return self._future.done()

    async def result(self, timeout: float) -> T:
        """Return the reply.

        May be cancelled; the answer is then lost, and whether the server did it unknown.

        Raises:
            NatsUnreachable: no responders, `timeout` seconds passed, or the connection went down.
            ApiError: the reply is an error.
        """
        if not self._future.done():
            await asyncio.wait([self._future], timeout=timeout)
        if not self._future.done():
            self.cancel()
            raise NatsUnreachable(f"no answer on {self._subject} within {timeout} s")
        return self._read(_check_reply(self._subject, self._future.result()))

    def cancel(self) -> None:
        """Stop waiting for it."""
        self._future.cancel()


def _check_reply(subject: str, message: Msg | None) -> Msg:
    """Return the reply; `message` is None if the connection went down before it came.

    Raises:
        NatsUnreachable: there is no reply.
        NoResponders: nothing listens on the subject.
    """
    if message is None:
        raise NatsUnreachable(f"connection lost before an answer on {subject}")
    if not message.data and (message.headers or {}).get("Status") == "503":
        raise NoResponders(f"no responders on {subject}")
    return message


MIN_SWEEP: Final = 1_000
"""Number of awaited replies from which those that were given up are looked for."""
MAX_PENDING: Final = 100_000
"""Maximum number of awaited replies; a caller that leaves more unread will not read the next."""

_TOKEN_BYTES: Final = 8
"""Random bytes of a reply subject, so that only the receiver of the request knows it."""
_TOKENS_AT_ONCE: Final = 64
"""Number of tokens made by one call of the system."""


class PendingReplies:
    """Futures of replies; each is None if the connection goes down before its reply comes.

    One timer serves all deadlines, since nearly all replies come long before theirs.
    """

    def __init__(self) -> None:
        self._futures: dict[str, asyncio.Future[Msg | None]] = {}
        self._tokens: list[str] = []
        """Tokens that are not used yet."""
        self._sweep_threshold = MIN_SWEEP
        self._deadlines: list[tuple[float, str]] = []
        """Heap of the tokens that have a deadline, also of those whose reply has come."""
        self._timer: asyncio.TimerHandle | None = None
        """Timer that fires at the first deadline or earlier."""

    def __len__(self) -> int:
        return len(self._futures)

    def __contains__(self, token: str) -> bool:
        return token in self._futures

    def expect(self, end: float | None = None) -> "tuple[str, asyncio.Future[Msg | None]]":
        """Return a new token and the future reply to it; cancel the future to stop waiting.

        The future is None at `end`, by the loop's clock, if no reply came.

        Raises:
            NatsUnreachable: as many replies are awaited already as ever will be.
        """
        if len(self._futures) > self._sweep_threshold:
            self._sweep()
        token = (self._tokens or self._make_tokens()).pop()
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Msg | None] = loop.create_future()
        self._futures[token] = future
        if end is not None:
            heapq.heappush(self._deadlines, (end, token))
            if self._timer is None or end < self._timer.when():
                self._set_timer(end)
        return token, future

    def _make_tokens(self) -> list[str]:
        digits, length = secrets.token_hex(_TOKENS_AT_ONCE * _TOKEN_BYTES), 2 * _TOKEN_BYTES
        self._tokens = [digits[at : at + length] for at in range(0, len(digits), length)]
        return self._tokens

    def _sweep(self) -> None:
        """Forget those that the caller gave up."""
        self._futures = {t: each for t, each in self._futures.items() if not each.done()}
        if len(self._futures) >= MAX_PENDING:
            raise NatsUnreachable(f"{len(self._futures)} questions are not answered")
        self._sweep_threshold = min(max(MIN_SWEEP, 2 * len(self._futures)), MAX_PENDING)

    def deliver(self, token: str, reply: Msg) -> None:
        """Hand over a reply, unless the caller gave it up."""
        future = self._futures.pop(token, None)
        if future is not None and not future.done():
            future.set_result(reply)

    def fail_all(self) -> None:
        """Tell all callers that no reply comes: the connection went down."""
        futures, self._futures = self._futures, {}
        for future in futures.values():
            _complete_without_reply(future)

    def _set_timer(self, at: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_at(at, self._on_deadline)

    def _on_deadline(self) -> None:
        now, self._timer = asyncio.get_running_loop().time(), None
        if len(self._deadlines) > 2 * len(self._futures):  # most have come: all at once
            self._deadlines = [each for each in self._deadlines if each[1] in self._futures]
            heapq.heapify(self._deadlines)
        deadlines = self._deadlines
        while deadlines and (deadlines[0][0] <= now or deadlines[0][1] not in self._futures):
            _, token = heapq.heappop(deadlines)
            if (future := self._futures.pop(token, None)) is not None:
                _complete_without_reply(future)
        if deadlines:
            self._set_timer(deadlines[0][0])


def _complete_without_reply(future: "asyncio.Future[Msg | None]") -> None:
    if not future.done():
        future.set_result(None)


log: Final = logging.getLogger(__name__)

POLL_INTERVAL: Final = 0.25  # seconds between looks at a connection whose callbacks are not ours

_ATTRIBUTE: Final = "_jetstream_link"


class Connection:
    """State of a connection, of which it has one; get it with `Connection.of`."""

    def __init__(self, nc: Client) -> None:
        self.nc = nc
        self.message_limits = MessageLimits(nc)
        """Limits of one message."""
        self.has_callbacks = False
        """Whether nats-py calls `notify`; otherwise waiters poll every `POLL_INTERVAL` seconds."""
        self.guard: Callable[[], None] = lambda: None
        """Check before each use; it raises the owner's error if the connection must not be used."""
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
        """Return once one of them is done or `timeout` seconds have passed; none is cancelled.

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
        """Return after `seconds`; raise as `wait` does."""
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
        if not isinstance(nc, FastClient):  # a FastClient checks by itself
            self.message_limits.check(subject, payload, headers, reply)
            with propagate_cancellation(), translate_errors():
                await nc.publish(subject, payload, reply, dict(headers) if headers else None)
            return
        try:  # the context of `translate_errors` by hand, since nearly every call ends here
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
        """Return the answer. It can always be cancelled, unlike a request of nats-py.

        It is sent on a live connection or not at all, never minutes later.

        Raises:
            NoResponders: nothing listens on the subject.
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
        return _check_reply(subject, message)

    async def send_request(
        self,
        subject: str,
        payload: bytes = b"",
        *,
        headers: Mapping[str, str] | None = None,
        end: float | None = None,
    ) -> "asyncio.Future[Msg | None]":
        """Send a request once the connection is up; return its future answer, None if it goes down.

        At `end`, by the loop's clock, the future becomes None, too. Cancel the future to stop
        waiting. Requests arrive in the order in which they are sent.

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
        """Whether the server answers: it has then read all that we sent, and we all that it sent.

        nats-py's `rtt` and `flush` do not serve: an answer to one that was given up ends the
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
        """Ask the server to send nothing more; messages under way still arrive.

        nats-py's `drain` cannot be bounded: given up half-way, it never removes the subscription.
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


@asynccontextmanager
async def subscribed(
    nc: Client,
    subject: str,
    receive: Callback | None = None,
    *,
    queue: str = "",
    pending_bytes: int = DEFAULT_SUB_PENDING_BYTES_LIMIT,
) -> AsyncIterator[Subscription]:
    """Subscribe for as long as the body runs; a connection that is closed by then is no error.

    `receive` gets each message; without it the body reads them from the subscription.
    Messages beyond `pending_bytes` bytes that wait for `receive` are dropped.
    """
    Connection.of(nc).guard()
    subscription = await nc.subscribe(
        subject, queue=queue, cb=receive, pending_bytes_limit=pending_bytes
    )
    try:
        yield subscription
    finally:
        with suppress(nats.errors.Error):
            await subscription.unsubscribe()


async def request_all(
    nc: Client, subject: str, payload: bytes, read: Callable[[Msg], bool], seconds: float
) -> None:
    """Send a request and call `read` with each reply, until it returns true or time is up.

    The server's notice that nothing listens on the subject is a reply, too; its payload is empty.
    """
    inbox, is_complete = nc.new_inbox(), asyncio.Event()

    async def receive(reply: Msg) -> None:
        if read(reply):
            is_complete.set()

    async with subscribed(nc, inbox, receive):
        await nc.publish(subject, payload, reply=inbox)
        with suppress(TimeoutError):
            async with deadlines.within(seconds):
                await is_complete.wait()


def subscribe_inline(
    nc: FastClient, subject: str, queue: str, receive: Callable[[Msg], None]
) -> Subscription:
    """Subscribe as `nc.subscribe` does with `receive` as an `inline_callback`, with its errors."""
    _validate_subject(subject, strict=True)
    if nc.is_closed:
        raise nats.errors.ConnectionClosedError
    if nc.is_draining:
        raise nats.errors.ConnectionDrainingError
    nc._sid += 1
    subscription = Subscription(nc, nc._sid, subject, queue, inline_callback(receive))
    nc._subs[nc._sid] = subscription
    _send(nc, sub_cmd(subject, queue, nc._sid))
    return subscription


def unsubscribe_inline(nc: FastClient, subscription: Subscription) -> None:
    """End the subscription; the server learns of it soon.

    Sent also where the connection is down: the beginning of the subscription may still be to be
    sent then.
    """
    subscription._closed = True
    nc._subs.pop(subscription._id, None)
    _send(nc, unsub_cmd(subscription._id, 0))


def _send(nc: FastClient, command: bytes) -> None:
    nc._pending.append(command)
    nc._pending_data_size += len(command)
    if not nc._flush_scheduled:
        nc._flush_scheduled = True
        asyncio.get_running_loop().call_soon(nc._flush)

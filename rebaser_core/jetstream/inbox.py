"""A subscription that feeds a queue; a cancelled reader of the queue loses nothing.

`AsyncCloseable` and `MessageReader` are how readers are left and iterated. `FlowControl` answers
the server's flow control of a push consumer when the user has reached it (ADR-15).
"""

import asyncio
import contextlib
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from types import TracebackType
from typing import Final, Self

import nats.errors
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription

from rebaser_core.jetstream import deadlines
from rebaser_core.jetstream.connection import (
    POLL_INTERVAL,
    Connection,
    subscribe_inline,
    unsubscribe_inline,
)
from rebaser_core.jetstream.errors import (
    JetStreamError,
    propagate_cancellation,
    translate_error,
    translate_errors,
)
from rebaser_core.jetstream.fast_client import FastClient, inline_callback
from rebaser_core.jetstream.messages import Delivery, StatusMessage, is_delivery


class AsyncCloseable(ABC):
    """An async context manager that closes itself when the body ends, also by an error."""

    @abstractmethod
    async def close(self) -> None:
        """End it and leave nothing behind. May be called again."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()


class MessageReader(AsyncCloseable):
    """A reader that is also iterated. Leaving the loop loses nothing; the next loop goes on."""

    @abstractmethod
    async def next(self) -> Delivery | None:
        """Return the next message, or None at the end."""

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Delivery:
        delivery = await self.next()
        if delivery is None:
            raise StopAsyncIteration
        return delivery

    async def for_each(self, handler: Callable[[Delivery], Awaitable[None]]) -> None:
        """Call the handler with one message after the other until they end.

        Another task may drain or stop the reader. An error of the handler ends it, too; a message
        whose handler is cancelled has been handed out.
        """
        async for delivery in self:
            await handler(delivery)


@contextlib.asynccontextmanager
async def best_effort(seconds: float) -> AsyncIterator[None]:
    """Run a last action on the way out, for `seconds` at most; its failure is ignored."""
    # An error of this action must not replace an earlier error or cancellation.
    with contextlib.suppress(TimeoutError, JetStreamError):
        async with deadlines.within(seconds):
            yield


_DRAIN_TIMEOUT: Final = 1.0  # seconds to learn that nothing more is under way


class Inbox:
    """Messages in the order they came, of one subscription after another.

    The queue has no limit: flow control or the size of the pull bounds it, and dropping would be
    silent loss. One task at a time may wait.
    """

    def __init__(self, link: Connection) -> None:
        self._connection = link
        self._changed = asyncio.Event()
        self._subscription: Subscription | None = None
        self._reconnects = -1
        self.queue: deque[Msg] = deque()
        self.subject = ""
        self.last_message_at = 0.0
        """Loop time at which something last came."""

    @property
    def is_valid(self) -> bool:
        """Whether it has been open since the connection was last made."""
        link = self._connection
        return (
            self._subscription is not None
            and self._reconnects == link.reconnects
            and link.is_connected
        )

    async def open(
        self, subject: str | None = None, *, group: str = "", keep: bool = False
    ) -> None:
        """Subscribe again, to `subject` or to a new one.

        Starts with nothing queued, or with the deliveries queued by now.
        May be cancelled and rerun.
        """
        await self.close()
        self.queue = deque(filter(is_delivery, self.queue) if keep else ())
        self._reconnects = self._connection.reconnects
        self.subject = subject or self._connection.new_inbox()
        self.last_message_at = asyncio.get_running_loop().time()
        self._connection.add_listener(self._changed.set)
        self._subscription = await self._subscribe(self.queue, group)

    async def _subscribe(self, messages: deque[Msg], group: str) -> Subscription:
        loop, nc = asyncio.get_running_loop(), self._connection.nc

        def receive(message: Msg) -> None:
            messages.append(message)
            self.last_message_at = loop.time()
            self._changed.set()

        if isinstance(nc, FastClient):
            try:
                return subscribe_inline(nc, self.subject, group, receive)
            except nats.errors.Error as error:
                raise translate_error(error) from error
        with propagate_cancellation(), translate_errors():
            return await nc.subscribe(
                self.subject,
                queue=group,
                cb=inline_callback(receive),
                pending_msgs_limit=0,
                pending_bytes_limit=0,
            )

    async def wait(self, seconds: float | None) -> None:
        """Return when something is queued, the connection changed, or `seconds` have passed.

        Events since the last call count, too; so look at everything again.
        """
        if self.queue:
            return
        if not self._connection.has_callbacks:
            seconds = POLL_INTERVAL if seconds is None else min(seconds, POLL_INTERVAL)
        timer = None
        if seconds is not None:
            timer = asyncio.get_running_loop().call_later(seconds, self._changed.set)
        try:
            await self._changed.wait()
        finally:
            if timer is not None:
                timer.cancel()
        self._changed.clear()  # only after the wait: an earlier clear would lose a wake-up

    def notify(self) -> None:
        """Wake the waiting task to check again."""
        self._changed.set()

    async def drain(self) -> None:
        """Unsubscribe, and queue all that was under way. Bounded; needs a `close` after."""
        subscription = self._subscription
        if subscription is None or not self._connection.is_connected:
            return
        async with best_effort(_DRAIN_TIMEOUT):
            await self._connection.send_unsubscribe(subscription)
            await self._connection.ping(_DRAIN_TIMEOUT)

    async def close(self) -> None:
        """Unsubscribe. Queued messages stay queued."""
        self._connection.remove_listener(self._changed.set)
        subscription, self._subscription = self._subscription, None
        nc = self._connection.nc
        if subscription is None or nc.is_closed:
            return
        if isinstance(nc, FastClient):
            unsubscribe_inline(nc, subscription)
            return
        async with best_effort(_DRAIN_TIMEOUT):
            with translate_errors():
                await subscription.unsubscribe()


class FlowControl:
    """The answers of one consumer's reader: one to each question, and one to each reminder.

    A lost answer leaves the server waiting, which only its heartbeats tell.

    Args:
        connection: where to answer.
        reply_timeout: seconds after which a repeated question means that answers get lost.
    """

    def __init__(self, connection: Connection, *, reply_timeout: float) -> None:
        self._connection = connection
        self._reply_timeout = reply_timeout
        self._answered: str | None = None
        self._answered_at = 0.0

    async def acknowledge(self, status: StatusMessage, arrived_at: float | None = None) -> bool:
        """Answer, and return False if the server evidently does not hear us.

        Call it when the status is reached in the queue: what came before is by then
        with the user, and that is all the server may assume. `arrived_at` is the loop
        time at which the status came, where known.
        """
        subject = status.flow_control
        if subject is None:
            return True
        await self._connection.publish(subject)
        if subject != self._answered:
            # not before: a cancelled answer is given to the next reminder
            self._answered, self._answered_at = subject, asyncio.get_running_loop().time()
            return True
        return arrived_at is None or arrived_at < self._answered_at + self._reply_timeout

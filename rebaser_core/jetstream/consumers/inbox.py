"""A subscription that feeds a queue; a cancelled reader of the queue loses nothing."""

import asyncio
from collections import deque
from typing import Final

import nats.errors
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription

from rebaser_core.jetstream.connection.connection import POLL_INTERVAL, Connection
from rebaser_core.jetstream.connection.fast_client import FastClient, inline_callback
from rebaser_core.jetstream.connection.inline_subscription import (
    subscribe_inline,
    unsubscribe_inline,
)
from rebaser_core.jetstream.connection.nats_errors import (
    propagate_cancellation,
    translate_error,
    translate_errors,
)
from rebaser_core.jetstream.consumers.message_reader import best_effort
from rebaser_core.jetstream.messages.status_message import is_delivery

DRAIN_TIMEOUT: Final = 1.0  # seconds to learn that nothing more is under way


class Inbox:
    """Messages in the order they came, of one subscription after another.

    The queue has no limit: what bounds it is flow control or the size of the
    pull, and dropping would be silent loss. One task at a time may wait.
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

        Also of what happened since the last call; so look at everything again.
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
        """Unsubscribe, and have queued whatever was under way. Bounded; needs a `close` after."""
        subscription = self._subscription
        if subscription is None or not self._connection.is_connected:
            return
        async with best_effort(DRAIN_TIMEOUT):
            await self._connection.send_unsubscribe(subscription)
            await self._connection.ping(DRAIN_TIMEOUT)

    async def close(self) -> None:
        """Unsubscribe. What is queued stays queued."""
        self._connection.remove_listener(self._changed.set)
        subscription, self._subscription = self._subscription, None
        nc = self._connection.nc
        if subscription is None or nc.is_closed:
            return
        if isinstance(nc, FastClient):
            unsubscribe_inline(nc, subscription)
            return
        async with best_effort(DRAIN_TIMEOUT):
            with translate_errors():
                await subscription.unsubscribe()

"""A subscription that feeds a queue from which nothing is lost by cancelling whoever waits."""

import asyncio
from collections import deque
from typing import Final

from nats.aio.msg import Msg
from nats.aio.subscription import Subscription

from rebaser_core.jetstream.connection.connection import POLL, Link
from rebaser_core.jetstream.connection.fast_client import directly
from rebaser_core.jetstream.connection.nats_errors import honest_cancellation, translated
from rebaser_core.jetstream.consumers.message_reader import briefly
from rebaser_core.jetstream.messages.status_message import is_delivery

DRAIN_TIMEOUT: Final = 1.0  # seconds to learn that nothing more is under way


class Inbox:
    """Messages in the order they came, of one subscription after another.

    The queue has no limit: what bounds it is flow control or the size of the
    pull, and dropping would be silent loss. One task at a time may wait.
    """

    def __init__(self, link: Link) -> None:
        self._link = link
        self._news = asyncio.Event()
        self._subscription: Subscription | None = None
        self._epoch = -1
        self.queue: deque[Msg] = deque()
        self.subject = ""
        self.heard = 0.0
        """Loop time at which something last came."""

    @property
    def current(self) -> bool:
        """Whether it has been open since the connection was last made."""
        link = self._link
        return self._subscription is not None and self._epoch == link.epoch and link.up

    async def open(
        self, subject: str | None = None, *, group: str = "", keep: bool = False
    ) -> None:
        """Subscribe anew, to a new subject unless told which.

        Starts with nothing queued, or with the deliveries queued by now.
        May be cancelled and rerun.
        """
        await self.close()
        self.queue = deque(filter(is_delivery, self.queue) if keep else ())
        self._epoch = self._link.epoch
        self.subject = subject or self._link.new_inbox()
        self.heard = asyncio.get_running_loop().time()
        self._link.listen(self._news.set)
        with honest_cancellation(), translated():
            self._subscription = await self._subscribe(self.queue, group)

    async def _subscribe(self, messages: deque[Msg], group: str) -> Subscription:
        loop = asyncio.get_running_loop()

        def receive(message: Msg) -> None:
            messages.append(message)
            self.heard = loop.time()
            self._news.set()

        return await self._link.nc.subscribe(
            self.subject,
            queue=group,
            cb=directly(receive),
            pending_msgs_limit=0,
            pending_bytes_limit=0,
        )

    async def wait(self, seconds: float | None) -> None:
        """Return when something is queued, the connection changed, or `seconds` have passed.

        Also of what happened since the last call; so look at everything again.
        """
        if self.queue:
            return
        if not self._link.observed:
            seconds = POLL if seconds is None else min(seconds, POLL)
        timer = None
        if seconds is not None:
            timer = asyncio.get_running_loop().call_later(seconds, self._news.set)
        try:
            await self._news.wait()
        finally:
            if timer is not None:
                timer.cancel()
        self._news.clear()  # not before: what was announced since the caller looked would be missed

    def wake(self) -> None:
        """Have whoever waits look again."""
        self._news.set()

    async def drain(self) -> None:
        """Unsubscribe, and have queued whatever was under way. Bounded; needs a `close` after."""
        subscription = self._subscription
        if subscription is None or not self._link.up:
            return
        async with briefly(DRAIN_TIMEOUT):
            with honest_cancellation(), translated():
                # public `drain` cannot be bounded: given up half-way, it is never removed
                await self._link.nc._send_unsubscribe(subscription._id)  # noqa: SLF001
            await self._link.round_trip(DRAIN_TIMEOUT)

    async def close(self) -> None:
        """Unsubscribe. What is queued stays queued."""
        self._link.forget(self._news.set)
        subscription, self._subscription = self._subscription, None
        if subscription is None or self._link.nc.is_closed:
            return
        async with briefly(DRAIN_TIMEOUT):
            with translated():
                await subscription.unsubscribe()

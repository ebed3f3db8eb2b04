"""A subscription to a push consumer, with its statuses seen to (ADR-15)."""

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

from rebaser_core.jetstream.consumers.flow_control import FlowControl
from rebaser_core.jetstream.consumers.inbox import Inbox
from rebaser_core.jetstream.consumers.message_reader import Reader
from rebaser_core.jetstream.errors import (
    AnswersMissed,
    HeartbeatsMissed,
    JetStreamError,
    MessagesMissed,
)
from rebaser_core.jetstream.messages.delivery import Delivery, delivery_of
from rebaser_core.jetstream.messages.status_message import CONTROL, Status, is_delivery

if TYPE_CHECKING:
    from nats.aio.msg import Msg

    from rebaser_core.jetstream.api import JetStream

log: Final = logging.getLogger(__name__)

MISSES: Final = 3  # heartbeats missed until the alarm
Alarm = Callable[[JetStreamError], None]
"""Told what ends nothing: `HeartbeatsMissed`, `MessagesMissed`, `AnswersMissed`. Must not raise."""


def logged(alarm: JetStreamError) -> None:
    log.warning("%s: %s", type(alarm).__name__, alarm)


class PushSubscription(Reader):
    """Messages that a push consumer sends; made by `subscribe`.

    Heartbeats and flow control are seen to inside `next`, in the order they came,
    so that a slow caller slows the server down. Nobody makes the consumer anew:
    for that there are ordered and pull consumers. One task at a time may call `next`.
    """

    def __init__(
        self,
        js: "JetStream",
        inbox: Inbox,
        info: Mapping[str, Any],
        *,
        created: bool,
        alarm: Alarm = logged,
        misses: int = MISSES,
    ) -> None:
        config = info["config"]
        heartbeat = config.get("idle_heartbeat", 0) / 1e9
        self.stream: str = info["stream_name"]
        self.consumer: str = info["name"]
        self.created = created
        """Whether the consumer was made for this subscription, and ends with it."""
        self._js = js
        self._inbox = inbox
        self._alarm = alarm
        self._acks = config.get("ack_policy", "none") != "none"
        self._silence = misses * heartbeat or None
        self._flow = FlowControl(js.link, patience=misses * heartbeat)
        self._gapless = not config.get("deliver_group")
        self._sequence: int | None = None if info["delivered"]["consumer_seq"] else 0
        self._since = 0.0
        self._ended = False

    async def next(self) -> Delivery | None:
        """Return the next message, or None when unsubscribed or drained and nothing is left.

        May be cancelled at any time: a message that comes meanwhile is the next one's.

        Raises:
            StatusError: the server said something that is no message; it may be called again.
            NotJetStream: somebody else sent something; it may be called again.
            Unreachable: the connection is closed.
        """
        clock = asyncio.get_running_loop().time
        while True:
            while self._inbox.queue:
                message = self._inbox.queue.popleft()
                if not is_delivery(message):
                    await self._heed(Status.of(message))
                elif (delivery := self._delivery(message)) is not None:
                    self._follow(delivery.consumer_sequence)
                    return delivery
            if self._ended:
                await self._drained()
                return None
            if not self._js.link.up:
                await self._js.link.connected()
                self._since = clock()  # the alarm rests while there is no connection
            elif self._silence is None:
                await self._inbox.wait(None)
            elif (left := max(self._since, self._inbox.heard) + self._silence - clock()) > 0:
                await self._inbox.wait(left)
            else:
                self._since = clock()
                self._alarm(HeartbeatsMissed(f"{self._name} silent for {self._silence} s"))

    def _delivery(self, message: "Msg") -> Delivery | None:
        link, acks = self._js.link, self._acks
        return delivery_of(link, message, self.stream, self.consumer, acks=acks)

    @property
    def _name(self) -> str:
        return f"{self.stream}/{self.consumer}"

    def _follow(self, sequence: int) -> None:
        self._compare(sequence - 1)
        self._sequence = sequence

    def _compare(self, last: int) -> None:
        if self._gapless and self._sequence is not None and last > self._sequence:
            missing = f"deliveries {self._sequence + 1} to {last} of {self._name}"
            self._alarm(MessagesMissed(missing))
        self._sequence = last

    async def _heed(self, status: Status) -> None:
        if status.code != CONTROL:
            raise status.error()
        if (last := status.last_consumer_sequence) is not None:
            self._compare(last)
        arrived = None if self._inbox.queue else self._inbox.heard
        if not await self._flow.reached(status, arrived):
            self._alarm(AnswersMissed(f"{self._name} waits for {status.flow_control!r}"))

    async def unsubscribe(self) -> None:
        """Get nothing more; what has come and was not handed out is dropped.

        The consumer is deleted if it was made for this subscription, and for no
        group of them: other members may live on it.

        Raises:
            ApiError, Unreachable: the consumer may still be there.
        """
        self._ended = True
        await self._inbox.close()
        self._inbox.queue.clear()
        self._inbox.wake()
        await self._release()

    async def close(self) -> None:
        await self.unsubscribe()

    async def drain(self) -> None:
        """Get nothing more than has come by now, which `next` still returns.

        After the last of it the consumer is deleted as by `unsubscribe`; if that
        fails, it is an alarm.
        """
        self._ended = True
        await self._inbox.drain()
        await self._inbox.close()
        self._inbox.wake()

    async def _release(self) -> None:
        if self.created and self._gapless:
            await self._js.delete_consumer(self.stream, self.consumer)
        self.created = False

    async def _drained(self) -> None:
        try:
            await self._release()
        except JetStreamError as error:
            self._alarm(error)

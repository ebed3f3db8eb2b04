"""A subscription to a push consumer, with its statuses seen to (ADR-15)."""

import asyncio
import logging
from collections.abc import Callable
from datetime import timedelta
from typing import TYPE_CHECKING, Final

from rebaser_core.jetstream.api import JetStreamApi
from rebaser_core.jetstream.consumers.flow_control import FlowControl
from rebaser_core.jetstream.consumers.inbox import Inbox
from rebaser_core.jetstream.consumers.message_reader import MessageReader
from rebaser_core.jetstream.errors import (
    FlowControlIgnored,
    HeartbeatsMissed,
    JetStreamError,
    MessagesMissed,
)
from rebaser_core.jetstream.infos.consumer_info import ConsumerInfo
from rebaser_core.jetstream.messages.delivery import Delivery, parse_delivery
from rebaser_core.jetstream.messages.status_message import CONTROL, StatusMessage, is_delivery

if TYPE_CHECKING:
    from nats.aio.msg import Msg


log: Final = logging.getLogger(__name__)

MISSED_HEARTBEATS: Final = 3  # heartbeats missed until the alarm
OnWarning = Callable[[JetStreamError], None]
"""Called with what does not end the subscription: `HeartbeatsMissed`, `MessagesMissed`,
`FlowControlIgnored`. Must not raise."""


def log_warning(warning: JetStreamError) -> None:
    log.warning("%s: %s", type(warning).__name__, warning)


class PushSubscription(MessageReader):
    """Messages that a push consumer sends; made by `subscribe`.

    Heartbeats and flow control are seen to inside `next`, in the order they came,
    so that a slow caller slows the server down. It never recreates the consumer:
    ordered and pull consumers do that. One task at a time may call `next`.
    """

    def __init__(
        self,
        js: JetStreamApi,
        inbox: Inbox,
        info: ConsumerInfo,
        *,
        created: bool,
        on_warning: OnWarning = log_warning,
        missed_heartbeats: int = MISSED_HEARTBEATS,
    ) -> None:
        config = info.config
        heartbeat = (config.idle_heartbeat or timedelta()).total_seconds()
        self.stream = info.stream_name
        self.consumer = info.name
        self.created = created
        """Whether the consumer was made for this subscription, and ends with it."""
        self._js = js
        self._inbox = inbox
        self._on_warning = on_warning
        self._acks = config.is_acked
        self._heartbeat_timeout = missed_heartbeats * heartbeat or None
        self._flow_control = FlowControl(js.connection, reply_timeout=missed_heartbeats * heartbeat)
        self._gapless = not config.deliver_group
        self._sequence: int | None = None if info.delivered.consumer_seq else 0
        self._quiet_since = 0.0
        self._ended = False

    async def next(self) -> Delivery | None:
        """Return the next message, or None when unsubscribed or drained and nothing is left.

        May be cancelled at any time: a message that comes meanwhile is the next one's.

        Raises:
            StatusError: the server said something that is no message; it may be called again.
            NotJetStream: another program sent a message; it may be called again.
            NatsUnreachable: the connection is closed.
        """
        clock = asyncio.get_running_loop().time
        while True:
            while self._inbox.queue:
                message = self._inbox.queue.popleft()
                if not is_delivery(message):
                    await self._on_status(StatusMessage.parse(message))
                elif (delivery := self._parse(message)) is not None:
                    self._track_delivery(delivery.consumer_sequence)
                    return delivery
            if self._ended:
                await self._finish_drain()
                return None
            if not self._js.connection.is_connected:
                await self._js.connection.wait_connected()
                self._quiet_since = clock()  # the alarm rests while there is no connection
            elif self._heartbeat_timeout is None:
                await self._inbox.wait(None)
            elif (
                left := max(self._quiet_since, self._inbox.last_message_at)
                + self._heartbeat_timeout
                - clock()
            ) > 0:
                await self._inbox.wait(left)
            else:
                self._quiet_since = clock()
                self._on_warning(
                    HeartbeatsMissed(f"{self._name} silent for {self._heartbeat_timeout:g} s")
                )

    def _parse(self, message: "Msg") -> Delivery | None:
        link, acks = self._js.connection, self._acks
        return parse_delivery(link, message, self.stream, self.consumer, acks=acks)

    @property
    def _name(self) -> str:
        return f"{self.stream}/{self.consumer}"

    def _track_delivery(self, sequence: int) -> None:
        self._check_gap(sequence - 1)
        self._sequence = sequence

    def _check_gap(self, last: int) -> None:
        if self._gapless and self._sequence is not None and last > self._sequence:
            missing = f"deliveries {self._sequence + 1} to {last} of {self._name}"
            self._on_warning(MessagesMissed(missing))
        self._sequence = last

    async def _on_status(self, status: StatusMessage) -> None:
        if status.code != CONTROL:
            raise status.to_error()
        if (last := status.last_consumer_sequence) is not None:
            self._check_gap(last)
        arrived = None if self._inbox.queue else self._inbox.last_message_at
        if not await self._flow_control.acknowledge(status, arrived):
            self._on_warning(FlowControlIgnored(f"{self._name} waits for {status.flow_control!r}"))

    async def unsubscribe(self) -> None:
        """Get nothing more; what has come and was not handed out is dropped.

        The consumer is deleted if it was made for this subscription, and for no
        group of them: other members may live on it.

        Raises:
            ApiError, NatsUnreachable: the consumer may still be there.
        """
        self._ended = True
        await self._inbox.close()
        self._inbox.queue.clear()
        self._inbox.notify()
        await self._delete_consumer()

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
        self._inbox.notify()

    async def _delete_consumer(self) -> None:
        if self.created and self._gapless:
            await self._js.delete_consumer(self.stream, self.consumer)
        self.created = False

    async def _finish_drain(self) -> None:
        try:
            await self._delete_consumer()
        except JetStreamError as error:
            self._on_warning(error)

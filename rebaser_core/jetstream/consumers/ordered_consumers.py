"""Readers of a stream that hand out everything, in order, once, whatever breaks meanwhile."""

import json
from collections.abc import Sequence
from datetime import timedelta
from typing import Final, Unpack

from nats.aio.msg import Msg

from rebaser_core.jetstream.api import JetStreamApi
from rebaser_core.jetstream.configs.consumer_config import ConsumerConfig
from rebaser_core.jetstream.consumers.flow_control import FlowControl
from rebaser_core.jetstream.consumers.options import ReaderOptions
from rebaser_core.jetstream.consumers.ordered_reader import OrderedReader
from rebaser_core.jetstream.consumers.pull_request import (
    MAX_SINGLE_PULLS,
    PullBudget,
    build_pull_requests,
    is_terminal,
)
from rebaser_core.jetstream.consumers.read_buffer import ReadBuffer
from rebaser_core.jetstream.messages.delivery import Delivery
from rebaser_core.jetstream.messages.status_message import CONTROL, StatusMessage

_READ_AHEAD: Final = 256  # messages asked for ahead of the reader
_EXPIRES: Final = 30.0  # seconds
_BOUNDS: Final = ("max_messages", "max_bytes")


class OrderedPushConsumer(OrderedReader):
    """Messages of a stream in stream order, each once, none left out (ADR-15, ADR-17).

    The cursor is the last message *handed out*. After a gap, missed heartbeats, a
    deleted consumer or a reconnect, the server's consumer is made anew behind it.
    There is no task in the background: heartbeats, gaps and flow control are seen
    to, in the order they came, inside `next`. So the server never runs further
    ahead than its flow control window, however slow the caller is.

    One task at a time may call `next`. Closing deletes the server's consumer.
    """

    _flow_control: FlowControl

    def _delivery_config(self) -> ConsumerConfig:
        return ConsumerConfig(
            deliver_subject=self._inbox.subject,
            flow_control=True,
            idle_heartbeat=timedelta(seconds=self._heartbeat),
        )

    def _on_consumer_created(self) -> None:
        self._flow_control = FlowControl(self._js.connection, reply_timeout=self._heartbeat)

    async def _request_more(self) -> None:
        """It sends by itself."""

    def _count(self, message: Msg) -> None:
        """Flow control bounds what may come."""

    async def _on_status(self, status: StatusMessage) -> None:
        arrived = None if self._inbox.queue else self._inbox.last_message_at
        if status.code != CONTROL:
            self._reset(f"status {status.code} {status.description}")
        elif status.last_consumer_sequence not in (None, self._sequence):
            self._reset("gap before a heartbeat")
        elif not await self._flow_control.acknowledge(status, arrived):
            self._reset("flow control is not heard")


class OrderedPullConsumer(OrderedReader):
    """The same by pulling, which needs nothing but the API (ADR-37).

    For a JetStream under a prefix, whose account exports no flow control subjects.

    Raises:
        ValueError: buffering options that exclude each other.
    """

    _budget: PullBudget

    def __init__(
        self,
        js: JetStreamApi,
        stream: str,
        filter_subject: str | Sequence[str] = ">",
        **options: Unpack[ReaderOptions],
    ) -> None:
        super().__init__(js, stream, filter_subject, **options)
        self._buffer = _buffer(options, self._heartbeat, single_reply=js.single_reply)

    def _delivery_config(self) -> ConsumerConfig:
        return ConsumerConfig()

    def _on_consumer_created(self) -> None:
        self._budget = PullBudget()

    def _count(self, message: Msg) -> None:
        self._budget.on_message(message)

    async def _next_buffered(self) -> Delivery | None:
        if self._active and self._inbox.queue and self._inbox.is_valid:
            await self._request_more()  # while there is still something to hand out
        return await super()._next_buffered()

    async def _request_more(self) -> None:
        pull = self._buffer.refill(self._budget)
        if pull is None:
            return
        subject = f"{self._js.prefix}.CONSUMER.MSG.NEXT.{self._stream}.{self._consumer.name}"
        expires, heartbeat = self._buffer.expires, self._heartbeat
        for request in build_pull_requests(self._js, pull, expires=expires, heartbeat=heartbeat):
            self._budget.on_request(request)  # before: if cancelled, it may have been sent
            payload = json.dumps(request).encode()
            await self._js.connection.publish(subject, payload, reply=self._inbox.subject)

    async def _on_status(self, status: StatusMessage) -> None:
        if status.code == CONTROL:
            return
        if is_terminal(status) and not status.consumer_deleted:
            raise status.to_error()
        if status.pending is None:
            self._reset(f"status {status.code} {status.description}")
        else:
            self._budget.on_end(*status.pending)


def _buffer(options: ReaderOptions, heartbeat: float, *, single_reply: bool) -> ReadBuffer:
    most, octets = options.get("max_messages"), options.get("max_bytes")
    if most is None and octets is None:
        most = MAX_SINGLE_PULLS if single_reply else _READ_AHEAD
    return ReadBuffer(
        max_messages=most,
        max_bytes=octets,
        threshold_messages=options.get("threshold_messages"),
        threshold_bytes=options.get("threshold_bytes"),
        expires=options.get("expires", max(_EXPIRES, 2 * heartbeat)),
        idle_heartbeat=heartbeat,
    )


def ordered_reader(
    js: JetStreamApi,
    stream: str,
    filter_subject: str | Sequence[str] = ">",
    **options: Unpack[ReaderOptions],
) -> OrderedReader:
    """Return a reader that is pushed to where that works and nothing bounds the buffer.

    It pulls where `js` is another account's, and with `max_messages` or `max_bytes`. It makes
    no request before it is entered or used.

    Raises:
        ValueError: options that exclude each other.
    """
    pulls = js.is_remote or any(name in options for name in _BOUNDS)
    kind = OrderedPullConsumer if pulls else OrderedPushConsumer
    return kind(js, stream, filter_subject, **options)

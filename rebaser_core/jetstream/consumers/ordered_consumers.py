"""Readers of a stream that hand out everything, in order, once, whatever breaks meanwhile."""

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, Unpack

from rebaser_core.jetstream.api import JetStreamApi
from rebaser_core.jetstream.consumers.flow_control import FlowControl
from rebaser_core.jetstream.consumers.ordered_reader import OrderedReader, ReaderOptions
from rebaser_core.jetstream.consumers.pull_request import (
    MAX_SINGLE_PULLS,
    PullBudget,
    build_pull_requests,
    is_terminal,
)
from rebaser_core.jetstream.messages.status_message import CONTROL, StatusMessage

if TYPE_CHECKING:
    from rebaser_core.jetstream.messages.delivery import Delivery

_READ_AHEAD: Final = 256  # messages asked for ahead of the reader
_EXPIRES: Final = 30.0  # seconds


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

    def _delivery_config(self) -> Mapping[str, Any]:
        return {
            "deliver_subject": self._inbox.subject,
            "flow_control": True,
            "idle_heartbeat": round(self._heartbeat * 1e9),
        }

    def _on_consumer_created(self) -> None:
        self._flow_control = FlowControl(self._js.connection, reply_timeout=self._heartbeat)

    async def _request_more(self) -> None:
        """It sends by itself."""

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
    """

    _budget: PullBudget

    def _delivery_config(self) -> Mapping[str, Any]:
        return {}

    def _on_consumer_created(self) -> None:
        self._budget = PullBudget()

    def _advance(self, delivery: "Delivery") -> "Delivery":
        self._budget.messages = max(0, self._budget.messages - 1)
        return super()._advance(delivery)

    async def _request_more(self) -> None:
        limit = MAX_SINGLE_PULLS if self._js.single_reply else _READ_AHEAD
        missing = limit - self._budget.messages
        if missing < limit // 2:
            return
        subject = f"{self._js.prefix}.CONSUMER.MSG.NEXT.{self._stream}.{self._consumer.name}"
        pull, times = {"batch": missing}, {"expires": _EXPIRES, "heartbeat": self._heartbeat}
        for request in build_pull_requests(self._js, pull, **times):
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


def ordered_reader(
    js: JetStreamApi,
    stream: str,
    filter_subject: str | Sequence[str] = ">",
    **options: Unpack[ReaderOptions],
) -> OrderedReader:
    """Return a reader that is pushed to where that works: pulling where `js` is another account's.

    It makes no request before it is entered or used.
    """
    kind = OrderedPullConsumer if js.is_remote else OrderedPushConsumer
    return kind(js, stream, filter_subject, **options)

"""Readers of a stream that hand out everything, in order, once, whatever breaks meanwhile."""

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from rebaser_core.jetstream.consumers.flow_control import FlowControl
from rebaser_core.jetstream.consumers.ordered_reader import OrderedReader
from rebaser_core.jetstream.consumers.pull_request import SINGLES, Pending, final, requests
from rebaser_core.jetstream.messages.status_message import CONTROL, Status

if TYPE_CHECKING:
    from rebaser_core.jetstream.api import JetStream
    from rebaser_core.jetstream.messages.delivery import Delivery

_BATCH: Final = 256  # messages asked for ahead of the reader
_EXPIRES: Final = 30.0  # seconds


class OrderedConsumer(OrderedReader):
    """Messages of a stream in stream order, each once, none left out (ADR-15, ADR-17).

    The cursor is the last message *handed out*. After a gap, missed heartbeats, a
    deleted consumer or a reconnect, the server's consumer is made anew behind it.
    There is no task in the background: heartbeats, gaps and flow control are seen
    to, in the order they came, inside `next`. So the server never runs further
    ahead than its flow control window, however slow the caller is.

    One task at a time may call `next`. Closing deletes the server's consumer.
    """

    _flow: FlowControl

    def _mode(self) -> Mapping[str, Any]:
        return {
            "deliver_subject": self._inbox.subject,
            "flow_control": True,
            "idle_heartbeat": round(self._heartbeat * 1e9),
        }

    def _started(self) -> None:
        self._flow = FlowControl(self._js.link, patience=self._heartbeat)

    async def _ask(self) -> None:
        """It sends by itself."""

    async def _heed(self, status: Status) -> None:
        arrived = None if self._inbox.queue else self._inbox.heard
        if status.code != CONTROL:
            self._reset(f"status {status.code} {status.description}")
        elif status.last_consumer_sequence not in (None, self._sequence):
            self._reset("gap before a heartbeat")
        elif not await self._flow.reached(status, arrived):
            self._reset("flow control is not heard")


class OrderedPullConsumer(OrderedReader):
    """The same by pulling, which needs nothing but the API (ADR-37).

    For a JetStream under a prefix, whose account exports no flow control subjects.
    """

    _pulls: Pending

    def _mode(self) -> Mapping[str, Any]:
        return {}

    def _started(self) -> None:
        self._pulls = Pending()

    def _handed_out(self, delivery: "Delivery") -> "Delivery":
        self._pulls.messages = max(0, self._pulls.messages - 1)
        return super()._handed_out(delivery)

    async def _ask(self) -> None:
        limit = SINGLES if self._js.single_answers else _BATCH
        missing = limit - self._pulls.messages
        if missing < limit // 2:
            return
        subject = f"{self._js.prefix}.CONSUMER.MSG.NEXT.{self._stream}.{self._consumer.name}"
        pull, times = {"batch": missing}, {"expires": _EXPIRES, "heartbeat": self._heartbeat}
        for request in requests(self._js, pull, **times):
            self._pulls.made(request)  # before: if cancelled, it may have been sent
            payload = json.dumps(request).encode()
            await self._js.link.publish(subject, payload, reply=self._inbox.subject)

    async def _heed(self, status: Status) -> None:
        if status.code == CONTROL:
            return
        if final(status) and not status.consumer_deleted:
            raise status.error()
        if status.pending is None:
            self._reset(f"status {status.code} {status.description}")
        else:
            self._pulls.ended(*status.pending)


def ordered_reader(js: "JetStream") -> type[OrderedReader]:
    """Return the kind of reader that works where `js` is."""
    return OrderedPullConsumer if js.foreign else OrderedConsumer

"""A message as JetStream delivered it, and the acks that answer it (ADR-15)."""

import json
import logging
from datetime import UTC, datetime
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from rebaser_core.jetstream.connection.pending_reply import PendingReply
from rebaser_core.jetstream.errors import NotJetStream
from rebaser_core.jetstream.messages.ack_subject import AckSubject

if TYPE_CHECKING:
    from collections.abc import Mapping

    from nats.aio.msg import Msg

    from rebaser_core.jetstream.connection.connection import Connection

log: Final = logging.getLogger(__name__)

ACK: Final = b"+ACK"
NAK: Final = b"-NAK"
TERM: Final = b"+TERM"
PROGRESS: Final = b"+WPI"
CONFIRM_TIMEOUT: Final = 5.0  # seconds
_NO_HEADERS: Final = MappingProxyType[str, str]({})


class Delivery:
    """One delivery of one message. Its holder settles it: `ack`, `nak` or `term`.

    The first of these counts; whatever is said after it is ignored, and so is
    everything if the consumer wants no acks. An unconfirmed word says only that
    it was handed to the connection: it may come too late, be sent after a
    reconnect, or be lost. A confirmed one was processed by the server, which
    does not look at whether the message has meanwhile gone to another client.
    """

    __slots__ = (
        *("_connection", "_settled", "_subject", "consumer", "consumer_sequence", "headers"),
        *("payload", "reply", "stream", "stream_sequence", "subject"),
    )

    def __init__(self, link: "Connection", message: "Msg", *, acks: bool = True) -> None:
        self._connection = link
        self._settled = not acks
        self._subject = subject = AckSubject.parse(message.reply)
        self.stream = subject.stream
        self.consumer = subject.consumer
        self.stream_sequence = subject.stream_sequence
        self.consumer_sequence = subject.consumer_sequence
        self.subject: str = message.subject
        self.reply: str = message.reply
        self.headers: Mapping[str, str] = message.headers or _NO_HEADERS
        self.payload: bytes = message.data

    def __repr__(self) -> str:
        return (
            f"<Delivery {self.delivered} of {self.subject} {self.stream_sequence}"
            f" from {self.stream}/{self.consumer}>"
        )

    async def ack(self, *, confirm: bool = False, timeout: float = CONFIRM_TIMEOUT) -> None:
        """Ack the message. Confirmed: the server will not deliver it again.

        Raises:
            NatsUnreachable: not handed over, or not confirmed; may be said again.
        """
        await self._settle(ACK, confirm=confirm, timeout=timeout)

    async def ack_async(self) -> PendingReply[None]:
        """As a confirmed `ack`, but return before the confirmation, which is awaited later.

        Raises:
            NatsUnreachable: not handed over; may be said again.
        """
        future = await self._connection.send_request(self.reply, ACK)
        self._settled = True
        return PendingReply(self.reply, future, _confirmed)

    async def nak(
        self,
        delay: float | None = None,
        *,
        confirm: bool = False,
        timeout: float = CONFIRM_TIMEOUT,
    ) -> None:
        """Give it back, to be delivered again at once or `delay` seconds from now."""
        word = NAK
        if delay:
            word += b" " + json.dumps({"delay": round(delay * 1e9)}).encode()
        await self._settle(word, confirm=confirm, timeout=timeout)

    async def term(
        self,
        reason: str | None = None,
        *,
        confirm: bool = False,
        timeout: float = CONFIRM_TIMEOUT,
    ) -> None:
        """Never deliver it again, to any client. The `reason` is in the server's advisory."""
        await self._settle(
            TERM + (b" " + reason.encode(errors="replace") if reason else b""),
            confirm=confirm,
            timeout=timeout,
        )

    async def in_progress(self, *, confirm: bool = False, timeout: float = CONFIRM_TIMEOUT) -> None:
        """Start its ack wait anew. Ignored once it is settled."""
        if not self._settled:
            await self._send(PROGRESS, confirm=confirm, timeout=timeout)

    @property
    def settled(self) -> bool:
        """Whether it is settled, or needs no ack."""
        return self._settled

    async def _settle(self, word: bytes, *, confirm: bool, timeout: float) -> None:
        if self._settled:
            return
        self._settled = True  # before it is sent: of two at once, one counts
        try:
            await self._send(word, confirm=confirm, timeout=timeout)
        except BaseException:
            self._settled = False
            raise

    async def _send(self, word: bytes, *, confirm: bool, timeout: float) -> None:
        if confirm:
            await self._connection.request(self.reply, word, timeout=timeout)
        else:
            await self._connection.publish(self.reply, word)

    @property
    def domain(self) -> str:
        """Empty if there is none, or an old server did not tell."""
        return self._subject.domain

    @property
    def delivered(self) -> int:
        """How often it was delivered by now: 1 for the first time."""
        return self._subject.delivered

    @property
    def pending(self) -> int:
        """How many more the consumer had to deliver after this one."""
        return self._subject.pending

    @property
    def stored(self) -> float:
        """When the stream stored it, in seconds of the epoch."""
        return self._subject.timestamp / 1e9

    @property
    def timestamp(self) -> datetime:
        """The same."""
        return datetime.fromtimestamp(self.stored, UTC)


def _confirmed(_: "Msg") -> None:
    """A confirmation says nothing."""


def parse_delivery(
    link: "Connection", message: "Msg", stream: str, consumer: str | None, *, acks: bool = True
) -> Delivery | None:
    """The delivery that a message is; None, and logged, if it is none of that consumer's."""
    try:
        delivery = Delivery(link, message, acks=acks)
    except NotJetStream:
        delivery = None
    if delivery is None or (delivery.stream, delivery.consumer) != (stream, consumer):
        log.error("no delivery of %s/%s, dropped: %.100a", stream, consumer, message.reply)
        return None
    return delivery

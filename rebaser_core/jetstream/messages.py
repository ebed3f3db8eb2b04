"""The messages of JetStream: deliveries with their acks, stored messages, batches, statuses.

`AckSubject` reads the reply subject of a delivery, which says all about it (ADR-15, JSAck).
`BatchMessage` and `batch_headers` make an atomic batch (ADR-50). Statuses are what the server says
between messages, or instead of them.
"""

import base64
import json
import logging
import secrets
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from http import HTTPStatus
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import orjson
from nats.aio.msg import Msg

from rebaser_core.jetstream.connection import PendingReply
from rebaser_core.jetstream.errors import ApiError, ConsumerGone, NotJetStream, StatusError
from rebaser_core.jetstream.fast_client import parse_headers

if TYPE_CHECKING:
    from rebaser_core.jetstream.connection import Connection

_PREFIX: Final = "$JS.ACK."
_V1_TOKENS: Final = 9
_V2_TOKENS: Final = 11  # or more: tokens may be added at the end
_NO_DOMAIN: Final = "_"
_ACK_DIGITS: Final = 5 * 20


class AckSubject(NamedTuple):
    """The reply subject of a delivery; `domain` may be empty, and is in version 1, as `account`."""

    domain: str
    account: str
    stream: str
    consumer: str
    delivered: int
    stream_sequence: int
    consumer_sequence: int
    timestamp: int
    """Nanoseconds since 1970."""
    pending: int

    @classmethod
    def parse(cls, subject: str) -> "AckSubject":
        """Read version 1 (9 tokens) or 2 (11 tokens and more).

        Raises:
            NotJetStream: anything else.
        """
        tokens = subject.split(".")
        if len(tokens) == _V1_TOKENS:
            domain = account = ""
            fields = tokens[2:]
        elif len(tokens) >= _V2_TOKENS:
            domain, account = tokens[2:4]
            fields = tokens[4:11]
        else:
            raise NotJetStream(f"not an ack subject: {subject!r}")
        stream, consumer, *numbers = fields
        try:
            named = stream and consumer and subject.startswith(_PREFIX)
            if not (named and _digits("".join(numbers))):
                raise ValueError
            delivered, stream_sequence, consumer_sequence, timestamp, pending = map(int, numbers)
        except ValueError:
            raise NotJetStream(f"not an ack subject: {subject!r}") from None
        return cls(
            "" if domain == _NO_DOMAIN else domain,
            account,
            stream,
            consumer,
            delivered,
            stream_sequence,
            consumer_sequence,
            timestamp,
            pending,
        )


def _digits(text: str) -> bool:
    return (
        text.isascii() and text.isdigit() and len(text) <= _ACK_DIGITS
    )  # `int` takes signs, spaces and underscores, too


def decode_reply(answer: bytes) -> dict[str, Any]:
    """Return what the API replied; a field that is missed raises `NotJetStream`.

    Raises:
        ApiError: the server refused.
        NotJetStream: another program replied.
    """
    try:
        reply = orjson.loads(answer)
    except ValueError:
        reply = None
    if not isinstance(reply, dict):
        raise NotJetStream(f"not an answer of JetStream: {answer[:100]!r}")
    if error := reply.get("error"):
        raise ApiError.of(error if isinstance(error, dict) else {"description": error})
    return _Reply(reply)


class _Reply(dict[str, Any]):
    """A JetStream reply: a missing field raises `NotJetStream`, since another program replied."""

    def __missing__(self, key: str) -> Any:
        raise NotJetStream(f"no {key} in an answer: {str(dict(self))[:100]}")


MESSAGE_ID: Final = "Nats-Msg-Id"
_BATCH_ID: Final = "Nats-Batch-Id"
_BATCH_SEQUENCE: Final = "Nats-Batch-Sequence"
"""Number of a message in its batch, from 1; the stored message keeps it."""
_BATCH_COMMIT: Final = "Nats-Batch-Commit"


class BatchMessage(NamedTuple):
    """A message as `publish` takes it; only the batch's first one may have expectations."""

    subject: str
    payload: bytes = b""
    headers: Mapping[str, str] | None = None
    message_id: str | None = None


def batch_headers(
    messages: Sequence[BatchMessage], expected: Mapping[str, object]
) -> Iterator[Mapping[str, object]]:
    """Yield each message's headers, by which the server knows the batch, its order and its end."""
    batch = secrets.token_hex(8)  # 64 bytes at most
    for number, message in enumerate(messages, 1):
        yield {
            MESSAGE_ID: message.message_id,
            _BATCH_ID: batch,
            _BATCH_SEQUENCE: number,
            _BATCH_COMMIT: 1 if number == len(messages) else None,
            **(expected if number == 1 else {}),
        }


log: Final = logging.getLogger(__name__)

ACK: Final = b"+ACK"
NAK: Final = b"-NAK"
TERM: Final = b"+TERM"
_PROGRESS: Final = b"+WPI"
_CONFIRM_TIMEOUT: Final = 5.0  # seconds
_NO_HEADERS: Final = MappingProxyType[str, str]({})


class Delivery:
    """One delivery of one message. Its holder settles it: `ack`, `nak` or `term`.

    The first of these calls counts; later ones are ignored, and all are if the consumer wants no
    acks. Without confirmation, the answer was handed to the connection: it may come too late, be
    sent after a reconnect, or be lost. With confirmation, the server processed it, without a look
    at whether the message has meanwhile gone to another client.
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

    async def ack(self, *, confirm: bool = False, timeout: float = _CONFIRM_TIMEOUT) -> None:
        """Ack the message. Confirmed: the server will not deliver it again.

        Raises:
            NatsUnreachable: not handed over, or not confirmed; may be said again.
        """
        await self._settle(ACK, confirm=confirm, timeout=timeout)

    async def ack_async(self) -> PendingReply[None]:
        """Ack as `ack` with `confirm`, but return before the confirmation, which is awaited later.

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
        timeout: float = _CONFIRM_TIMEOUT,
    ) -> None:
        """Give the message back, to be delivered again at once or after `delay` seconds."""
        word = NAK
        if delay:
            word += b" " + json.dumps({"delay": round(delay * 1e9)}).encode()
        await self._settle(word, confirm=confirm, timeout=timeout)

    async def term(
        self,
        reason: str | None = None,
        *,
        confirm: bool = False,
        timeout: float = _CONFIRM_TIMEOUT,
    ) -> None:
        """End all deliveries of the message. The `reason` is in the server's advisory."""
        await self._settle(
            TERM + (b" " + reason.encode(errors="replace") if reason else b""),
            confirm=confirm,
            timeout=timeout,
        )

    async def in_progress(
        self, *, confirm: bool = False, timeout: float = _CONFIRM_TIMEOUT
    ) -> None:
        """Start its ack wait anew. Ignored once it is settled."""
        if not self._settled:
            await self._send(_PROGRESS, confirm=confirm, timeout=timeout)

    @property
    def settled(self) -> bool:
        """Whether it is settled, or needs no ack."""
        return self._settled

    async def _settle(self, word: bytes, *, confirm: bool, timeout: float) -> None:
        if self._settled:
            return
        self._settled = True  # set before the sending, so that of two calls at once one counts
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
        """JetStream domain; empty if there is none, or an old server did not say."""
        return self._subject.domain

    @property
    def delivered(self) -> int:
        """Number of deliveries by now: 1 for the first."""
        return self._subject.delivered

    @property
    def pending(self) -> int:
        """Number of messages that the consumer had to deliver after this one."""
        return self._subject.pending

    @property
    def stored(self) -> float:
        """Time at which the stream stored it, in seconds of the epoch."""
        return self._subject.timestamp / 1e9

    @property
    def timestamp(self) -> datetime:
        """Time at which the stream stored it."""
        return datetime.fromtimestamp(self.stored, UTC)


def _confirmed(_: "Msg") -> None:
    """Accept the confirmation, which has no content."""


def parse_delivery(
    link: "Connection", message: "Msg", stream: str, consumer: str | None, *, acks: bool = True
) -> Delivery | None:
    """Return the delivery that a message is; None, and logged, if it is none of that consumer's."""
    try:
        delivery = Delivery(link, message, acks=acks)
    except NotJetStream:
        delivery = None
    if delivery is None or (delivery.stream, delivery.consumer) != (stream, consumer):
        log.error("no delivery of %s/%s, dropped: %.100a", stream, consumer, message.reply)
        return None
    return delivery


CONTROL: Final = 100  # idle heartbeat or flow control
BAD_REQUEST: Final = 400
NO_MESSAGES: Final = 404
REQUEST_ENDED: Final = 408
_CONFLICT: Final = 409
WRONG_PIN: Final = 423
NO_RESPONDERS: Final = 503

_PENDING_MESSAGES: Final = "Nats-Pending-Messages"
_PENDING_BYTES: Final = "Nats-Pending-Bytes"
_LAST_CONSUMER: Final = "Nats-Last-Consumer"
_STALLED: Final = "Nats-Consumer-Stalled"
_DIGITS: Final = 20


def is_delivery(message: Msg) -> bool:
    """Whether the message is data. A user's own `Status` header does not make it a status."""
    return bool(message.reply.startswith(_PREFIX))


class StatusMessage(NamedTuple):
    code: int
    description: str
    reply: str
    headers: Mapping[str, str]

    @classmethod
    def parse(cls, message: Msg) -> "StatusMessage":
        """Read a message that is no delivery.

        Raises:
            NotJetStream: it is no status either; another program sent it.
        """
        headers = message.headers or {}
        code = headers.get("Status", "")
        if message.data or not _is_number(code):
            raise NotJetStream(f"message on {message.subject!r} with reply {message.reply!r}")
        return cls(int(code), headers.get("Description", "").strip(), message.reply, headers)

    @property
    def pending(self) -> tuple[int, int] | None:
        """The messages and bytes that the ended pull had still to give, if it says so.

        Raises:
            NotJetStream: no numbers.
        """
        messages = self.headers.get(_PENDING_MESSAGES)
        if messages is None:
            return None
        octets = self.headers.get(_PENDING_BYTES, "0")
        return _number(messages), _number(octets)

    @property
    def flow_control(self) -> str | None:
        """The subject to publish to when this is reached, so that more is sent."""
        return self.reply or self.headers.get(_STALLED)

    @property
    def last_consumer_sequence(self) -> int | None:
        """The last delivery that the server made, in a heartbeat.

        Raises:
            NotJetStream: no number.
        """
        last = self.headers.get(_LAST_CONSUMER)
        return None if last is None else _number(last)

    @property
    def consumer_deleted(self) -> bool:
        return self.code == _CONFLICT and self.description.lower() == "consumer deleted"

    def to_error(self) -> StatusError:
        if self.consumer_deleted:
            return ConsumerGone(self.description)
        return StatusError(self.code, self.description)


def parse_status(message: Msg) -> StatusMessage | None:
    """Return the status that a message is; None, and logged, if it is none."""
    try:
        return StatusMessage.parse(message)
    except NotJetStream as error:
        log.error("neither delivery nor status, dropped: %.200a", str(error))
        return None


def _number(text: str) -> int:
    if not _is_number(text):
        raise NotJetStream(f"no number in a status: {text[:100]!r}")
    return int(text)


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= _DIGITS


class PubAck(NamedTuple):
    """The receipt of a stored message; a duplicate was there before, and is there once."""

    stream: str
    sequence: int
    duplicate: bool = False
    domain: str = ""

    @classmethod
    def of(cls, reply: Mapping[str, Any]) -> "PubAck":
        return cls(
            reply["stream"],
            reply["seq"],
            reply.get("duplicate", False),
            reply.get("domain", ""),
        )


@dataclass(frozen=True, slots=True)
class StoredMessage:
    subject: str
    sequence: int
    time: datetime
    headers: Mapping[str, str]
    payload: bytes

    @classmethod
    def of(cls, message: Mapping[str, Any]) -> "StoredMessage":
        """Read the server's JSON of a message.

        Raises:
            NotJetStream: something is missing, or of another kind.
        """
        try:
            return cls(
                message["subject"],
                message["seq"],
                datetime.fromisoformat(message["time"]),
                parse_headers(base64.b64decode(message.get("hdrs", ""))) or {},
                base64.b64decode(message.get("data", "")),
            )
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise NotJetStream(f"no stored message: {error!r}") from error

    @classmethod
    def of_direct(cls, reply: Msg) -> "StoredMessage | None":
        """Read the reply to a direct get (ADR-31); None if there is no message.

        Raises:
            StatusError: the server refused.
            NotJetStream: something is missing, or of another kind.
        """
        headers = reply.headers or {}
        try:
            if (sequence := headers.get("Nats-Sequence")) is None:
                code = int(headers["Status"])
                if code == HTTPStatus.NOT_FOUND:
                    return None
                raise StatusError(code, headers.get("Description", ""))
            time = datetime.fromisoformat(headers["Nats-Time-Stamp"])
            return cls(headers["Nats-Subject"], int(sequence), time, headers, reply.data)
        except (KeyError, ValueError) as error:
            raise NotJetStream(f"no stored message: {error!r}") from error

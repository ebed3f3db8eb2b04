"""Status messages: what the server says between messages, or instead of them."""

import logging
from collections.abc import Mapping
from typing import Final, NamedTuple

from nats.aio.msg import Msg

from rebaser_core.jetstream.errors import ConsumerGone, NotJetStream, StatusError
from rebaser_core.jetstream.messages.ack_subject import PREFIX

log: Final = logging.getLogger(__name__)

CONTROL: Final = 100  # idle heartbeat or flow control
BAD_REQUEST: Final = 400
NO_MESSAGES: Final = 404
REQUEST_ENDED: Final = 408
CONFLICT: Final = 409
WRONG_PIN: Final = 423
NO_RESPONDERS: Final = 503

_PENDING_MESSAGES: Final = "Nats-Pending-Messages"
_PENDING_BYTES: Final = "Nats-Pending-Bytes"
_LAST_CONSUMER: Final = "Nats-Last-Consumer"
_STALLED: Final = "Nats-Consumer-Stalled"
_DIGITS: Final = 20


def is_delivery(message: Msg) -> bool:
    """Whether it is data. A user's own `Status` header does not make it a status."""
    return bool(message.reply.startswith(PREFIX))


class StatusMessage(NamedTuple):
    code: int
    description: str
    reply: str
    headers: Mapping[str, str]

    @classmethod
    def parse(cls, message: Msg) -> "StatusMessage":
        """Read what is not a delivery.

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
        return self.code == CONFLICT and self.description.lower() == "consumer deleted"

    def to_error(self) -> StatusError:
        if self.consumer_deleted:
            return ConsumerGone(self.description)
        return StatusError(self.code, self.description)


def parse_status(message: Msg) -> StatusMessage | None:
    """The status that a message is; None, and logged, if it is none."""
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

"""Status messages: what the server says between messages, or instead of them."""

from collections.abc import Mapping
from typing import Final, NamedTuple

from nats.aio.msg import Msg

from rebaser_core.jetstream.ack_subject import PREFIX
from rebaser_core.jetstream.errors import ConsumerGone, NotJetStream, StatusError

CONTROL: Final = 100  # idle heartbeat or flow control
BAD_REQUEST: Final = 400
NO_MESSAGES: Final = 404
REQUEST_ENDED: Final = 408
CONFLICT: Final = 409
NO_RESPONDERS: Final = 503

_PENDING_MESSAGES: Final = "Nats-Pending-Messages"
_PENDING_BYTES: Final = "Nats-Pending-Bytes"
_LAST_CONSUMER: Final = "Nats-Last-Consumer"
_STALLED: Final = "Nats-Consumer-Stalled"


def is_delivery(message: Msg) -> bool:
    """Whether it is data. A user's own `Status` header does not make it a status."""
    return bool(message.reply.startswith(PREFIX))


class Status(NamedTuple):
    code: int
    description: str
    reply: str
    headers: Mapping[str, str]

    @classmethod
    def of(cls, message: Msg) -> "Status":
        """Read what is not a delivery.

        Raises:
            NotJetStream: it is no status either; somebody else sent it.
        """
        headers = message.headers or {}
        code = headers.get("Status", "")
        if message.data or not code.isdigit():
            raise NotJetStream(f"message on {message.subject} with reply {message.reply!r}")
        return cls(int(code), headers.get("Description", "").strip(), message.reply, headers)

    @property
    def pending(self) -> tuple[int, int] | None:
        """The messages and bytes that the ended pull had still to give, if it told so."""
        messages = self.headers.get(_PENDING_MESSAGES)
        if messages is None:
            return None
        return int(messages), int(self.headers.get(_PENDING_BYTES, 0))

    @property
    def flow_control(self) -> str | None:
        """The subject to publish to when this is reached, so that more is sent."""
        return self.reply or self.headers.get(_STALLED)

    @property
    def last_consumer_sequence(self) -> int | None:
        """The last delivery that the server made, in a heartbeat."""
        last = self.headers.get(_LAST_CONSUMER)
        return None if last is None else int(last)

    @property
    def consumer_deleted(self) -> bool:
        return self.code == CONFLICT and self.description.lower() == "consumer deleted"

    def error(self) -> StatusError:
        if self.consumer_deleted:
            return ConsumerGone(self.description)
        return StatusError(self.code, self.description)

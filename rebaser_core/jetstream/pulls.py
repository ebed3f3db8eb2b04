"""The count of what pulls may still bring, and which of their ends are final (ADR-13, ADR-37)."""

from collections.abc import Mapping
from typing import Final

from nats.aio.msg import Msg

from rebaser_core.jetstream.statuses import BAD_REQUEST, NO_MESSAGES, REQUEST_ENDED, Status

MANY: Final = 1_000_000  # messages, for a pull that only octets are to limit
_ORDINARY: Final = (NO_MESSAGES, REQUEST_ENDED)


class Pending:
    """What the pulls made may still bring. Never below nothing.

    Single pulls are not followed; ADR-37 needs only the sums.
    """

    def __init__(self) -> None:
        self.messages = 0
        self.octets = 0
        self._pulls = 0

    def made(self, pull: Mapping[str, int]) -> None:
        self._pulls += 1
        self.messages += pull["batch"]
        self.octets += pull.get("max_bytes", 0)

    def came(self, message: Msg) -> None:
        self.messages = max(0, self.messages - 1)
        self.octets = max(0, self.octets - size(message))

    def ended(self, messages: int, octets: int) -> None:
        self._pulls -= 1
        self.messages = max(0, self.messages - messages)
        self.octets = max(0, self.octets - octets)
        if self._pulls <= 0 and self.messages >= MANY // 2:
            self.clear()  # counted by octets, and what we count and the server counts had parted

    def clear(self) -> None:
        self.messages = self.octets = self._pulls = 0


def size(message: Msg) -> int:
    """Return what the server counts against `max_bytes`; ADR-37 forgets the headers."""
    headers = message.headers or {}
    block = sum(len(name) + len(value) + 4 for name, value in headers.items())
    whole = len(message.data) + len(message.subject) + len(message.reply) + block
    return whole + (12 if headers else 0)  # the version line and the empty one


def ordinary(status: Status) -> bool:
    """Whether it only says that a pull brought less than it might have."""
    return status.code in _ORDINARY


def final(status: Status) -> bool:
    """Whether the same pull will be refused for ever."""
    what = status.description.lower()
    return (
        status.consumer_deleted
        or status.code == BAD_REQUEST
        or "push based" in what
        or what.startswith("exceeded maxrequest")
    )

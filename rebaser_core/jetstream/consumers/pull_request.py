"""The count of what pulls may still bring, and which of their ends are final (ADR-13, ADR-37)."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from nats.aio.msg import Msg

from rebaser_core.jetstream.errors import Misconfigured
from rebaser_core.jetstream.messages.status_message import (
    BAD_REQUEST,
    NO_MESSAGES,
    REQUEST_ENDED,
    Status,
)

if TYPE_CHECKING:
    from rebaser_core.jetstream.api import JetStream

SINGLES: Final = 32  # pulls at once where each gets one answer
MANY: Final = 1_000_000  # messages, for a pull that only octets are to limit
_ORDINARY: Final = (NO_MESSAGES, REQUEST_ENDED)


def requests(
    js: "JetStream",
    pull: Mapping[str, Any],
    *,
    expires: float | None = None,
    heartbeat: float | None = None,
) -> list[dict[str, Any]]:
    """Return the requests that make the pull: one, or one for each message.

    Where a request gets one answer, a heartbeat would be that. There the pull
    expires after what was to be the heartbeat, and that is the sign of life.
    """
    if not js.single_answers:
        return [{**pull, **_times(expires=expires, idle_heartbeat=heartbeat)}]
    if "max_bytes" in pull:
        raise Misconfigured("octets cannot limit pulls of which each gets one answer")
    single = {**pull, "batch": 1, **_times(expires=heartbeat or expires)}
    return [single] * min(pull["batch"], SINGLES)


def _times(**seconds: float | None) -> dict[str, int]:
    return {name: round(value * 1e9) for name, value in seconds.items() if value}


class Pending:
    """What the pulls made may still bring. Never below nothing.

    Single pulls are not followed; ADR-37 needs only the sums.
    """

    def __init__(self) -> None:
        self.messages = 0
        self.octets = 0
        self._by_octets = 0
        """Pulls that end with a status only, since octets limit them."""

    def made(self, pull: Mapping[str, int]) -> None:
        self.messages += pull["batch"]
        self.octets += pull.get("max_bytes", 0)
        self._by_octets += "max_bytes" in pull

    def came(self, message: Msg) -> None:
        self.messages = max(0, self.messages - 1)
        self.octets = max(0, self.octets - size(message))

    def ended(self, messages: int, octets: int) -> None:
        self.messages = max(0, self.messages - messages)
        self.octets = max(0, self.octets - octets)
        if self._by_octets:
            self._by_octets -= 1
            if not self._by_octets:
                self.clear()  # what is left is where our count and the server's parted

    def clear(self) -> None:
        self.messages = self.octets = self._by_octets = 0


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

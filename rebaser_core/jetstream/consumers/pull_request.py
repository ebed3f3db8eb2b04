"""The count of what pulls may still bring, and which of their ends are final (ADR-13, ADR-37)."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Self

from nats.aio.msg import Msg

from rebaser_core.jetstream.api import JetStreamApi
from rebaser_core.jetstream.configs.consumer_config import ConsumerConfig
from rebaser_core.jetstream.errors import Misconfigured
from rebaser_core.jetstream.messages.status_message import (
    BAD_REQUEST,
    NO_MESSAGES,
    REQUEST_ENDED,
    StatusMessage,
)

MAX_SINGLE_PULLS: Final = 32  # pulls at once where each gets one answer
UNLIMITED: Final = 1_000_000  # messages, for a pull that only octets are to limit
_BENIGN: Final = (NO_MESSAGES, REQUEST_ENDED)


@dataclass(frozen=True, kw_only=True, slots=True)
class PullLimits:
    """The most that a consumer lets one pull ask for; 0 is without a limit."""

    messages: int = 0
    octets: int = 0
    expires: float = 0.0
    """Seconds."""
    pulls: int = 0
    """Number of pulls that may wait at once, those of other clients among them."""

    @classmethod
    def of(cls, config: ConsumerConfig) -> Self:
        return cls(
            messages=max(0, config.max_batch or 0),
            octets=max(0, config.max_bytes or 0),
            expires=config.max_expires.total_seconds() if config.max_expires else 0.0,
            pulls=max(0, config.max_waiting or 0),
        )

    def cut(self, pull: Mapping[str, Any]) -> dict[str, Any]:
        """Return the pull, asking for no more; what is missing is for later ones."""
        most = {"batch": self.messages, "max_bytes": self.octets}
        cut = {
            name: min(pull[name], limit) for name, limit in most.items() if limit and name in pull
        }
        return {**pull, **cut}


NO_LIMITS: Final = PullLimits()


def build_pull_requests(
    js: JetStreamApi,
    pull: Mapping[str, Any],
    *,
    expires: float | None = None,
    heartbeat: float | None = None,
    limits: PullLimits = NO_LIMITS,
) -> list[dict[str, Any]]:
    """Return the requests that make the pull: one, or one for each message.

    Where a request gets one answer, a heartbeat would be that. There the pull
    expires after what was to be the heartbeat, and that is the sign of life. A
    group is asked for one message at a time until the client is pinned: other
    requests without the pin would bring nothing.
    """
    pull = limits.cut(pull)
    if not js.single_reply:
        return [{**pull, **_nanoseconds(expires=expires, idle_heartbeat=heartbeat)}]
    if "max_bytes" in pull:
        raise Misconfigured("octets cannot limit pulls of which each gets one answer")
    single = {**pull, "batch": 1, **_nanoseconds(expires=heartbeat or expires)}
    most = 1 if "group" in pull and "id" not in pull else MAX_SINGLE_PULLS
    most = min(most, limits.pulls or most)
    return [single] * min(pull["batch"], most)


def _nanoseconds(**seconds: float | None) -> dict[str, int]:
    return {name: round(value * 1e9) for name, value in seconds.items() if value}


class PullBudget:
    """What the pulls made may still bring. Never below nothing.

    Single pulls are not followed; ADR-37 needs only the sums.
    """

    def __init__(self) -> None:
        self.messages = 0
        self.octets = 0
        self._pulls = 0
        self._bounded_by_bytes = 0
        """Pulls that end with a status only, since octets limit them."""

    @property
    def pulls(self) -> int:
        """Upper bound of the open pulls, counted anew whenever no message is outstanding."""
        return self._pulls if self.messages else 0

    def on_request(self, pull: Mapping[str, int]) -> None:
        self._pulls = self.pulls + 1
        self.messages += pull["batch"]
        self.octets += pull.get("max_bytes", 0)
        self._bounded_by_bytes += "max_bytes" in pull

    def on_message(self, message: Msg) -> None:
        self.messages = max(0, self.messages - 1)
        self.octets = max(0, self.octets - message_size(message))

    def on_end(self, messages: int, octets: int) -> None:
        self.messages = max(0, self.messages - messages)
        self.octets = max(0, self.octets - octets)
        if self._bounded_by_bytes:
            self._bounded_by_bytes -= 1
            if not self._bounded_by_bytes:
                self.clear()  # what is left is where our count and the server's parted

    def clear(self) -> None:
        self.messages = self.octets = self._bounded_by_bytes = 0


def message_size(message: Msg) -> int:
    """Return what the server counts against `max_bytes`; ADR-37 forgets the headers."""
    headers = message.headers or {}
    block = sum(len(name) + len(value) + 4 for name, value in headers.items())
    whole = len(message.data) + len(message.subject) + len(message.reply) + block
    return whole + (12 if headers else 0)  # the version line and the empty one


def is_benign(status: StatusMessage) -> bool:
    """Whether it only says that a pull brought less than it might have."""
    return status.code in _BENIGN


def is_terminal(status: StatusMessage) -> bool:
    """Whether the same pull will be refused for ever."""
    what = status.description.lower()
    return (
        status.consumer_deleted
        or status.code == BAD_REQUEST
        or "push based" in what
        or is_over_limit(status)
    )


def is_over_limit(status: StatusMessage) -> bool:
    """Whether the pull asks for more than the consumer has as its limits."""
    return status.description.lower().startswith("exceeded maxrequest")


def is_too_large(status: StatusMessage) -> bool:
    """Whether the next message has more octets than the pull may bring."""
    return status.description.lower().startswith("message size exceeds maxbytes")


def is_group_refused(status: StatusMessage) -> bool:
    """Whether the consumer has other priority groups than the pull names, or none."""
    return "priority group" in status.description.lower()

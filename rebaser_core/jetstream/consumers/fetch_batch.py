"""What one fetch has brought by now, and what it may still ask for (ADR-37, fetch)."""

from typing import Any

from nats.aio.msg import Msg

from rebaser_core.jetstream.consumers.priority_group import GroupMember
from rebaser_core.jetstream.consumers.pull_request import (
    NO_LIMITS,
    UNLIMITED,
    PullLimits,
    message_size,
)
from rebaser_core.jetstream.messages.delivery import Delivery


class FetchBatch:
    """The messages of one fetch.

    Args:
        max_messages: how many at most.
        max_bytes: octets at most, as the server counts them; they take precedence.
        member: who pulls, of a consumer's group.
        limits: what the consumer lets one pull ask for.

    Raises:
        ValueError: neither limit is given, or one is not positive.
    """

    def __init__(
        self,
        max_messages: int | None,
        max_bytes: int | None,
        member: GroupMember | None = None,
        limits: PullLimits = NO_LIMITS,
    ) -> None:
        if max_messages is None and max_bytes is None:
            raise ValueError("max_messages or max_bytes is required")
        if any(limit is not None and limit < 1 for limit in (max_messages, max_bytes)):
            raise ValueError("max_messages and max_bytes must be positive")
        self.deliveries: list[Delivery] = []
        self.ended = False
        """Whether the server ended it before the limits were reached."""
        self.member = member
        self.limits = limits
        self._messages_left = max_messages or UNLIMITED
        self._octets_left = max_bytes

    @property
    def is_complete(self) -> bool:
        is_used_up = self._octets_left is not None and self._octets_left <= 0
        return self.ended or is_used_up or self._messages_left <= 0

    def add(self, delivery: Delivery, message: Msg) -> None:
        self.deliveries.append(delivery)
        self._messages_left -= 1
        if self._octets_left is not None:
            self._octets_left -= message_size(message)
        if self.member:
            self.member.on_message(message)

    def to_pull(self) -> dict[str, Any]:
        """Return the pull for what is missing."""
        pull = {"batch": self._messages_left}
        if self.member:
            pull |= self.member.to_pull()
        return pull if self._octets_left is None else {**pull, "max_bytes": self._octets_left}

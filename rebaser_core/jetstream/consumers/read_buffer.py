"""How much a reader has ready, and which pull fills it again (ADR-37, consume)."""

import math
from dataclasses import dataclass, replace
from typing import Final, Self

from rebaser_core.jetstream.configs.consumer_config import ConsumerConfig
from rebaser_core.jetstream.consumers.pull_request import UNLIMITED, PullBudget, PullLimits

DEFAULT_MESSAGES: Final = 1000
_DEFAULT_THRESHOLD: Final = 0.5  # of the buffer, when it is filled again
_FIRST_EDITION_THRESHOLD: Final = 0.25  # the same in the first edition of the ADR


@dataclass(frozen=True, kw_only=True)
class ReadBuffer:
    """`BufferOptions`, checked, with their defaults.

    Raises:
        ValueError: they exclude each other.
    """

    max_messages: int | None = None
    max_bytes: int | None = None
    threshold_messages: int | None = None
    threshold_bytes: int | None = None
    expires: float = 30.0
    idle_heartbeat: float = 5.0
    resilient: bool = True

    def __post_init__(self) -> None:
        if self.max_messages is not None and self.max_bytes is not None:
            raise ValueError("either max_messages or max_bytes")
        if 0 in (self.max_messages, self.max_bytes) or not 0 < self.threshold <= self.limit:
            raise ValueError("the limit must be positive and the threshold within it")
        if not 0 < 2 * self.idle_heartbeat <= self.expires:
            raise ValueError("idle_heartbeat must be at most half of expires")

    @property
    def limit(self) -> int:
        return self.max_bytes or self.max_messages or DEFAULT_MESSAGES

    @property
    def threshold(self) -> int:
        given = self.threshold_bytes if self.max_bytes else self.threshold_messages
        if given is not None:
            return given
        return math.ceil(
            self.limit * (_DEFAULT_THRESHOLD if self.resilient else _FIRST_EDITION_THRESHOLD)
        )

    def refill(self, pending: PullBudget) -> dict[str, int] | None:
        """Return the pull that fills the buffer, once the threshold is used up."""
        free = self.limit - (pending.octets if self.max_bytes else pending.messages)
        if free < self.threshold:
            return None
        return {"batch": UNLIMITED, "max_bytes": free} if self.max_bytes else {"batch": free}

    def fitted(self, config: ConsumerConfig) -> Self:
        """Return it with no more messages by default than the consumer lets one pull ask for."""
        most = PullLimits.of(config).messages
        if not most or self.max_bytes or self.max_messages or self.threshold_messages:
            return self
        return replace(self, max_messages=min(most, DEFAULT_MESSAGES))

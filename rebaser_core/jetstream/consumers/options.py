"""What a reader may be told, by the names of ADR-37; durations in seconds."""

import math
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Final, Self, TypedDict

from rebaser_core.jetstream.configs.consumer_config import ConsumerConfig, DeliverPolicy
from rebaser_core.jetstream.consumers.priority_group import Pin, PriorityGroup
from rebaser_core.jetstream.consumers.pull_request import NO_LIMITS, PullLimits

FETCH_EXPIRES: Final = 5.0  # seconds that a batch is waited for


class BufferOptions(TypedDict, total=False):
    """How much to have ready, and when to ask for more.

    Of `max_messages` and `max_bytes` only one. The threshold is how much of it must have been
    used up until more is asked for.
    """

    max_messages: int
    """Messages that are asked for ahead of the reader."""
    max_bytes: int
    """Octets instead, as the server counts them."""
    threshold_messages: int
    """Messages, at most `max_messages` (default: half of it)."""
    threshold_bytes: int
    """Octets, at most `max_bytes` (default: half of it)."""
    expires: float
    """Until an unanswered pull is made again (default: 30)."""
    idle_heartbeat: float
    """Between signs of life of the server; at most half of `expires`."""


class ConsumeOptions(BufferOptions, total=False):
    """How a consumer is read continuously; by default 1000 messages and a heartbeat of 5 seconds.

    `resilient` chooses between the newest ADR-37 (ask again after every error while there is a
    consumer; the default) and its first edition (missed heartbeats, or a consumer that is not
    there after a reconnect, are the end; more is asked for at a quarter).
    """

    resilient: bool


class ReaderOptions(BufferOptions, total=False):
    """What an ordered reader starts with, and how it reads: a heartbeat of 2 seconds by default.

    A reader with `max_messages` or `max_bytes` pulls. Without them the server's flow control
    bounds what is sent ahead, or 256 messages where it cannot be answered.
    """

    opt_start_seq: int
    """The first stream sequence of interest (default: 1), for `by_start_sequence`, which is the
    default of `deliver_policy`."""
    deliver_policy: DeliverPolicy
    """Where to start; in force until the first message, or until the server has said which
    sequence it means."""
    opt_start_time: datetime
    """For `by_start_time`, which needs it; with a time zone."""
    headers_only: bool
    """Leave the payloads out; `Nats-Msg-Size` tells their size (default: false)."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PullOptions:
    """How a consumer is pulled; durations in seconds."""

    expires: float
    """Until an unanswered pull is made again, at most; up to half a second less, so that pulls made
    at different times end together and a single one takes their place."""
    idle_heartbeat: float
    """Between signs of life."""
    acks: bool | None
    """Whether the consumer wants acks; if not known, the server is asked."""
    resilient: bool = True
    """As the newest ADR-37 has it, ask again after missed heartbeats and reconnects, and end only
    when asking cannot help. Otherwise as its first edition: missed heartbeats, a consumer that
    is not there after a reconnect and unknown statuses are the end."""
    group: PriorityGroup | None = None
    """The consumer's priority group that is pulled for."""
    pin: Pin = field(default_factory=Pin)
    """That of the client, if its consumer pins one."""
    limits: PullLimits = NO_LIMITS
    """Limits of the consumer for a pull, as far as they are known."""

    def fitted(self, config: ConsumerConfig) -> Self:
        """Return them with pulls that the consumer takes, and that end in time for the next one.

        Only pulls keep a pin.
        """
        limits = PullLimits.of(config)
        longest = [limits.expires or math.inf]
        if config.priority_timeout:
            longest.append(config.priority_timeout.total_seconds() / 2)
        expires = min(self.expires, *longest)
        heartbeat = min(self.idle_heartbeat, expires / 2)
        return replace(self, expires=expires, idle_heartbeat=heartbeat, limits=limits)

"""What the server tells of a consumer, by the names that nats-server 2.15 has."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from rebaser_core.jetstream.configs.config_diff import Drift, diff_config
from rebaser_core.jetstream.configs.consumer_config import ConsumerConfig
from rebaser_core.jetstream.infos.cluster_info import ClusterInfo
from rebaser_core.jetstream.infos.info import Info


@dataclass(frozen=True, kw_only=True)
class SequencePair(Info):
    """A place in a consumer's deliveries, and in its stream."""

    consumer_seq: int
    stream_seq: int
    last_active: datetime | None = None
    """When it last moved."""


@dataclass(frozen=True, kw_only=True)
class PriorityGroupState(Info):
    """A group of a consumer, and which client of it gets everything with `pinned_client`."""

    group: str
    pinned_client_id: str | None = None
    """The pin of that client, if there is one."""
    pinned_ts: datetime | None = None
    """Since when; in the year 1 if there is none."""


@dataclass(frozen=True, kw_only=True)
class ConsumerInfo(Info):
    """A consumer, as its leader has it."""

    stream_name: str
    name: str
    created: datetime
    config: ConsumerConfig
    delivered: SequencePair
    """The last delivery."""
    ack_floor: SequencePair
    """All up to here are acked."""
    num_ack_pending: int
    """Delivered and not acked yet."""
    num_redelivered: int
    num_waiting: int
    """Pulls that wait for messages."""
    num_pending: int
    """Messages that were never delivered."""
    ts: datetime
    """When this was said, by the server's clock."""
    cluster: ClusterInfo | None = None
    push_bound: bool = False
    """Whether a client listens where a push consumer delivers to."""
    paused: bool = False
    pause_remaining: timedelta | None = None
    priority_groups: Sequence[PriorityGroupState] = ()

    def diff(self, expected: ConsumerConfig) -> list[Drift]:
        """Compare with what `expected` says, as `diff_config`; nor is it to be paused by another.

        A paused consumer delivers nothing. `expected` that leaves `pause_until` open wants none.
        """
        name = f"consumer {self.stream_name}/{self.name}"
        differences = diff_config(name, expected, self.config)
        if self.paused and expected.pause_until is None:
            differences.append(Drift(name, "pause_until", None, str(self.config.pause_until)))
        return differences

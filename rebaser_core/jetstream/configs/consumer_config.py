"""How a consumer delivers, by the names that nats-server 2.15 has."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Literal

from rebaser_core.jetstream.configs.configuration import Configuration

DeliverPolicy = Literal[
    "all", "last", "new", "by_start_sequence", "by_start_time", "last_per_subject"
]
"""At which message of the stream a consumer begins."""


@dataclass(frozen=True, kw_only=True)
class ConsumerConfig(Configuration):
    """A consumer. Sizes are octets; of each limit -1 is none."""

    name: str | None = None
    durable_name: str | None = None
    description: str | None = None
    deliver_policy: DeliverPolicy | None = None
    opt_start_seq: int | None = None
    opt_start_time: datetime | None = None
    ack_policy: Literal["none", "all", "explicit"] | None = None
    ack_wait: timedelta | None = None
    max_deliver: int | None = None
    backoff: Sequence[timedelta] | None = None
    filter_subject: str | None = None
    filter_subjects: Sequence[str] | None = None
    replay_policy: Literal["instant", "original"] | None = None
    rate_limit_bps: int | None = None
    """Bits per second."""
    sample_freq: str | None = None
    """Per cent of the acks that are reported."""
    max_waiting: int | None = None
    max_ack_pending: int | None = None
    max_batch: int | None = None
    max_expires: timedelta | None = None
    max_bytes: int | None = None
    headers_only: bool | None = None
    deliver_subject: str | None = None
    """Makes it a push consumer."""
    deliver_group: str | None = None
    flow_control: bool | None = None
    idle_heartbeat: timedelta | None = None
    inactive_threshold: timedelta | None = None
    num_replicas: int | None = None
    mem_storage: bool | None = None
    direct: bool | None = None
    metadata: Mapping[str, str] | None = None
    pause_until: datetime | None = None
    priority_groups: Sequence[str] | None = None
    priority_policy: Literal["none", "overflow", "pinned_client", "prioritized"] | None = None
    priority_timeout: timedelta | None = None

    @property
    def is_acked(self) -> bool:
        """Whether it wants acks; the server's own default is none."""
        return self.ack_policy not in (None, "none")

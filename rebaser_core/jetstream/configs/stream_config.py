"""How a stream is kept, by the names that nats-server 2.15 has."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Literal

from rebaser_core.jetstream.configs.configuration import Configuration


@dataclass(frozen=True, kw_only=True)
class Placement(Configuration):
    """On which servers the replicas are."""

    cluster: str | None = None
    tags: Sequence[str] | None = None
    preferred: str | None = None


@dataclass(frozen=True, kw_only=True)
class SubjectTransform(Configuration):
    src: str | None = None
    dest: str | None = None


@dataclass(frozen=True, kw_only=True)
class Republish(SubjectTransform):
    """Where each stored message is published again."""

    headers_only: bool | None = None


@dataclass(frozen=True, kw_only=True)
class ExternalStream(Configuration):
    """How a source in another account or domain is reached."""

    api: str | None = None
    deliver: str | None = None


@dataclass(frozen=True, kw_only=True)
class StreamSource(Configuration):
    """A stream whose messages are copied."""

    name: str | None = None
    opt_start_seq: int | None = None
    opt_start_time: datetime | None = None
    filter_subject: str | None = None
    subject_transforms: Sequence[SubjectTransform] | None = None
    external: ExternalStream | None = None


@dataclass(frozen=True, kw_only=True)
class ConsumerLimits(Configuration):
    """What each consumer of the stream has unless it says so itself, and no more than that."""

    inactive_threshold: timedelta | None = None
    max_ack_pending: int | None = None


@dataclass(frozen=True, kw_only=True)
class StreamConfig(Configuration):
    """A stream. Sizes are octets; of each limit -1 is none."""

    name: str | None = None
    description: str | None = None
    subjects: Sequence[str] | None = None
    retention: Literal["limits", "interest", "workqueue"] | None = None
    max_consumers: int | None = None
    max_msgs: int | None = None
    max_bytes: int | None = None
    max_age: timedelta | None = None
    max_msgs_per_subject: int | None = None
    max_msg_size: int | None = None
    discard: Literal["old", "new"] | None = None
    discard_new_per_subject: bool | None = None
    storage: Literal["file", "memory"] | None = None
    num_replicas: int | None = None
    no_ack: bool | None = None
    duplicate_window: timedelta | None = None
    placement: Placement | None = None
    mirror: StreamSource | None = None
    sources: Sequence[StreamSource] | None = None
    compression: Literal["none", "s2"] | None = None
    first_seq: int | None = None
    subject_transform: SubjectTransform | None = None
    republish: Republish | None = None
    allow_direct: bool | None = None
    mirror_direct: bool | None = None
    sealed: bool | None = None
    deny_delete: bool | None = None
    deny_purge: bool | None = None
    allow_rollup_hdrs: bool | None = None
    allow_msg_ttl: bool | None = None
    subject_delete_marker_ttl: timedelta | None = None
    allow_msg_counter: bool | None = None
    allow_atomic: bool | None = None
    allow_batched: bool | None = None
    allow_msg_schedules: bool | None = None
    persist_mode: Literal["default", "async"] | None = None
    consumer_limits: ConsumerLimits | None = None
    metadata: Mapping[str, str] | None = None

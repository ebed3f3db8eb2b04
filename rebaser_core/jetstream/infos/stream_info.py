"""What the server tells of a stream, by the names that nats-server 2.15 has."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from rebaser_core.jetstream.configs.stream_config import (
    ExternalStream,
    StreamConfig,
    SubjectTransform,
)
from rebaser_core.jetstream.infos.cluster_info import ClusterInfo
from rebaser_core.jetstream.infos.info import Info


@dataclass(frozen=True, kw_only=True)
class LostMessages(Info):
    """Messages that the server found damaged."""

    msgs: Sequence[int] = ()
    """Their sequences."""
    bytes: int = 0


@dataclass(frozen=True, kw_only=True)
class StreamState(Info):
    """The messages of a stream. Sizes are octets."""

    messages: int
    bytes: int
    first_seq: int
    """Of an empty stream, one more than `last_seq`, or 0 if it never had a message."""
    first_ts: datetime
    """Of an empty stream, the year 1."""
    last_seq: int
    """The last one that was given to a message, whether or not that one is still there."""
    last_ts: datetime
    consumer_count: int
    num_subjects: int = 0
    subjects: Mapping[str, int] = field(default_factory=dict)
    """How many messages each subject has; only if the subjects were asked for."""
    num_deleted: int = 0
    """Of the sequences from `first_seq` to `last_seq`, how many have no message."""
    deleted: Sequence[int] = ()
    """These sequences; only if they were asked for."""
    lost: LostMessages | None = None


@dataclass(frozen=True, kw_only=True)
class SourceInfo(Info):
    """How far the copying of another stream has come."""

    name: str
    external: ExternalStream | None = None
    lag: int = 0
    """Messages that are still to be copied."""
    active: timedelta | None = None
    """Since the other stream was last heard of; negative: never."""
    error: Mapping[str, Any] | None = None
    filter_subject: str | None = None
    subject_transforms: Sequence[SubjectTransform] | None = None


@dataclass(frozen=True, kw_only=True)
class StreamAlternate(Info):
    """A stream with the same messages, a mirror or what is mirrored."""

    name: str
    cluster: str
    domain: str | None = None


@dataclass(frozen=True, kw_only=True)
class StreamInfo(Info):
    """A stream, as its leader has it."""

    config: StreamConfig
    created: datetime
    state: StreamState
    ts: datetime
    """When this was said, by the server's clock."""
    domain: str | None = None
    cluster: ClusterInfo | None = None
    mirror: SourceInfo | None = None
    sources: Sequence[SourceInfo] = ()
    alternates: Sequence[StreamAlternate] = ()

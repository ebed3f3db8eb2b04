"""Which servers have a stream or a consumer."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from rebaser_core.jetstream.infos.info import Info


@dataclass(frozen=True, kw_only=True)
class PeerInfo(Info):
    """A server that follows the leader."""

    name: str
    current: bool = False
    """Whether it has all that the leader has."""
    observer: bool = False
    offline: bool = False
    active: timedelta = timedelta()
    """Since the leader last heard of it."""
    lag: int = 0
    """Operations that it is behind."""
    peer: str | None = None
    """Its id."""


@dataclass(frozen=True, kw_only=True)
class ClusterInfo(Info):
    """The servers; without a cluster only `leader` is said."""

    name: str | None = None
    raft_group: str | None = None
    leader: str | None = None
    """None while there is none."""
    leader_since: datetime | None = None
    replicas: Sequence[PeerInfo] = ()
    """All but the leader."""
    system_account: bool = False
    traffic_account: str | None = None

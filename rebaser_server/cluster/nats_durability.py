"""Which durability is in force: when NATS has on its disks what it confirms, and on how many.

A server says when it syncs on its monitoring port alone. Neither its greeting nor what the API of
JetStream tells an account has it.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final, Never

import structlog

from rebaser_core.jetstream import ClusterInfo, JetStream, StreamInfo, StreamNotFound
from rebaser_core.subjects import Subjects
from rebaser_server.cluster.nats_monitoring import read_monitoring, urls_of
from rebaser_server.runtime.tasks import repeat_every

log: Final = structlog.get_logger()

ALWAYS: Final = "always"
UNKNOWN: Final = "unknown: "
NO_MONITORING: Final = (
    f"{UNKNOWN}set REBASER_NATS__MONITORING to the URLs of the monitoring ports of all NATS servers"
)


@dataclass(frozen=True, slots=True)
class Durability:
    """What loss of power what NATS has confirmed survives."""

    sync: str
    """When servers sync: `always`, before they confirm; `every 120 s`; or `unknown: ` and why."""
    replicas: int
    """Of the stream that has the fewest; 0 if there is no stream."""


async def read_durability(js: JetStream, subjects: Subjects, monitoring: str | None) -> Durability:
    """Ask the servers that hold the streams. `monitoring`: URLs of their ports, with commas.

    Raises:
        NatsUnreachable, ApiError: NATS does not say where the streams are.
    """
    infos = []
    for stream in kept_streams(subjects):
        try:
            infos.append(await js.stream_info(stream))
        except StreamNotFound:
            continue
    replicas = min((info.config.num_replicas or 1 for info in infos), default=0)
    servers = {server for info in infos for server in _servers(info)}
    if monitoring is None:
        return Durability(NO_MONITORING, replicas)
    return Durability(await _sync(servers, urls_of(monitoring)), replicas)


def kept_streams(subjects: Subjects) -> tuple[str, ...]:
    """Names of the streams that hold what cannot be made again. Tasks can."""
    return (
        subjects.requests_stream,
        subjects.commits_stream,
        subjects.dead_letters_stream,
        f"OBJ_{subjects.batches_bucket}",
        f"KV_{subjects.change_sets_bucket}",
        f"KV_{subjects.pauses_bucket}",
    )


def _servers(info: StreamInfo) -> set[str]:
    """Names of the servers that have the stream."""
    cluster = info.cluster or ClusterInfo()
    return {cluster.leader or "without a leader", *(peer.name for peer in cluster.replicas)}


async def _sync(servers: set[str], urls: Sequence[str]) -> str:
    reports, problems = await read_monitoring(urls)
    intervals = {report.server: report.sync_interval for report in reports}
    missing = servers - intervals.keys()
    if missing:
        problems.append(f"no monitoring port of server {', '.join(sorted(missing))}")
    if problems or not servers:
        return f"{UNKNOWN}{'; '.join(problems) or 'there is no stream'}"
    longest = max(intervals[server] for server in servers)
    return f"every {longest:g} s" if longest else ALWAYS


class DurabilityWatch:
    """The durability in force, looked up again and again; each change of it is logged."""

    def __init__(self, js: JetStream, subjects: Subjects, monitoring: str | None) -> None:
        self._js = js
        self._subjects = subjects
        self._monitoring = monitoring
        self._known: Durability | None = None

    def to_json(self) -> dict[str, Any] | None:
        """What was found last, for the status; None before the first time."""
        return None if self._known is None else asdict(self._known)

    @property
    def is_periodic(self) -> bool:
        """Whether NATS is known to confirm what it has not synced."""
        sync = UNKNOWN if self._known is None else self._known.sync
        return sync != ALWAYS and not sync.startswith(UNKNOWN)

    async def refresh(self) -> None:
        """Look it up now."""
        found = await read_durability(self._js, self._subjects, self._monitoring)
        if found != self._known:
            log.info("durability", sync=found.sync, replicas=found.replicas)
        self._known = found

    async def run(self, period: float) -> Never:
        """Look it up once a period, somewhat early or late, until cancelled."""
        await repeat_every(period, self.refresh, "durability")

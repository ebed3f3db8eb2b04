"""Watch of what NATS keeps: its durability, and the ends of its streams (S-8).

Durability is when NATS has on its disks what it confirms, and on how many. A server says when it
syncs on its monitoring port alone: neither its greeting nor JetStream's API has it.

A NATS that syncs periodically starts again after a power cut with an earlier end of its streams,
and goes on from there without a word. So the ends that were seen last are in the store, which syncs
its files. A Rebaser notes them there, and reports at its start what NATS has lost since (S-8).
"""

import asyncio
import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any, Final, Never

import aiohttp
import structlog

from rebaser_core.jetstream import ClusterInfo, JetStreamError, StreamInfo, StreamNotFound
from rebaser_core.streams import Streams
from rebaser_core.subjects import Subjects
from rebaser_server.cluster.membership import Membership
from rebaser_server.files import LOSSES, STREAM_ENDS, StoreFiles, loss_file
from rebaser_server.runtime.containment import contained, repeat_every
from rebaser_server.settings.redaction import redact_url

_LIMITS_TIMEOUT: Final = 1.0  # seconds; a user who may not ask gets no answer
_TIMEOUT: Final = aiohttp.ClientTimeout(total=2.0)
_NANOSECONDS: Final = 1e9


@dataclass(frozen=True, slots=True)
class ServerReport:
    server: str
    """Name of the server."""
    started: datetime
    """Time at which its process started."""
    sync_interval: float
    """Seconds until confirmed messages are on its disk; 0: before it confirms them."""
    stored: int
    """Bytes in its files."""
    capacity: int
    """Bytes that its files may have. The disk may have less."""


def urls_of(monitoring: str) -> list[str]:
    return [url.strip() for url in monitoring.split(",")]


async def read_monitoring(urls: Sequence[str]) -> tuple[list[ServerReport], list[str]]:
    """The servers' reports, and the faults of the URLs that gave none."""
    async with aiohttp.ClientSession(timeout=_TIMEOUT) as session:
        answers = await asyncio.gather(*(_ask(session, url) for url in urls))
    reports = [answer for answer in answers if isinstance(answer, ServerReport)]
    return reports, [answer for answer in answers if isinstance(answer, str)]


async def _ask(session: aiohttp.ClientSession, url: str) -> ServerReport | str:
    shown = redact_url(url)
    try:
        async with session.get(f"{url.rstrip('/')}/varz") as answer:
            status = await answer.json(content_type=None)
        jetstream = status["jetstream"]
        config = jetstream["config"]
        always = config.get("sync_always", False)
        return ServerReport(
            server=str(status["server_name"]),
            started=datetime.fromisoformat(status["start"]),
            sync_interval=0.0 if always else config["sync_interval"] / _NANOSECONDS,
            stored=int(jetstream["stats"]["storage"]),
            capacity=int(config["max_storage"]),
        )
    except TimeoutError:
        return f"{shown} does not answer in time"
    except (aiohttp.ClientError, OSError) as error:
        return f"{shown}: {error}"
    except (ValueError, KeyError, TypeError):
        return f"{shown} is no monitoring port of a NATS server with JetStream"


@dataclass(frozen=True, slots=True)
class Room:
    """A limit of NATS, and how much of it is in use."""

    where: str
    used: int
    limit: int
    unit: str = "bytes"

    @property
    def fullness(self) -> float:
        return self.used / self.limit


async def rooms(streams: Streams, monitoring: str | None) -> list[Room]:
    """Return the limits of account, streams and servers, as far as NATS says them.

    `monitoring`: URLs of the servers' ports, with commas. Nothing is written: a server whose disk
    is full would give the stream up.
    """
    found = []
    with suppress(JetStreamError):  # this user may not ask
        account = await streams.js.request("INFO", timeout=_LIMITS_TIMEOUT)
        for tier, usage in (account.get("tiers") or {"": account}).items():
            limit = usage["limits"]["max_storage"]
            found.append(Room(f"account {tier}".strip(), usage["storage"], limit))
    for stream in kept_streams(streams):
        with suppress(StreamNotFound):
            info = await streams.js.stream_info(stream)
            found.append(Room(stream, info.state.bytes, info.config.max_bytes or -1))
            found.append(Room(stream, info.state.messages, info.config.max_msgs or -1, "messages"))
    if monitoring is not None:
        reports, _ = await read_monitoring(urls_of(monitoring))
        found += [Room(f"server {each.server}", each.stored, each.capacity) for each in reports]
    return [room for room in found if room.limit > 0]


async def fullness(streams: Streams, monitoring: str | None) -> float:
    """Return the largest part of a limit that is in use."""
    return max((room.fullness for room in await rooms(streams, monitoring)), default=0.0)


log: Final = structlog.get_logger()

ALWAYS: Final = "always"
UNKNOWN: Final = "unknown: "
_NO_MONITORING: Final = (
    f"{UNKNOWN}set REBASER_NATS__MONITORING to the URLs of the monitoring ports of all NATS servers"
)


@dataclass(frozen=True, slots=True)
class Durability:
    """Whether confirmed messages survive a power failure."""

    sync: str
    """Time at which servers sync: `always`, before they confirm; `every 120 s`; or `unknown: ` and
    the reason."""
    replicas: int
    """Number of replicas of the stream that has the fewest; 0 if there is no stream."""


async def read_durability(streams: Streams, monitoring: str | None) -> Durability:
    """Ask the servers that hold the streams. `monitoring`: URLs of their ports, with commas.

    Raises:
        NatsUnreachable, ApiError: NATS does not say where the streams are.
    """
    infos = []
    for stream in kept_streams(streams):
        try:
            infos.append(await streams.js.stream_info(stream))
        except StreamNotFound:
            continue
    replicas = min((info.config.num_replicas or 1 for info in infos), default=0)
    servers = {server for info in infos for server in _servers(info)}
    if monitoring is None:
        return Durability(_NO_MONITORING, replicas)
    return Durability(await _sync(servers, urls_of(monitoring)), replicas)


def kept_streams(subjects: Subjects) -> tuple[str, ...]:
    """Names of the streams whose content cannot be made again. Tasks can."""
    return (
        subjects.requests_stream,
        subjects.commits_stream,
        subjects.dead_letters_stream,
        f"OBJ_{subjects.batches_bucket}",
        f"KV_{subjects.change_sets_bucket}",
        f"KV_{subjects.pauses_bucket}",
    )


def _servers(info: StreamInfo) -> set[str]:
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

    def __init__(self, streams: Streams, monitoring: str | None) -> None:
        self._streams = streams
        self._monitoring = monitoring
        self._known: Durability | None = None

    def to_json(self) -> dict[str, Any] | None:
        """The last known durability, for the status; None before the first look."""
        return None if self._known is None else asdict(self._known)

    @property
    def is_periodic(self) -> bool:
        """Whether NATS is known to confirm messages that it has not synced."""
        sync = UNKNOWN if self._known is None else self._known.sync
        return sync != ALWAYS and not sync.startswith(UNKNOWN)

    async def refresh(self) -> None:
        found = await read_durability(self._streams, self._monitoring)
        if found != self._known:
            log.info("durability", sync=found.sync, replicas=found.replicas)
        self._known = found

    async def run(self, period: float) -> Never:
        """Look the durability up once a period, somewhat early or late, until cancelled."""
        await repeat_every(period, self.refresh, "durability")


_LOOK_AGAIN_AFTER: Final = 1.0
"""Seconds after which a seeming loss is looked at once more: a new leader may be late."""


@dataclass(frozen=True, slots=True)
class StreamEnd:
    sequence: int
    """Last sequence that the stream gave; 0 for none."""
    time: str
    """Time at which the message with it was stored, in RFC 3339."""
    seen: str
    """Time of the look, by the clock of NATS."""

    def is_same(self, other: "StreamEnd") -> bool:
        """Whether both have the same last message; the time of the look does not matter."""
        return self.sequence == other.sequence and self.stored_at == other.stored_at

    @property
    def stored_at(self) -> datetime:
        """`time`, to the microsecond."""
        return datetime.fromisoformat(self.time)


@dataclass(frozen=True, slots=True)
class Loss:
    """Messages that a stream had, all of them confirmed, and has no more."""

    stream: str
    noted: StreamEnd
    found: StreamEnd

    @property
    def name(self) -> str:
        """Name of the loss's file; equal for all Rebasers that find it."""
        return f"{self.stream}-{self.noted.sequence}-{self.found.sequence}"

    def __str__(self) -> str:
        noted, found = self.noted, self.found
        had = f"{self.stream} ended at {noted.sequence} at {_seconds(noted.seen)}"
        if found.sequence >= noted.sequence:
            has = f"gave {noted.sequence} again before {_seconds(found.seen)}"
        elif found.sequence:
            has = f"was seen to end at {found.sequence}, stored at {_seconds(found.time)}"
        else:
            has = "was seen empty"
        return f"{had}, and {has}: what NATS had confirmed in between is lost"


@dataclass(frozen=True, slots=True)
class StreamEnds:
    """The ends of the streams in the store, beside those in NATS."""

    streams: Streams
    files: StoreFiles

    async def noted(self) -> Mapping[str, StreamEnd]:
        return await asyncio.to_thread(self._noted)

    async def present(self) -> Mapping[str, StreamEnd]:
        """The ends in NATS, by stream; a missing stream has none."""
        ends = {}
        for stream in kept_streams(self.streams):
            try:
                info = await self.streams.js.stream_info(stream)
            except StreamNotFound:
                continue
            time, seen = info.state.last_ts.isoformat(), info.ts.isoformat()
            ends[stream] = StreamEnd(info.state.last_seq, time, seen)
        return ends

    async def losses(self, noted: Mapping[str, StreamEnd]) -> list[Loss]:
        """Return the messages of `noted` that NATS has lost."""
        losses = await self._losses(noted)
        if losses:
            await asyncio.sleep(_LOOK_AGAIN_AFTER)
            losses = await self._losses(noted)
        return losses

    async def _losses(self, noted: Mapping[str, StreamEnd]) -> list[Loss]:
        present = await self.present()
        return [
            Loss(stream, end, present[stream])
            for stream, end in noted.items()
            if stream in present and await self._is_lost(stream, end, present[stream])
        ]

    async def _is_lost(self, stream: str, noted: StreamEnd, present: StreamEnd) -> bool:
        if present.sequence < noted.sequence:
            return True
        if present.is_same(noted) or not noted.sequence:
            return False
        message = await self.streams.js.get_message(stream, sequence=noted.sequence)
        # A message that is gone shows no loss: it may have been deleted as settled.
        return message is not None and message.time != noted.stored_at

    async def note(self, present: Mapping[str, StreamEnd]) -> None:
        """Write the ends into the store."""
        payload = json.dumps({stream: asdict(end) for stream, end in present.items()})
        await asyncio.to_thread(self.files.put, STREAM_ENDS, payload.encode())

    async def keep(self, loss: Loss) -> None:
        """Keep the loss in the store, until a person has read of it."""
        payload = json.dumps(asdict(loss)).encode()
        await asyncio.to_thread(self.files.put, loss_file(loss.name), payload)

    async def kept(self) -> list[Loss]:
        """Return the losses in the store."""
        return await asyncio.to_thread(self._kept)

    async def forget(self, loss: Loss) -> None:
        """Delete the loss from the store, and note the end that NATS had then."""
        noted = await self.noted()
        # The end is noted first. Else a crash in between would leave the old end, by which the next
        # look finds the loss again.
        if noted.get(loss.stream) == loss.noted:
            await self.note({**noted, loss.stream: loss.found})
        await asyncio.to_thread(self.files.delete, loss_file(loss.name))

    def _noted(self) -> Mapping[str, StreamEnd]:
        with contained("record"):
            try:
                ends = json.loads(self.files.get(STREAM_ENDS))
            except FileNotFoundError:
                return {}
            return {stream: StreamEnd(**end) for stream, end in ends.items()}
        return {}

    def _kept(self) -> list[Loss]:
        losses = []
        for name in self.files.list_names(LOSSES):
            with contained("record"):
                losses.append(_loss(json.loads(self.files.get(f"{LOSSES}/{name}"))))
        return losses


def _loss(plain: Mapping[str, Any]) -> Loss:
    return Loss(plain["stream"], StreamEnd(**plain["noted"]), StreamEnd(**plain["found"]))


def _seconds(time: str) -> str:
    return f"{datetime.fromisoformat(time):%Y-%m-%d %H:%M:%S}Z"


_NOTED_EVERY: Final = 1.0
"""Seconds between two looks while NATS syncs periodically: a loss of messages in between may go
unnoticed."""


class LossWatch:
    """Notes the ends, in one Rebaser of a deployment; in each, reports losses at its start."""

    def __init__(
        self,
        ends: StreamEnds,
        members: Membership,
        durability: DurabilityWatch,
        monitoring: str | None,
    ) -> None:
        """`monitoring`: URLs of the monitoring ports of all servers, with commas."""
        self._ends = ends
        self._monitoring = monitoring
        self._members = members
        self._durability = durability
        self._reconnects = 0
        self._noted: Mapping[str, StreamEnd] | None = None
        """Ends in the store; None while another Rebaser may write them."""

    async def look(self) -> None:
        """Log and keep what NATS has lost, and note the present ends."""
        noted = await self._ends.noted() if self._noted is None else self._noted
        for loss in await self._ends.losses(noted):
            log.error(
                "confirmed messages lost",
                stream=loss.stream,
                what=str(loss),
                remedy="docs/reliability.md#what-a-loss-leaves; `rebaser doctor` has it, too",
            )
            # S-8: the loss is kept before the new ends are noted. Else a crash would hide it.
            await self._ends.keep(loss)
        reconnects = self._ends.streams.js.connection.reconnects
        is_first = self._noted is None or reconnects != self._reconnects
        self._reconnects = reconnects
        started = await self._started_since(noted) if is_first else None
        if started is not None:
            log.warning(
                "confirmed messages may be lost",
                since=_last_seen(noted).isoformat(timespec="seconds"),
                until=started.isoformat(timespec="seconds"),
                reason="NATS was started again, and syncs periodically: a power cut takes the end",
            )
        # A stream that is missing keeps its noted end: once it is made anew, it shows as a loss.
        present = {**noted, **await self._ends.present()}
        if started is not None or any(
            stream not in noted or not e.is_same(noted[stream]) for stream, e in present.items()
        ):
            await self._ends.note(present)
            noted = present
        self._noted = noted

    async def _started_since(self, noted: Mapping[str, StreamEnd]) -> datetime | None:
        """Time since which all servers have been started again, if what they confirm is not synced.

        None if one runs since before the ends were noted, or if NATS syncs before it confirms.
        """
        if self._monitoring is None or not self._durability.is_periodic or not noted:
            return None
        reports, problems = await read_monitoring(urls_of(self._monitoring))
        started = min((report.started for report in reports), default=None)
        if problems or started is None or started <= _last_seen(noted):
            return None
        return started

    async def run(self, period: float) -> Never:
        """Look again and again while this Rebaser comes first among the living.

        `period`: seconds between two looks, unless NATS syncs periodically.
        """

        async def pause(_: float) -> None:
            await asyncio.sleep(_NOTED_EVERY if self._durability.is_periodic else period)

        await repeat_every(period, self._look_if_first, "losses", pause=pause)

    async def _look_if_first(self) -> None:
        if self._members.rank() > 0:
            self._noted = None
        else:
            await self.look()


def _last_seen(ends: Mapping[str, StreamEnd]) -> datetime:
    return max(datetime.fromisoformat(end.seen) for end in ends.values())

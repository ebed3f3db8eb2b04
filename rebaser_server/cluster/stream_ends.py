"""How far the streams had come, as the store has it: NATS does not say what a power cut took.

A NATS that syncs periodically starts again with an earlier end of its streams, and goes on from
there. The store syncs what it is given, so it has the ends that were seen last (S-8).
"""

import asyncio
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any, Final, Never

import structlog

from rebaser_core.jetstream import JetStream, StreamNotFound
from rebaser_core.subjects import Subjects
from rebaser_server.cluster.membership import Membership
from rebaser_server.cluster.nats_durability import DurabilityWatch, kept_streams
from rebaser_server.cluster.nats_monitoring import read_monitoring, urls_of
from rebaser_server.files.paths import LOSSES, STREAM_ENDS, loss_file
from rebaser_server.files.shared_files import SharedFiles
from rebaser_server.runtime.containment import contained
from rebaser_server.runtime.periodic import repeat_every

log: Final = structlog.get_logger()

NOTED_EVERY: Final = 1.0
"""Seconds between two looks while NATS syncs periodically: a loss of less may go unnoticed."""
_LOOK_AGAIN_AFTER: Final = 1.0
"""Seconds after which what seems lost is looked for once more: a new leader may be late."""


@dataclass(frozen=True, slots=True)
class StreamEnd:
    """The end of a stream at a moment."""

    sequence: int
    """The last one that the stream gave; 0 for none."""
    time: str
    """When the message with it was stored, as NATS writes it."""
    seen: str
    """The moment, by the clock of NATS."""


@dataclass(frozen=True, slots=True)
class Loss:
    """Messages that a stream had, all of them confirmed, and has no more."""

    stream: str
    noted: StreamEnd
    found: StreamEnd

    @property
    def name(self) -> str:
        """Of its file; the same for all that find it."""
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
    """The ends as the store has them, beside those of NATS."""

    js: JetStream
    subjects: Subjects
    files: SharedFiles

    async def noted(self) -> Mapping[str, StreamEnd]:
        """Those that the store has, by stream."""
        return await asyncio.to_thread(self._noted)

    async def present(self) -> Mapping[str, StreamEnd]:
        """Those that NATS has, by stream; none of a stream that is missing."""
        ends = {}
        for stream in kept_streams(self.subjects):
            try:
                info = await self.js.stream_info(stream)
            except StreamNotFound:
                continue
            state = info["state"]
            ends[stream] = StreamEnd(state["last_seq"], state["last_ts"], info["ts"])
        return ends

    async def losses(self, noted: Mapping[str, StreamEnd]) -> list[Loss]:
        """What NATS has lost of that."""
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
        if _is_same(present, noted) or not noted.sequence:
            return False
        message = await self.js.get_message(stream, sequence=noted.sequence)
        return message is not None and message.time != datetime.fromisoformat(noted.time)

    async def note(self, present: Mapping[str, StreamEnd]) -> None:
        """Have the store know them."""
        payload = json.dumps({stream: asdict(end) for stream, end in present.items()})
        await asyncio.to_thread(self.files.put, STREAM_ENDS, payload.encode())

    async def keep(self, loss: Loss) -> None:
        """Have the store know of the loss, until a person has read of it."""
        payload = json.dumps(asdict(loss)).encode()
        await asyncio.to_thread(self.files.put, loss_file(loss.name), payload)

    async def kept(self) -> list[Loss]:
        """The losses that the store knows of."""
        return await asyncio.to_thread(self._kept)

    async def forget(self, loss: Loss) -> None:
        """Have the store forget the loss, and take what NATS had then for all that there is."""
        noted = await self.noted()
        if noted.get(loss.stream) == loss.noted:
            await self.note({**noted, loss.stream: loss.found})
        await asyncio.to_thread(self.files.delete, loss_file(loss.name))

    def _noted(self) -> Mapping[str, StreamEnd]:
        with contained("record"):
            try:
                ends = json.loads(bytes(self.files.get(STREAM_ENDS)))
            except FileNotFoundError:
                return {}
            return {stream: StreamEnd(**end) for stream, end in ends.items()}
        return {}

    def _kept(self) -> list[Loss]:
        losses = []
        for name in self.files.list_names(LOSSES):
            with contained("record"):
                losses.append(_loss(json.loads(bytes(self.files.get(f"{LOSSES}/{name}")))))
        return losses


def _loss(plain: Mapping[str, Any]) -> Loss:
    return Loss(plain["stream"], StreamEnd(**plain["noted"]), StreamEnd(**plain["found"]))


def _seconds(time: str) -> str:
    return f"{datetime.fromisoformat(time):%Y-%m-%d %H:%M:%S}Z"


class LossWatch:
    """One Rebaser of a deployment notes the ends, and each says at its start what is lost."""

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
        """What the store has; None while another Rebaser may write it."""

    async def look(self) -> None:
        """Log and keep what NATS has lost, and note how far it has come."""
        noted = await self._ends.noted() if self._noted is None else self._noted
        for loss in await self._ends.losses(noted):
            log.error(
                "confirmed messages lost",
                stream=loss.stream,
                what=str(loss),
                remedy="docs/reliability.md#what-a-loss-leaves; `rebaser doctor` has it, too",
            )
            await self._ends.keep(loss)
        reconnects = self._ends.js.connection.reconnects
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
        present = {**noted, **await self._ends.present()}
        if started is not None or any(
            stream not in noted or not _is_same(e, noted[stream]) for stream, e in present.items()
        ):
            await self._ends.note(present)
            noted = present
        self._noted = noted

    async def _started_since(self, noted: Mapping[str, StreamEnd]) -> datetime | None:
        """When all servers were started again since, if what they confirm is not synced at once."""
        if self._monitoring is None or not self._durability.is_periodic or not noted:
            return None
        reports, problems = await read_monitoring(urls_of(self._monitoring))
        started = min((report.started for report in reports), default=None)
        if problems or started is None or started <= _last_seen(noted):
            return None
        return started

    async def run(self, period: float) -> Never:
        """Look again and again while this Rebaser comes first of those that are alive.

        `period`: seconds between two looks, unless NATS syncs periodically.
        """

        async def pause(_: float) -> None:
            await asyncio.sleep(NOTED_EVERY if self._durability.is_periodic else period)

        await repeat_every(period, self._look_if_first, "losses", pause=pause)

    async def _look_if_first(self) -> None:
        if self._members.rank() > 0:
            self._noted = None
        else:
            await self.look()


def _last_seen(ends: Mapping[str, StreamEnd]) -> datetime:
    return max(datetime.fromisoformat(end.seen) for end in ends.values())


def _is_same(end: StreamEnd, other: StreamEnd) -> bool:
    return (end.sequence, end.time) == (other.sequence, other.time)

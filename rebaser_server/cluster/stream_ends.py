"""How far the streams had come, as the store has it: NATS does not say what a power cut took.

A NATS that syncs periodically starts again with an earlier end of its streams, and goes on from
there. The store syncs what it is given, so it has the ends that were seen last (S-8).
"""

import asyncio
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any, Final

import structlog

from rebaser_core.jetstream import JetStream, StreamNotFound
from rebaser_core.subjects import Subjects
from rebaser_server.cluster.nats_durability import kept_streams
from rebaser_server.files import LOSSES, STREAM_ENDS, SharedFiles, loss_file
from rebaser_server.runtime.containment import contained

log: Final = structlog.get_logger()

_LOOK_AGAIN_AFTER: Final = 1.0
"""Seconds after which what seems lost is looked for once more: a new leader may be late."""


@dataclass(frozen=True, slots=True)
class StreamEnd:
    """The end of a stream at a moment."""

    sequence: int
    """The last one that the stream gave; 0 for none."""
    time: str
    """When the message with it was stored, in RFC 3339."""
    seen: str
    """The moment, by the clock of NATS."""

    def is_same(self, other: "StreamEnd") -> bool:
        """Whether both tell of the same last message, whenever each was seen."""
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
            time, seen = info.state.last_ts.isoformat(), info.ts.isoformat()
            ends[stream] = StreamEnd(info.state.last_seq, time, seen)
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
        if present.is_same(noted) or not noted.sequence:
            return False
        message = await self.js.get_message(stream, sequence=noted.sequence)
        return message is not None and message.time != noted.stored_at

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

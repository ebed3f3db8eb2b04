"""Notes how far the streams have come, and says at a start what NATS has lost since (S-8)."""

import asyncio
from collections.abc import Mapping
from datetime import datetime
from typing import Final, Never

import structlog

from rebaser_server.cluster.membership import Membership
from rebaser_server.cluster.nats_durability import DurabilityWatch
from rebaser_server.cluster.nats_monitoring import read_monitoring, urls_of
from rebaser_server.cluster.stream_ends import StreamEnd, StreamEnds
from rebaser_server.runtime.tasks import repeat_every

log: Final = structlog.get_logger()

NOTED_EVERY: Final = 1.0
"""Seconds between two looks while NATS syncs periodically: a loss of less may go unnoticed."""


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
            stream not in noted or not e.is_same(noted[stream]) for stream, e in present.items()
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

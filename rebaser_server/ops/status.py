"""The status that the page shows: all Rebasers and the queues, in one JSON object."""

import asyncio
import time
from collections.abc import Iterator
from dataclasses import asdict
from datetime import UTC, datetime
from importlib.metadata import version
from typing import Any, Final

import nats.errors

from rebaser_core.ids import ChangeSet
from rebaser_core.jetstream import JetStreamError
from rebaser_server.ops.cluster_status import Peers, Report
from rebaser_server.ops.context import OpsContext
from rebaser_server.ops.queues import Queues

HOLDINGS: Final = 30
"""Change sets that each Rebaser lists at most; of the others it sends the count."""
FRESH: Final = 1.0  # seconds for which a status is cached

_VERSION: Final = version("rebaser")


class DeploymentStatus:
    """Composes the status of the deployment at most once a second."""

    def __init__(self, context: OpsContext) -> None:
        self._context = context
        self._making = asyncio.Lock()
        self._made = float("-inf")
        self._status: dict[str, Any] = {}

    def own(self) -> Report:
        """The report of this Rebaser."""
        return {
            "instance": self._context.instance,
            "version": _VERSION,
            "store": self._context.store,
            "started": self._context.stats.started.isoformat(timespec="seconds"),
            "slots": {"busy": self._context.slots.busy, "free": self._context.slots.free},
            "lagSeconds": round(self._context.health.lag, 4),
            "holdings": self._context.stats.held_change_sets(HOLDINGS),
            "rates": self._context.stats.rates(),
            "failures": list(self._context.stats.failures),
            "durability": self._context.stats.durability(),
            "spark": str(self._context.stats.spark_absence() or "") or None,
            "natsProblem": self._context.stats.nats_problem(),
        }

    def sketch(self, change_set: ChangeSet) -> Report | None:
        """The sketch of the change set's latest update in this Rebaser."""
        return self._context.stats.sketch(change_set)

    def onlookers(self, change_set: ChangeSet) -> list[str]:
        """Who looks at the change set on a page of this Rebaser."""
        return self._context.onlookers.of(change_set)

    async def of_all(self, peers: Peers) -> dict[str, Any]:
        """The status of the deployment; without what NATS does not deliver, with the `problem`."""
        async with self._making:
            if time.monotonic() - self._made >= FRESH:
                self._status = await self._make(peers)
                self._made = time.monotonic()
            return self._status

    async def _make(self, peers: Peers) -> dict[str, Any]:
        status: dict[str, Any] = {
            "now": datetime.now(UTC).isoformat(timespec="milliseconds"),
            "answering": self._context.instance,
            "connected": self._context.nc.is_connected,
            "paused": self._context.stats.pauses(),
        }
        try:
            queues, rebasers = await asyncio.gather(
                self._context.queues.look(), peers.reports(max(1, self._context.members.alive()))
            )
            rebasers = rebasers or [self.own()]
            names = await self._context.names.lookup(_named(status, queues, rebasers))
        except (JetStreamError, nats.errors.Error, OSError) as error:
            return {**status, "problem": f"NATS: {error}", "rebasers": [self.own()]}
        return {**status, "rebasers": rebasers, "queues": asdict(queues), "names": names}


def _named(
    status: dict[str, Any], queues: Queues, rebasers: list[Report]
) -> Iterator[dict[str, Any]]:
    """All rows of the page that name a change set or a workspace, the most urgent first."""
    holdings = [row for rebaser in rebasers for row in rebaser.get("holdings", ())]
    yield from (row for row in holdings if row.get("update"))
    yield from queues.latest_dead
    yield from status["paused"]
    yield from queues.deepest
    yield from holdings
    yield from (row for rebaser in rebasers for row in rebaser.get("failures", ()))

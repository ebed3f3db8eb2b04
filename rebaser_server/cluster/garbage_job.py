"""One Rebaser of a deployment removes garbage now and then; which one may change at any time."""

from typing import Final, Never

import structlog

from rebaser_core.jetstream import JetStream
from rebaser_core.subjects import Subjects
from rebaser_server.cluster.membership import Membership
from rebaser_server.commit_log.batch_store import open_shared_files
from rebaser_server.commit_log.garbage_collection import GarbageCollector
from rebaser_server.files import OrphanFiles
from rebaser_server.runtime.tasks import repeat_every
from rebaser_server.settings.settings import StoreSettings

log: Final = structlog.get_logger()


class GarbageJob:
    """Collects for as long as this Rebaser comes first among those alive.

    That is only a way to have it done once: twice harms nothing.
    """

    def __init__(self, collector: GarbageCollector, members: Membership, period: float) -> None:
        """`period`: seconds between two collections, more or less."""
        self._collector = collector
        self._members = members
        self._period = period

    @classmethod
    def of(
        cls, js: JetStream, subjects: Subjects, members: Membership, store: StoreSettings
    ) -> "GarbageJob":
        """Build it from the settings."""
        leftovers = OrphanFiles(open_shared_files(store))
        grace = store.orphan_retention.total_seconds()
        collector = GarbageCollector(js, subjects, leftovers, grace)
        return cls(collector, members, store.gc_interval.total_seconds())

    async def run(self) -> Never:
        """Collect once a period, until cancelled. A failure is logged; the next period retries."""
        await repeat_every(self._period, self.collect, "collection")

    async def collect(self) -> None:
        """Find and remove garbage, unless another Rebaser does."""
        if self._members.rank() > 0:
            return
        garbage = await self._collector.find()
        await self._collector.remove(garbage)
        if counts := garbage.counts():
            log.info("garbage collected", **counts)

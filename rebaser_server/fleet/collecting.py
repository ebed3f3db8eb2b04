"""One Rebaser of a deployment removes garbage now and then; which one may change at any time."""

import asyncio
import random
from typing import Final, Never

import structlog

from rebaser_core.jetstream import JetStream, JetStreamError
from rebaser_core.subjects import Subjects
from rebaser_server.files import Files
from rebaser_server.fleet.members import Members
from rebaser_server.history.garbage import Collector
from rebaser_server.settings import StoreSettings
from rebaser_server.store.leftovers import Leftovers

log: Final = structlog.get_logger()


class Collecting:
    """Collects for as long as this Rebaser comes first among those alive.

    That is only a way to have it done once: twice harms nothing.
    """

    def __init__(self, collector: Collector, members: Members, every: float) -> None:
        """`every`: seconds between two looks, more or less."""
        self._collector = collector
        self._members = members
        self._every = every

    @classmethod
    def of(
        cls, js: JetStream, subjects: Subjects, members: Members, store: StoreSettings
    ) -> "Collecting":
        """As the settings have it."""
        leftovers = Leftovers(Files(store.root, store.options))
        grace = store.keep_unreferred.total_seconds()
        collector = Collector(js, subjects, leftovers, grace)
        return cls(collector, members, store.collect_every.total_seconds())

    async def run(self) -> Never:
        """Look once a period, until cancelled. What fails is logged and tried in the next."""
        while True:
            await asyncio.sleep(self._every * random.uniform(0.75, 1.25))  # noqa: S311 - jitter
            if self._members.rank() > 0:
                continue
            try:
                garbage = await self._collector.find()
                await self._collector.remove(garbage)
            except (OSError, JetStreamError) as error:
                log.warning("garbage not collected", error=str(error))
            else:
                if counts := garbage.counts():
                    log.info("garbage collected", **counts)

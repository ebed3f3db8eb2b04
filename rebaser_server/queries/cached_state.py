"""Read a change set from outside: what its log and checkpoint say it is, without owning it."""

import asyncio

from rebaser_core.ids import ChangeSet
from rebaser_core.jetstream import JetStream, ObjectStore
from rebaser_core.subjects import Subjects
from rebaser_server.commit_log.batch_store import Batches
from rebaser_server.commit_log.log import CommitLog
from rebaser_server.commit_log.state import State
from rebaser_server.commit_log.state_loader import Archive, Restored
from rebaser_server.errors import HistoryBroken
from rebaser_server.settings.settings import Settings
from rebaser_server.store.batch_files import BatchFiles
from rebaser_server.store.checkpoints import Checkpoints
from rebaser_server.values.graph import Graph


def archive_of(js: JetStream, settings: Settings, change_set: ChangeSet) -> Archive:
    """Where the change set can be read; the store must be the daemons' own."""
    subjects = Subjects(settings.nats.prefix)
    return Archive(
        change_set,
        CommitLog(js, subjects, change_set),
        Batches(
            ObjectStore(js, subjects.batches_bucket),
            BatchFiles(settings.store.root, settings.store.options),
        ),
        Checkpoints(settings.store.root, settings.store.options),
    )


class Reader:
    """Follows one change set; each look costs what was committed since the last."""

    def __init__(self, archive: Archive) -> None:
        self._archive = archive
        self._known: Restored | None = None
        self.lock = asyncio.Lock()
        """For who shares it: held from before a look until done with what was seen."""

    async def graph(self) -> Graph:
        """The values as of the last line that the log has now."""
        return (await self.state()).graph

    async def state(self) -> State:
        """The change set as of the last line that the log has now; the next look changes it.

        Raises:
            HistoryBroken: log and store do not fit together, or are not of one deployment.
        """
        known, self._known = self._known, None  # cancelled or failed, it is worthless
        if known is not None:
            until, _ = await self._archive.log.last()
            try:
                await self._archive.catch_up(known, until)
            except HistoryBroken:  # purged since the last look
                known = None
        self._known = known or await self._archive.restored()
        return self._known.state

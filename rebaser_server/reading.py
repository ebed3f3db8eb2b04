"""Read a change set from outside: what its log and checkpoint say it is, without owning it."""

from rebaser_core.ids import ChangeSet
from rebaser_core.jetstream import JetStream, ObjectStore
from rebaser_core.subjects import Subjects
from rebaser_server.batches import Batches
from rebaser_server.commit_log import CommitLog
from rebaser_server.graph import Graph
from rebaser_server.ownership import Archive, Restored
from rebaser_server.settings import Settings
from rebaser_server.store.checkpoints import Checkpoints
from rebaser_server.store.results import Results


def archive_of(js: JetStream, settings: Settings, change_set: ChangeSet) -> Archive:
    """Where the change set can be read; the store must be the daemons' own."""
    subjects = Subjects(settings.nats.prefix)
    return Archive(
        change_set,
        CommitLog(js, subjects, change_set),
        Batches(ObjectStore(js, subjects.batches_bucket), Results(settings.store.root)),
        Checkpoints(settings.store.root, settings.store.options),
    )


class Reader:
    """Follows one change set; each look costs what was committed since the last."""

    def __init__(self, archive: Archive) -> None:
        self._archive = archive
        self._known: Restored | None = None

    async def graph(self) -> Graph:
        """The change set as of the last line that the log has now.

        Raises:
            HistoryBroken: log and store do not fit together, or are not of one deployment.
        """
        until, _ = await self._archive.log.last()
        if self._known is None:
            self._known = await self._archive.restore(until)
        else:
            await self._archive.catch_up(self._known, until)
        return self._known.state.graph

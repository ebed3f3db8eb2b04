"""The publication of heads' tables: after commits, beside all requests, and made up for later.

No ownership is needed: a publisher reads the state as of the head's last commit, and the published
tables themselves refuse an older state. The process that has the run of a head publishes its
commits, one version for each; commits that follow each other faster than they are published share
one. Commits that were not published, since a process ended or the folder failed, are found by a
look at all heads without a run.
"""

import asyncio
from collections.abc import Collection
from contextlib import suppress
from functools import partial
from typing import Final, Never

import structlog

from rebaser_core.errors import NoSuchChangeSet, RebaserError
from rebaser_core.ids import ChangeSet, WorkspaceId
from rebaser_core.jetstream import JetStreamError
from rebaser_core.registry import Registry
from rebaser_core.streams import Streams
from rebaser_core.table_values import table_key
from rebaser_server.commit_log.log import CommitLog
from rebaser_server.commit_log.state import State
from rebaser_server.commit_log.state_loader import StateLoader
from rebaser_server.errors import NotRetained
from rebaser_server.files import TABLES, SharedFiles
from rebaser_server.graph_application.content import graph_of
from rebaser_server.graph_application.extension import OpenLoader
from rebaser_server.runtime.containment import contained, repeat_every
from rebaser_server.runtime.tasks import background
from rebaser_server.store.publications import HeadTables, Publications
from rebaser_server.telemetry import metrics
from rebaser_server.values.columns import ValueStatus

log: Final = structlog.get_logger()

_SHARE: Final = 20
"""Pause after a look at a state, as a multiple of the time that it took: requests waited for it."""
_MAX_PAUSE: Final = 1.0  # seconds


def tables_of(state: State, published: Collection[str]) -> HeadTables | None:
    """Return the tables of a head's state; None if it was deleted.

    `published`: the names of values that were published as tables.
    """
    if state.control.deleted:
        return None
    graph, keys = graph_of(state), {}
    for value in graph.referring_values():
        if key := table_key(value.value):
            keys[value.name or value.id] = key
    without_result = set()
    for name in published:
        index = graph.names.find(name)
        found = graph.values.get(name if index < 0 else graph.id_at(index))
        if found is not None and found.status in (ValueStatus.FAILED, ValueStatus.BLOCKED):
            without_result.add(name)
    return HeadTables(state.commit, keys, without_result)


class Publisher:
    """The queue of heads with commits that are not published yet, and the look for others."""

    def __init__(
        self,
        publications: Publications,
        streams: Streams,
        files: SharedFiles,
        look_every: float,
    ) -> None:
        """Publish; look every `look_every` seconds for what is missing."""
        self._publications = publications
        self._streams = streams
        self._files = files
        self._look_every = look_every
        self._due: dict[ChangeSet, StateLoader] = {}
        self._failed: dict[ChangeSet, StateLoader] = {}
        self._heads: dict[WorkspaceId, ChangeSet] = {}
        """Heads of the workspaces that have published tables, or may have."""
        self._wakeup = asyncio.Event()

    def schedule(self, loader: StateLoader) -> None:
        """Publish soon what the change set has, if it is a head."""
        self._due[loader.change_set] = loader
        self._wakeup.set()

    async def run(self, open_loader: OpenLoader) -> Never:
        look = partial(self._look, open_loader)
        async with background(repeat_every(self._look_every, look, "publication")):
            while True:
                await self._wakeup.wait()
                self._wakeup.clear()
                while self._due:
                    change_set = next(iter(self._due))
                    loader = self._due.pop(change_set)
                    with contained("publication", change_set=change_set):
                        await self._publish(loader)
        raise AssertionError("it works until it is cancelled")

    async def _publish(self, loader: StateLoader) -> None:
        change_set = loader.change_set
        self._failed[change_set] = loader  # also if the error is an unforeseen one
        try:
            await self._publish_if_head(loader)
        except (OSError, RebaserError) as error:
            metrics.PUBLICATIONS.labels("failed").inc()
            log.warning("publication failed", change_set=str(change_set), error=str(error))
            await asyncio.sleep(_MAX_PAUSE)
        else:
            del self._failed[change_set]

    async def _publish_if_head(self, loader: StateLoader) -> None:
        change_set, clock = loader.change_set, asyncio.get_running_loop().time
        begun, found = clock(), None
        if await self._head_of(change_set.workspace_id) == change_set:
            names = await asyncio.to_thread(self._publications.names, change_set)
            with suppress(NotRetained):  # it was deleted
                found = await loader.read(partial(tables_of, published=names), "a moment")
        pause = min(_SHARE * (clock() - begun), _MAX_PAUSE)
        if found is not None:
            written = await asyncio.to_thread(self._publications.publish, change_set, found)
            if written:
                metrics.PUBLICATIONS.labels("written").inc(written)
                log.debug("tables published", change_set=str(change_set), versions=written)
                # Another Rebaser may have published a later commit meanwhile, and found it right.
                self.schedule(loader)
        await asyncio.sleep(pause)

    async def _head_of(self, workspace: WorkspaceId) -> ChangeSet | None:
        if workspace not in self._heads:
            with suppress(NoSuchChangeSet):
                record = await Registry(self._streams).workspace(workspace)
                self._heads[workspace] = ChangeSet(workspace, record.head)
        return self._heads.get(workspace)

    async def _look(self, open_loader: OpenLoader) -> None:
        """Schedule what failed, and heads without a run that have unpublished commits."""
        await asyncio.to_thread(self._publications.tidy)
        for loader in list(self._failed.values()):
            self.schedule(loader)
        names = {*await asyncio.to_thread(self._files.list_names, TABLES)}
        self._heads = {each: head for each, head in self._heads.items() if str(each) in names}
        for name in names:
            with contained("publication", passing=(JetStreamError,), workspace=name):
                head = await self._head_of(WorkspaceId.from_str(name))
                if head is not None and head not in self._due and await self._is_behind(head):
                    self.schedule(open_loader(head))

    async def _is_behind(self, head: ChangeSet) -> bool:
        commit, last = await CommitLog(self._streams, head).last()
        if last is None or last.control.owner or last.control.deleted:
            return False  # the run publishes, or that of the Rebaser that takes over
        if last.settled is None:  # it released the change set, and changed nothing
            commit = last.previous
        return await asyncio.to_thread(self._publications.is_behind, head, commit)

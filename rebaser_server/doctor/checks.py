"""All checks of a deployment, one after the other, and the repair of a finding."""

import asyncio
from collections.abc import AsyncIterator, Callable, Collection
from dataclasses import dataclass, replace
from functools import partial

from rebaser_core.errors import RebaserError, UnknownSubject, many
from rebaser_core.ids import ChangeSet, WorkspaceId
from rebaser_core.jetstream import JetStreamError, StreamNotFound
from rebaser_core.registry import Registry
from rebaser_server.cluster.deployment_id import DeploymentId
from rebaser_server.cluster.nats_watch import StreamEnds
from rebaser_server.cluster.provisioning import Provisioner
from rebaser_server.commit_log.batch_store import open_batch_store, open_shared_files
from rebaser_server.commit_log.garbage_collection import CONDEMNED, Garbage, GarbageCollector
from rebaser_server.commit_log.log import CommitLog
from rebaser_server.commit_log.state_loader import StateLoader
from rebaser_server.doctor import nats_checks
from rebaser_server.doctor.findings import Finding, Severity
from rebaser_server.doctor.history_checks import check_histories, check_requests
from rebaser_server.files import CHANGE_SETS, StoreFiles, StoreInNats, change_sets_in, shared_files
from rebaser_server.graph_application.state_machine import (
    GraphStateMachine,
    open_checkpoints,
    open_state_loader,
)
from rebaser_server.graph_application.tables import TableHoldings
from rebaser_server.handlers.checkpoints import KeyMachine
from rebaser_server.ops.store_location import settings_with_store
from rebaser_server.settings.settings import Settings


@dataclass(frozen=True, slots=True)
class Examination:
    provisioner: Provisioner
    settings: Settings
    sample: int | None
    """Number of change sets to check; None for all."""
    deep: bool

    async def findings(self) -> AsyncIterator[Finding]:
        """All findings, check by check. Changes nothing except by the trial write.

        Without the deployment's own store the findings have no repair: only a person knows what is
        right.
        """
        try:
            settings = await settings_with_store(self.provisioner.streams.js, self.settings)
            located = replace(self, settings=settings)
            found = [finding async for finding in located.store()]
            is_known = all(finding.repair is not None for finding in found)
        except (RebaserError, JetStreamError, OSError) as error:
            located, found, is_known = self, [_store_not_seen(error)], False
        for finding in found:
            yield finding
        async for finding in self._of_nats():
            yield finding if is_known else _left_alone(finding)
        if is_known:
            async for finding in located.of_store():
                yield finding

    async def _of_nats(self) -> AsyncIterator[Finding]:
        async for finding in nats_checks.configuration(self.provisioner):
            yield finding
        for check in (
            self._durability,
            self._room,
            nats_checks.streams,
            nats_checks.missing_tasks,
            nats_checks.strays,
            nats_checks.dead_letters,
        ):
            async for finding in self._contained(check):
                yield finding

    async def _contained(
        self, check: Callable[[Provisioner], AsyncIterator[Finding]]
    ) -> AsyncIterator[Finding]:
        """The findings of a check, or the finding that it cannot be done."""
        try:
            async for finding in check(self.provisioner):
                yield finding
        except (RebaserError, JetStreamError, OSError) as error:
            yield _not_done(check.__name__.strip("_").replace("_", " "), error)

    async def of_store(self) -> AsyncIterator[Finding]:
        """Findings of the checks that read the store and trust it."""
        for check in (self._losses, self._garbage):
            async for finding in self._contained(check):
                yield finding
        streams = self.provisioner.streams
        try:
            change_sets = await self._change_sets()
            of_services = {each.workspace_id async for each in Registry(streams).services()}
            loaders = [self._loader(each, of_services) for each in change_sets]
        except (StreamNotFound, StoreInNats, OSError) as error:
            yield _not_done("history", error)
            return
        try:
            async for finding in check_requests(self.provisioner.streams, loaders):
                yield finding
        except StreamNotFound as error:
            yield _not_done("requests", error)
        async for finding in check_histories(loaders, self.sample, deep=self.deep):
            yield finding

    def _loader(self, change_set: ChangeSet, of_services: Collection[WorkspaceId]) -> StateLoader:
        """The loader of a change set, or of a service's key.

        Raises:
            StoreInNats: it is a graph of values, and the settings are those of a worker.
        """
        streams = self.provisioner.streams
        if change_set.workspace_id not in of_services:
            return open_state_loader(streams.js, self.settings, change_set)
        batches, log = open_batch_store(streams, self.settings), CommitLog(streams, change_set)
        return StateLoader(change_set, log, batches, KeyMachine(batches.files))

    def _durability(self, provisioner: Provisioner) -> AsyncIterator[Finding]:
        return nats_checks.durability(provisioner, self.settings.nats.monitoring)

    def _room(self, provisioner: Provisioner) -> AsyncIterator[Finding]:
        return nats_checks.room(provisioner, self.settings.nats.monitoring)

    async def store(self) -> AsyncIterator[Finding]:
        """Whether the store belongs to the deployment."""
        provisioner, store = self.provisioner, self.settings.store
        deployment = DeploymentId(
            provisioner.streams, open_shared_files(store, provisioner.streams)
        )
        if problem := await deployment.problem():
            is_lost = await deployment.in_store() is None
            yield Finding(
                "store",
                store.root,
                problem,
                Severity.ERROR,
                remedy="set REBASER_STORE__ROOT to the store of this NATS, or restore both from "
                "backups of the same time; delete deployment.json there, and `rebaser doctor "
                "--repair`, only if they do belong together",
                repair=deployment.adopt if is_lost else None,
            )

    async def _losses(self, provisioner: Provisioner) -> AsyncIterator[Finding]:
        """Messages that NATS had confirmed and lost, as Rebasers found it, or as it shows now."""
        files = open_shared_files(self.settings.store, provisioner.streams)
        ends = StreamEnds(provisioner.streams, files)
        losses = {loss.name: loss for loss in await ends.losses(await ends.noted())}
        losses |= {loss.name: loss for loss in await ends.kept()}
        for loss in losses.values():
            yield Finding(
                "losses",
                loss.stream,
                str(loss),
                Severity.ERROR,
                repair=partial(ends.forget, loss),
            )

    async def _change_sets(self) -> list[ChangeSet]:
        """The change sets that have a commit log, or checkpoints though their log is gone."""
        change_sets = set()
        stream = self.provisioner.streams.commits_stream
        for subject in await self.provisioner.streams.js.stream_subjects(stream):
            try:
                change_sets.add(self.provisioner.streams.parse_change_set(subject))
            except UnknownSubject:
                continue  # `strays` reports it
        files = open_shared_files(self.settings.store, self.provisioner.streams)
        return sorted(change_sets | await asyncio.to_thread(self._in_store, files, change_sets))

    def _in_store(self, files: StoreFiles, logged: set[ChangeSet]) -> set[ChangeSet]:
        """The change sets that have checkpoints; a sample looks into workspaces without a log."""
        workspaces = set(files.list_names(CHANGE_SETS))
        if self.sample is not None:  # one listing each, of which an object store makes seconds
            workspaces -= {str(each.workspace_id) for each in logged}
        return {each for workspace in workspaces for each in change_sets_in(files, workspace)}

    async def _garbage(self, provisioner: Provisioner) -> AsyncIterator[Finding]:
        store = self.settings.store
        batches = open_batch_store(provisioner.streams, self.settings)
        collector = GarbageCollector(
            provisioner.streams,
            batches,
            GraphStateMachine(open_checkpoints(store)).kept_metadata,
            TableHoldings(shared_files(batches.files)),
            store.orphan_retention.total_seconds(),
        )
        garbage = await collector.find()
        for part, where in (
            (Garbage(objects=garbage.objects), provisioner.streams.batches_bucket),
            (Garbage(chunks=garbage.chunks), provisioner.streams.batches_bucket),
            (Garbage(tombstones=garbage.tombstones), provisioner.streams.batches_bucket),
            (Garbage(files=garbage.files), store.root),
            *(
                (Garbage(held={kind: things}), store.root)
                for kind, things in garbage.held.items()
                if kind != CONDEMNED
            ),
        ):
            for kind, count in part.counts().items():
                yield Finding(
                    "garbage",
                    where,
                    f"{many(count, kind[:-1])} without a reference",
                    repair=partial(collector.remove, part),
                )


def _store_not_seen(error: Exception) -> Finding:
    """A store that was not looked at; it is not reported as lost."""
    remedy = "set REBASER_STORE__ROOT to what the daemons have, and call `rebaser doctor` again"
    return Finding("store", "", f"not checked: {error}", Severity.ERROR, remedy=remedy)


def _left_alone(finding: Finding) -> Finding:
    """The finding, without its repair."""
    if finding.repair is None:
        return finding
    return replace(finding, repair=None, remedy="see to the store first, then `--repair`")


def _not_done(check: str, error: Exception) -> Finding:
    return Finding(check, "", f"check failed: {error}", Severity.ERROR, remedy="see above")


async def repair(finding: Finding) -> Finding:
    """Repair what the finding describes; return the finding with the outcome."""
    if finding.repair is None:
        return finding
    try:
        await finding.repair()
    except (RebaserError, JetStreamError, OSError) as error:
        return replace(finding, what=f"{finding.what}; not repaired: {error}")
    return replace(finding, repaired=True)

"""Checks of a deployment, and the repair of a finding.

A finding says what is wrong, and has its repair. First come the checks of the NATS servers, the
streams, their configuration, and tasks; then those of pasts: each change set's store against its
log, requests against all logs (S-5). `Examination` makes all of them.
"""

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import partial
from typing import Any, Final

from rebaser_core.commits import ControlState
from rebaser_core.errors import RebaserError, UnknownSubject, many
from rebaser_core.ids import ChangeSet, WorkspaceId
from rebaser_core.jetstream import (
    ApiError,
    JetStreamError,
    KeyValue,
    NatsUnreachable,
    StreamNotFound,
    ordered_reader,
)
from rebaser_core.registry import Registry
from rebaser_core.requests import ensure_task
from rebaser_core.streams import Streams
from rebaser_server.cluster.configuration_faults import Effect, Fault, judge
from rebaser_server.cluster.deployment_id import DeploymentId
from rebaser_server.cluster.nats_watch import (
    ALWAYS,
    UNKNOWN,
    StreamEnds,
    kept_streams,
    read_durability,
    rooms,
)
from rebaser_server.cluster.nats_writes import CANNOT_WRITE, permissions, refusal
from rebaser_server.cluster.pauses import PauseStore, paused_since
from rebaser_server.cluster.provisioning import Provisioner
from rebaser_server.cluster.reconciler import stray_letters_subject
from rebaser_server.commit_log.batch_store import open_batch_store, open_shared_files
from rebaser_server.commit_log.garbage_collection import (
    CONDEMNED,
    Garbage,
    GarbageCollector,
    Holdings,
)
from rebaser_server.commit_log.log import CommitLog, unfinished_subjects
from rebaser_server.commit_log.state import State
from rebaser_server.commit_log.state_loader import StateLoader
from rebaser_server.errors import HistoryInconsistent, LogGone, NeedsNewerVersion, NotRetained
from rebaser_server.files import (
    CHANGE_SETS,
    IN_NATS,
    StoreFiles,
    StoreInNats,
    change_sets_in,
    shared_files,
)
from rebaser_server.graph_application.content import GraphContent, graph_of
from rebaser_server.graph_application.state_machine import (
    GraphStateMachine,
    checkpoints_of,
    open_checkpoints,
    open_state_loader,
)
from rebaser_server.graph_application.tables import TableHoldings
from rebaser_server.handlers.checkpoints import KeyMachine, content_of
from rebaser_server.handlers.content import KeyContent, Timer
from rebaser_server.handlers.sending import Alarms
from rebaser_server.ops.answers import statuses
from rebaser_server.ops.store_location import settings_with_store
from rebaser_server.processor.dead_letters import store_dead_letter
from rebaser_server.processor.request_queue import StoredRequests, announced_request
from rebaser_server.runtime.failures import StoreDamaged
from rebaser_server.settings.settings import Settings
from rebaser_server.store.checkpoints import roll_back_to_sound
from rebaser_server.store.table_schema import rows_of
from rebaser_server.tables import TableFiles, TableMissing
from rebaser_server.values.graph import Graph


class Severity(StrEnum):
    NOTE = "note"  # information; nothing is wrong
    WARNING = "warning"  # repairs itself in time, or only costs space; can be repaired now
    ERROR = "error"  # work is lost, or stands still until a person acts


@dataclass(frozen=True, slots=True)
class Finding:
    check: str
    """Name of the check; programs rely on it."""
    where: str
    """Stream, change set or store that it concerns."""
    what: str
    severity: Severity = Severity.WARNING
    remedy: str = ""
    """Remedy for a person; empty if `repair` does it."""
    repair: Callable[[], Awaitable[None]] | None = None
    """Function that repairs it, safely at any time; None if that needs a person."""
    repaired: bool = False

    @property
    def matters(self) -> bool:
        return self.severity is not Severity.NOTE and not self.repaired

    def plain(self) -> dict[str, Any]:
        return {
            "check": self.check,
            "where": self.where,
            "what": self.what,
            "severity": self.severity.value,
            "remedy": self.remedy or None,
            "repairable": self.repair is not None,
            "repaired": self.repaired,
        }


_TRIAL_KEY: Final = "00000000000000000000000000"
"""Key of the record that a trial write deletes. No workspace has this id."""
_FULL: Final = 0.9
"""Part of the room in use from which the doctor reports it."""
_MORE_ROOM: Final = (
    "make room on the disks of NATS, or raise its limits (`max_file_store`, accounts)"
)


async def durability(provisioner: Provisioner, monitoring: str | None) -> AsyncIterator[Finding]:
    """Time at which confirmed messages are on NATS's disks, from its servers or else Rebasers."""
    found = await read_durability(provisioner.streams, monitoring)
    if monitoring is None:
        found = replace(found, sync=await _sync_known_to_rebasers(provisioner) or found.sync)
    remedy = "docs/reliability.md says what a power cut takes; `sync_interval: always` keeps all"
    yield Finding(
        "durability",
        "NATS",
        f"sync: {found.sync}; replicas: {found.replicas}",
        Severity.NOTE,
        remedy="" if found.sync == ALWAYS else remedy,
    )


async def _sync_known_to_rebasers(provisioner: Provisioner) -> str:
    """Time at which the servers sync, from the Rebasers that know it; empty if none does."""
    said = {
        (report.get("durability") or {}).get("sync", UNKNOWN)
        for report in await statuses(provisioner.streams)
    }
    return " or ".join(sorted(sync for sync in said if not sync.startswith(UNKNOWN)))


async def room(provisioner: Provisioner, monitoring: str | None) -> AsyncIterator[Finding]:
    """Whether NATS takes writes, and how much room is left, as far as it says so.

    The trial deletes a record that is not there, which NATS stores as it stores any message.
    """
    try:
        streams = provisioner.streams
        await KeyValue(streams.js, streams.change_sets_bucket).purge(_TRIAL_KEY)
    except (ApiError, NatsUnreachable) as error:
        is_silent = isinstance(error, NatsUnreachable)
        what = f"a trial write is {'not confirmed' if is_silent else 'refused'}: {error}"
        remedy = f"{_MORE_ROOM}; the servers' logs say why a write failed"
        yield Finding("room", "NATS", what, Severity.ERROR, remedy=remedy)
    for each in await rooms(provisioner.streams, monitoring):
        if each.fullness >= _FULL:
            what = f"{each.used:,} of {each.limit:,} {each.unit} are in use"
            yield Finding("room", each.where, what, Severity.WARNING, remedy=_MORE_ROOM)


_REMEDY: Final = (
    "restart the NATS server, the leader of this stream if it has several, once its disk has "
    "room: until then it may take nothing; its log says why a write failed"
)


async def streams(provisioner: Provisioner) -> AsyncIterator[Finding]:
    """Streams that NATS does not write to, as this user may try it or else the Rebasers say."""
    names = (provisioner.streams.tasks_stream, *kept_streams(provisioner.streams))
    may = await permissions(provisioner.streams.js)
    tried = [name for name in names if may(f"STREAM.PURGE.{name}")]
    errors = await asyncio.gather(*(refusal(provisioner.streams, name) for name in tried))
    for name, error in zip(tried, errors, strict=True):
        if error is not None:
            is_silent = isinstance(error, NatsUnreachable)
            what = f"NATS {'does not answer for it' if is_silent else 'does not write to it'}"
            yield Finding("streams", name, f"{what}: {error}", Severity.ERROR, remedy=_REMEDY)
    left = [name for name in names if name not in tried]
    reports = await statuses(provisioner.streams) if left else []
    problems = {tuple(report["natsProblem"]) for report in reports if report.get("natsProblem")}
    for what, remedy in sorted(problems):
        if what.startswith(CANNOT_WRITE):
            yield Finding("streams", "NATS", what, Severity.ERROR, remedy=remedy)
    if left and not reports:
        yield Finding(
            "streams",
            "NATS",
            f"not tried, since NATS does not say that this user may purge them: {', '.join(left)}",
            Severity.NOTE,
            remedy="start a Rebaser: it may, and says whether NATS writes requests and commits",
        )


async def configuration(provisioner: Provisioner) -> AsyncIterator[Finding]:
    """Streams, consumer and bucket that are missing or configured differently."""
    faults = judge(await provisioner.diff())
    may = await permissions(provisioner.streams.js) if faults else lambda _: None
    for fault in faults:
        finding = _configuration_finding(provisioner, fault)
        missing = fault.drift.field == "existence"
        kind, _, name = fault.drift.name.partition(" ")
        call = f"STREAM.{'CREATE' if missing else 'UPDATE'}.{name}"
        if kind == "stream" and finding.repair is not None and may(call) is False:
            remedy = (
                f"`rebaser doctor --repair` with a NATS user that may publish to "
                f"{provisioner.streams.js.prefix}.{call}, which this one may not"
            )
            finding = replace(finding, repair=None, remedy=remedy)
        yield finding


def _configuration_finding(provisioner: Provisioner, fault: Fault) -> Finding:
    drift = fault.drift
    if drift.field == "allow_atomic":
        return Finding(
            "configuration",
            drift.name,
            "takes no atomic batches, so commits are stored one by one",
            Severity.WARNING,
            remedy="`rebaser doctor --repair`, once all Rebasers are of this release",
            repair=partial(provisioner.mend, drift.name),
        )
    missing = drift.field == "existence"
    makes = {
        f"stream {provisioner.streams.requests_stream}": provisioner.recreate_requests,
        f"stream {provisioner.streams.alarms_stream}": provisioner.create_alarms,
    }
    repair = makes.get(drift.name) if missing else None
    if fault.can_be_mended:
        repair = partial(provisioner.mend, drift.name)
    return Finding(
        "configuration",
        drift.name,
        "is missing" if missing else _difference(fault),
        Severity.ERROR,
        remedy=fault.remedy,
        repair=repair,
    )


def _difference(fault: Fault) -> str:
    drift = fault.drift
    what = f"{drift.field} is {drift.actual!r}, not {drift.expected!r}: {fault.meaning}"
    return f"{what}; no new work is begun" if fault.effect is Effect.STOPS else what


async def missing_tasks(provisioner: Provisioner) -> AsyncIterator[Finding]:
    """Change sets with requests or due updates but without a task, and tasks without work."""
    names = provisioner.streams
    tasks = await _named(provisioner, names.tasks_stream)
    requests = await _named(provisioner, names.requests_stream)
    due = _change_sets(provisioner, await unfinished_subjects(names))
    paused = await PauseStore(provisioner.streams).all()
    for change_set in sorted((requests | due) - tasks):
        if paused_since(paused, change_set) is not None:
            continue
        what = "requests" if change_set in requests else "a dependent values update due"
        repair = partial(_make_task, provisioner, change_set)
        yield Finding("tasks", str(change_set), f"has {what} and no task", repair=repair)
    if paused:
        what = f"paused: {', '.join(scope.key for scope in sorted(paused, key=str))}"
        remedy = "`rebaser pause` shows by whom; `rebaser resume` ends a pause"
        yield Finding("pauses", "deployment", what, Severity.NOTE, remedy=remedy)
    idle = tasks - requests - due
    if idle:
        what = f"{many(len(idle), 'task')} of change sets without work, as in the quiet period"
        yield Finding("tasks", names.tasks_stream, what, Severity.NOTE)


async def _named(provisioner: Provisioner, stream: str) -> set[ChangeSet]:
    return _change_sets(provisioner, await provisioner.streams.js.stream_subjects(stream))


def _change_sets(provisioner: Provisioner, subjects: Iterable[str]) -> set[ChangeSet]:
    found = set()
    for subject in subjects:
        with suppress(UnknownSubject):  # `strays` reports it
            found.add(provisioner.streams.parse_change_set(subject))
    return found


async def _make_task(provisioner: Provisioner, change_set: ChangeSet) -> None:
    if not await ensure_task(provisioner.streams, change_set):
        raise NatsUnreachable("NATS did not confirm the task")


async def strays(provisioner: Provisioner) -> AsyncIterator[Finding]:
    """Messages whose subject does not name a change set: no Rebaser takes them."""
    names = provisioner.streams
    streams = (
        names.requests_stream,
        names.tasks_stream,
        names.commits_stream,
        names.dead_letters_stream,
    )
    for stream in streams:
        for subject, count in (await provisioner.streams.js.stream_subjects(stream)).items():
            if subject == stray_letters_subject(names):
                continue
            try:
                names.parse_change_set(subject)
            except UnknownSubject as error:
                what = f"{many(count, 'message')}: {error}"
                purge = f"`nats stream purge {stream} --subject '{subject}'`"
                remedy = f"find the publisher, then {purge}"
                yield Finding("strays", stream, what, Severity.ERROR, remedy=remedy)


async def dead_letters(provisioner: Provisioner) -> AsyncIterator[Finding]:
    stream = provisioner.streams.dead_letters_stream
    count = (await provisioner.streams.js.stream_info(stream)).state.messages
    if count:
        yield Finding("dead letters", stream, many(count, "dead letter"), Severity.NOTE)


_RESTORE: Final = "restore the store and NATS from backups of the same time"


async def check_histories(
    loaders: list[StateLoader], sample: int | None, *, deep: bool
) -> AsyncIterator[Finding]:
    """Check the change sets, or `sample` of them chosen at random.

    `deep`: also compare a checkpoint with a replay of the log from the one before it.
    """
    chosen = loaders
    if sample is not None and sample < len(loaders):
        chosen = random.sample(loaders, sample)
        yield Finding(
            "history",
            "store and log",
            f"{sample} of {many(len(loaders), 'change set')} checked; --all checks each",
            Severity.NOTE,
        )
    for loader in chosen:
        try:
            finding = await check_history(loader, deep=deep)
        except JetStreamError:
            raise  # it says nothing about the history
        except RebaserError as error:  # no commit of its log can be read
            finding = _broken(loader, error)
        if finding is not None:
            yield finding


async def check_history(loader: StateLoader, *, deep: bool) -> Finding | None:
    """Return the finding about one change set, if any; a deleted change set has no data."""
    _, commit = await loader.log.last()
    if commit is not None and commit.control.deleted:
        return None
    try:
        present = await loader.load()
        if deep:
            await loader.from_earliest(None, partial(_require_log, loader, present.commit))
        if isinstance(present.content, GraphContent):  # else a key, whose state is in one file
            return await _check_graph(loader, present, deep=deep)
    except NeedsNewerVersion as error:
        return _broken(
            loader, error, "use `rebaser doctor` of the newest release that has run here"
        )
    except JetStreamError:
        raise  # it says nothing about the history
    except (RebaserError, OSError) as error:
        return await _rolled_back(loader, error)
    return None


async def _check_graph(loader: StateLoader, present: State, *, deep: bool) -> Finding | None:
    if deep:
        present.damage = present.damage or await _damage_of_rows(loader)
    if present.damage:
        return _damaged(loader, present)
    lost = await asyncio.to_thread(_lost_tables, loader, present, deep=deep)
    if lost is None and deep and len(present.checkpoints) > 1:
        return await _compared(loader, present.checkpoints[-2].commit, present.checkpoint_commit)
    return lost


async def _require_log(loader: StateLoader, until: int, begins: int) -> None:
    """Read every commit that is kept, also those before the checkpoint."""
    async for _ in loader.log.entries(begins, until):
        pass


async def _damage_of_rows(loader: StateLoader) -> str:
    """Fault of rows and columns that loading the state does not need; empty if there is none."""
    try:
        await asyncio.to_thread(checkpoints_of(loader).require_sound, loader.change_set)
    except StoreDamaged as error:
        return str(error)
    return ""


def _lost_tables(loader: StateLoader, present: State, *, deep: bool) -> Finding | None:
    """Tables that values have and that are not whole in the store; `deep`: all bytes are read."""
    tables = TableFiles(shared_files(loader.batches.files))
    workspace, lost = str(loader.change_set.workspace_id), []
    for key in graph_of(present).referred_keys():
        try:
            files = tables.get(workspace, key).files
            if deep and tables.damage(workspace, files) is not None:
                lost.append(key)
        except TableMissing:
            lost.append(key)
    if not lost:
        return None
    return _broken(
        loader,
        f"{many(len(lost), 'table')} not whole in the store, first {lost[0][:12]}…: what takes "
        "them fails when it is next computed",
        "restore the store's `tables` from a backup; or set uploaded ones to a file anew, "
        "and have the others computed with `rebaser dvu run`",
    )


def _damaged(loader: StateLoader, present: State) -> Finding:
    async def repair() -> None:
        await asyncio.to_thread(checkpoints_of(loader).repair, loader.change_set)

    what = (
        f"the last checkpoint is damaged, and the state comes from that of commit "
        f"{present.checkpoint_commit} and the log: {present.damage}"
    )
    return Finding("history", str(loader.change_set), what, repair=repair)


def _broken(loader: StateLoader, what: str | Exception, remedy: str = _RESTORE) -> Finding:
    if isinstance(what, Exception):
        what = f"{type(what).__name__}: {what}"
    return Finding("history", str(loader.change_set), what, Severity.ERROR, remedy=remedy)


async def _rolled_back(loader: StateLoader, error: Exception) -> Finding:
    """Return the finding about a change set that cannot be loaded, with the repair if there is one.

    The repair turns the store back to a version that the log continues.
    """
    begins = await loader.earliest_commit()
    last, _ = await loader.log.last()
    found = None
    if not isinstance(error, LogGone):  # which continues no version
        with suppress(OSError):
            check = partial(roll_back_to_sound, checkpoints_of(loader), loader.change_set)
            found = await asyncio.to_thread(check, begins, last, dry_run=True)
    repair = None if found is None else partial(_roll_back, loader, begins, last)
    return replace(_broken(loader, error), repair=repair)


async def _roll_back(loader: StateLoader, begins: int, last: int) -> None:
    await asyncio.to_thread(
        roll_back_to_sound, checkpoints_of(loader), loader.change_set, begins, last
    )
    await loader.load()


async def _compared(loader: StateLoader, older: int, checkpoint: int) -> Finding | None:
    """Compare the last checkpoint with a replay of the log from the one before it."""

    async def load_both(_: int) -> tuple[State, State]:
        made = await loader.load(older)
        await loader.catch_up(made, checkpoint)
        return made, await loader.load(checkpoint)

    try:
        made, saved = await loader.from_earliest(older, load_both)
    except NotRetained:  # purged since
        return None
    if _same(graph_of(made), graph_of(saved)):
        return None
    what = f"the checkpoint of commit {checkpoint} differs from a replay of the log from {older}"
    return _broken(loader, what, "keep both checkpoints, and report this as a bug")


def _same(one: Graph, other: Graph) -> bool:
    order = [("kind", "ascending"), ("id", "ascending")]
    tables = [rows_of(graph, {}, 0, whole=True).sort_by(order) for graph in (one, other)]
    return bool(tables[0].equals(tables[1]))


async def check_requests(streams: Streams, loaders: list[StateLoader]) -> AsyncIterator[Finding]:
    """Compare the waiting requests, and the end of their stream, with the settled ones."""
    waiting = await streams.js.stream_subjects(streams.requests_stream)
    ends = (await streams.js.stream_info(streams.requests_stream)).state.last_seq
    greatest = 0
    for loader in loaders:
        try:
            _, last = await loader.log.last()
            if last is None or last.control.deleted:
                continue
            greatest = max(greatest, last.control.last_sequence)
            if streams.requests(loader.change_set) in waiting:
                await _require_settled(streams, loader, last.control)
        except HistoryInconsistent as error:
            yield Finding(
                "requests",
                str(loader.change_set),
                str(error),
                Severity.ERROR,
                repair=partial(_bury, streams, loader),
            )
        except JetStreamError:
            raise
        except RebaserError:
            continue  # the check of histories reports it
    if ends < greatest:
        stream = streams.requests_stream
        yield Finding(
            "requests",
            stream,
            f"ends at {ends}, but {greatest} was handled: it was made anew, or is of another past",
            Severity.ERROR,
            remedy="restore it, or stop all clients, `rebaser doctor --all --repair`, and "
            f"`nats stream purge {stream} --seq {greatest + 1}` once it is empty",
        )


async def _require_settled(streams: Streams, loader: StateLoader, control: ControlState) -> None:
    first = await StoredRequests(streams, loader.change_set).lowest()
    if first is None or first.sequence > control.last_sequence:
        return
    try:
        state = await loader.load()
    except HistoryInconsistent:
        return  # the check of histories reports it
    request_id = announced_request(first.headers)
    loader.require_settled(state, first.sequence, request_id, first.time)


async def _bury(streams: Streams, loader: StateLoader) -> None:
    """Move the requests that another past hides to the dead letters, which can be replayed."""
    state = await loader.load()
    requests = ordered_reader(
        streams.js, streams.requests_stream, streams.requests(loader.change_set)
    )
    async with requests:
        while (request := await requests.next(idle_timeout=0)) is not None:
            if request.stream_sequence > state.control.last_sequence:
                return
            try:
                loader.require_settled(
                    state,
                    request.stream_sequence,
                    announced_request(request.headers),
                    request.timestamp,
                )
            except HistoryInconsistent as error:
                await store_dead_letter(streams, loader, request, reason=str(error), attempts=0)
                await streams.js.delete_message(streams.requests_stream, request.stream_sequence)


_Timers = Sequence[tuple[str, Timer]]


async def check_timers(
    streams: Streams, loaders: Sequence[StateLoader], sample: int | None
) -> AsyncIterator[Finding]:
    """Check the keys among the change sets; a `sample` of them, unless an alarm is gone."""
    keys = [each for each in loaders if isinstance(each.machine, KeyMachine)]
    alarms, is_any_lost = Alarms(streams), False
    waiting = await streams.js.stream_subjects(streams.requests_stream)
    for number, loader in enumerate(random.sample(keys, len(keys))):
        if sample is not None and number >= sample and not is_any_lost:
            return
        change_set = loader.change_set
        try:
            state = await loader.load()
        except JetStreamError:
            raise
        except (RebaserError, OSError):
            continue  # the check of histories reports it
        # The run of the key sets those that are not set yet.
        if streams.requests(change_set) in waiting or state.control.dvu_due:
            continue
        content = content_of(state)
        try:
            lost: _Timers = await alarms.lost(change_set, content)
        except StreamNotFound:
            lost = list(content.timers.items())
        if lost:
            is_any_lost = True
            yield Finding(
                "timers",
                str(change_set),
                f"key {content.key!r} of {content.service} has "
                f"{many(len(lost), 'timer')} without an alarm",
                repair=partial(_arm, alarms, change_set, content, lost),
            )


async def _arm(alarms: Alarms, change_set: ChangeSet, content: KeyContent, lost: _Timers) -> None:
    for name, timer in lost:
        await alarms.arm(change_set, content.service, content.key, name, timer)


_PATIENCE: Final = 2.0
"""Seconds for any Rebaser to show that it runs."""
_OTHER_STORE: Final = (
    "set REBASER_STORE__ROOT to the store of this NATS, or restore both from backups of the same "
    "time; delete deployment.json there, and `rebaser doctor --repair`, only if they do belong "
    "together"
)


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
        located = replace(self, provisioner=await self._with_alarms())
        try:
            settings = await settings_with_store(self.provisioner.streams.js, self.settings)
            located = replace(located, settings=settings)
            found = [finding async for finding in located.store()]
            is_known = all(finding.repair is not None for finding in found)
        except (RebaserError, OSError) as error:
            found, is_known = [_store_not_seen(error)], False
        for finding in found:
            yield finding
        async for finding in located.of_nats():
            yield finding if is_known else _left_alone(finding)
        if is_known:
            async for finding in located.of_store():
                yield finding

    async def _with_alarms(self) -> Provisioner:
        """Return the provisioner, with the stream of alarms where there are services."""
        streams, options = self.provisioner.streams, self.provisioner.options
        with suppress(RebaserError):  # too old a NATS, or no registry
            Alarms(streams).require()
            async for _ in Registry(streams).services():
                return replace(self.provisioner, options=replace(options, has_alarms=True))
        return self.provisioner

    async def of_nats(self) -> AsyncIterator[Finding]:
        async for finding in configuration(self.provisioner):
            yield finding
        monitoring = self.settings.nats.monitoring
        for check, findings in (
            ("durability", durability(self.provisioner, monitoring)),
            ("room", room(self.provisioner, monitoring)),
            ("streams", streams(self.provisioner)),
            ("missing tasks", missing_tasks(self.provisioner)),
            ("strays", strays(self.provisioner)),
            ("dead letters", dead_letters(self.provisioner)),
        ):
            async for finding in _contained(check, findings):
                yield finding

    async def of_store(self) -> AsyncIterator[Finding]:
        """Findings of the checks that read the store and trust it."""
        for check, findings in (("losses", self._losses()), ("garbage", self._garbage())):
            async for finding in _contained(check, findings):
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
            async for finding in check_requests(streams, loaders):
                yield finding
            async for finding in check_timers(streams, loaders, self.sample):
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

    async def store(self) -> AsyncIterator[Finding]:
        """Whether the store belongs to the deployment."""
        provisioner, store = self.provisioner, self.settings.store
        deployment = DeploymentId(
            provisioner.streams, open_shared_files(store, provisioner.streams)
        )
        if problem := await deployment.problem():
            is_lost = await deployment.in_store() is None
            remedy = await self._why_not_lost(deployment.files) if is_lost else _OTHER_STORE
            repair = None if remedy else deployment.adopt
            yield Finding("store", store.root, problem, Severity.ERROR, remedy, repair)

    async def _why_not_lost(self, files: StoreFiles) -> str:
        """Remedy for a store without an id that is another directory; empty if none shows that.

        As the store, an empty directory would split the history with the one that Rebasers have.
        """
        streams = self.provisioner.streams
        # Longer than a page waits: one that is busy must not be taken for none.
        if await statuses(streams, _PATIENCE, most=1):
            return (
                "Rebasers run, and have a store: set REBASER_STORE__ROOT to theirs, or mount it "
                "here; if it was lost, stop all of them, and then `rebaser doctor --repair`"
            )
        workspaces = set(await asyncio.to_thread(files.list_names, CHANGE_SETS))
        logged: set[ChangeSet] = set()
        with suppress(StreamNotFound):
            logged = await _named(self.provisioner, streams.commits_stream)
        if workspaces.isdisjoint(str(each.workspace_id) for each in logged) and workspaces:
            return f"it has workspaces, and NATS no log of any of them: {_OTHER_STORE}"
        return ""

    async def _losses(self) -> AsyncIterator[Finding]:
        """Messages that NATS had confirmed and lost, as Rebasers found it, or as it shows now."""
        streams = self.provisioner.streams
        ends = StreamEnds(streams, open_shared_files(self.settings.store, streams))
        losses = {loss.name: loss for loss in await ends.losses(await ends.noted())}
        losses |= {loss.name: loss for loss in await ends.kept()}
        for loss in losses.values():
            repair = partial(ends.forget, loss)
            yield Finding("losses", loss.stream, str(loss), Severity.ERROR, repair=repair)

    async def _change_sets(self) -> list[ChangeSet]:
        """The change sets that have a commit log, or checkpoints though their log is gone."""
        streams = self.provisioner.streams
        logged = await _named(self.provisioner, streams.commits_stream)
        files = open_shared_files(self.settings.store, streams)
        return sorted(logged | await asyncio.to_thread(self._in_store, files, logged))

    def _in_store(self, files: StoreFiles, logged: set[ChangeSet]) -> set[ChangeSet]:
        """The change sets that have checkpoints; a sample looks into workspaces without a log."""
        workspaces = set(files.list_names(CHANGE_SETS))
        if self.sample is not None:  # one listing each, of which an object store makes seconds
            workspaces -= {str(each.workspace_id) for each in logged}
        return {each for workspace in workspaces for each in change_sets_in(files, workspace)}

    async def _garbage(self) -> AsyncIterator[Finding]:
        streams, store = self.provisioner.streams, self.settings.store
        batches = open_batch_store(streams, self.settings)
        kept, holdings = KeyMachine(batches.files).kept_metadata, Holdings()
        if store.root != IN_NATS:  # else there are services alone
            kept = GraphStateMachine(open_checkpoints(store)).kept_metadata
            holdings = TableHoldings(shared_files(batches.files))
        retention = store.orphan_retention.total_seconds()
        collector = GarbageCollector(streams, batches, kept, holdings, retention)
        garbage = await collector.find()
        for part, where in (
            (Garbage(objects=garbage.objects), streams.batches_bucket),
            (Garbage(chunks=garbage.chunks), streams.batches_bucket),
            (Garbage(tombstones=garbage.tombstones), streams.batches_bucket),
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


async def _contained(check: str, findings: AsyncIterator[Finding]) -> AsyncIterator[Finding]:
    """The findings of a check, or the finding that it cannot be done."""
    try:
        async for finding in findings:
            yield finding
    except (RebaserError, OSError) as error:
        yield _not_done(check, error)


def _not_done(check: str, error: Exception) -> Finding:
    return Finding(check, "", f"check failed: {error}", Severity.ERROR, remedy="see above")


async def repair(finding: Finding) -> Finding:
    """Repair what the finding describes; return the finding with the outcome."""
    if finding.repair is None:
        return finding
    try:
        await finding.repair()
    except (RebaserError, OSError) as error:
        return replace(finding, what=f"{finding.what}; not repaired: {error}")
    return replace(finding, repaired=True)

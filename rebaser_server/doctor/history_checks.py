"""Checks of pasts: each change set's store against its log, requests against all logs (S-5)."""

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import replace
from functools import partial

from rebaser_core.commits import ControlState
from rebaser_core.errors import RebaserError, many
from rebaser_core.jetstream import ordered_reader
from rebaser_core.streams import Streams
from rebaser_server.commit_log.state import State
from rebaser_server.commit_log.state_loader import StateLoader
from rebaser_server.doctor.findings import Finding, Severity
from rebaser_server.errors import HistoryInconsistent, LogGone, NeedsNewerVersion, NotRetained
from rebaser_server.files import shared_files
from rebaser_server.graph_application.content import GraphContent, graph_of
from rebaser_server.graph_application.state_machine import checkpoints_of
from rebaser_server.processor.dead_letters import store_dead_letter
from rebaser_server.processor.request_queue import StoredRequests, announced_request
from rebaser_server.runtime.failures import StoreDamaged
from rebaser_server.store.checkpoints import roll_back_to_sound
from rebaser_server.store.table_schema import rows_of
from rebaser_server.tables import TableFiles, TableMissing
from rebaser_server.values.graph import Graph


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
        remedy = "use `rebaser doctor` of the newest release that has run here"
        return replace(_broken(loader, error), remedy=remedy)
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
    tables, workspace = (
        TableFiles(shared_files(loader.batches.files)),
        str(loader.change_set.workspace_id),
    )
    lost = []
    for key in graph_of(present).referred_keys():
        try:
            files = tables.get(workspace, key).files
            if deep and tables.damage(workspace, files) is not None:
                lost.append(key)
        except TableMissing:
            lost.append(key)
    if not lost:
        return None
    return Finding(
        "history",
        str(loader.change_set),
        f"{many(len(lost), 'table')} not whole in the store, first {lost[0][:12]}…: what takes "
        "them fails when it is next computed",
        Severity.ERROR,
        remedy="restore the store's `tables` from a backup; or set uploaded ones to a file anew, "
        "and have the others computed with `rebaser dvu run`",
    )


def _damaged(loader: StateLoader, present: State) -> Finding:
    async def repair() -> None:
        await asyncio.to_thread(checkpoints_of(loader).repair, loader.change_set)

    return Finding(
        "history",
        str(loader.change_set),
        f"the last checkpoint is damaged, and the state comes from that of commit "
        f"{present.checkpoint_commit} and the log: {present.damage}",
        repair=repair,
    )


def _broken(loader: StateLoader, error: Exception) -> Finding:
    return Finding(
        "history",
        str(loader.change_set),
        f"{type(error).__name__}: {error}",
        Severity.ERROR,
        remedy="restore the store and NATS from backups of the same time",
    )


async def _rolled_back(loader: StateLoader, error: Exception) -> Finding:
    """Return the finding about a change set that cannot be loaded, with the repair if there is one.

    The repair turns the store back to a version that the log continues.
    """
    begins = await loader.earliest_commit()
    last, _ = await loader.log.last()
    found = None
    if not isinstance(error, LogGone):  # which continues no version
        with suppress(OSError):
            found = await asyncio.to_thread(
                roll_back_to_sound,
                checkpoints_of(loader),
                loader.change_set,
                begins,
                last,
                dry_run=True,
            )
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
    return Finding(
        "history",
        str(loader.change_set),
        f"the checkpoint of commit {checkpoint} differs from a replay of the log from {older}",
        Severity.ERROR,
        remedy="keep both checkpoints, and report this as a bug",
    )


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

"""Checks that the store and the commit log of each change set fit together."""

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import replace
from functools import partial

from rebaser_core.errors import RebaserError
from rebaser_server.commit_log.state_loader import StateLoader
from rebaser_server.doctor.findings import Finding, Severity
from rebaser_server.errors import NotRetained
from rebaser_server.store.rollback import roll_back_to_sound
from rebaser_server.store.table_schema import rows_of
from rebaser_server.values.graph import Graph


async def check_histories(
    archives: list[StateLoader], sample: int | None, *, deep: bool
) -> AsyncIterator[Finding]:
    """Check the change sets, or `sample` of them chosen at random.

    `deep`: also compare a checkpoint with a replay of the log from the one before it.
    """
    chosen = archives
    if sample is not None and sample < len(archives):
        chosen = random.sample(archives, sample)
        yield Finding(
            "history",
            "store and log",
            f"{sample} of {len(archives)} change sets checked; --all checks each",
            Severity.NOTE,
        )
    for archive in chosen:
        try:
            finding = await check_history(archive, deep=deep)
        except RebaserError as error:  # no commit of its log can be read
            finding = _broken(archive, error)
        if finding is not None:
            yield finding


async def check_history(archive: StateLoader, *, deep: bool) -> Finding | None:
    """The finding about one change set, if there is one; a deleted change set has no data."""
    _, commit = await archive.log.last()
    if commit is not None and commit.control.deleted:
        return None
    try:
        present = await archive.load()
        if deep and len(present.checkpoints) > 1:
            return await _compared(archive, present.checkpoints[-2].commit, present.checkpoint)
    except (RebaserError, OSError) as error:
        broken = _broken(archive, error)
        begins = await archive.earliest_commit()
        last, _ = await archive.log.last()
        found = None
        with suppress(OSError):
            found = await asyncio.to_thread(
                roll_back_to_sound,
                archive.checkpoints,
                archive.change_set,
                begins,
                last,
                dry_run=True,
            )
        repair = None if found is None else partial(_roll_back, archive, begins, last)
        return replace(broken, repair=repair)
    return None


def _broken(archive: StateLoader, error: Exception) -> Finding:
    return Finding(
        "history",
        str(archive.change_set),
        f"{type(error).__name__}: {error}",
        Severity.ERROR,
        remedy="restore the store and NATS from backups of the same time",
    )


async def _roll_back(archive: StateLoader, begins: int, last: int) -> None:
    await asyncio.to_thread(
        roll_back_to_sound, archive.checkpoints, archive.change_set, begins, last
    )
    await archive.load()


async def _compared(archive: StateLoader, older: int, checkpoint: int) -> Finding | None:
    """Compare the last checkpoint with a replay of the log from the one before it."""
    try:
        made = await archive.load(older)
    except NotRetained:  # purged since
        return None
    await archive.catch_up(made, checkpoint)
    saved = await archive.load(checkpoint)
    if _same(made.state.graph, saved.state.graph):
        return None
    return Finding(
        "history",
        str(archive.change_set),
        f"the checkpoint of commit {checkpoint} differs from a replay of the log from {older}",
        Severity.ERROR,
        remedy="keep both checkpoints, and report this as a bug",
    )


def _same(one: Graph, other: Graph) -> bool:
    order = [("kind", "ascending"), ("id", "ascending")]
    tables = [rows_of(graph, {}, 0, whole=True).sort_by(order) for graph in (one, other)]
    return bool(tables[0].equals(tables[1]))

"""Apply a batch to a state: live, and again in the same order when the log is replayed."""

import asyncio
from collections.abc import Sequence
from typing import Final

from rebaser_core.updates import AnyUpdate
from rebaser_server.commit_log.batch_store import Batch
from rebaser_server.commit_log.state import State
from rebaser_server.values.rebase.apply_results import apply_result_table
from rebaser_server.values.rebase.definitions import Preimage
from rebaser_server.values.rebase.rebase import rebase
from rebaser_server.values.rebase.result import RebaseResult

IN_THREAD: Final = 200
"""Updates from which a rebase leaves the event loop, lest it hold up progress and others."""


async def apply_batch_async(
    state: State, sequence: int, batch: Batch, covers: int | None = None
) -> RebaseResult:
    """Apply the batch as `apply_batch` does, in a thread if the batch is large."""
    if len(batch.updates) < IN_THREAD and not batch.result_files:
        return apply_batch(state, sequence, batch, covers)
    return await asyncio.to_thread(apply_batch, state, sequence, batch, covers)


def apply_batch(
    state: State, sequence: int, batch: Batch, covers: int | None = None
) -> RebaseResult:
    """Rebase the batch onto the graph; a branch also records the batch as its own edit.

    A batch with `head_side` brings head's changes to a branch, and is no edit of the branch.

    Raises:
        MissingBatch: a result file that the batch names is missing; nothing was changed.
    """
    if covers is not None and batch.result_files:
        return apply_result_table(state.graph, batch.results(), covers)
    if state.edits is None or covers is not None:
        return rebase(state.graph, sequence, batch.updates, covers)
    if batch.head_side is not None:
        done = rebase(state.graph, sequence, batch.updates)
        state.edits.update_theirs(batch.head_side)
        return done
    return _apply_edit(state, sequence, batch.updates)


def _apply_edit(state: State, sequence: int, updates: Sequence[AnyUpdate]) -> RebaseResult:
    before = Preimage.of(state.graph, updates)
    done = rebase(state.graph, sequence, updates)
    if state.edits is not None:
        state.edits.add(done.updates, before)
    return done

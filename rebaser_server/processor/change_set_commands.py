"""Commands to a change set as a whole, queued with its batches: refresh, apply, abandon, delete.

Every batch stored before such a request is applied before it, and every batch after it meets the
change set as the command left it: there is no race.
"""

import asyncio
from typing import Any, Final, NamedTuple

from blake3 import blake3
from pydantic_core import to_json

from rebaser_core.commits import (
    AUTHOR_LENGTH,
    BranchState,
    ClosedState,
    RequestOutcome,
    SettledRequest,
)
from rebaser_core.ids import RequestId
from rebaser_core.registry_records import ChangeSetRequestV2, ChangeSetStatus
from rebaser_core.updates import AnyUpdate
from rebaser_server.commit_log.apply_batch import apply_batch
from rebaser_server.commit_log.batch_store import Batch, MissingBatch
from rebaser_server.commit_log.state import State
from rebaser_server.commit_log.state_loader import LoadedState, StateLoader
from rebaser_server.errors import HistoryInconsistent
from rebaser_server.processor.ownership import Ownership
from rebaser_server.processor.recomputation import recompute
from rebaser_server.processor.rejection import reject
from rebaser_server.values.rebase.merge import MergeResult, changes_between, merge

_CLOSES: Final = {"abandon": ChangeSetStatus.ABANDONED, "delete": ChangeSetStatus.DELETED}


class HeadChanges(NamedTuple):
    """What head committed since a branch last merged it."""

    changes: list[AnyUpdate]
    cursor: int


async def head_changes_since(loader: StateLoader, state: State, branch: BranchState) -> HeadChanges:
    """Return head's batches after the branch's cursor, as rebased; without DVU results.

    If head's log was purged past the cursor, the difference of the two states replaces them.
    """
    head_loader, cursor = loader.sibling(branch.head), branch.cursor or 0
    until, last = await head_loader.log.last()
    if (
        until <= cursor or last is None or last.control.deleted
    ):  # the head of a deleted workspace is deleted before the branch
        return HeadChanges([], max(until, cursor))
    changes: list[AnyUpdate] = []
    try:
        async for _, entry in head_loader.log.entries(cursor, until):
            handled = entry.handled
            if handled is None or handled.updates is None or handled.covers is not None:
                continue
            changes += (await head_loader.batches.fetch(handled.updates, handled.id)).updates
    except (HistoryInconsistent, MissingBatch):
        loaded = await head_loader.load()
        return HeadChanges(
            await asyncio.to_thread(_diff_states, state, loaded), loaded.state.commit
        )
    return HeadChanges(changes, until)


def _diff_states(state: State, head: LoadedState) -> list[AnyUpdate]:
    graph, edits = state.graph, state.edits
    assert edits is not None  # noqa: S101 - a branch has them
    values = {*graph.values, *edits.theirs}
    funcs = {*graph.funcs, *edits.their_funcs}
    return changes_between(edits.head_view(graph), head.state.graph, values, funcs)


async def merge_head(
    ownership: Ownership, message_id: RequestId, sequence: int
) -> tuple[Any, dict[str, Any]]:
    """Merge head's changes into the state; return their address and the new control fields."""
    state, branch = ownership.state, ownership.state.control.branch
    if branch is None or state.edits is None:
        return None, {}
    changes, cursor = await head_changes_since(ownership.loader, state, branch)
    control_changes: dict[str, Any] = {"branch": branch.model_copy(update={"cursor": cursor})}
    merge_result: MergeResult = await asyncio.to_thread(merge, state.graph, state.edits, changes)
    if not merge_result.updates and not merge_result.theirs:
        return None, control_changes
    batch = Batch(merge_result.updates, head_side=merge_result.theirs)
    rebased = await asyncio.to_thread(apply_batch, state, sequence, batch)
    if rebased.dirty:
        control_changes["dirty_sequence"] = sequence
    address = await ownership.loader.batches.put(
        message_id, rebased.updates, head_side=merge_result.theirs
    )
    return address, control_changes


async def execute(
    ownership: Ownership, message: ChangeSetRequestV2, sequence: int
) -> tuple[SettledRequest, dict[str, Any]]:
    """Execute or reject the command; return the settled request and the new control fields."""
    author = (message.by or "")[:AUTHOR_LENGTH] or None
    handled = SettledRequest(
        id=message.id, sequence=sequence, outcome=RequestOutcome.APPLIED, author=author
    )
    rejection = _rejection(ownership.state, message)
    if rejection is not None:
        return reject(handled, rejection), {}
    if message.action in ("abandon", "delete"):
        return handled, _close(ownership.state, message, _CLOSES[message.action])
    if message.action in ("checkpoint", "recompute"):
        ownership.followups.add(message.action)
        if message.action == "recompute":
            return await recompute(ownership, message, handled)
        return handled, {}
    address, changes = await merge_head(ownership, message.id, sequence)
    handled = handled.model_copy(update={"updates": address})
    if message.action == "refresh":
        return handled, changes
    return await _apply(ownership, message, handled, changes)


def closed_reason(closing: ClosedState) -> str:
    """Why a change set takes no requests."""
    because = f", {closing.reason}" if closing.reason else ""
    return f"change set is {closing.standing}{because}"


def _rejection(state: State, message: ChangeSetRequestV2) -> str | None:
    closing = state.control.closing
    if closing is not None:
        over = closing.standing in (ChangeSetStatus.APPLIED, ChangeSetStatus.ABANDONED)
        again = message.action == "delete" and over
        return None if again else closed_reason(closing)
    if state.edits is None and message.action in ("apply", "abandon"):
        return f"only a branch can be told to {message.action}"
    return None


def _close(state: State, message: ChangeSetRequestV2, standing: ChangeSetStatus) -> dict[str, Any]:
    """Return the control fields that close the change set and drop its due DVU."""
    return {"closing": ClosedState(standing=standing, request=message.id), **without_dvu(state)}


def without_dvu(state: State) -> dict[str, Any]:
    """Return the control fields after which no DVU is due."""
    return {"claim": None, "clean_sequence": state.control.dirty_sequence, "dvu_failures": 0}


async def _apply(
    ownership: Ownership,
    message: ChangeSetRequestV2,
    handled: SettledRequest,
    changes: dict[str, Any],
) -> tuple[SettledRequest, dict[str, Any]]:
    state = ownership.state
    assert state.edits is not None  # noqa: S101 - `_rejection` says so
    difference = await asyncio.to_thread(state.edits.difference, state.graph)
    if message.reviewed is not None and message.reviewed != digest(difference):
        reason = "the difference is not the one that was reviewed; look at it again"
        return reject(handled, reason), changes
    if not difference:
        reached = changes.get("dirty_sequence", state.control.dirty_sequence)
        changes |= _close(state, message, ChangeSetStatus.APPLIED)
        return handled, changes | {"clean_sequence": reached}
    address = await ownership.loader.batches.put(head_request_id(message.id), difference)
    closing = ClosedState(
        standing=ChangeSetStatus.APPLYING,
        request=message.id,
        author=handled.author,
        difference=address,
    )
    return handled, changes | {"closing": closing}


def head_request_id(request: RequestId) -> RequestId:
    """Return the id of the request that applies a difference to head; it is always the same.

    It differs from the id of the request to the branch, since the server remembers ids
    across subjects. Both have the same time, which is in the first six bytes.
    """
    return RequestId.from_bytes(request.bytes[:6] + blake3(request.bytes).digest(length=10))


def digest(difference: list[AnyUpdate]) -> str:
    """Return the digest of a difference: the same for the same updates."""
    return blake3(to_json([update.to_wire() for update in difference])).hexdigest()

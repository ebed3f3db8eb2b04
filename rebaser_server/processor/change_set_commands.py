"""What is asked of a branch as a whole, in line with its batches: refresh, apply, abandon, delete.

So everything stored before such a request is in, and everything after it meets what
it made of the change set: there is no race to lose.
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
from rebaser_server.commit_log.apply_batch import perform
from rebaser_server.commit_log.batch_store import Batch, MissingBatch
from rebaser_server.commit_log.state import State
from rebaser_server.commit_log.state_loader import Archive, Restored
from rebaser_server.errors import HistoryBroken
from rebaser_server.processor.ownership import Ownership
from rebaser_server.processor.recomputation import recompute
from rebaser_server.processor.rejection import refused
from rebaser_server.values.rebase.merge import MergeResult, changes_between, merge

_CLOSES: Final = {"abandon": ChangeSetStatus.ABANDONED, "delete": ChangeSetStatus.DELETED}


class Reached(NamedTuple):
    """What head has done since it last came to a branch."""

    changes: list[AnyUpdate]
    cursor: int


async def since(archive: Archive, state: State, branch: BranchState) -> Reached:
    """Head's batches behind the branch's cursor, as performed; its dependents' results apart.

    Where head's log does not go back so far any more, what head is tells the same.
    """
    head, cursor = archive.of(branch.head), branch.cursor or 0
    until, last = await head.log.last()
    if until <= cursor or last is None or last.head.deleted:  # with a workspace, before its branch
        return Reached([], max(until, cursor))
    changes: list[AnyUpdate] = []
    try:
        async for _, line in head.log.lines(cursor, until):
            handled = line.handled
            if handled is None or handled.updates is None or handled.covers is not None:
                continue
            changes += (await head.batches.fetch(handled.updates, handled.id)).updates
    except (HistoryBroken, MissingBatch):
        restored = await head.restored()
        return Reached(await asyncio.to_thread(_apart, state, restored), restored.state.commit)
    return Reached(changes, until)


def _apart(state: State, head: Restored) -> list[AnyUpdate]:
    graph, edits = state.graph, state.edits
    assert edits is not None  # noqa: S101 - a branch has them
    values = {*graph.values, *edits.theirs}
    funcs = {*graph.funcs, *edits.their_funcs}
    return changes_between(edits.head_view(graph), head.state.graph, values, funcs)


async def reach(own: Ownership, message_id: RequestId, sequence: int) -> tuple[Any, dict[str, Any]]:
    """Have the state take over what head has done; the address of that, and the head's changes."""
    state, branch = own.state, own.state.head.branch
    if branch is None or state.edits is None:
        return None, {}
    changes, cursor = await since(own.archive, state, branch)
    moved: dict[str, Any] = {"branch": branch.model_copy(update={"cursor": cursor})}
    found: MergeResult = await asyncio.to_thread(merge, state.graph, state.edits, changes)
    if not found.updates and not found.theirs:
        return None, moved
    batch = Batch(found.updates, under=found.theirs)
    done = await asyncio.to_thread(perform, state, sequence, batch)
    if done.dirty:
        moved["dirty_sequence"] = sequence
    address = await own.archive.batches.place(message_id, done.updates, under=found.theirs)
    return address, moved


async def change(
    own: Ownership, message: ChangeSetRequestV2, sequence: int
) -> tuple[SettledRequest, dict[str, Any]]:
    """Do what is asked, or refuse it; the record of that, and what it changes in the head."""
    by = (message.by or "")[:AUTHOR_LENGTH] or None
    handled = SettledRequest(
        id=message.id, sequence=sequence, outcome=RequestOutcome.APPLIED, author=by
    )
    why_not = _objection(own.state, message)
    if why_not is not None:
        return refused(handled, why_not), {}
    if message.action in ("abandon", "delete"):
        return handled, _closed(own.state, message, _CLOSES[message.action])
    if message.action in ("checkpoint", "recompute"):
        own.wishes.add(message.action)
        if message.action == "recompute":
            return await recompute(own, message, handled)
        return handled, {}
    address, changes = await reach(own, message.id, sequence)
    handled = handled.model_copy(update={"updates": address})
    if message.action == "refresh":
        return handled, changes
    return await _apply(own, message, handled, changes)


def closed(closing: ClosedState) -> str:
    """Why a change set takes no requests."""
    because = f", {closing.reason}" if closing.reason else ""
    return f"change set is {closing.standing}{because}"


def _objection(state: State, message: ChangeSetRequestV2) -> str | None:
    closing = state.head.closing
    if closing is not None:
        over = closing.standing in (ChangeSetStatus.APPLIED, ChangeSetStatus.ABANDONED)
        again = message.action == "delete" and over
        return None if again else closed(closing)
    if state.edits is None and message.action in ("apply", "abandon"):
        return f"only a branch can be told to {message.action}"
    return None


def _closed(state: State, message: ChangeSetRequestV2, standing: ChangeSetStatus) -> dict[str, Any]:
    """The change set is done with, and with it whatever was to be recomputed."""
    return {"closing": ClosedState(standing=standing, request=message.id), **at_rest(state)}


def at_rest(state: State) -> dict[str, Any]:
    """What the head says where nothing is to be recomputed any more."""
    return {"claim": None, "clean_sequence": state.head.dirty_sequence, "dvu_failures": 0}


async def _apply(
    own: Ownership, message: ChangeSetRequestV2, handled: SettledRequest, changes: dict[str, Any]
) -> tuple[SettledRequest, dict[str, Any]]:
    state = own.state
    assert state.edits is not None  # noqa: S101 - `_objection` says so
    difference = await asyncio.to_thread(state.edits.difference, state.graph)
    if message.reviewed is not None and message.reviewed != digest(difference):
        reason = "the difference is not the one that was reviewed; look at it again"
        return refused(handled, reason), changes
    if not difference:
        reached = changes.get("dirty_sequence", state.head.dirty_sequence)
        changes |= _closed(state, message, ChangeSetStatus.APPLIED)
        return handled, changes | {"clean_sequence": reached}
    address = await own.archive.batches.place(at_head(message.id), difference)
    closing = ClosedState(
        standing=ChangeSetStatus.APPLYING,
        request=message.id,
        author=handled.author,
        difference=address,
    )
    return handled, changes | {"closing": closing}


def at_head(request: RequestId) -> RequestId:
    """Id of the request that takes a difference to head, the same each time it is sent.

    Another than that of the request to apply it, for the server remembers ids, whatever
    their subject; of the same time, which is in its first six bytes.
    """
    return RequestId.from_bytes(request.bytes[:6] + blake3(request.bytes).digest(length=10))


def digest(difference: list[AnyUpdate]) -> str:
    """Names a difference: the same for the same updates."""
    return blake3(to_json([update.to_wire() for update in difference])).hexdigest()

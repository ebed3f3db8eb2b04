"""Actions of the value graph: refresh a branch, apply it to head, recompute values.

Values are recomputed on request by setting their definitions again, as they are. Head applies a
branch's difference once, even if it is sent several times (B1).
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from blake3 import blake3
from pydantic_core import to_json

from rebaser_core.commits import (
    BranchState,
    ClosedState,
    ControlState,
    RequestOutcome,
    SettledRequest,
)
from rebaser_core.ids import RequestId
from rebaser_core.jetstream import Delivery
from rebaser_core.messages import EnqueueUpdatesRequestV1, UpdatesAddress
from rebaser_core.records import ChangeSetRequestV1, ChangeSetStatus
from rebaser_core.updates import AnyUpdate, PutFunc, PutValue, RemoveFunc
from rebaser_core.versioning import APPLY_REQUEST, header
from rebaser_server.commit_log.state import SMALL_BATCH, Batch, State
from rebaser_server.commit_log.state_loader import StateLoader
from rebaser_server.compute.functions.runtimes import CodeVersion, code_version
from rebaser_server.errors import HistoryInconsistent, MissingBatch
from rebaser_server.graph_application.code import is_renewal, outdated, renewed
from rebaser_server.graph_application.content import content_of, graph_of, require
from rebaser_server.processor.application import Changes
from rebaser_server.processor.dead_letters import reject
from rebaser_server.processor.ownership import Ownership
from rebaser_server.processor.requests import close
from rebaser_server.values.canonical_json import dumps
from rebaser_server.values.columns import ValueStatus
from rebaser_server.values.edits import DefinitionView, func_definition, value_definition
from rebaser_server.values.graph import Graph
from rebaser_server.values.merge import MergeResult, changes_between, merge


async def recompute(
    ownership: Ownership,
    message: ChangeSetRequestV1,
    settled: SettledRequest,
    forget: Callable[[Graph, list[str]], None],
) -> tuple[SettledRequest, Changes]:
    """Make the values that `message` names, or all failed ones, roots of the next update.

    If it names none: those that were computed with other code than is installed.

    The commit has updates that every version reads. In a branch they are no edit: its difference to
    head does not change.
    """
    content = content_of(ownership.state)
    graph = content.graph
    if message.values == []:
        return await _renew(ownership, message, settled)
    value_ids = await asyncio.to_thread(_requested_values, graph, message.values)
    if isinstance(value_ids, str):
        return reject(settled, value_ids), {}
    if not value_ids:
        return settled, {}
    await asyncio.to_thread(forget, graph, value_ids)
    puts = [put for value_id in value_ids if (put := value_definition(graph, value_id)) is not None]
    applied, _ = await _applied(ownership, settled, puts)
    return applied, {"dirty_sequence": settled.sequence}


async def _renew(
    ownership: Ownership, message: ChangeSetRequestV1, settled: SettledRequest
) -> tuple[SettledRequest, Changes]:
    """Make the values due that were computed with other code, if the request is for ours.

    That of another process is left to one with the same code: it asks again, and its requests would
    keep this run from ever being quiet, so the run ends as soon as it is idle.
    """
    change_set, code = ownership.loader.change_set, ownership.code
    content = content_of(ownership.state)

    def find() -> tuple[dict[str, CodeVersion], list[AnyUpdate]] | None:
        if not is_renewal(message.id, change_set, code):
            return None
        due = outdated(code)
        updates: list[AnyUpdate] = []
        for func_id in content.graph.funcs if due else ():
            func = func_definition(content.graph, func_id)
            own = func and code_version(func.runtime, func.code)
            if func and own and own.name in due:  # put as another and put back, its values are due
                other = "" if func.code else "other"
                updates += [func.model_copy(update={"code": other}), func]
        return due, updates

    found = await asyncio.to_thread(find)
    if found is None:
        ownership.is_for_another = True
        return settled, {}
    due, updates = found
    if not due:
        return settled, {}
    applied, is_dirty = await _applied(ownership, settled, updates)
    changes: Changes = {"code": renewed(code, due)}
    if is_dirty:
        changes["dirty_sequence"] = settled.sequence
    return applied, changes


async def _applied(
    ownership: Ownership, settled: SettledRequest, updates: Sequence[AnyUpdate]
) -> tuple[SettledRequest, bool]:
    """Apply updates that are no edit; return the request with them, and whether values are due."""
    content = content_of(ownership.state)
    batch = Batch(updates, head_side=None if content.edits is None else [])
    rebased = await asyncio.to_thread(content.apply_now, settled.sequence, batch)
    address = await ownership.loader.batches.put(
        settled.id, rebased.updates, head_side=batch.head_side
    )
    return settled.model_copy(update={"updates": address}), rebased.dirty


def _requested_values(graph: Graph, names: list[str] | None) -> list[str] | str:
    """Return the ids of the values, or the reason why they cannot be computed."""
    if names is None:
        return [value.id for value in graph.values.values() if value.status is ValueStatus.FAILED]
    value_ids = []
    for name in names:
        value = graph.values.get(name) or graph.values.get(graph.names.get(name) or "")
        if value is None:
            return f"there is no value {name!r}"
        if value.func_id is None:
            return f"{name!r} is not computed; set it instead"
        value_ids.append(value.id)
    return list(dict.fromkeys(value_ids))


class HeadChanges(NamedTuple):
    """Commits of head since a branch last merged it."""

    changes: list[AnyUpdate]
    cursor: int
    batches: int | None
    """Number of head's batches since then; None: more than its log holds."""


async def head_changes_since(
    loader: StateLoader, state: State, branch: BranchState, head: State | None = None
) -> HeadChanges:
    """Head's batches behind the branch's cursor, as performed; without its dependents' results.

    They go up to `head`, a state of it (default: up to its last commit). If head's log does not go
    back so far any more, they are found by comparing head's states.
    """
    head_loader, cursor = loader.sibling(branch.head), branch.cursor or 0
    until, last = await head_loader.log.last()
    if head is not None:
        until = head.commit
    if (
        until <= cursor or last is None or last.control.deleted
    ):  # the head of a deleted workspace is deleted before the branch
        return HeadChanges([], max(until, cursor), 0)
    changes: list[AnyUpdate] = []
    batches = 0
    try:
        async for _, entry in head_loader.log.entries(cursor, until):
            settled = entry.settled
            if settled is None or settled.updates is None or settled.covers is not None:
                continue
            updates = (await head_loader.batches.fetch(settled.updates, settled.id)).updates
            if len(updates) < SMALL_BATCH:
                changes += updates
            else:
                await asyncio.to_thread(changes.extend, updates)
            batches += 1
    except (HistoryInconsistent, MissingBatch):
        head = head or await head_loader.load()
        found = await asyncio.to_thread(_diff_states, state, head)
        return HeadChanges(found, head.commit, None)
    return HeadChanges(changes, until, batches)


def _diff_states(state: State, head: State) -> list[AnyUpdate]:
    content = content_of(state)
    graph, edits = content.graph, require(content.edits, "edits")
    values = {*graph.values, *edits.theirs}
    funcs = {*graph.funcs, *edits.their_funcs}
    return changes_between(edits.head_view(graph), graph_of(head), values, funcs)


async def _merge_head(
    ownership: Ownership, message_id: RequestId, sequence: int
) -> tuple[UpdatesAddress | None, Changes]:
    """Merge head's changes into the content; return their address and the new control fields."""
    state, branch = ownership.state, ownership.state.control.branch
    content = content_of(state)
    if branch is None or content.edits is None:
        return None, {}
    changes, cursor, _ = await head_changes_since(ownership.loader, state, branch)
    control_changes: Changes = {"branch": branch.model_copy(update={"cursor": cursor})}
    merge_result: MergeResult = await asyncio.to_thread(
        merge, content.graph, content.edits, changes
    )
    if not merge_result.updates and not merge_result.theirs:
        # The cursor moves all the same: else each refresh would read these commits of head again.
        return None, control_changes
    batch = Batch(merge_result.updates, head_side=merge_result.theirs)
    rebased = await asyncio.to_thread(content.apply_now, sequence, batch)
    if rebased.dirty:
        control_changes["dirty_sequence"] = sequence
    address = await ownership.loader.batches.put(
        message_id, rebased.updates, head_side=merge_result.theirs
    )
    return address, control_changes


async def execute(
    ownership: Ownership,
    message: ChangeSetRequestV1,
    settled: SettledRequest,
    forget: Callable[[Graph, list[str]], None],
) -> tuple[SettledRequest, Changes]:
    """Recompute, refresh or apply; see `Application.execute`.

    `forget` lets values that are to be recomputed not be found. It blocks.
    """
    if message.action == "recompute":
        return await recompute(ownership, message, settled, forget)
    address, changes = await _merge_head(ownership, message.id, settled.sequence)
    settled = settled.model_copy(update={"updates": address})
    if message.action == "refresh":
        return settled, changes
    return await _apply(ownership, message, settled, changes)


async def _apply(
    ownership: Ownership,
    message: ChangeSetRequestV1,
    settled: SettledRequest,
    changes: Changes,
) -> tuple[SettledRequest, Changes]:
    state, content = ownership.state, content_of(ownership.state)
    edits = require(content.edits, "edits")
    difference = await asyncio.to_thread(edits.difference, content.graph)
    head_view = edits.head_view(content.graph)
    if message.reviewed is None:
        is_reviewed = True
    elif len(difference) < SMALL_BATCH:
        is_reviewed = message.reviewed == digest(difference, head_view)
    else:
        is_reviewed = message.reviewed == await asyncio.to_thread(digest, difference, head_view)
    if not is_reviewed:
        reason = "the difference is not the one that was reviewed; look at it again"
        # The merge stands: the content has head's changes already, so the commit has to name them,
        # and the cursor, for a replay to come to the same state.
        return reject(settled, reason), changes
    if not difference:
        reached = changes.get("dirty_sequence", state.control.dirty_sequence)
        changes |= close(state, message.id, ChangeSetStatus.APPLIED)
        # D1: `close` does not know the roots that the merge left. Without this, an update would be
        # due in a closed change set.
        return settled, changes | {"clean_sequence": reached}
    # Under the id of the request to head: head takes a batch of another id for malformed.
    address = await ownership.loader.batches.put(head_request_id(message.id), difference)
    closing = ClosedState(
        status=ChangeSetStatus.APPLYING,
        request=message.id,
        author=settled.author,
        difference=address,
    )
    return settled, changes | {"closing": closing}


def head_request_id(request: RequestId) -> RequestId:
    """Id of the request that takes a difference to head, constant over repetitions.

    It differs from the id of the request to apply the branch, since the server remembers ids
    regardless of subjects. It has that id's time, which is in the first six bytes.
    """
    return RequestId.from_bytes(request.bytes[:6] + blake3(request.bytes).digest(length=10))


def digest(difference: list[AnyUpdate], head: DefinitionView) -> str:
    """Return the digest of a difference: equal for equal updates in place of equal definitions.

    So a reviewed difference gets another digest as soon as head changes a definition that it
    replaces.
    """
    replaced = [
        head.func(update.func_id)
        if isinstance(update, PutFunc | RemoveFunc)
        else head.value(update.value_id)
        for update in difference
    ]
    return blake3(to_json([_plain(update) for update in [*difference, *replaced]])).hexdigest()


def _plain(update: AnyUpdate | None) -> Any:
    """Plain form of an update: no inputs equal empty ones, 1 and 1.0 differ."""
    if isinstance(update, PutValue):
        value = None if update.func_id else dumps(update.value)
        return update.value_id, update.name, update.func_id, [*(update.inputs or {}).items()], value
    return update and update.to_wire()


async def admit_difference(
    ownership: Ownership, request: Delivery, message: EnqueueUpdatesRequestV1
) -> RequestOutcome | str:
    """Admit a difference, see `Application.admit`; any other batch is always applied.

    A branch sends its difference again as long as it knows no outcome. A run that slept may send it
    at a time when head has forgotten its id. So the branch's control record says whether it is
    being applied, and head's own log, from the branch's cursor on, whether the difference took
    effect. If that log is purged, the branch is opened again, with the reason.
    """
    origin = message.from_change_set_id
    if origin is None or header(request.headers, APPLY_REQUEST) is None:
        return RequestOutcome.APPLIED
    log = ownership.loader.log
    try:
        _, last = await ownership.loader.sibling(origin).log.last()
        branch = ControlState() if last is None else last.control
        closing = branch.closing
        if closing is None or head_request_id(closing.request) != message.id:
            return f"branch {origin} is not being applied by this request"
        # B1: with any other status, the branch was applied by this very request: head has taken it.
        if closing.status == ChangeSetStatus.APPLYING:
            cursor = require(branch.branch, "a base").cursor or 0
            async for _, commit in log.entries(cursor, ownership.state.commit):
                settled = commit.settled
                if settled is not None and settled.id == message.id:
                    return RequestOutcome.DUPLICATE
            return RequestOutcome.APPLIED
    except HistoryInconsistent as error:
        return (
            f"head's log does not go back to what the branch was compared with ({error}); "
            "refresh the branch, look at its difference, and apply it again"
        )
    return RequestOutcome.DUPLICATE

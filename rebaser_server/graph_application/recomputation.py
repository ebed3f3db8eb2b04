"""Recompute values on request: their definitions are set again, as they are."""

import asyncio

from rebaser_core.commits import SettledRequest
from rebaser_core.records import ChangeSetRequestV2
from rebaser_server.commit_log.state import Batch
from rebaser_server.graph_application.content import content_of
from rebaser_server.processor.application import Changes
from rebaser_server.processor.dead_letters import reject
from rebaser_server.processor.ownership import Ownership
from rebaser_server.values.columns import ValueStatus
from rebaser_server.values.edits import value_definition
from rebaser_server.values.graph import Graph


async def recompute(
    ownership: Ownership, message: ChangeSetRequestV2, handled: SettledRequest
) -> tuple[SettledRequest, Changes]:
    """Make the values that `message` names, or all failed ones, roots of the next update.

    The commit expresses it in updates that every version reads. For a branch they are no
    edit: its difference to head stays the same.
    """
    content = content_of(ownership.state)
    graph = content.graph
    value_ids = await asyncio.to_thread(_requested_values, graph, message.values)
    if isinstance(value_ids, str):
        return reject(handled, value_ids), {}
    if not value_ids:
        return handled, {}
    puts = [put for value_id in value_ids if (put := value_definition(graph, value_id)) is not None]
    batch = Batch(puts, head_side=None if content.edits is None else [])
    rebased = await asyncio.to_thread(content.apply_now, handled.sequence, batch)
    address = await ownership.loader.batches.put(
        message.id, rebased.updates, head_side=batch.head_side
    )
    return handled.model_copy(update={"updates": address}), {"dirty_sequence": handled.sequence}


def _requested_values(graph: Graph, names: list[str] | None) -> list[str] | str:
    """Return the ids of the values, or why they cannot be computed."""
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

"""Values computed anew because somebody asks: their definitions are put again, as they are."""

import asyncio
from typing import Any

from rebaser_core.commits import SettledRequest
from rebaser_core.registry_records import ChangeSetRequestV2
from rebaser_server.commit_log.apply_batch import perform
from rebaser_server.commit_log.batch_store import Batch
from rebaser_server.processor.ownership import Ownership
from rebaser_server.processor.rejection import refused
from rebaser_server.values.graph import Graph, ValueStatus
from rebaser_server.values.rebase.definitions import value_definition


async def recompute(
    own: Ownership, message: ChangeSetRequestV2, handled: SettledRequest
) -> tuple[SettledRequest, dict[str, Any]]:
    """Have the values that `message` names, or all that failed, be roots of the next update.

    The line says so in updates that every version reads. For a branch they are no edit:
    it differs from head by nothing that it did not before.
    """
    state = own.state
    found = await asyncio.to_thread(_chosen, state.graph, message.values)
    if isinstance(found, str):
        return refused(handled, found), {}
    if not found:
        return handled, {}
    puts = [
        put for value_id in found if (put := value_definition(state.graph, value_id)) is not None
    ]
    batch = Batch(puts, under=None if state.edits is None else [])
    done = await asyncio.to_thread(perform, state, handled.sequence, batch)
    address = await own.archive.batches.place(message.id, done.updates, under=batch.under)
    return handled.model_copy(update={"updates": address}), {"dirty_sequence": handled.sequence}


def _chosen(graph: Graph, which: list[str] | None) -> list[str] | str:
    """Ids of the values, or why they cannot be computed."""
    if which is None:
        return [value.id for value in graph.values.values() if value.status is ValueStatus.FAILED]
    found = []
    for name in which:
        value = graph.values.get(name) or graph.values.get(graph.names.get(name) or "")
        if value is None:
            return f"there is no value {name!r}"
        if value.func_id is None:
            return f"{name!r} is not computed; set it instead"
        found.append(value.id)
    return list(dict.fromkeys(found))

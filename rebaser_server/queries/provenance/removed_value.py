"""A value that is not there any more, and the commit that removed it."""

from collections.abc import Sequence

from rebaser_core.queries import DefinitionChange, ProvenanceEdit
from rebaser_core.updates import AnyUpdate, PutValue, RemoveValue
from rebaser_server.commit_log.state_loader import StateLoader
from rebaser_server.graph_application.content import graph_of
from rebaser_server.queries.provenance.definition_history import CommittedEdit
from rebaser_server.queries.provenance.edit_list import edit_of
from rebaser_server.runtime.tasks import compute_in_turn


async def find_removal(loader: StateLoader, name: str, until: int) -> ProvenanceEdit | None:
    """The commit, up to `until`, that removed the value of that name or id; None if unknown."""
    begins, ids, removal = await loader.earliest_commit(), {name}, None
    if begins:
        known = graph_of((await loader.load(begins)).state).names.get(name)
        ids |= {known} if known else set()
    async for sequence, entry in loader.log.entries(begins, until):
        handled = entry.handled
        if handled is None or handled.updates is None or handled.covers is not None:
            continue
        updates = (await loader.batches.fetch(handled.updates, handled.id)).updates
        workspace = str(loader.change_set.workspace_id)
        removed = await compute_in_turn(workspace, _removed_by, updates, name, ids)
        if removed is not None:
            change = DefinitionChange(id=removed, what="removal", path=[name])
            edit = CommittedEdit(loader.change_set.change_set_id, sequence, entry)
            removal = edit_of(edit, [change])
    return removal


def _removed_by(updates: Sequence[AnyUpdate], name: str, ids: set[str]) -> str | None:
    """The one of these values that the updates removed; `ids` has then those of the name."""
    removed = None
    for update in updates:
        if isinstance(update, PutValue) and update.name == name:
            ids.clear()
            ids.add(update.value_id)
        elif isinstance(update, RemoveValue) and update.value_id in ids:
            removed = update.value_id
    return removed

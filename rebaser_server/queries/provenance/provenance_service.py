"""Answer why a value is what it is, from a change set's state and the commits that are kept."""

from collections.abc import AsyncGenerator, Mapping
from operator import or_
from typing import NamedTuple

from rebaser_core.commits import ControlState
from rebaser_core.errors import offer
from rebaser_core.ids import ChangeSet, RequestId
from rebaser_core.queries import ProvenanceQueryV1, ProvenanceReplyV1, ValueSnapshot
from rebaser_server.commit_log.state import State
from rebaser_server.graph_application.content import graph_of
from rebaser_server.queries.provenance.definition_history import DefinitionHistory
from rebaser_server.queries.provenance.edit_list import list_edits
from rebaser_server.queries.provenance.lineage import Lineage
from rebaser_server.queries.provenance.pending_update import due_update, failed_inputs
from rebaser_server.queries.provenance.removed_value import find_removal
from rebaser_server.queries.state_cache import OpenLoader, StateCache
from rebaser_server.queries.value_rows import row_of
from rebaser_server.runtime.tasks import compute_in_turn


class _Known(NamedTuple):
    """What the answer needs of a state, copied from it."""

    commit: int
    control: ControlState
    value: ValueSnapshot
    lineage: Lineage


class _Unknown(NamedTuple):
    """A state without the value."""

    commit: int
    offer: str
    """Similar names."""


class ProvenanceService:
    """Reads and changes nothing; a question costs as much as the commits that are kept."""

    def __init__(self, open_loader: OpenLoader, cache: StateCache) -> None:
        self._open_loader = open_loader
        self._cache = cache

    async def replies(
        self, query: ProvenanceQueryV1, _: Mapping[str, str]
    ) -> AsyncGenerator[ProvenanceReplyV1, None]:
        """The one reply to a query."""
        yield await self.find(query)

    async def find(self, query: ProvenanceQueryV1) -> ProvenanceReplyV1:
        """The reply.

        Raises:
            NotRetained: the past does not go back to the commit of the query.
            HistoryInconsistent: log and store contradict each other.
        """
        change_set = ChangeSet(query.workspace_id, query.change_set_id)
        loader, workspace = self._open_loader(change_set), str(query.workspace_id)
        if query.at is None:
            async with self._cache.state_of(change_set) as state:
                known = await compute_in_turn(workspace, _look_up, state, query.value)
        else:
            state = (await loader.load(query.at)).state
            known = await compute_in_turn(workspace, _look_up, state, query.value)
        if isinstance(known, _Unknown):
            removal = await find_removal(loader, query.value, known.commit)
            if removal is not None:
                return ProvenanceReplyV1(id=query.id, commit=known.commit, edits=[removal])
            why = f"there is no value {query.value!r}{known.offer}"
            return ProvenanceReplyV1(id=query.id, commit=known.commit, error=why, is_missing=True)
        lineage = known.lineage
        ids = [*lineage.values], [*lineage.func_names]
        history = await compute_in_turn(workspace, DefinitionHistory, loader, *ids)
        await history.begin()
        await history.advance(known.commit)
        lineage.names = await compute_in_turn(
            workspace, or_, history.definitions.names, lineage.names
        )
        attributions = [each async for each in history.attributions()]
        edits, omitted = await list_edits(loader, attributions, lineage)
        return ProvenanceReplyV1(
            id=query.id,
            commit=known.commit,
            value=known.value,
            edits=edits,
            omitted=omitted,
            older=await compute_in_turn(workspace, history.definitions.count_older),
            kept_from=history.begins,
            is_whole=lineage.is_whole,
            failed=await compute_in_turn(workspace, failed_inputs, lineage),
            waits=await compute_in_turn(workspace, due_update, known.control, lineage, history),
        )


def no_provenance(query_id: RequestId, why: str) -> ProvenanceReplyV1:
    """The reply that says why there is no answer."""
    return ProvenanceReplyV1(id=query_id, commit=0, error=why)


def _look_up(state: State, name: str) -> _Known | _Unknown:
    graph = graph_of(state)
    value_id = name if name in graph.values else graph.names.get(name)
    if value_id is None:
        return _Unknown(state.commit, offer(name, graph.names))
    value = row_of(graph, value_id).read()
    return _Known(state.commit, state.control, value, Lineage(graph, value_id))

"""Reasons why a value is what it is, from a change set's state and the commits that are kept.

`Lineage` is all that a value is computed from, with the shortest way from each of these to it. A
value is kept back by failed inputs, and by the update of dependent values that it waits for. For a
value that is gone, the commit that removed it is found.
"""

from collections.abc import AsyncGenerator, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from heapq import nsmallest
from itertools import zip_longest
from operator import or_
from typing import Final, NamedTuple

from rebaser_client.display import value_text
from rebaser_core import trace_context
from rebaser_core.commits import ControlState
from rebaser_core.errors import offer
from rebaser_core.ids import ChangeSet, ChangeSetId, RequestId
from rebaser_core.queries import (
    DefinitionChange,
    DueUpdate,
    FailedInput,
    ProvenanceEdit,
    ProvenanceQueryV1,
    ProvenanceReplyV1,
    ValueSnapshot,
)
from rebaser_core.records import utc_text
from rebaser_core.updates import AnyUpdate, PutValue, RemoveValue
from rebaser_server.commit_log.state import State
from rebaser_server.commit_log.state_loader import OpenLoader, StateLoader
from rebaser_server.graph_application.content import graph_of
from rebaser_server.queries.definition_history import (
    Attribution,
    CommittedEdit,
    DefinitionHistory,
    FuncState,
    ValueState,
)
from rebaser_server.queries.values import row_of
from rebaser_server.runtime.tasks import compute_in_turn
from rebaser_server.values.columns import ValueStatus
from rebaser_server.values.graph import Graph

MAX_VALUES: Final = 100_000
"""Maximum number of values in a lineage: those behind them are left out."""


class Lineage:
    def __init__(self, graph: Graph, value_id: str) -> None:
        self.value_id: Final = value_id
        self.is_whole = True
        """Whether the lineage is complete: it has no more than `MAX_VALUES`."""
        self.names: dict[str, str] = {}
        """Names of the values, or their ids, by id."""
        self.func_names: dict[str, str] = {}
        """Names of the functions that compute them, or their ids, by id."""
        self.roots: dict[str, int] = {}
        """Values that changed since the last update → sequence of the request."""
        self.failures: dict[str, str] = {}
        """Failed values that keep the last one from having a result → message."""
        self._next: dict[str, str] = {value_id: ""}
        """Value → its user on the shortest way to the last one."""
        self._steps: dict[str, int] = {value_id: 1}
        """Number of names from a value to the last one, both included."""
        self._computed: dict[str, str] = {}
        """Function → the value nearest to the last one that it computes."""
        self._add_values(graph)
        self._add_failures(graph)

    def _add_values(self, graph: Graph) -> None:
        level = [self.value_id]
        while level:
            met: list[str] = []
            for value_id in level:
                value = graph.values[value_id]
                self.names[value_id] = value.name or value_id
                if (root := graph.roots.get(value_id)) is not None:
                    self.roots[value_id] = root
                if (func_id := value.func_id) is not None and func_id not in self.func_names:
                    func = graph.funcs.get(func_id)
                    self.func_names[func_id] = func_id if func is None else func.name
                    self._computed[func_id] = value_id
                for input_id in value.input_ids():
                    if input_id not in self._next and len(self._next) < MAX_VALUES:
                        self._next[input_id] = value_id
                        self._steps[input_id] = self._steps[value_id] + 1
                        met.append(input_id)
                    self.is_whole &= input_id in self._next
            level = met

    def _add_failures(self, graph: Graph) -> None:
        met, ways = {self.value_id}, [self.value_id]
        while ways:
            value = graph.values[ways.pop()]
            if value.status is ValueStatus.FAILED and value.id in self._next:
                self.failures[value.id] = value.message or ""
            elif value.status is ValueStatus.BLOCKED:
                ways += (inputs := {*value.input_ids()} - met)
                met |= inputs

    @property
    def values(self) -> Mapping[str, str]:
        return self._next

    def steps(self, value_id: str) -> int:
        """Number of names that `path` yields; a chain has too many paths to look at all of them."""
        return self._steps[value_id]

    def steps_of_function(self, func_id: str) -> int:
        """Number of names that `path_of_function` yields."""
        return 1 + self._steps[self._computed[func_id]]

    def path(self, value_id: str) -> Iterator[str]:
        """The names from a value of it to the last one, both included."""
        while value_id:
            yield self.names[value_id]
            value_id = self._next[value_id]

    def path_of_function(self, func_id: str) -> Iterator[str]:
        yield self.func_names[func_id]
        yield from self.path(self._computed[func_id])


_MAX_FAILED: Final = 20


def failed_inputs(lineage: Lineage) -> list[FailedInput]:
    """The failed values that keep the value from having a result, the nearest first."""
    return [
        FailedInput(id=value_id, path=[*lineage.path(value_id)], message=lineage.failures[value_id])
        for value_id in nsmallest(_MAX_FAILED, lineage.failures, key=lineage.steps)
    ]


def due_update(
    control: ControlState, lineage: Lineage, history: DefinitionHistory
) -> DueUpdate | None:
    """The update that is to recompute the value; None if none of its lineage changed since."""
    uncovered = [root for root in lineage.roots.values() if root > control.clean_sequence]
    if not uncovered:
        return None
    first, claim = min(uncovered), control.claim
    commit, commit_id = history.requests.get(first, (None, None))
    return DueUpdate(
        commit=commit,
        since=None if commit_id is None else time_of(commit_id),
        update=claim.id if claim is not None and claim.covers >= first else None,
        failures=control.dvu_failures,
    )


def time_of(commit_id: RequestId) -> str:
    """Time at which NATS stored the request that the commit with this id settles."""
    return utc_text(datetime.fromtimestamp(commit_id.milliseconds / 1000, UTC))


_MAX_EDITS: Final = 1_000
_MAX_CHANGES: Final = 20
_MAX_TRACES: Final = 50
"""Maximum number of edits whose trace is looked up: each costs a read."""
_MAX_TEXT: Final = 1_000
_MAX_NAMES: Final = 200_000
"""Maximum number of names in the paths of all listed changes."""

Parts = Sequence[Attribution[CommittedEdit]]

_CommitKey = tuple[ChangeSetId, int]


async def _list_edits(
    loader: StateLoader, attributions: Parts, lineage: Lineage
) -> tuple[list[ProvenanceEdit], int]:
    """The edits, the latest first, and the number of those left out."""
    workspace = str(loader.change_set.workspace_id)
    latest = await compute_in_turn(workspace, _by_commit, attributions)
    traces = [await _trace_of(loader, parts[0].edit) for parts in latest[:_MAX_TRACES]]
    edits = await compute_in_turn(workspace, _described, latest[:_MAX_EDITS], traces, lineage)
    return edits, max(0, len(latest) - _MAX_EDITS)


def _by_commit(attributions: Parts) -> list[Parts]:
    """The parts of each edit, the latest edit first."""
    by_commit: dict[_CommitKey, list[Attribution[CommittedEdit]]] = {}
    for attribution in attributions:
        edit = attribution.edit
        by_commit.setdefault((edit.change_set_id, edit.commit), []).append(attribution)
    return sorted(
        by_commit.values(),
        key=lambda parts: (parts[0].edit.entry.id.milliseconds, parts[0].edit.commit),
        reverse=True,
    )


def _described(
    latest: Sequence[Parts], traces: Iterable[str | None], lineage: Lineage
) -> list[ProvenanceEdit]:
    """The edits, each with its nearest changes, as long as there is room for the paths."""
    room, edits = _MAX_NAMES, []
    for parts, trace in zip_longest(latest, traces):
        changes = []
        for part in nsmallest(_MAX_CHANGES, parts, key=lambda each: _steps(each, lineage)):
            steps = _steps(part, lineage)
            if steps <= room:
                room -= steps
                changes.append(_change(part, lineage))
        edits.append(_edit_of(parts[0].edit, changes, trace, len(parts) - len(changes)))
    return edits


def _steps(part: Attribution[CommittedEdit], lineage: Lineage) -> int:
    if part.part == "function":
        return lineage.steps_of_function(part.id)
    return lineage.steps(part.id)


def _edit_of(
    edit: CommittedEdit,
    changes: list[DefinitionChange],
    trace: str | None = None,
    omitted: int = 0,
) -> ProvenanceEdit:
    """The edit with its changes, `omitted` of which are not listed."""
    settled = edit.entry.settled
    if settled is None:
        raise ValueError(f"commit {edit.commit} settles nothing")
    return ProvenanceEdit(
        change_set_id=edit.change_set_id,
        commit=edit.commit,
        time=time_of(edit.entry.id),
        request=settled.id,
        author=settled.author,
        trace=trace,
        changes=changes,
        omitted=omitted,
    )


def _change(part: Attribution[CommittedEdit], lineage: Lineage) -> DefinitionChange:
    if part.part == "function":
        path = [*lineage.path_of_function(part.id)]
    else:
        path = [*lineage.path(part.id)]
    return DefinitionChange(
        id=part.id,
        what=part.part,
        path=path,
        before=_text(part.before, lineage),
        after=_text(part.after, lineage),
    )


def _text(state: ValueState | FuncState, lineage: Lineage) -> str | None:
    """A definition in a few words: a source's JSON, `sum(values=[a, b])`, a function's code."""
    if isinstance(state, FuncState):
        text = None if state.runtime is None else f"{state.runtime}: {state.code}"
    elif state.func_id is None:
        text = None if state.text is None else value_text(state.text)
    else:
        arguments = (
            f"{name}={_names(given, lineage)}" for name, given in (state.inputs or {}).items()
        )
        text = f"{lineage.func_names.get(state.func_id, state.func_id)}({', '.join(arguments)})"
    return text if text is None or len(text) <= _MAX_TEXT else f"{text[: _MAX_TEXT - 1]}…"


def _names(given: str | list[str], lineage: Lineage) -> str:
    if isinstance(given, str):
        return lineage.names.get(given, given)
    shown = ", ".join(lineage.names.get(each, each) for each in given[:_MAX_CHANGES])
    return f"[{shown}{', …' if len(given) > _MAX_CHANGES else ''}]"


async def _trace_of(loader: StateLoader, edit: CommittedEdit) -> str | None:
    """The trace that the log names for the commit; only for one that begins an update."""
    if not edit.begins_update:
        return None
    log = loader.log
    if edit.change_set_id != loader.change_set.change_set_id:
        log = loader.sibling(edit.change_set_id).log
    span = trace_context.span_context_in(await log.trace_headers(edit.commit))
    return None if span is None else f"{span.trace_id:032x}"


async def _find_removal(
    loader: StateLoader, name: str, until: int, begins: int
) -> ProvenanceEdit | None:
    """The commit, up to `until`, that removed the value of that name or id; None if unknown."""
    if until <= begins:
        return None
    # Also before the first commit: a branch begins with the values that it was forked from.
    known = graph_of(await loader.load(begins)).names.get(name)
    ids, removal = {name} if known is None else {name, known}, None
    async for sequence, entry in loader.log.entries(begins, until):
        settled = entry.settled
        if settled is None or settled.updates is None or settled.covers is not None:
            continue
        updates = (await loader.batches.fetch(settled.updates, settled.id)).updates
        workspace = str(loader.change_set.workspace_id)
        removed = await compute_in_turn(workspace, _removed_by, updates, name, ids)
        if removed is not None:
            change = DefinitionChange(id=removed, what="removal", path=[name])
            edit = CommittedEdit(loader.change_set.change_set_id, sequence, entry)
            removal = _edit_of(edit, [change])
    return removal


def _removed_by(updates: Sequence[AnyUpdate], name: str, ids: set[str]) -> str | None:
    """The member of `ids` that the updates removed; a put of the name replaces `ids` by its own."""
    removed = None
    for update in updates:
        if isinstance(update, PutValue) and update.name == name:
            ids.clear()
            ids.add(update.value_id)
        elif isinstance(update, RemoveValue) and update.value_id in ids:
            removed = update.value_id
    return removed


class _Known(NamedTuple):
    commit: int
    control: ControlState
    value: ValueSnapshot
    lineage: Lineage


class _Unknown(NamedTuple):
    commit: int
    offer: str
    """End of the error, with similar names."""


class ProvenanceService:
    """Reads and changes nothing; a query costs as much as the commits that are kept."""

    def __init__(self, open_loader: OpenLoader) -> None:
        self._open_loader = open_loader

    async def replies(
        self, query: ProvenanceQueryV1, _: Mapping[str, str]
    ) -> AsyncGenerator[ProvenanceReplyV1, None]:
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
            known = await loader.read(partial(_look_up, name=query.value))
        else:
            state = await loader.load(query.at)
            known = await compute_in_turn(workspace, _look_up, state, query.value)
        if isinstance(known, _Unknown):
            find = partial(_find_removal, loader, query.value, known.commit)
            removal = await loader.from_earliest(None, find)
            if removal is not None:
                return ProvenanceReplyV1(id=query.id, commit=known.commit, edits=[removal])
            why = f"there is no value {query.value!r}{known.offer}"
            return ProvenanceReplyV1(id=query.id, commit=known.commit, error=why, is_missing=True)
        lineage = known.lineage
        ids = [*lineage.values], [*lineage.func_names]
        history = DefinitionHistory(loader, *ids)
        await history.advance(known.commit)
        lineage.names = await compute_in_turn(
            workspace, or_, history.definitions.names, lineage.names
        )
        attributions = [each async for each in history.attributions()]
        edits, omitted = await _list_edits(loader, attributions, lineage)
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


def _look_up(state: State, name: str) -> _Known | _Unknown:
    graph = graph_of(state)
    value_id = name if name in graph.values else graph.names.get(name)
    if value_id is None:
        return _Unknown(state.commit, offer(name, graph.names))
    value = row_of(graph, value_id).read()
    return _Known(state.commit, state.control, value, Lineage(graph, value_id))

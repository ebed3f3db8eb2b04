"""Answer which values or functions a change set has, as of one commit, from log and store."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Mapping
from contextlib import nullcontext
from functools import partial
from typing import Final

from rebaser_core.errors import MalformedMessage
from rebaser_core.ids import ChangeSet, RequestId
from rebaser_core.queries import FunctionSnapshot, ValueSnapshot, ValuesQueryV2, ValuesReplyV3
from rebaser_core.versioning import REPLY_VERSION, accepted_version
from rebaser_server.commit_log.state import State
from rebaser_server.commit_log.state_loader import ReleasedStates
from rebaser_server.graph_application.content import graph_of
from rebaser_server.processor.ownership import HeldStates
from rebaser_server.queries.bounds import QueryBounds
from rebaser_server.queries.selection import NamedValues, named_values, select
from rebaser_server.queries.state_cache import OpenLoader, StateCache
from rebaser_server.queries.table_lookup import TableLookup
from rebaser_server.queries.value_rows import Row, ValuesFound, function_rows, row_of, within
from rebaser_server.runtime.tasks import compute_in_turn
from rebaser_server.values.graph import GraphSnapshot, ReadableGraph

PART_BYTES: Final = 256 * 1024
"""Octets of values in one reply, more or less; a value that is larger has one of its own."""

FEW: Final = 1_000
"""Values that are read without a snapshot of the graph."""

_TELLS_FUNCTIONS: Final = 3
"""The first version of the answer that has functions."""


class ValueService:
    """Answers from the state that this process holds for a run, if it holds one.

    A few values of a large change set it reads from the table, if that says all. Otherwise it
    keeps what was asked for lately, and brings it up to date for each question. The first
    question about a change set costs its loading then, each later one what was committed since;
    nothing is owned or changed.
    """

    def __init__(
        self, open_loader: OpenLoader, bounds: QueryBounds, held: HeldStates | None = None
    ) -> None:
        self._open_loader = open_loader
        self._tables = TableLookup(open_loader, bounds.loaded_rows)
        self._held = held or HeldStates(ReleasedStates(0))
        self._max_bytes = bounds.answer_bytes
        self.cache = StateCache(open_loader, bounds.kept_bytes)
        self._large = asyncio.Lock()
        """A large value takes many times its octets while it is made: one at a time."""

    async def replies(
        self, query: ValuesQueryV2, headers: Mapping[str, str]
    ) -> AsyncGenerator[ValuesReplyV3, None]:
        """The answer in one reply or more; none holds much but that of one large value."""
        version = accepted_version(headers)
        if query.functions and version < _TELLS_FUNCTIONS:
            raise MalformedMessage(
                f"functions are in version {_TELLS_FUNCTIONS} of the answer: ask with the header "
                f"{REPLY_VERSION}: {_TELLS_FUNCTIONS}"
            )
        found = await self._find(query)
        due = found.due if version > 1 else None
        workspace = str(query.workspace_id)
        parts = await compute_in_turn(workspace, list, _parts(found.rows)) or [[]]
        for number, part in enumerate(parts, 1):
            large = sum(row.octets for row in part) > PART_BYTES
            async with self._large if large else nullcontext():
                read = await compute_in_turn(workspace, _read, part)
                yield ValuesReplyV3(
                    id=query.id,
                    commit=found.commit,
                    due=due,
                    values=[each for each in read if isinstance(each, ValueSnapshot)],
                    missing=found.missing if number == len(parts) else [],
                    more=number < len(parts),
                    functions=[each for each in read if isinstance(each, FunctionSnapshot)]
                    if query.functions
                    else None,
                )

    async def _find(self, query: ValuesQueryV2) -> ValuesFound:
        change_set = ChangeSet(query.workspace_id, query.change_set_id)
        workspace = str(query.workspace_id)
        look = partial(prepare_find, query, self._max_bytes)
        find: Callable[[], ValuesFound] | None = None
        if query.at is not None:
            state = (await self._open_loader(change_set).load(query.at)).state
            find = await compute_in_turn(workspace, look, state)
        elif change_set in self._held:
            end = await self._open_loader(change_set).log.end()
            find = await self._held.read(change_set, end, look, is_quick=_names_few(query))
        elif _names_few(query) and change_set not in self.cache:
            found = await self._tables.find(change_set, query.which, self._max_bytes)
            if found is not None:
                return found
        if find is None:
            async with self.cache.state_of(change_set) as state:
                find = await compute_in_turn(workspace, look, state)
        return find() if _names_few(query) else await compute_in_turn(workspace, find)


def refusal(query_id: RequestId, why: str) -> ValuesReplyV3:
    """The reply that says why there is no answer."""
    return ValuesReplyV3(id=query_id, commit=0, values=[], error=why)


def _names_few(query: ValuesQueryV2) -> bool:
    """Whether it means a few values, as is known without a look at the graph."""
    around = query.inputs or query.dependents
    return 0 < len(query.which) <= FEW and not around and not query.functions


def prepare_find(query: ValuesQueryV2, max_bytes: int, state: State) -> Callable[[], ValuesFound]:
    """Take from a state, for which others wait, what finding the values needs.

    What it returns finds them; it raises `TooManyValues`.
    """
    graph = graph_of(state)
    if query.functions:
        rows, missing = function_rows(graph, query.which)
        functions = list(within(rows, max_bytes))
        return partial(_same, ValuesFound(state.commit, state.control.dvu_due, functions, missing))
    named = named_values(graph, query.which)
    is_small = _names_few(query) or len(graph.values) <= FEW
    find = partial(
        _find_values,
        query,
        max_bytes,
        named,
        graph if is_small else GraphSnapshot(graph),
        ValuesFound(state.commit, state.control.dvu_due, [], named.missing),
    )
    return partial(_same, find()) if is_small else find


def _same(found: ValuesFound) -> ValuesFound:
    return found


def _find_values(
    query: ValuesQueryV2,
    max_bytes: int,
    named: NamedValues,
    graph: ReadableGraph,
    found: ValuesFound,
) -> ValuesFound:
    """Raise `TooManyValues` if the rows have more octets than a reply may have."""
    rows = (row_of(graph, value_id) for value_id in select(graph, query, named.ids))
    return found._replace(rows=list(within(rows, max_bytes)))


def _read(rows: list[Row]) -> list[ValueSnapshot | FunctionSnapshot]:
    return [row.read() for row in rows]


def _parts(rows: Iterable[Row]) -> Iterator[list[Row]]:
    part: list[Row] = []
    size = 0
    for row in rows:
        if part and size + row.octets > PART_BYTES:
            yield part
            part, size = [], 0
        part.append(row)
        size += row.octets
    if part:
        yield part

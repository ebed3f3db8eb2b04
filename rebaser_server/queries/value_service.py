"""Answer which values a change set has, as of one commit, from the log and the store."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator
from contextlib import nullcontext
from functools import partial
from typing import Final, NamedTuple

from rebaser_core.ids import ChangeSet, RequestId
from rebaser_core.queries.value_query import ValueSnapshot, ValuesQueryV1, ValuesReplyV2
from rebaser_core.updates import Inputs
from rebaser_server.commit_log.released_states import ReleasedStates
from rebaser_server.commit_log.state import State
from rebaser_server.graph_application.content import graph_of
from rebaser_server.processor.ownership.held_states import HeldStates
from rebaser_server.queries.bounds import QueryBounds
from rebaser_server.queries.selection import NamedValues, TooManyValues, named_values, select
from rebaser_server.queries.state_cache import OpenLoader, StateCache
from rebaser_server.values.canonical_json import loads
from rebaser_server.values.graph.readable_graph import GraphSnapshot, ReadableGraph
from rebaser_server.values.graph.value import ValuesById

PART_BYTES: Final = 256 * 1024
"""Octets of values in one reply, more or less; a value that is larger has one of its own."""

FEW: Final = 1_000
"""Values that are read without a snapshot of the graph."""

_ROW: Final = 100
"""Octets of a row beside its texts and inputs, more or less."""
_ID: Final = 30


class ValueRow(NamedTuple):
    """A value's row of a reply, copied from a graph that may change."""

    id: str
    text: str
    status: str
    name: str | None
    message: str | None
    func_id: str | None
    inputs: Inputs | None
    octets: int

    @classmethod
    def of(cls, graph: ReadableGraph, value_id: str) -> "ValueRow":
        value = ValuesById(graph)[value_id]
        inputs = value.inputs or None
        texts = (value.text, value.name or "", value.message or "")
        octets = _ROW + sum(map(_octets, texts)) + _ID * len(value.input_ids())
        return cls(
            value.id,
            texts[0],
            value.status.value,
            value.name,
            value.message,
            value.func_id,
            inputs,
            octets,
        )

    def read(self) -> ValueSnapshot:
        return ValueSnapshot.model_construct(
            id=self.id,
            value=loads(self.text),
            status=self.status,
            name=self.name,
            message=self.message,
            func_id=self.func_id,
            inputs=self.inputs,
        )


class ValuesFound(NamedTuple):
    """All that answers a question, as of one commit."""

    commit: int
    due: bool | None
    rows: list[ValueRow]
    missing: list[str]


class ValueService:
    """Answers from the state that this process holds for a run, if it holds one.

    Otherwise it keeps what was asked for lately, and brings it up to date for each question.
    The first question about a change set costs its loading then, each later one what was
    committed since; nothing is owned or changed.
    """

    def __init__(
        self, open_loader: OpenLoader, bounds: QueryBounds, held: HeldStates | None = None
    ) -> None:
        self._open_loader = open_loader
        self._held = held or HeldStates(ReleasedStates(0))
        self._max_bytes = bounds.answer_bytes
        self.cache = StateCache(open_loader, bounds.kept_bytes)
        self._large = asyncio.Lock()
        """A large value takes many times its octets while it is made: one at a time."""

    async def replies(
        self, query: ValuesQueryV1, version: int
    ) -> AsyncGenerator[ValuesReplyV2, None]:
        """The answer in one reply or more; none holds much but that of one large value."""
        found = await self._find(query)
        due = found.due if version > 1 else None
        parts = list(_parts(found.rows)) or [[]]
        for number, part in enumerate(parts, 1):
            large = sum(row.octets for row in part) > PART_BYTES
            async with self._large if large else nullcontext():
                yield ValuesReplyV2(
                    id=query.id,
                    commit=found.commit,
                    due=due,
                    values=await asyncio.to_thread(_read, part),
                    missing=found.missing if number == len(parts) else [],
                    more=number < len(parts),
                )

    async def _find(self, query: ValuesQueryV1) -> ValuesFound:
        change_set = ChangeSet(query.workspace_id, query.change_set_id)
        look = partial(prepare_find, query, self._max_bytes)
        find = None
        if query.at is not None:
            state = (await self._open_loader(change_set).load(query.at)).state
            find = await asyncio.to_thread(look, state)
        elif change_set in self._held:
            end = await self._open_loader(change_set).log.end()
            find = await self._held.read(change_set, end, look, is_quick=_names_few(query))
        if find is None:
            async with self.cache.state_of(change_set) as state:
                find = await asyncio.to_thread(look, state)
        return await asyncio.to_thread(find)


def refusal(query_id: RequestId, why: str) -> ValuesReplyV2:
    """The reply that says why there is no answer."""
    return ValuesReplyV2(id=query_id, commit=0, values=[], error=why)


def _names_few(query: ValuesQueryV1) -> bool:
    """Whether it means a few values, as is known without a look at the graph."""
    return 0 < len(query.which) <= FEW and not query.inputs and not query.dependents


def prepare_find(query: ValuesQueryV1, max_bytes: int, state: State) -> Callable[[], ValuesFound]:
    """Take from a state, for which others wait, what finding the values needs.

    What it returns finds them; it raises `TooManyValues`.
    """
    graph = graph_of(state)
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
    query: ValuesQueryV1,
    max_bytes: int,
    named: NamedValues,
    graph: ReadableGraph,
    found: ValuesFound,
) -> ValuesFound:
    """Raise `TooManyValues` if the rows have more octets than a reply may have."""
    rows, octets = found.rows, 0
    for value_id in select(graph, query, named.ids):
        row = ValueRow.of(graph, value_id)
        octets += row.octets
        if octets > max_bytes:
            raise TooManyValues(
                f"more than {max_bytes:,} octets of values, too many for one answer: ask for fewer "
                "values at a time, or read the change set's table"
            )
        rows.append(row)
    return found


def _read(rows: list[ValueRow]) -> list[ValueSnapshot]:
    return [row.read() for row in rows]


def _parts(rows: Iterable[ValueRow]) -> Iterator[list[ValueRow]]:
    part: list[ValueRow] = []
    size = 0
    for row in rows:
        if part and size + row.octets > PART_BYTES:
            yield part
            part, size = [], 0
        part.append(row)
        size += row.octets
    if part:
        yield part


def _octets(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode())

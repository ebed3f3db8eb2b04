"""Values or functions of a change set, as of one commit, from log and store.

A query means the values that it names, and levels around them; more than one answer takes come in
pages. Values without a result are counted, and the first ones listed. Rows of the answer are copied
from the graph. A few values of a large change set are looked up in its table, if that has their
present state.
"""

import asyncio
import json
from collections.abc import (
    AsyncGenerator,
    Callable,
    Collection,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import nullcontext
from functools import partial
from typing import Any, Final, NamedTuple, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from rebaser_core.commits import CommitV2
from rebaser_core.errors import NewerVersion, RebaserError
from rebaser_core.ids import ChangeSet
from rebaser_core.queries import (
    FunctionSnapshot,
    ResultlessValues,
    ValueSnapshot,
    ValuesQueryV2,
    ValuesReplyV2,
)
from rebaser_core.updates import AnyUpdate, Inputs, PutFunc, RemoveFunc
from rebaser_server.commit_log.state import State
from rebaser_server.commit_log.state_loader import Lasts, OpenLoader, StateLoader
from rebaser_server.compute.affected import closure
from rebaser_server.errors import HistoryInconsistent, NeedsNewerVersion
from rebaser_server.graph_application.content import graph_of
from rebaser_server.graph_application.state_machine import checkpoints_of
from rebaser_server.queries.query_service import QueryBounds
from rebaser_server.runtime.tasks import compute_in_turn
from rebaser_server.store.stored_values import OpenTables, StoredValue, StoredValues, find_values
from rebaser_server.values.canonical_json import loads
from rebaser_server.values.columns import BLOCKED, FAILED, Func, ValueStatus, ids_in, sorted_unique
from rebaser_server.values.graph import Graph, GraphSnapshot, ReadableGraph, ValuesById

MAX_VALUES: Final = 100_000
"""Maximum number of values in one answer: more are to be read from the store."""


class TooManyValues(RebaserError):
    """The query means more values than an answer takes."""


class NamedValues(NamedTuple):
    """Ids of values that a query names, and names that no value has."""

    ids: list[str]
    missing: list[str]


def _named_values(graph: Graph, which: Sequence[str]) -> NamedValues:
    """The values of these names or ids, each once."""
    ids: dict[str, None] = {}
    missing = []
    for name in which:
        value_id = name if name in graph.values else graph.names.get(name)
        if value_id is None:
            missing.append(name)
        else:
            ids[value_id] = None
    return NamedValues(list(ids), missing)


def select(graph: ReadableGraph, query: ValuesQueryV2, named: Sequence[str]) -> list[str]:
    """Ids of the values that `query` means: those in `named` first, then by levels."""
    values = ValuesById(graph)
    if not query.which:
        return [*values]
    around = _levels(named, query.inputs, lambda i: values[i].input_ids())
    around += _levels(named, query.dependents, lambda i: sorted(values[i].dependents))
    return list(dict.fromkeys([*named, *around]))


def _levels(
    start: Sequence[str], levels: int, next_ids: Callable[[str], Iterable[str]]
) -> list[str]:
    seen = dict.fromkeys(start)
    level: Collection[str] = start
    for _ in range(levels):
        level = {i: None for value_id in level for i in next_ids(value_id) if i not in seen}
        if not level:
            break
        seen |= dict.fromkeys(level)
    return list(seen)


_ROW: Final = 100
"""Estimated bytes of a row in addition to its texts and inputs."""
_ID: Final = 30


class ValueRow(NamedTuple):
    id: str
    text: str
    status: str
    name: str | None
    message: str | None
    func_id: str | None
    inputs: Inputs | None
    octets: int

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


class FunctionRow(NamedTuple):
    function: FunctionSnapshot
    octets: int

    def read(self) -> FunctionSnapshot:
        return self.function


Row: TypeAlias = ValueRow | FunctionRow
RowT = TypeVar("RowT", ValueRow, FunctionRow)


class ValuesFound(NamedTuple):
    commit: int
    due: bool | None
    rows: Sequence[Row]
    missing: list[str]
    next: str | None = None
    """Id behind which the next page begins."""


def row_of(graph: ReadableGraph, value_id: str) -> ValueRow:
    value = ValuesById(graph)[value_id]
    text, name, message = value.text, value.name, value.message
    return ValueRow(
        value.id,
        text,
        value.status.value,
        name,
        message,
        value.func_id,
        value.inputs or None,
        _octets(len(value.input_ids()), text, name, message),
    )


def row_of_stored(value: StoredValue) -> ValueRow:
    inputs = json.loads(value.inputs or "{}") or None
    return ValueRow(
        value.id,
        value.value,
        value.status,
        value.name,
        value.message,
        value.func_id,
        inputs,
        _octets(len(ids_in(inputs or {})), value.value, value.name, value.message),
    )


def function_rows(graph: Graph, which: Sequence[str]) -> tuple[Iterator[FunctionRow], list[str]]:
    """The functions of these names or ids, or all; and the members of `which` that are unknown."""
    wanted = set(which)
    found = [
        func
        for func in graph.funcs.values()
        if not wanted or func.id in wanted or func.name in wanted
    ]
    known = {func.id for func in found} | {func.name for func in found}
    rows = (_function_row(func, graph.user_count(func.id)) for func in found)
    return rows, [name for name in which if name not in known]


def _function_row(func: Func, users: int) -> FunctionRow:
    return FunctionRow(
        FunctionSnapshot(
            id=func.id, name=func.name, runtime=func.runtime, code=func.code, users=users
        ),
        _octets(0, func.name, func.code),
    )


def within(rows: Iterable[RowT], max_bytes: int) -> Iterator[RowT]:
    """Yield the rows; raise `TooManyValues` once they have more bytes."""
    octets = 0
    for row in rows:
        octets += row.octets
        if octets > max_bytes:
            raise TooManyValues(
                f"more than {max_bytes:,} bytes of values, too many for one answer: ask for fewer "
                "values at a time, or read the change set's table"
            )
        yield row


def _octets(inputs: int, *texts: str | None) -> int:
    return _ROW + _ID * inputs + sum(_size(text) for text in texts if text)


def _size(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode())


class _TableLookup:
    """A lookup in tables, as of the last commit.

    If it has no answer, the change set has to be loaded.
    """

    def __init__(self, open_loader: Callable[[ChangeSet], StateLoader], min_rows: int) -> None:
        """Look up in tables that have at least `min_rows` rows."""
        self._open_loader = open_loader
        self._min_rows = min_rows
        self._tables = OpenTables()
        self._turn = asyncio.Lock()
        """Lock for one query at a time: each takes memory, and threads may not share open
        tables."""

    async def find(
        self, change_set: ChangeSet, which: Sequence[str], max_bytes: int
    ) -> ValuesFound | None:
        """The values of these ids or names; None: the table does not have the answer.

        The result is None, too, if log or table cannot be read, or the rows have more than
        `max_bytes` bytes: the caller loads the change set, which raises the error.
        """
        loader = self._open_loader(change_set)
        checkpoints = checkpoints_of(loader)
        try:
            async with self._turn:
                stored = await asyncio.to_thread(
                    find_values, self._tables, checkpoints, change_set, which, self._min_rows
                )
            if stored is None:
                return None
            sequence, last = await loader.log.last()  # afterwards: it is not behind the table then
            if last is None or not await _is_latest(loader, stored, sequence, last):
                return None
        except (HistoryInconsistent, NeedsNewerVersion, NewerVersion, LookupError, OSError):
            return None
        values = {
            stored.values[name].id: stored.values[name] for name in which if name in stored.values
        }
        rows = [*map(row_of_stored, values.values())]
        if sum(row.octets for row in rows) > max_bytes:
            return None
        missing = [name for name in which if name not in stored.values]
        return ValuesFound(sequence, last.control.dvu_due, rows, missing)


async def _is_latest(
    loader: StateLoader, stored: StoredValues, sequence: int, last: CommitV2
) -> bool:
    """Whether the table is of the log's past (S-6), and later commits have changed no value."""
    if stored.commit > sequence or last.control.deleted:
        return False
    entry = last if stored.commit == sequence else await loader.log.entry(stored.commit)
    if entry is not None and stored.commit_id not in (None, str(entry.id)):
        return False
    if stored.commit == sequence:
        return True
    async for _, commit in loader.log.entries(stored.commit, sequence):
        if commit.settled is not None and commit.settled.updates is not None:
            return False
    return True


_PART_BYTES: Final = 256 * 1024
"""Approximate bytes of values in one message of a reply; a value that is larger has a message for
itself."""

FEW: Final = 1_000
"""Number of values that are read without a snapshot of the graph."""


class ValueService:
    """Answers from the state that this process holds, if it holds one; see `StateCache`.

    If it holds none, it reads a few values of a large change set from the table, if that has the
    answer. Otherwise the first query about a change set costs its loading, each later one the
    commits since. Nothing is owned or changed.
    """

    def __init__(self, open_loader: OpenLoader, bounds: QueryBounds) -> None:
        self._open_loader = open_loader
        self._tables = _TableLookup(open_loader, bounds.loaded_rows)
        self._max_bytes = bounds.answer_bytes
        self._large = asyncio.Lock()
        """Lock: a large value takes many times its bytes while it is made, so that one is made at a
        time."""

    async def replies(
        self, query: ValuesQueryV2, _: Mapping[str, str]
    ) -> AsyncGenerator[ValuesReplyV2, None]:
        """Yield the answer in one reply or more; no reply holds much more than one large value."""
        if query.without_result:
            yield await self._without_result(query)
            return
        found = await self.find(query)
        workspace = str(query.workspace_id)
        parts = await compute_in_turn(workspace, list, _parts(found.rows)) or [[]]
        for number, part in enumerate(parts, 1):
            large = sum(row.octets for row in part) > _PART_BYTES
            async with self._large if large else nullcontext():
                read = await compute_in_turn(workspace, _read, part)
                yield ValuesReplyV2(
                    id=query.id,
                    commit=found.commit,
                    due=found.due,
                    values=[each for each in read if isinstance(each, ValueSnapshot)],
                    missing=found.missing if number == len(parts) else [],
                    more=number < len(parts),
                    next=found.next if number == len(parts) else None,
                    functions=[each for each in read if isinstance(each, FunctionSnapshot)]
                    if query.functions
                    else None,
                )

    async def find(self, query: ValuesQueryV2) -> ValuesFound:
        change_set = ChangeSet(query.workspace_id, query.change_set_id)
        workspace = str(query.workspace_id)
        loader, look = self._open_loader(change_set), partial(prepare_find, query, self._max_bytes)
        if query.at is None and _names_few(query) and change_set not in loader.cache:
            found = await self._tables.find(change_set, query.which, self._max_bytes)
            if found is not None:
                return found
        find = None
        if query.at is None or query.after:  # a further page is mostly of the last commit, too
            lasts: Lasts = "an instant" if _names_few(query) else "a moment"
            find = await loader.read(
                lambda state: look(state) if query.at in (None, state.commit) else None, lasts
            )
        if find is None:
            find = await compute_in_turn(workspace, look, await loader.load(query.at))
        return find() if _names_few(query) else await compute_in_turn(workspace, find)

    async def _without_result(self, query: ValuesQueryV2) -> ValuesReplyV2:
        """The values without a result, as of the last commit."""
        loader = self._open_loader(ChangeSet(query.workspace_id, query.change_set_id))
        workspace, changed = str(query.workspace_id), None
        entry = await loader.log.entry(query.changed_by) if query.changed_by else None
        if entry is not None:
            changed = {*query.which}
            if entry.settled is not None and entry.settled.updates is not None:
                batch = await loader.batches.fetch(entry.settled.updates, entry.settled.id)
                changed |= await compute_in_turn(workspace, _ids_in, batch.updates)
        look = partial(_prepare_resultless, query, changed, self._max_bytes)
        return await compute_in_turn(workspace, await loader.read(look, "a moment"))


def _names_few(query: ValuesQueryV2) -> bool:
    """Whether the query means a few values, as is known without a look at the graph."""
    around = query.inputs or query.dependents
    return 0 < len(query.which) <= FEW and not around and not query.functions


def prepare_find(query: ValuesQueryV2, max_bytes: int, state: State) -> Callable[[], ValuesFound]:
    """Copy from a state, for which others wait, the data for finding the values.

    The returned function finds the values; it raises `TooManyValues`.
    """
    graph = graph_of(state)
    if query.functions:
        rows, missing = function_rows(graph, query.which)
        functions = list(within(rows, max_bytes))
        return partial(_same, ValuesFound(state.commit, state.control.dvu_due, functions, missing))
    named = _named_values(graph, query.which)
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
    """Find the values' rows; if they are too many for one answer, those of the page.

    Raises:
        TooManyValues: the asker does not read pages, or one row has more than `max_bytes` bytes.
    """
    ids = select(graph, query, named.ids)
    if not query.after:
        try:
            if len(ids) > MAX_VALUES:
                raise TooManyValues(
                    f"more than {MAX_VALUES:,} values: ask for pages, as newer clients do"
                )
            rows = list(within((row_of(graph, each) for each in ids), max_bytes))
            return found._replace(rows=rows)
        except TooManyValues:
            if query.after is None:
                raise
    behind = sorted(each for each in ids if each > (query.after or ""))
    page = _first((row_of(graph, each) for each in behind[:MAX_VALUES]), max_bytes)
    return found._replace(rows=page, next=page[-1].id if len(page) < len(behind) else None)


def _first(rows: Iterable[ValueRow], max_bytes: int) -> list[ValueRow]:
    """The first rows, up to `max_bytes`; raise `TooManyValues` if the first one has more."""
    found: list[ValueRow] = []
    try:
        for row in within(rows, max_bytes):
            found.append(row)  # noqa: PERF402 - those before the error are kept
    except TooManyValues:
        if not found:
            raise
    return found


_MOST_RESULTLESS: Final = 1_000
"""Maximum number of values without a result that are listed, of each kind."""


def _ids_in(updates: Iterable[AnyUpdate]) -> set[str]:
    return {
        each.func_id if isinstance(each, PutFunc | RemoveFunc) else each.value_id
        for each in updates
    }


def _prepare_resultless(
    query: ValuesQueryV2, changed: set[str] | None, max_bytes: int, state: State
) -> Callable[[], ValuesReplyV2]:
    """Copy from a state, for which others wait, the data for finding values without a result."""
    graph, roots = graph_of(state), None
    if changed is not None:
        users = (user for each in changed & graph.funcs.keys() for user in graph.users_of(each))
        names = (graph.names.get(each) for each in query.which)
        found = graph.indices_of([*changed, *users, *filter(None, names)])
        roots = sorted_unique(found[found >= 0])
    reply = ValuesReplyV2(id=query.id, commit=state.commit, values=[], due=state.control.dvu_due)
    return partial(_find_resultless, GraphSnapshot(graph, roots), roots, max_bytes, reply)


def _find_resultless(
    graph: GraphSnapshot, roots: NDArray[np.int32] | None, max_bytes: int, reply: ValuesReplyV2
) -> ValuesReplyV2:
    statuses = graph.columns.status.all
    is_affected = np.zeros(len(statuses), np.bool_)
    if roots is not None and np.isin(statuses, (FAILED, BLOCKED)).any():
        is_affected[closure(graph).indices] = True
    groups = []
    for status, code in ((ValueStatus.FAILED, FAILED), (ValueStatus.BLOCKED, BLOCKED)):
        for affected in (None,) if roots is None else (True, False):
            chosen = np.flatnonzero((statuses == code) & (is_affected == bool(affected)))
            ids = map(graph.id_at, chosen[:_MOST_RESULTLESS].tolist())
            rows = (row_of(graph, each)._replace(inputs=None) for each in ids)
            values = [row.read() for row in _first(rows, max_bytes)]
            if values:
                facts: dict[str, Any] = {
                    "status": status.value,
                    "affected": affected,
                    "count": len(chosen),
                }
                groups.append(ResultlessValues.model_construct(**facts, values=values))
    return reply.model_copy(update={"without_result": groups})


def _read(rows: list[Row]) -> list[ValueSnapshot | FunctionSnapshot]:
    return [row.read() for row in rows]


def _parts(rows: Iterable[Row]) -> Iterator[list[Row]]:
    part: list[Row] = []
    size = 0
    for row in rows:
        if part and size + row.octets > _PART_BYTES:
            yield part
            part, size = [], 0
        part.append(row)
        size += row.octets
    if part:
        yield part

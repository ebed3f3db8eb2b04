"""Values or functions of a change set, as of one commit, from log and store.

A query means the values that it names, and levels around them. Rows of the answer are copied from
the graph. A few values of a large change set are looked up in its table, if that has their present
state. `QueryBounds` limits the memory and places that queries take of a process.
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
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Final, NamedTuple, TypeAlias, TypeVar

from rebaser_core.commits import CommitV1
from rebaser_core.errors import NewerVersion, RebaserError
from rebaser_core.ids import ChangeSet, RequestId
from rebaser_core.queries import FunctionSnapshot, ValueSnapshot, ValuesQueryV1, ValuesReplyV1
from rebaser_core.updates import Inputs
from rebaser_server.commit_log.state import State
from rebaser_server.commit_log.state_loader import OpenLoader, StateLoader
from rebaser_server.errors import HistoryInconsistent, NeedsNewerVersion
from rebaser_server.graph_application.content import graph_of
from rebaser_server.graph_application.state_machine import checkpoints_of
from rebaser_server.runtime.tasks import compute_in_turn
from rebaser_server.store.stored_values import OpenTables, StoredValue, StoredValues, find_values
from rebaser_server.values.canonical_json import loads
from rebaser_server.values.columns import Func, ids_in
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


def select(graph: ReadableGraph, query: ValuesQueryV1, named: Sequence[str]) -> list[str]:
    """Ids of the values that `query` means: those in `named` first, then by levels.

    Raises:
        TooManyValues: more than `MAX_VALUES`.
    """
    values = ValuesById(graph)
    if not query.which:
        return _require_few(list(islice(values, MAX_VALUES + 1)))
    around = _levels(named, query.inputs, lambda i: values[i].input_ids())
    around += _levels(named, query.dependents, lambda i: sorted(values[i].dependents))
    return _require_few(list(dict.fromkeys([*named, *around])))


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
        _require_few(list(seen))
    return list(seen)


def _require_few(ids: list[str]) -> list[str]:
    if len(ids) > MAX_VALUES:
        raise TooManyValues(
            f"more than {MAX_VALUES:,} values, too many for messages: read the change set's table"
        )
    return ids


_ROW: Final = 100
"""Estimated bytes of a row in addition to its texts and inputs."""
_ID: Final = 30


class ValueRow(NamedTuple):
    """A value's row of a reply."""

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
    """A function's row of a reply."""

    function: FunctionSnapshot
    octets: int

    def read(self) -> FunctionSnapshot:
        return self.function


Row: TypeAlias = ValueRow | FunctionRow
RowT = TypeVar("RowT", ValueRow, FunctionRow)


class ValuesFound(NamedTuple):
    """All parts of the answer to a query, as of one commit."""

    commit: int
    due: bool | None
    rows: Sequence[Row]
    missing: list[str]


def row_of(graph: ReadableGraph, value_id: str) -> ValueRow:
    """The row of a value of a graph, which may change afterwards."""
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
    """The row of a value of a table."""
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

        The result is None, too, if log or table cannot be read: the caller loads them, which raises
        the error.

        Raises:
            TooManyValues: the rows have more than `max_bytes` bytes.
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
        return ValuesFound(
            sequence,
            last.control.dvu_due,
            list(within(map(row_of_stored, values.values()), max_bytes)),
            [name for name in which if name not in stored.values],
        )


async def _is_latest(
    loader: StateLoader, stored: StoredValues, sequence: int, last: CommitV1
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


@dataclass(frozen=True, slots=True)
class QueryBounds:
    """Bounds of each process; `REBASER_QUERIES__…`."""

    waiting: int = 1_000
    """Maximum number of waiting queries of one kind; further clients get the reply to ask again."""
    waiting_bytes: int = 16 * 1024 * 1024
    """Maximum bytes of the waiting queries of one kind, headers included."""
    answer_bytes: int = 64 * 1024 * 1024
    """Maximum bytes of values in one reply; a reply with more is an error."""
    loaded_rows: int = 500_000
    """Number of rows of a table from which a few values are read from it and the change set is not
    loaded."""


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
        self, query: ValuesQueryV1, _: Mapping[str, str]
    ) -> AsyncGenerator[ValuesReplyV1, None]:
        """Yield the answer in one reply or more; no reply holds much more than one large value."""
        found = await self.find(query)
        workspace = str(query.workspace_id)
        parts = await compute_in_turn(workspace, list, _parts(found.rows)) or [[]]
        for number, part in enumerate(parts, 1):
            large = sum(row.octets for row in part) > _PART_BYTES
            async with self._large if large else nullcontext():
                read = await compute_in_turn(workspace, _read, part)
                yield ValuesReplyV1(
                    id=query.id,
                    commit=found.commit,
                    due=found.due,
                    values=[each for each in read if isinstance(each, ValueSnapshot)],
                    missing=found.missing if number == len(parts) else [],
                    more=number < len(parts),
                    functions=[each for each in read if isinstance(each, FunctionSnapshot)]
                    if query.functions
                    else None,
                )

    async def find(self, query: ValuesQueryV1) -> ValuesFound:
        """Return all parts of the answer."""
        change_set = ChangeSet(query.workspace_id, query.change_set_id)
        workspace = str(query.workspace_id)
        loader, look = self._open_loader(change_set), partial(prepare_find, query, self._max_bytes)
        if query.at is not None:
            find = await compute_in_turn(workspace, look, await loader.load(query.at))
        else:
            if _names_few(query) and change_set not in loader.cache:
                found = await self._tables.find(change_set, query.which, self._max_bytes)
                if found is not None:
                    return found
            find = await loader.read(look, "an instant" if _names_few(query) else "a moment")
        return find() if _names_few(query) else await compute_in_turn(workspace, find)


def refusal(query_id: RequestId, why: str) -> ValuesReplyV1:
    """A reply with the reason for no answer."""
    return ValuesReplyV1(id=query_id, commit=0, values=[], error=why)


def _names_few(query: ValuesQueryV1) -> bool:
    """Whether the query means a few values, as is known without a look at the graph."""
    around = query.inputs or query.dependents
    return 0 < len(query.which) <= FEW and not around and not query.functions


def prepare_find(query: ValuesQueryV1, max_bytes: int, state: State) -> Callable[[], ValuesFound]:
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
    query: ValuesQueryV1,
    max_bytes: int,
    named: NamedValues,
    graph: ReadableGraph,
    found: ValuesFound,
) -> ValuesFound:
    """Find the values' rows; raise `TooManyValues` if they have more than `max_bytes`."""
    rows = (row_of(graph, value_id) for value_id in select(graph, query, named.ids))
    return found._replace(rows=list(within(rows, max_bytes)))


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

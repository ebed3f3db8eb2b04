"""Values that are tables: which of a unit's values come when, and what each takes and gives.

A unit is computed in stages. Values that are computed by SQL are one stage, side by side, since
none takes another of it; the values between two such stages are one piece for the executors of
ordinary functions. A unit without SQL passes through.

The code of an `sql` function is one query, which may begin with comments that declare what it is:

    -- returns: value          the result is one row of one column; else it is a table
    -- small: nation, region   tables that may be joined with others without a condition
    -- columns: day date not null, total decimal(12,2)   all columns of the result
    -- key: day                columns that no two rows have alike
"""

import asyncio
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any, Final, NamedTuple, Protocol

import numpy as np
import pyarrow as pa
from blake3 import blake3
from numpy.typing import NDArray

from rebaser_core.table_schemas import NotATable, columns_of
from rebaser_core.table_values import TableHandle, is_table, upload_of
from rebaser_server.compute.errors import describe
from rebaser_server.compute.executors import Executor, run_apart
from rebaser_server.compute.functions.sql import SqlRefused, judge
from rebaser_server.compute.json_values import NotJson, read_only
from rebaser_server.compute.results import (
    SCHEMA,
    CallCosts,
    RunStore,
    StoredResult,
    UnitResult,
    locate,
    restore_order,
)
from rebaser_server.compute.work_unit import (
    BLOCKED,
    FAILED,
    OK,
    IncrementalSplit,
    WorkUnit,
    count_values,
    has_runtime,
    reorder,
)
from rebaser_server.runtime.progress import JobProgress
from rebaser_server.runtime.tasks import TaskGroup
from rebaser_server.tables import TableFiles, TableMissing
from rebaser_server.values.canonical_json import dumps, loads

SQL: Final = "sql"
"""Runtime of functions whose code is a query."""
_SIDE_BY_SIDE: Final = 4
"""Queries of one update that run at a time."""


class DeclaredColumn(NamedTuple):
    """A column that a definition declares."""

    name: str
    kind: str
    """Type in SQL, without blanks and in lower case."""
    is_required: bool
    """Whether it is never null."""


@dataclass(frozen=True, slots=True)
class Definition:
    """An `sql` function."""

    returns_value: bool = False
    small: frozenset[str] = frozenset()
    columns: tuple[DeclaredColumn, ...] | None = None
    """All columns, in any order; None: whichever the query returns."""
    key: tuple[str, ...] = ()
    """Columns that no two rows have alike."""

    @property
    def contract(self) -> list[Any]:
        """Declarations of the result, as plain data."""
        columns = None if self.columns is None else sorted(map(list, self.columns))
        return [self.returns_value, columns, list(self.key)]

    def require_columns(self, fields: Sequence[dict[str, Any]]) -> None:
        """Raise `NotATable` if a result with these fields does not have the declared columns."""
        found = {column.name: column.type for column in columns_of(fields)}
        if self.columns is not None:
            for name, kind, _ in self.columns:
                if name not in found:
                    raise NotATable(f"the query returns no column {name!r}, which is declared")
                if _plain_type(found[name]) != kind:
                    raise NotATable(
                        f"column {name!r} is declared as {kind}, and the query returns "
                        f"{found[name]}: cast it, or declare it so"
                    )
            for name in found.keys() - {column.name for column in self.columns}:
                raise NotATable(f"the query returns a column {name!r}, which is not declared")
        for name in self.key:
            if name not in found:
                raise NotATable(f"the query returns no column {name!r}, which the key has")


_COMMENT: Final = re.compile(r"\s*--(.*?)(?:\n|\Z)")
_DECLARATION: Final = re.compile(r"\s*(returns|small|columns|key)\s*:\s*(.*?)\s*", re.IGNORECASE)
_COLUMN: Final = re.compile(r"(`[^`]+`|\w+)\s+(.+?)(\s+not\s+null)?", re.IGNORECASE)
_ALIASES: Final = {
    "long": "bigint", "integer": "int", "short": "smallint", "byte": "tinyint", "real": "float",
    "dec": "decimal(10,0)", "decimal": "decimal(10,0)", "numeric": "decimal(10,0)",
}  # fmt: skip
"""Types by other names that Spark has for them."""


@lru_cache(1_000)
def read_definition(code: str) -> Definition:
    """Read the declarations of an `sql` function. Raises `SqlRefused` for one that is wrong."""
    found: dict[str, str] = {}
    position = 0
    while comment := _COMMENT.match(code, position):
        position = comment.end()
        if declared := _DECLARATION.fullmatch(comment[1]):
            found[declared[1].lower()] = declared[2]
    returns = found.get("returns", "table").lower()
    if returns not in ("table", "value"):
        raise SqlRefused(f"`-- returns: {returns}` is neither `table` nor `value`")
    if returns == "value" and found.keys() & {"columns", "key"}:
        raise SqlRefused("`-- returns: value` is no table: it has neither columns nor a key")
    columns = tuple(map(_read_column, _listed(found["columns"]))) if "columns" in found else None
    key = tuple(name.strip("`") for name in _listed(found.get("key", "")))
    return Definition(returns == "value", frozenset(_listed(found.get("small", ""))), columns, key)


def _listed(text: str) -> list[str]:
    """Return what commas part that are in no brackets."""
    parts, depth = [""], 0
    for character in text:
        depth += (character in "(<") - (character in ")>")
        if character == "," and not depth:
            parts.append("")
        else:
            parts[-1] += character
    return [part.strip() for part in parts if part.strip()]


def _read_column(text: str) -> DeclaredColumn:
    found = _COLUMN.fullmatch(text)
    if found is None:
        raise SqlRefused(
            f"`-- columns: … {text}` is no column: write its name, its type and perhaps `not null`"
        )
    return DeclaredColumn(found[1].strip("`"), _plain_type(found[2]), found[3] is not None)


def _plain_type(kind: str) -> str:
    plain = re.sub(r"\s+", "", kind.lower())
    return re.sub(r"[a-z_]+(?!\w*[(:\w])", lambda word: _ALIASES.get(word[0], word[0]), plain)


@dataclass(frozen=True, slots=True)
class View:
    """A table as an input of a query."""

    fields: list[dict[str, Any]]
    """Fields as `Manifest.fields`."""
    uris: Sequence[str]


@dataclass(frozen=True, slots=True)
class Query:
    """A query to run, with all that it takes."""

    text: str
    views: Mapping[str, View]
    parameters: Mapping[str, Any]
    """JSON values by name."""
    target: str | None
    """URI of the directory to write to, which does not exist; None: the result is one value."""
    definition: Definition = Definition()
    """Declaration of the result."""


@dataclass(frozen=True, slots=True)
class Written:
    """Contents of the files that a job has written."""

    fields: list[dict[str, Any]]
    rows: int
    content: str
    """Digest of the rows, see `TableHandle`."""


class QueryFailed(Exception):
    """The query has a mistake, or its data has; the message is that of its value."""


class Queries(Protocol):
    """Place where queries run."""

    async def run_query(
        self, query: Query, about: str, owner: str, progress: JobProgress | None = None
    ) -> Any:
        """Return what was `Written`, or the query's one JSON value.

        `progress` is extended while tasks of the query are done. Cancelled, it ends the query.

        Raises:
            QueryFailed: the query or its data is at fault.
            RunFailed, SessionFailed, DiskFull: as `Executor.run`.
        """


class TableExecutor:
    """An `Executor` that owns another, and has queries run."""

    def __init__(self, inner: Executor, queries: Queries, tables: TableFiles) -> None:
        self._inner = inner
        self._queries = queries
        self._tables = tables

    async def start(self) -> None:
        await self._inner.start()

    async def close(self) -> None:
        await self._inner.close()

    async def run(
        self,
        units: Sequence[bytes | memoryview],
        *,
        owner: str = "",
        store: RunStore | None = None,
        progress: JobProgress | None = None,
    ) -> list[UnitResult | StoredResult]:
        if not any(has_runtime(unit, SQL) for unit in units):
            return await self._inner.run(units, owner=owner, store=store, progress=progress)
        progress = progress or JobProgress(sum(map(count_values, units)))
        staged = await asyncio.to_thread(lambda: list(map(_stages_of, units)))
        return await run_apart(
            units,
            staged,
            partial(self._run_others, owner=owner, store=store, progress=progress),
            partial(self._run_stages, owner=owner, store=store, progress=progress),
        )

    async def _run_others(
        self,
        units: Sequence[bytes | memoryview],
        owner: str,
        store: RunStore | None,
        progress: JobProgress,
    ) -> list[UnitResult | StoredResult]:
        if not units:
            return []
        part = progress.part(sum(map(count_values, units)))
        return await self._inner.run(units, owner=owner, store=store, progress=part)

    async def _run_stages(
        self, stages: "_Stages", owner: str, store: RunStore | None, progress: JobProgress
    ) -> UnitResult:
        split = IncrementalSplit(stages.unit)
        done: list[UnitResult] = []
        for end in stages.ends:
            start = split.done
            piece, part = split.next(end - start), progress.part(end - start)
            if not piece.must_compute.any():
                result: UnitResult | StoredResult = UnitResult(0, SCHEMA.empty_table())
            elif stages.is_sql[start]:
                result = await self._run_queries(piece, owner, part)
            else:
                unit = piece.encode()
                [result] = await self._inner.run([unit], owner=owner, store=store, progress=part)
            positions = np.arange(start, end)
            located = await asyncio.to_thread(locate, result, positions, store)
            split.record(end, located.table)
            done.append(located)
            part.record(end - start)
        return restore_order(done, stages.order)

    async def _run_queries(self, piece: WorkUnit, owner: str, progress: JobProgress) -> UnitResult:
        """Compute the values of one stage that are due."""
        calls = _calls_of(piece)
        room = asyncio.Semaphore(_SIDE_BY_SIDE)

        async def compute(call: "_Call") -> tuple[int, str, int, float]:
            began = time.monotonic()
            async with room:
                found = await self._compute(call, owner, progress)
            progress.record(progress.done + 1)
            return *found, time.monotonic() - began

        try:
            async with TaskGroup() as group:
                tasks = [group.create_task(compute(call)) for call in calls]
        except ExceptionGroup as errors:
            raise errors.exceptions[0] from None
        rows, costs, total = [], CallCosts(), 0
        for call, task in zip(calls, tasks, strict=True):
            status, text, computed, seconds = task.result()
            total += computed
            before, spent = costs.get((SQL, call.code), (0, 0.0))
            costs[SQL, call.code] = before + computed, spent + seconds * computed
            if (status, text) != call.former:
                rows.append((call.value_id, status, text, call.position))
        columns = [list(column) for column in zip(*rows, strict=True)] or [[]] * 4
        return UnitResult(total, pa.table(columns, schema=SCHEMA), costs)

    async def _compute(
        self, call: "_Call", owner: str, progress: JobProgress
    ) -> tuple[int, str, int]:
        """Return the status of a value, its text, and 0 if it was there: else 1."""
        if call.blocked_by is not None:
            return BLOCKED, call.blocked_by, 1
        try:
            value, computed = await self._result(call, owner, progress)
            return OK, dumps(read_only(value)), computed
        except (QueryFailed, SqlRefused, NotATable, TableMissing) as error:
            return FAILED, str(error), 1
        except NotJson as error:
            return FAILED, describe(error), 1

    async def _result(self, call: "_Call", owner: str, progress: JobProgress) -> tuple[Any, int]:
        """Return a handle, or the value that the query returns; and the number of queries run.

        A table that is there under the digest of the query and its inputs is taken as it is. One
        that comes out with the rows and the schema that it had keeps its handle. Neither is so if
        the value's former table is condemned: it is computed anew, and no commit keeps that table.
        """
        definition = read_definition(call.code)
        judging = partial(judge, call.code, frozenset(call.arguments), small=definition.small)
        query = await asyncio.to_thread(judging)  # a long text takes a second
        used = {name: call.arguments[name] for name in query.tables | query.parameters}
        views, parameters = await asyncio.to_thread(self._inputs, used, query.tables, owner)
        is_value = definition.returns_value
        key = _key(query.text, definition.contract, used)
        tables, (status, text) = self._tables, call.former
        former = TableHandle.of(loads(text)) if status == OK else None
        if former is not None and await asyncio.to_thread(tables.is_condemned, owner, former.key):
            await asyncio.to_thread(tables.condemn, owner, key)
            former = None
        manifest = await asyncio.to_thread(tables.find, owner, key)
        queries = int(manifest is None)
        if manifest is None:
            attempt = tables.begin(owner, key)
            try:
                target = None if is_value else tables.uri(attempt)
                job = Query(query.text, views, parameters, target, definition)
                found = await self._queries.run_query(job, call.value_id, owner, progress)
                if is_value:  # a table without a column keeps it, so that it is found, too
                    found = Written([], 0, dumps(read_only(found)))
                manifest = await asyncio.to_thread(
                    tables.finish, attempt, found.fields, found.rows, found.content
                )
            except BaseException:
                await asyncio.shield(asyncio.to_thread(tables.discard, attempt))
                raise
        if is_value:
            return loads(manifest.content), queries
        handle = manifest.handle(key)
        if former and _is_same(former, handle):
            handle = former
        return handle.to_value(), queries

    def _inputs(
        self, used: Mapping[str, Any], names: frozenset[str], owner: str
    ) -> tuple[dict[str, View], dict[str, Any]]:
        views, parameters = {}, {}
        for name, value in used.items():
            if name not in names:
                if is_table(value):
                    raise SqlRefused(
                        f"{name!r} is a table: use it behind FROM or JOIN, not :{name}"
                    )
                parameters[name] = value
                continue
            handle = TableHandle.of(value)
            key = handle.key if handle else upload_of(value)
            if key is None:
                raise SqlRefused(f"{name!r} is no table: use it as the parameter :{name}")
            manifest = self._tables.get(owner, key)
            if handle is not None and not _is_same(handle, manifest.handle(key)):
                raise SqlRefused(
                    f"{name!r} is no table as it is in the store: it was computed anew since, with "
                    "other rows, or a function made it up; have it computed with `rebaser dvu run`"
                )
            views[name] = View(manifest.fields, self._tables.uris(owner, key, manifest))
        return views, parameters


@dataclass(frozen=True, slots=True)
class _Stages:
    """A unit in the order of its stages."""

    unit: WorkUnit
    order: NDArray[np.int64]
    """Position of each value in the order of before."""
    ends: list[int]
    is_sql: NDArray[np.bool_]
    """Whether each value is computed by a query."""


def _stages_of(encoded: bytes | memoryview) -> _Stages | None:
    """Return a unit's stages; None if it has no value that is computed by a query."""
    if not has_runtime(encoded, SQL):
        return None
    unit = WorkUnit.decode(encoded)
    by_function = np.array([runtime == SQL for runtime, _ in unit.functions], np.bool_)
    by_signature = by_function[[function for function, _ in unit.signatures]]
    is_sql = by_signature[unit.signature_indices]
    if not is_sql.any():
        return None
    stages = _stage_numbers(unit, is_sql)
    order = np.argsort(stages, kind="stable")
    ends = np.flatnonzero(np.diff(stages[order], append=-1)) + 1
    return _Stages(reorder(unit, order), order, ends.tolist(), is_sql[order])


def _stage_numbers(unit: WorkUnit, is_sql: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Return the stage of each value: even for ordinary ones, odd for those by queries."""
    stages: list[int] = []
    refs, end = unit.refs.tolist(), 0
    for width, by_query in zip(unit.widths().tolist(), is_sql.tolist(), strict=True):
        start, end = end, end + width
        highest = max((stages[ref] for ref in refs[start:end] if ref >= 0), default=0)
        stages.append(highest + 1 + highest % 2 if by_query else highest + highest % 2)
    return np.array(stages, np.int64)


@dataclass(frozen=True, slots=True)
class _Call:
    """A value that is due, and what its query takes."""

    position: int
    value_id: str
    code: str
    arguments: dict[str, Any]
    blocked_by: str | None
    """The first input without a value."""
    former: tuple[int, str]
    """Status and text of before."""


def _calls_of(piece: WorkUnit) -> list[_Call]:
    """Return the calls of a piece's values that are due; all their inputs are constants."""
    ends = piece.widths().cumsum()
    calls = []
    for position in np.flatnonzero(piece.must_compute).tolist():
        function, specs = piece.signatures[piece.signature_indices[position]]
        start = int(ends[position - 1]) if position else 0
        refs = (~piece.refs[start : ends[position]]).tolist()
        unknown = next((ref for ref in refs if not piece.constant_known[ref]), None)
        arguments: dict[str, Any] = {}
        if unknown is None:
            values = iter([loads(piece.constant_texts[ref].as_py()) for ref in refs])
            for name, count in specs:
                arguments[name] = (
                    next(values) if count is None else [next(values) for _ in range(count)]
                )
        calls.append(
            _Call(
                position,
                piece.ids[position].as_py(),
                piece.functions[function][1],
                arguments,
                None if unknown is None else piece.constant_ids[unknown].as_py(),
                (int(piece.statuses[position]), piece.texts[position].as_py()),
            )
        )
    return calls


def _key(text: str, contract: list[Any], used: Mapping[str, Any]) -> str:
    """Return the digest of a query, of what its result is to be, and of its inputs' contents."""
    inputs = {name: _content(value) for name, value in used.items()}
    return blake3(dumps([text, contract, inputs]).encode()).hexdigest()


def _is_same(one: TableHandle, other: TableHandle) -> bool:
    """Whether two tables have equal rows and schemas; their files may differ."""
    return (one.content, one.schema) == (other.content, other.schema)


def _content(value: Any) -> Any:
    handle = TableHandle.of(value)
    return value if handle is None else ["table", handle.content, handle.schema]

"""Values that are tables: which of a unit's values come when, and what each takes and gives.

A unit is computed in stages. Values that are computed from tables are one stage, side by side,
since none takes another of it; the values between two such stages are one piece for the executors
of ordinary functions. A unit without tables passes through. Queries and functions of runtime
`pyspark` go to Spark; one of runtime `arrow` is called by the executors of ordinary functions, as a
unit of one value.

The code of an `sql` function is one query, which may begin with comments that declare what it is:

    -- returns: value          the result is one row of one column; else it is a table
    -- small: nation, region   tables that may be joined with others without a condition
    -- columns: day date not null, total decimal(12,2)   all columns of the result
    -- key: day                columns that no two rows have alike
    -- partition by: day       the rows of each day are a part of their own

The parts of a partitioned table are computed by themselves where that comes to the same: each from
the partition of one input, and from all other inputs. Such a part is found by their contents, as a
table is. So of an input that changed in one partition one part is computed.
"""

import asyncio
import re
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Collection, Coroutine, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from functools import lru_cache, partial
from typing import Any, Final, NamedTuple, Protocol, TypeVar
from uuid import uuid4
from weakref import WeakValueDictionary

import numpy as np
import pyarrow as pa
from blake3 import blake3
from numpy.typing import NDArray

from rebaser_core.table_schemas import NotATable, columns_of, require_partition_column
from rebaser_core.table_values import TABLE, PinnedTable, TableHandle, is_table, table_key
from rebaser_server.compute.errors import FunctionMissing, RunFailed, breakdown, describe
from rebaser_server.compute.functions.arrow import (
    CALL,
    MAX_TABLE_BYTES,
    ArrowCall,
    InputTable,
    Outcome,
    too_large,
)
from rebaser_server.compute.functions.partition_wise import is_partition_wise
from rebaser_server.compute.functions.runtimes import ARROW, PYSPARK, code_digest
from rebaser_server.compute.functions.sql import SqlRefused, judge
from rebaser_server.compute.json_values import NotJson, read_only
from rebaser_server.compute.results import (
    SCHEMA,
    CallCosts,
    StoredResult,
    UnitResult,
    locate,
    restore_order,
)
from rebaser_server.compute.run import Executor, Run, run_apart
from rebaser_server.compute.work_unit import (
    BLOCKED,
    FAILED,
    OK,
    PENDING,
    STATUSES,
    CallLimits,
    IncrementalSplit,
    WorkUnit,
    reorder,
    strings,
)
from rebaser_server.runtime.failures import StoreFailed
from rebaser_server.runtime.progress import JobProgress
from rebaser_server.runtime.tasks import for_each_concurrently
from rebaser_server.tables import (
    Attempt,
    DataFile,
    Manifest,
    Part,
    TableFiles,
    TableMissing,
    Target,
    View,
    Written,
    WrittenPart,
    part_key,
)
from rebaser_server.values.canonical_json import dumps, loads

T = TypeVar("T")

SQL: Final = "sql"
"""Runtime of functions whose code is a query."""
TABLE_RUNTIMES: Final = (SQL, ARROW, PYSPARK)
"""Runtimes of functions that take and return tables."""
_LOOK_EVERY: Final = 1.0
"""Seconds between two looks at what a query has written."""
_COMPARED_AT_ONCE: Final = 16
"""Files whose digests are compared between two signs of progress."""
_PARTS_AT_ONCE: Final = 64
"""Parts that are looked for, or finished, between two signs of progress."""
_SIDE_BY_SIDE: Final = 4
"""Queries and functions of tables of one update that run at a time."""


class DeclaredColumn(NamedTuple):
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
    partition_by: str | None = None
    """Column by which the table is partitioned."""

    @property
    def contract(self) -> list[Any]:
        """Declarations of the result, as plain data."""
        columns = None if self.columns is None else sorted(map(list, self.columns))
        return [self.returns_value, columns, list(self.key), self.partition_by]

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
        if self.partition_by is not None:
            require_partition_column(fields, self.partition_by)


_COMMENT: Final = re.compile(r"\s*--(.*?)(?:\n|\Z)")
_DECLARATION: Final = re.compile(r"\s*([a-z][\w -]*?)\s*:.*", re.IGNORECASE)
_DECLARED: Final = ("returns", "small", "columns", "key", "partition by")
_ALIKE: Final = 0.75
"""Likeness of words from which one is taken for a typing mistake of the other."""
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
        declared = _DECLARATION.fullmatch(comment[1])
        word = "" if declared is None else declared[1].lower()
        for name in get_close_matches(word, _DECLARED, 1, _ALIKE):
            if word != name:
                raise SqlRefused(
                    f"`--{comment[1]}` declares nothing: write `-- {name}: …`, or begin a "
                    "comment with another word"
                )
            found[name] = comment[1].partition(":")[2].strip()
    returns = found.get("returns", "table").lower()
    if returns not in ("table", "value"):
        raise SqlRefused(f"`-- returns: {returns}` is neither `table` nor `value`")
    if returns == "value" and found.keys() & {"columns", "key", "partition by"}:
        raise SqlRefused(
            "`-- returns: value` is no table: it has neither columns nor a key nor partitions"
        )
    columns = tuple(map(_read_column, _listed(found["columns"]))) if "columns" in found else None
    key = tuple(name.strip("`") for name in _listed(found.get("key", "")))
    by = [name.strip("`") for name in _listed(found.get("partition by", ""))]
    if len(by) > 1:
        raise SqlRefused(
            f"`-- partition by: {', '.join(by)}`: a table is partitioned by one column"
        )
    small = frozenset(_listed(found.get("small", "")))
    return Definition(returns == "value", small, columns, key, by[0] if by else None)


def require_sound(code: str, arguments: Collection[str] | None = None) -> None:
    """Raise `SqlRefused` if an `sql` function cannot be run, as far as shows before a call.

    `arguments`: names of a call's arguments, if they are known.
    """
    judge(code, arguments, small=read_definition(code).small)


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
    if (kind := _plain_type(found[2])).startswith(("char", "varchar")):
        raise SqlRefused(f"`-- columns: … {text}`: a table has text of any length: write `string`")
    return DeclaredColumn(found[1].strip("`"), kind, found[3] is not None)


def _plain_type(kind: str) -> str:
    plain = re.sub(r"\s+", "", kind.lower())
    return re.sub(r"[a-z_]+(?!\w*[(:\w])", lambda word: _ALIASES.get(word[0], word[0]), plain)


@dataclass(frozen=True, slots=True)
class Query:
    text: str
    views: Mapping[str, View]
    parameters: Mapping[str, Any]
    """JSON values by name."""
    target: Target | None
    """Place to write to. None: the result is one value; or, if a key is declared, the rows are
    looked at and not kept."""
    definition: Definition = Definition()
    """Declaration of the result."""
    is_split: bool = False
    """Whether each partition has files of its own."""


@dataclass(frozen=True, slots=True)
class SparkCall:
    """A call of a function of runtime `pyspark`, with all that it takes."""

    function: tuple[str, str]
    """Runtime and code."""
    expected: str | None
    """Code that the function has here, see `WorkUnit.code`."""
    arguments: Mapping[str, Any]
    """JSON, or a `View`, or a list of both."""
    target: Target
    """Place to write a table to."""
    limits: CallLimits
    """Limits of the call, of which that of time does not hold."""


def views_of(job: Query | SparkCall) -> list[View]:
    def of(value: Any) -> list[View]:
        if isinstance(value, list):
            return [view for each in value for view in of(each)]
        return [value] if isinstance(value, View) else []

    return of(list((job.views if isinstance(job, Query) else job.arguments).values()))


_TRIALS: Final = 3
"""Number of times that a query must end what computes it to be blamed."""


class QueryFailed(Exception):
    """The query or function has a mistake, or its data has; the message is that of its value."""


class Queries(Protocol):
    """Place where queries and functions of runtime `pyspark` run."""

    async def run_query(self, query: Query | SparkCall, about: str, run: Run) -> Any:
        """Return what was `Written`, or the one JSON value of the query or function.

        The run's progress is extended while tasks of the query are done. Cancelled, it ends the
        query.

        Raises:
            QueryFailed: the query or its data is at fault.
            RunFailed, SessionFailed, DiskFull: as `Executor.run`.
        """


class TableExecutor:
    """An `Executor` that has queries run, and all else by another."""

    def __init__(
        self, inner: Executor, queries: Queries, tables: TableFiles, max_bytes: int = 64 << 30
    ) -> None:
        """`max_bytes`: of the files that one query may write."""
        self._inner = inner
        self._queries = queries
        self._tables = tables
        self._max_bytes = max_bytes
        self._under_way: WeakValueDictionary[tuple[str, str], asyncio.Lock] = WeakValueDictionary()
        """Locks of the keys that are being computed: equal work is done once."""

    async def run(
        self, units: Sequence[WorkUnit], run: Run = Run()
    ) -> list[UnitResult | StoredResult]:
        staged = await asyncio.to_thread(lambda: list(map(_stages_of, units)))

        async def compute_rest(rest: list[WorkUnit]) -> list[UnitResult | StoredResult]:
            found = await self._inner.run(rest, run.part(sum(map(len, rest))))
            run.ready(found)
            return found

        return await run_apart(units, staged, compute_rest, partial(self._run_stages, run=run))

    async def _run_stages(self, stages: "_Stages", run: Run) -> UnitResult:
        split = IncrementalSplit(stages.unit)
        done: list[UnitResult] = []
        for end in stages.ends:
            start = split.done
            piece, part = split.next(end - start), run.part(end - start)
            if not piece.must_compute.any():
                result: UnitResult | StoredResult = UnitResult(0, SCHEMA.empty_table())
            elif stages.is_of_tables[start]:
                result = await self._run_calls(piece, part)
            else:
                [result] = await self._inner.run([piece], part)
            positions = np.arange(start, end)
            located = await asyncio.to_thread(locate, result, positions, run.store)
            split.record(end, located.table)
            done.append(located)
            # D4: the owner may commit these results while later stages are computed.
            run.ready([located])
            part.progress.record(end - start)
        return restore_order(done, stages.order)

    async def _run_calls(self, piece: WorkUnit, run: Run) -> UnitResult:
        """Compute the values of one stage that are due."""
        calls = _calls_of(piece)
        found: dict[int, tuple[int, str, int, float]] = {}

        async def compute(call: "_Call") -> None:
            began = time.monotonic()
            outcome = await self._compute(call, run)
            found[call.position] = *outcome, time.monotonic() - began
            run.progress.record(run.progress.done + 1)

        await for_each_concurrently(calls, compute, _SIDE_BY_SIDE)
        rows, costs, total = [], CallCosts(), 0
        for call in calls:
            status, text, computed, seconds = found[call.position]
            total += computed
            before, spent = costs.get(call.function, (0, 0.0))
            costs[call.function] = before + computed, spent + seconds * computed
            if (status, text) != call.former:
                rows.append((call.value_id, status, text, call.position))
        columns = [list(column) for column in zip(*rows, strict=True)] or [[]] * 4
        return UnitResult(total, pa.table(columns, schema=SCHEMA), costs)

    async def _compute(self, call: "_Call", run: Run) -> tuple[int, str, int]:
        """Return the status of a value, its text, and 0 if it was there: else 1."""
        if call.blocked_by is not None:
            return BLOCKED, call.blocked_by, 1
        try:
            value, computed = await self._tried(call, run)
            return OK, dumps(read_only(value)), computed
        except (FunctionMissing, QueryFailed, SqlRefused, NotATable, TableMissing) as error:
            return FAILED, str(error), 1
        except NotJson as error:
            return FAILED, describe(error), 1

    async def _tried(self, call: "_Call", run: Run) -> tuple[Any, int]:
        """Return the result; where runs broke down before, blame a query that does so each time."""
        for _ in range(_TRIALS):
            try:
                return await self._result(call, run)
            except RunFailed as error:
                # The whole run is repeated at first, with `isolated` units. Only then is a query
                # suspected.
                if not call.limits.is_forked:
                    raise
                reason = str(error)
            run.progress.extend()
        raise QueryFailed(f"computing it ended the evaluator: {reason}")

    async def _result(self, call: "_Call", run: Run) -> tuple[Any, int]:
        """Return a handle, or the value that comes out; and the number of calls made.

        A table that is there under the digest of the code and its inputs is taken as it is. One
        that comes out with the rows and the schema that it had keeps its handle. Neither is so if
        the value's former table is condemned: it is computed anew, and no commit keeps that table.
        """
        if call.function[0] == SQL:
            work = await self._prepare_query(call, run)
        elif call.function[0] == PYSPARK:
            work = await self._prepare_spark_call(call, run)
        else:
            work = await self._prepare_call(call, run)
        tables, owner, (status, text) = self._tables, run.owner, call.former
        former = TableHandle.of(loads(text)) if status == OK else None
        if former is not None:
            is_condemned = await asyncio.to_thread(self._condemns, owner, former.key, work)
            former = None if is_condemned else former
        async with self._under_way.setdefault((owner, work.key), asyncio.Lock()):
            manifest = await asyncio.to_thread(tables.find, owner, work.key)
            calls = int(manifest is None)
            if manifest is None:
                attempt = tables.begin(owner, work.key)
                try:
                    found = await work.compute(attempt)
                    if isinstance(found, Written):
                        found = await asyncio.to_thread(tables.finish, attempt, found)
                    if not isinstance(found, Manifest):
                        await asyncio.to_thread(tables.discard, attempt)
                        return found, calls
                    manifest = found
                except BaseException:
                    # A second cancellation must not end the removal.
                    await asyncio.shield(asyncio.to_thread(tables.discard, attempt))
                    raise
        if not manifest.fields:
            return loads(manifest.content), calls
        handle = manifest.handle(work.key)
        # A value with an equal text counts as unchanged, so values that take it are not computed.
        if former and _is_same(former, handle):
            handle = former
        return handle.to_value(), calls

    def _condemns(self, owner: str, former: str, work: "_Work") -> bool:
        """Condemn what is to be computed, and its parts, if the value's former table is."""
        if not self._tables.is_condemned(owner, former):
            return False
        for key in {work.key, *work.parts, *self._tables.parts_of(owner, former)}:
            self._tables.condemn(owner, key)
        return True

    async def _prepare_query(self, call: "_Call", run: Run) -> "_Work":
        owner, code = run.owner, call.function[1]
        definition = read_definition(code)
        judging = partial(judge, code, frozenset(call.arguments), small=definition.small)
        query = await asyncio.to_thread(judging)  # a long text takes a second
        used = {name: call.arguments[name] for name in query.tables | query.parameters}
        used = await asyncio.to_thread(self._with_contents, used, owner)
        taken, parameters = await asyncio.to_thread(self._inputs, used, query.tables, owner)
        views = {name: self._view(manifest, owner) for name, manifest in taken.items()}
        job = Query(query.text, views, parameters, None, definition)
        key = _key(query.text, definition.contract, used)

        if definition.partition_by is not None:
            by = await asyncio.to_thread(_partitioned_input, job, taken)
            pieces = (
                [] if by is None else await asyncio.to_thread(_pieces, job, by, taken[by], used)
            )
            parts = _Parts(key, job, by, pieces, call.value_id, run)
            return _Work(key, lambda _: self._compose(parts), tuple(each.key for each in pieces))

        async def compute(attempt: Attempt) -> Any:
            if definition.returns_value:
                return _kept(await self._run_query(job, call.value_id, run))
            whole = replace(job, target=Target(self._tables.files, attempt))
            running = self._run_query(whole, call.value_id, run)
            return await self._bounded(attempt, running, self._max_bytes)

        return _Work(key, compute)

    async def _compose(self, work: "_Parts") -> Manifest:
        """Compute the parts that are not there, and make all of them one table."""
        fields: list[dict[str, Any]] = []
        parts, missing, size = list[Part](), list[_Piece](), 0
        for start in range(0, len(work.pieces), _PARTS_AT_ONCE):
            pieces = work.pieces[start : start + _PARTS_AT_ONCE]
            keys = [piece.key for piece in pieces]
            there = await asyncio.to_thread(self._tables.find_all, work.run.owner, keys)
            work.run.progress.extend()
            for piece, found in zip(pieces, there, strict=True):
                if found is None:
                    missing.append(piece)
                    continue
                parts.append(found.part(piece.value, piece.key))
                fields, size = found.fields, size + found.size
        if missing or not parts:
            fields, made = await self._compute_parts(work, missing, self._max_bytes - size)
            parts += made
        if work.has_key_of_all:
            files = [file for part in parts for file in part.files]
            rows = {"rows": self._view(Manifest(fields, files, 0, ""), work.run.owner)}
            declared = Definition(key=work.job.definition.key)
            query = Query("SELECT * FROM `rows`", rows, {}, None, declared)
            await self._run_query(query, work.about, work.run)
        return await asyncio.to_thread(
            self._tables.compose, work.run.owner, work.key, fields, work.partition_by, parts
        )

    async def _compute_parts(
        self, work: "_Parts", missing: "Sequence[_Piece]", room: int
    ) -> tuple[list[dict[str, Any]], list[Part]]:
        """Compute these parts, or all if none is known, in one job; return the columns, and them.

        `room`: bytes that they may have.
        """
        tables, owner = self._tables, work.run.owner
        only = missing[0] if len(missing) == 1 else None
        attempt = tables.begin(owner, part_key(work.key, "split") if only is None else only.key)
        job = work.job_of([file for piece in missing for file in piece.files] if missing else None)
        job = replace(job, target=Target(tables.files, attempt), is_split=only is None)
        try:
            running = self._run_query(job, work.about, work.run)
            found = await self._bounded(attempt, running, room)
            if only is not None:
                manifest = await asyncio.to_thread(tables.finish, attempt, found)
                return found.fields, [manifest.part(only.value, only.key)]
            made, of_parts = list[Part](), work.parts_of(found, missing)
            for start in range(0, len(of_parts), _PARTS_AT_ONCE):
                some = of_parts[start : start + _PARTS_AT_ONCE]
                made += await asyncio.to_thread(tables.finish_parts, owner, found.fields, some)
                work.run.progress.extend()
            await asyncio.to_thread(tables.discard, attempt)
        except BaseException:
            await asyncio.shield(asyncio.to_thread(tables.discard, attempt))
            raise
        return found.fields, made

    async def _run_query(self, job: Query | SparkCall, about: str, run: Run) -> Any:
        """Run a query or call whose inputs are as they were written."""
        for view in views_of(job):
            if view.files.is_local:  # else who reads a file compares its digest
                await self._require_sound(view, run.progress)
        return await self._queries.run_query(job, about, run)

    async def _require_sound(self, view: View, progress: JobProgress) -> None:
        """Raise `TableDamaged` for a file that is not as it was written."""
        files = view.manifest.files
        for start in range(0, len(files), _COMPARED_AT_ONCE):
            some = files[start : start + _COMPARED_AT_ONCE]
            await asyncio.to_thread(self._tables.require_sound, view.workspace, some)
            progress.extend()

    async def _bounded(self, attempt: Attempt, running: Coroutine[Any, Any, T], room: int) -> T:
        """Return what a query returns; end it once it has written more bytes than there is room."""
        query = asyncio.ensure_future(running)
        try:
            is_done = False
            while not is_done:
                await asyncio.wait([query], timeout=_LOOK_EVERY)
                is_done = query.done()  # before the look, which then sees all of it
                if await asyncio.to_thread(self._tables.size, attempt) > room:
                    raise QueryFailed(
                        f"the result has more than {self._max_bytes:,} bytes: narrow it, or have "
                        "an operator raise REBASER_FUNCTIONS__TABLE_BYTES"
                    )
            return query.result()
        finally:
            # The end of the query is awaited, since the caller removes its files next.
            query.cancel()
            await asyncio.wait([query])
            if not query.cancelled():
                query.exception()  # it is seen, or of no interest any more

    def _inputs(
        self, used: Mapping[str, Any], names: frozenset[str], owner: str
    ) -> tuple[dict[str, Manifest], dict[str, Any]]:
        tables, parameters = {}, {}
        for name, value in used.items():
            if name not in names:
                if is_table(value):
                    raise SqlRefused(
                        f"{name!r} is a table: use it behind FROM or JOIN, not :{name}"
                    )
                parameters[name] = value
                continue
            if not is_table(value):
                raise SqlRefused(f"{name!r} is no table: use it as the parameter :{name}")
            tables[name] = self._table(name, value, owner)
        return tables, parameters

    def _with_contents(self, arguments: Mapping[str, Any], owner: str) -> dict[str, Any]:
        """Return the arguments with the handle of its copy for each table of others.

        So a new version with the rows of before is no other input.
        """

        def of(value: Any) -> Any:
            if isinstance(value, list):
                return list(map(of, value))
            table = PinnedTable.of(value)
            if table is None:
                return value
            return self._tables.get(owner, table.key).handle(table.key).to_value()

        return {name: of(value) for name, value in arguments.items()}

    def _view(self, manifest: Manifest, owner: str) -> View:
        return View(self._tables.files, owner, manifest)

    def _table(self, name: str, value: Any, owner: str) -> Manifest:
        handle, key = TableHandle.of(value), table_key(value)
        if key is None:
            raise NotATable(f"{name!r} is no table, and claims to be one")
        manifest = self._tables.get(owner, key)
        if handle is not None and not _is_same(handle, manifest.handle(key)):
            raise NotATable(
                f"{name!r} is no table as it is in the store: it was computed anew since, with "
                "other rows, or a function made it up; have it computed with `rebaser dvu run`"
            )
        return manifest

    async def _prepare_spark_call(self, call: "_Call", run: Run) -> "_Work":
        owner = run.owner
        given = await asyncio.to_thread(self._with_contents, call.arguments, owner)
        arguments = await asyncio.to_thread(
            self._arguments, given, owner, lambda _, manifest: self._view(manifest, owner)
        )

        async def compute(attempt: Attempt) -> Any:
            target = Target(self._tables.files, attempt)
            job = SparkCall(call.function, call.expected, arguments, target, call.limits)
            running = self._run_query(job, call.value_id, run)
            found = await self._bounded(attempt, running, self._max_bytes)
            return found if isinstance(found, Written) else _kept(found)

        return _Work(_key(await _code_of(call), PYSPARK, given), compute)

    async def _prepare_call(self, call: "_Call", run: Run) -> "_Work":
        owner = run.owner

        def bounded(name: str, manifest: Manifest) -> InputTable:
            if manifest.size > MAX_TABLE_BYTES:
                raise NotATable(too_large(f"table {name!r}"))
            return InputTable(owner, manifest)

        given = await asyncio.to_thread(self._with_contents, call.arguments, owner)
        arguments = await asyncio.to_thread(self._arguments, given, owner, bounded)

        async def compute(attempt: Attempt) -> Any:
            asked = ArrowCall(self._tables.files, arguments, attempt)
            unit = await asyncio.to_thread(call.unit_of, asked)
            [result] = await self._inner.run([unit], Run(owner))
            [(_, status, value)] = locate(result, np.arange(1), None).value_results
            if status != STATUSES[OK]:
                raise QueryFailed(value)
            outcome = Outcome.of(value)
            if outcome.broken is not None:
                raise breakdown(StoreFailed, outcome.broken)
            return outcome.value if outcome.written is None else outcome.written

        return _Work(_key(await _code_of(call), ARROW, given), compute)

    def _arguments(
        self, given: Mapping[str, Any], owner: str, taken: Callable[[str, Manifest], Any]
    ) -> dict[str, Any]:
        """Return a function's arguments: of tables, also in lists, what `taken` makes of them."""

        def argument(name: str, value: Any) -> Any:
            if isinstance(value, list):
                return [argument(name, each) for each in value]
            return taken(name, self._table(name, value, owner)) if is_table(value) else value

        return {name: argument(name, value) for name, value in given.items()}


async def _code_of(call: "_Call") -> str:
    """Return the digest of an installed function's code; of unknown code a new text each time."""
    digest = await asyncio.to_thread(code_digest, *call.function)
    return uuid4().hex if digest is None else digest.hex()


def _kept(value: Any) -> Written:
    """Return a table without a column, which keeps a plain value so that it is found."""
    return Written([], 0, dumps(read_only(value)))


@dataclass(frozen=True, slots=True)
class _Work:
    key: str
    """Key of the result: equal keys, equal results."""
    compute: Callable[[Attempt], Awaitable[Any]]
    """Compute it; return what was `Written`, the `Manifest` of a table that is there, or else a
    value that is not kept."""
    parts: tuple[str, ...] = ()
    """Keys of its parts, as far as these are known before."""


class _Piece(NamedTuple):
    """A part of a result, which is computed from one partition of an input."""

    value: str | None
    key: str
    files: Sequence[DataFile]
    """Files of the input's partition."""


@dataclass(frozen=True, slots=True)
class _Parts:
    key: str
    job: Query
    """Query with all inputs whole."""
    by: str | None
    """Input by whose partitions the table is computed; None: it is computed whole, and split."""
    pieces: Sequence[_Piece]
    about: str
    """Value that it is for."""
    run: Run

    @property
    def partition_by(self) -> str:
        return self.job.definition.partition_by or ""

    @property
    def has_key_of_all(self) -> bool:
        """Whether a key is declared by which rows of several parts may be alike."""
        key = self.job.definition.key
        return bool(key) and self.partition_by not in key

    def job_of(self, files: Sequence[DataFile] | None) -> Query:
        """Return the query that takes these files in place of the partitioned input."""
        job = self.job
        if self.has_key_of_all:
            job = replace(job, definition=replace(job.definition, key=()))
        if files is None or self.by is None:
            return job
        return replace(job, views={**job.views, self.by: job.views[self.by].of(files)})

    def parts_of(self, found: Written, missing: Sequence[_Piece]) -> list[tuple[str, WrittenPart]]:
        """Return what was written of each part, by the part's key.

        Of a partition of which no row is left the part has none.
        """
        keys = {piece.value: piece.key for piece in missing}
        schema = Manifest(found.fields, [], 0, "").schema_digest
        parts = []
        for part in found.parts:
            key = keys.pop(part.value, None) if missing else part_key(part.content, schema)
            if key is None:
                raise NotATable(f"no input has the partition {part.value!r} of the result")
            parts.append((key, part))
        return parts + [(key, WrittenPart(value, 0, "", ())) for value, key in keys.items()]


def _partitioned_input(job: Query, taken: Mapping[str, Manifest]) -> str | None:
    """Return the input by whose partitions a query may be computed: the largest, if several are."""
    result = job.definition.partition_by or ""
    found = [
        name
        for name, manifest in taken.items()
        if manifest.partition_by
        and is_partition_wise(job.text, name, manifest.partition_by, result)
    ]
    return max(found, key=lambda name: (taken[name].rows, name), default=None)


def _pieces(job: Query, by: str, taken: Manifest, used: Mapping[str, Any]) -> list[_Piece]:
    """Return the parts of a query's result, one at least: that of an input without any row."""
    parts = [part for part in taken.parts if part.rows] or [Part(None, "", 0, "")]
    others = _key(job.text, job.definition.contract, {**used, by: taken.schema_digest})
    files = defaultdict[str, list[DataFile]](list)
    for file in taken.files:
        files[file.path.partition("/")[0]].append(file)
    return [
        _Piece(
            part.value,
            part_key(others, part.content),
            files[part.key],
        )
        for part in parts
    ]


@dataclass(frozen=True, slots=True)
class _Stages:
    unit: WorkUnit
    order: NDArray[np.int64]
    """Position of each value in the order of before."""
    ends: list[int]
    is_of_tables: NDArray[np.bool_]
    """Whether each value is computed by a function of `TABLE_RUNTIMES`."""


def _stages_of(unit: WorkUnit) -> _Stages | None:
    """Return a unit's stages; None if it has no value of a function of tables."""
    if not unit.has_runtime(*TABLE_RUNTIMES):
        return None
    by_function = np.array([runtime in TABLE_RUNTIMES for runtime, _ in unit.functions], np.bool_)
    by_signature = by_function[[function for function, _ in unit.signatures]]
    is_of_tables = by_signature[unit.signature_indices]
    if not is_of_tables.any():
        return None
    stages = _stage_numbers(unit, is_of_tables)
    order = np.argsort(stages, kind="stable")
    ends = np.flatnonzero(np.diff(stages[order], append=-1)) + 1
    return _Stages(reorder(unit, order), order, ends.tolist(), is_of_tables[order])


def _stage_numbers(unit: WorkUnit, is_of_tables: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Return the stage of each value: even for ordinary ones, odd for those of tables."""
    stages: list[int] = []
    refs, end = unit.refs.tolist(), 0
    for width, is_apart in zip(unit.widths().tolist(), is_of_tables.tolist(), strict=True):
        start, end = end, end + width
        highest = max((stages[ref] for ref in refs[start:end] if ref >= 0), default=0)
        stages.append(highest + 1 + highest % 2 if is_apart else highest + highest % 2)
    return np.array(stages, np.int64)


@dataclass(frozen=True, slots=True)
class _Call:
    position: int
    value_id: str
    function: tuple[str, str]
    """Runtime and code."""
    arguments: dict[str, Any]
    blocked_by: str | None
    """The first input without a value."""
    former: tuple[int, str]
    """Status and text of before."""
    limits: CallLimits
    expected: str | None
    """Code that the function has here, see `WorkUnit.code`."""

    def unit_of(self, asked: ArrowCall) -> WorkUnit:
        """Return the unit of this value alone, for an evaluator."""
        return WorkUnit(
            [self.function],
            [(0, [(CALL, None)])],
            strings([self.value_id]),
            np.zeros(1, np.int32),
            np.array([PENDING], np.uint8),
            strings([""]),
            np.ones(1, np.bool_),
            np.array([-1], np.int32),
            strings([CALL]),
            np.ones(1, np.bool_),
            strings([dumps(asked.encode())]),
            self.limits,
            code={} if self.expected is None else {0: self.expected},
        )


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
                (piece.functions[function][0] or "", piece.functions[function][1]),
                arguments,
                None if unknown is None else piece.constant_ids[unknown].as_py(),
                (int(piece.statuses[position]), piece.texts[position].as_py()),
                piece.limits,
                piece.code.get(function),
            )
        )
    return calls


def _key(code: str, contract: Any, used: Mapping[str, Any]) -> str:
    """Return the digest of the code, of what its result is to be, and of its inputs' contents."""
    inputs = {name: _content(value) for name, value in used.items()}
    return blake3(dumps([code, contract, inputs]).encode()).hexdigest()


def _is_same(one: TableHandle, other: TableHandle) -> bool:
    """Whether two tables have equal rows and schemas; their files may differ."""
    return (one.content, one.schema) == (other.content, other.schema)


def _content(value: Any) -> Any:
    if isinstance(value, list):
        return list(map(_content, value))
    handle = TableHandle.of(value)
    return value if handle is None else {TABLE: [handle.content, handle.schema]}

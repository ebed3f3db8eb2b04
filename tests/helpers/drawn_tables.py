"""Graphs of small tables and scalars, drawn at random, and what DuckDB says that each value is.

A column's name says its kind, so that a query that reads other tables than those that it was drawn
for may fail, but is not another one. Each query is written once, and told in two dialects.
"""

# ruff: noqa: S608 - queries are texts

import hashlib
import io
import json
import random
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from functools import cached_property
from itertools import takewhile
from typing import Any, Final

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
from blake3 import blake3

from rebaser_core.table_schemas import PARTITION_BY, columns_of
from rebaser_core.table_values import TableHandle, upload_of, upload_value
from rebaser_core.updates import (
    AnyUpdate,
    PutFunc,
    PutValue,
    RemoveValue,
    SetInputs,
    SetValue,
)
from rebaser_server.tables import TableFiles
from tests.helpers.checkpoint_writer import ulid
from tests.helpers.drawn_graphs import CEL
from tests.helpers.drawn_graphs import told as told_plain
from tests.helpers.reference_spreadsheet import FUNCTIONS, Sheet, Wrong

KINDS: Final = {
    "id": "bigint", "qty": "bigint", "grp": "int", "amount": "decimal(12,2)",
    "price": "decimal(12,2)", "tag": "string", "note": "string", "day": "date",
    "flag": "boolean", "share": "double", "seen": "timestamp",
}  # fmt: skip
"""The kind of each column, as Rebaser says it."""
_ARROW: Final = {
    "bigint": pa.int64(), "int": pa.int32(), "decimal(12,2)": pa.decimal128(12, 2),
    "string": pa.string(), "date": pa.date32(), "boolean": pa.bool_(), "double": pa.float64(),
    "timestamp": pa.timestamp("us", "UTC"),
}  # fmt: skip
_DUCKDB: Final = {
    "BIGINT": "bigint", "INTEGER": "int", "DECIMAL(12,2)": "decimal(12,2)", "VARCHAR": "string",
    "DATE": "date", "BOOLEAN": "boolean", "DOUBLE": "double",
    "TIMESTAMP WITH TIME ZONE": "timestamp",
}  # fmt: skip
NUMBERS: Final = ("id", "qty", "grp", "amount", "price", "share")
ALIKE: Final = (("id", "qty"), ("amount", "price"), ("tag", "note"))
"""Columns that a query may exchange: then rows differ in their places alone."""
GROUPS: Final = ("grp", "tag", "flag", "day", "note")
PARTITIONS: Final = ("grp", "tag", "flag", "day")


@dataclass(frozen=True)
class Rows:
    """A table, as DuckDB or a reader gives it."""

    table: pa.Table
    kinds: tuple[tuple[str, str], ...]
    """Name and kind of each column."""
    upload: str | None = None
    """Digest of the file that it was."""
    partition_by: str | None = None

    @cached_property
    def digest(self) -> str:
        """Equal for equal rows in any order, under equal names and equally partitioned."""
        rows = sorted(repr([_plain(cell) for cell in row.values()]) for row in self.rows)
        about = repr((self.kinds, self.partition_by))
        return hashlib.sha256("\n".join([about, *rows]).encode()).hexdigest()

    @property
    def rows(self) -> list[dict[str, Any]]:
        return self.table.to_pylist()


def _plain(cell: Any) -> Any:
    return cell.astimezone(UTC).isoformat() if isinstance(cell, datetime) else cell


class TableReader:
    """Rows of the product's tables, each read once."""

    def __init__(self, tables: TableFiles, workspace: str) -> None:
        self._tables = tables
        self._workspace = workspace
        self._known: dict[str, Rows] = {}
        self._contents: dict[tuple[str, str], str] = {}
        self._rows: dict[tuple[str, str], str] = {}

    def read(self, value: Any) -> Any:
        """Return the rows of a handle, which must be those that it says; another value as it is."""
        handle = TableHandle.of(value)
        if handle is None:
            return value
        if handle.key not in self._known:
            self._known[handle.key] = self._rows_of(handle)
        rows = self._known[handle.key]
        assert handle.rows == len(rows.table)
        # One digest for equal rows, and others for others.
        assert (
            self._contents.setdefault((handle.schema, rows.digest), handle.content)
            == handle.content
        )
        assert self._rows.setdefault((handle.schema, handle.content), rows.digest) == rows.digest
        return rows

    def _rows_of(self, handle: TableHandle) -> Rows:
        manifest = self._tables.get(self._workspace, handle.key)
        assert manifest.handle(handle.key).schema == handle.schema
        kinds = tuple((each.name, each.type) for each in columns_of(manifest.fields))
        names = [name for name, _ in kinds]
        batches = list(self._tables.batches(self._workspace, manifest, names))
        schema = pa.schema([pa.field(name, _ARROW[kind]) for name, kind in kinds])
        table = pa.Table.from_batches(batches).cast(schema) if batches else schema.empty_table()
        if manifest.partition_by is not None:
            cells = table.column(manifest.partition_by).to_pylist()
            assert len({*cells}) == sum(part.rows > 0 for part in manifest.parts)
        return Rows(table, kinds, None, manifest.partition_by)


def told(state: Mapping[str, tuple[str, Any]]) -> dict[str, str]:
    """As `drawn_graphs.told`, tables by their rows in any order."""
    plain = {
        value_id: (status, what.digest if isinstance(what, Rows) else what)
        for value_id, (status, what) in state.items()
    }
    return told_plain(plain)


@dataclass(frozen=True)
class Upload:
    """A file as a client sends it."""

    payload: bytes
    rows: Rows

    @property
    def digest(self) -> str:
        return str(self.rows.upload)


def draw_upload(chance: random.Random) -> Upload:
    """Draw a file of a table: of no, few or some rows, in all columns or some, or in partitions."""
    names = [name for name in KINDS if chance.random() < 0.97 or name in ("id", "qty", "amount")]
    count = chance.choice([0, 1, 10, 20, 30, 50])
    columns = []
    for name in names:
        kind, cells = KINDS[name], [_cell(chance, name) for _ in range(count)]
        if chance.random() < 0.4:
            cells = [None if chance.random() < 0.2 else cell for cell in cells]
        columns.append(pa.array(cells, _ARROW[kind]))
    fields = [
        pa.field(name, column.type, nullable=column.null_count > 0 or chance.random() < 0.7)
        for name, column in zip(names, columns, strict=True)
    ]
    by = chance.choice([name for name in PARTITIONS if name in names] or [None])
    return _upload(
        pa.table(columns, schema=pa.schema(fields)), by if chance.random() < 0.5 else None
    )


def _upload(table: pa.Table, by: str | None) -> Upload:
    sink = io.BytesIO()
    with pq.ParquetWriter(sink, table.schema) as writer:
        writer.write_table(table)
        if by is not None:
            writer.add_key_value_metadata({PARTITION_BY: by})
    digest = blake3(sink.getvalue()).hexdigest()
    kinds = tuple((name, KINDS[name]) for name in table.schema.names)
    return Upload(sink.getvalue(), Rows(table, kinds, digest, by))


def draw_change(chance: random.Random, upload: Upload) -> Upload:
    """Draw an upload that differs in one partition, or does not have it any more."""
    rows = upload.rows.rows
    value = chance.choice([row[upload.rows.partition_by] for row in rows])
    is_gone = chance.random() < 0.3
    changed = []
    for row in rows:
        if row[upload.rows.partition_by] != value:
            changed.append(row)
        elif not is_gone:
            changed.append({**row, "qty": chance.randrange(9)})
    table = pa.Table.from_pylist(changed, upload.rows.table.schema)
    return _upload(table, upload.rows.partition_by)


def _cell(chance: random.Random, name: str) -> Any:
    first = datetime(2026, 1, 1, tzinfo=UTC)
    days, micros = chance.choice([0, 1, 2, 40, -9_000]), chance.choice([0, 1, 10**9 + 1])
    return {
        "bigint": chance.choice([*range(-3, 9), 2**40]),
        "int": chance.randrange(4),
        "decimal(12,2)": Decimal(chance.randrange(-500, 5_000)).scaleb(-2),
        "string": chance.choice(["a", "b", "c", "ab", "", "ä€🙂", "a, b", "null"]),
        "date": first.date() + timedelta(days),
        "boolean": chance.random() < 0.5,
        # Their sums are exact in any order.
        "double": chance.choice([0.0, 0.25, 0.5, 1.75, -3.0, float("nan")]),
        "timestamp": first + timedelta(microseconds=micros),
    }[KINDS[name]]


_DIV: Final = re.compile(r"DIV\[(.*?)\|(.*?)\]")
_DECLARED: Final = re.compile(r"\A(?:--.*\n)*")


def _for_spark(text: str) -> str:
    return _DIV.sub(r"(\1) DIV (\2)", text)


def _for_duckdb(text: str) -> str:
    text = _DECLARED.sub("", text)
    text = _DIV.sub(
        r"CASE WHEN (\2) = 0 AND (\1) IS NOT NULL THEN error('division by zero') "
        r"ELSE (\1) // (\2) END",
        text,
    )
    text = text.replace("array_contains(", "list_contains(").replace("AS STRING)", "AS VARCHAR)")
    return re.sub(r":([a-z]+)\b", r"$\1", text).replace("AS TIMESTAMP)", "AS TIMESTAMPTZ)")


@dataclass(frozen=True)
class Drawn:
    """A query, and what it was drawn to take and to give."""

    text: str
    """In both dialects, as `_for_spark` and `_for_duckdb` read it."""
    takes: tuple[str, ...]
    """Names of its tables."""
    parameters: tuple[str, ...] = ()
    gives: tuple[str, ...] | None = None
    """Names of columns; None: a value."""

    @property
    def code(self) -> str:
        return _for_spark(self.text)

    @property
    def partition_by(self) -> str | None:
        found = re.match("-- partition by: (.*)", self.text)
        return found and found[1]


class DuckDb:
    """What each code computes, by DuckDB; a query with equal inputs is asked once."""

    def __init__(self) -> None:
        self.queries: dict[str, Drawn] = {}
        """By code."""
        self.uploads: dict[str, Rows] = {}
        """By digest."""
        self._known: dict[str, Any] = {}
        self.errors: dict[str, str] = {}
        """By code, the last one."""
        self._connection = duckdb.connect()
        self._connection.execute("SET TimeZone = 'UTC'")

    def functions(self) -> Mapping[str, Callable[..., Any]]:
        return _Functions(self)

    def call(self, query: Drawn, arguments: dict[str, Any]) -> Any:
        used = {name: arguments[name] for name in (*query.takes, *query.parameters)}
        for name in query.takes:
            used[name] = self.rows_of(used[name])
        if any(is_table(used[name]) for name in query.parameters):
            raise Wrong
        contents = {name: _content(value) for name, value in used.items()}
        key = json.dumps([query.code, contents], sort_keys=True)
        if key not in self._known:
            try:
                self._known[key] = self._ask(query, used)
            except (duckdb.Error, Wrong) as error:
                self._known[key] = Wrong
                self.errors[query.code] = str(error)
        found = self._known[key]
        if found is Wrong:
            raise Wrong
        return found

    def rows_of(self, value: Any) -> Rows:
        if isinstance(value, Rows):
            return value
        digest = upload_of(value)
        if digest is None:
            raise Wrong
        return self.uploads[digest]

    def _ask(self, query: Drawn, used: dict[str, Any]) -> Any:
        for name in query.takes:
            self._connection.register(name, used[name].table)
        try:
            parameters = {name: used[name] for name in query.parameters}
            found = self._connection.sql(_for_duckdb(query.text), params=parameters)
            kinds = tuple(zip(found.columns, map(_kind, found.types), strict=True))
            table = found.to_arrow_table()
        finally:
            for name in query.takes:
                self._connection.unregister(name)
        if query.gives is not None:
            return Rows(table, kinds, None, query.partition_by)
        if len(table) > 1 or len(kinds) > 1:
            raise Wrong
        return _as_json(table.column(0)[0].as_py()) if len(table) else None


def _kind(kind: Any) -> str:
    return _DUCKDB.get(str(kind), "?")


def _as_json(value: Any) -> Any:
    match value:
        case Decimal():
            return int(value) if value == int(value) else float(value)
        case date():
            return value.isoformat()
        case _:
            return value


def is_table(value: Any) -> bool:
    return isinstance(value, Rows) or upload_of(value) is not None


def _content(value: Any) -> Any:
    if isinstance(value, Rows):
        return ["rows", value.upload or value.digest]
    return ["json", repr(value)]


class _Functions(Mapping[str, Callable[..., Any]]):
    """By code, as `Sheet` asks for them."""

    def __init__(self, duckdb: DuckDb) -> None:
        self._duckdb = duckdb

    def __getitem__(self, code: str) -> Callable[..., Any]:
        if (query := self._duckdb.queries.get(code)) is not None:
            return lambda **arguments: self._duckdb.call(query, arguments)
        return CEL[code] if code in CEL else FUNCTIONS[code]

    def __iter__(self) -> Iterator[str]:
        return iter([*self._duckdb.queries, *CEL, *FUNCTIONS])

    def __len__(self) -> int:
        return len([*self])

    def __deepcopy__(self, memo: Any) -> "_Functions":
        return self


P: Final = "TRY_CAST(:p AS DECIMAL(12,2))"
ZERO: Final = f"CASE WHEN {P} = 2 THEN 0 ELSE 1 END"


class Queries:
    """Queries drawn at random over tables of which the columns are known."""

    def __init__(self, chance: random.Random) -> None:
        self._chance = chance

    def draw(self, t: tuple[str, ...], u: tuple[str, ...]) -> Drawn:
        """Draw a query over a table `t`, and at times `u`, with the parameters `p` and `q`."""
        shapes = [self._filter, self._project, self._aggregate, self._window, self._top]
        two = [self._join, self._union, self._exists, self._cross]
        value = [self._value]
        [shape] = self._chance.choices([*shapes, *two, *value], [3, 3, 4, 3, 2, 5, 4, 2, 2, 5])
        query = shape(t, u)
        columns = [name for name in PARTITIONS if name in (query.gives or ())]
        if not columns or self._chance.random() < 0.5:
            return query
        return replace(query, text=f"-- partition by: {self._chance.choice(columns)}\n{query.text}")

    def _some(self, names: tuple[str, ...]) -> list[str]:
        kept = [name for name in names if self._chance.random() < 0.85]
        return kept or [names[0]]

    def _condition(self, names: tuple[str, ...], prefix: str = "") -> tuple[str, tuple[str, ...]]:
        """A condition, and its parameters."""
        name = self._chance.choice(names)
        column = prefix + name
        match KINDS[name]:
            case "boolean":
                return column, ()
            case "string":
                return self._chance.choice(
                    [
                        (f"{column} LIKE 'a%'", ()),
                        (f"{column} IN ('a', 'b', '')", ()),
                        (f"{column} IS NOT NULL", ()),
                        (f"{column} > CAST(:q AS STRING)", ("q",)),
                    ]
                )
            case "date":
                return f"{column} <= DATE '2026-01-02'", ()
            case "timestamp":
                return f"{column} > CAST('2026-01-01' AS TIMESTAMP)", ()
            case _:
                return self._chance.choice(
                    [(f"{column} >= {P}", ("p",)), (f"{column} <> 3 OR {column} IS NULL", ())]
                )

    def _cell(self, name: str, names: tuple[str, ...], prefix: str = "") -> tuple[str, set[str]]:
        """An expression for a column, and its parameters."""
        column = prefix + name
        pair = next(({*pair} for pair in ALIKE if name in pair), {name})
        other = prefix + (pair - {name}).pop() if len(pair & {*names}) > 1 else column
        # Spark does not look at a condition that chooses between equal columns, which may fail.
        either = f"CASE WHEN {P} = 1 THEN {'NULL' if other == column else other} ELSE {column} END"
        plain: list[tuple[str, set[str]]] = [(column, set())]
        match KINDS[name]:
            case "bigint":
                plain += [
                    (other, set()),
                    (f"CAST(DIV[{column}|{other}] AS BIGINT)", set()),
                    (f"CAST(DIV[{column}|{ZERO}] AS BIGINT)", {"p"}),
                    (either, {"p"}),
                    (f"CAST(coalesce({column}, {other}, 7) AS BIGINT)", set()),
                ]
            case "decimal(12,2)":
                plain += [
                    (other, set()),
                    (f"CAST({column} * {P} AS DECIMAL(12,2))", {"p"}),
                    (f"CAST({column} + {other} AS DECIMAL(12,2))", set()),
                    (either, {"p"}),
                ]
            case "string":
                plain += [
                    (other, set()),
                    (f"CAST(substring({column}, 1, 1) || {other} AS STRING)", set()),
                    (f"CAST(coalesce({column}, CAST(:q AS STRING)) AS STRING)", {"q"}),
                    (either, {"p"}),
                ]
            case "int":
                plain += [(f"CAST(({column} + 1) % 3 AS INT)", set())]
            case "boolean":
                plain += [(f"NOT {column}", set())]
            case "double":
                plain += [(f"CAST({column} / 2 AS DOUBLE)", set())]
        weights = [2 * len(plain), *([2] * (len(plain) - 1))]
        if KINDS[name] == "bigint":
            weights[2] = 1
        return self._chance.choices(plain, weights)[0]

    def _columns(self, names: list[str], prefix: str = "") -> tuple[str, set[str]]:
        cells = [(name, *self._cell(name, tuple(names), prefix)) for name in names]
        used = {parameter for _, _, needed in cells for parameter in needed}
        return ", ".join(f"{text} AS {name}" for name, text, _ in cells), used

    def _filter(self, t: tuple[str, ...], _: tuple[str, ...]) -> Drawn:
        condition, parameters = self._condition(t)
        names = self._some(t)
        listed = ", ".join(names)
        if "tag" in t and self._chance.random() < 0.1:
            return Drawn(
                f"SELECT {listed} FROM t WHERE array_contains(:w, tag)", ("t",), ("w",), (*names,)
            )
        text = f"SELECT {listed} FROM t WHERE {condition}"
        return Drawn(text, ("t",), parameters, (*names,))

    def _project(self, t: tuple[str, ...], _: tuple[str, ...]) -> Drawn:
        names = self._some(t)
        columns, used = self._columns(names)
        distinct = "DISTINCT " if self._chance.random() < 0.3 else ""
        return Drawn(f"SELECT {distinct}{columns} FROM t", ("t",), (*sorted(used),), (*names,))

    def _aggregate(self, t: tuple[str, ...], _: tuple[str, ...]) -> Drawn:
        groups = [name for name in GROUPS if name in t][: self._chance.randint(0, 2)]
        cells = [*groups]
        names = [*groups]
        for name in t:
            if name in groups or self._chance.random() < 0.4:
                continue
            kind = {"string": "STRING"}.get(KINDS[name], KINDS[name].upper())
            how = ["min", "max", *(["sum", "sum"] if name in NUMBERS else [])]
            if KINDS[name] == "bigint":
                how += ["count", "count(DISTINCT"]
            call = self._chance.choice(how)
            opened = call if "(" in call else f"{call}("
            cells.append(f"CAST({opened} {name}) AS {kind}) AS {name}")
            names.append(name)
        if not names:
            cells, names = ["CAST(count(*) AS BIGINT) AS qty"], ["qty"]
        text = f"SELECT {', '.join(cells)} FROM t"
        parameters: tuple[str, ...] = ()
        if self._chance.random() < 0.3:
            condition, parameters = self._condition(t)
            text += f" WHERE {condition}"
        if groups:
            text += f" GROUP BY {', '.join(groups)}"
            if self._chance.random() < 0.3:
                text += " HAVING count(*) > 1"
        return Drawn(text, ("t",), parameters, (*names,))

    def _window(self, t: tuple[str, ...], _: tuple[str, ...]) -> Drawn:
        part = self._chance.choice([name for name in GROUPS if name in t] or [t[0]])
        order = ", ".join(f"{name} NULLS FIRST" for name in t)
        calls = {
            "id": f"CAST(row_number() OVER (PARTITION BY {part} ORDER BY {order}) AS BIGINT)",
            "qty": f"CAST(rank() OVER (ORDER BY {part} NULLS FIRST) AS BIGINT)",
        }
        if "amount" in t:
            calls["amount"] = (
                f"CAST(sum(amount) OVER (PARTITION BY {part}) AS DECIMAL(12,2))"
                if self._chance.random() < 0.5
                else f"lag(amount) OVER (PARTITION BY {part} ORDER BY {order})"
            )
            calls["price"] = (
                f"CAST(sum(amount) OVER (PARTITION BY {part} ORDER BY {order}) AS DECIMAL(12,2))"
            )
        taken = self._chance.sample(sorted(calls), self._chance.randint(1, len(calls)))
        kept = [name for name in t if name not in taken]
        cells = [*kept, *(f"{calls[name]} AS {name}" for name in taken)]
        return Drawn(f"SELECT {', '.join(cells)} FROM t", ("t",), (), (*kept, *taken))

    def _top(self, t: tuple[str, ...], _: tuple[str, ...]) -> Drawn:
        order = ", ".join(f"{name} {self._chance.choice(['', 'DESC '])}NULLS FIRST" for name in t)
        listed = ", ".join(t)
        return Drawn(
            f"SELECT {listed} FROM t ORDER BY {order} LIMIT {self._chance.choice([1, 7, 7])}",
            ("t",), (), t,
        )  # fmt: skip

    def _join(self, t: tuple[str, ...], u: tuple[str, ...]) -> Drawn:
        both = [name for name in t if name in u and KINDS[name] != "double"]
        if not both:
            return self._union(t, u)
        keys = self._chance.sample(both, min(len(both), self._chance.randint(1, 2)))
        on = " AND ".join(f"l.{name} = r.{name}" for name in keys)
        left = self._some(t)
        right = [name for name in self._some(u) if name not in left]
        listed = ", ".join(
            [*(f"l.{name} AS {name}" for name in left), *(f"r.{name} AS {name}" for name in right)]
        )
        how = self._chance.choice(["", "LEFT ", "FULL OUTER "])
        # At most so many rows, however many joins follow each other.
        order = ", ".join(f"{name} NULLS FIRST" for name in [*left, *right])
        text = f"SELECT {listed} FROM t AS l {how}JOIN u AS r ON {on} ORDER BY {order} LIMIT 50"
        return Drawn(text, ("t", "u"), (), (*left, *right))

    def _union(self, t: tuple[str, ...], u: tuple[str, ...]) -> Drawn:
        names = tuple(name for name in t if name in u) or t
        listed = ", ".join(names)
        how = self._chance.choice(["UNION ALL", "UNION", "EXCEPT", "INTERSECT"])
        text = f"SELECT {listed} FROM t {how} SELECT {listed} FROM u"
        if self._chance.random() < 0.3:
            text = f"WITH m AS ({text}) SELECT {listed} FROM m WHERE {names[0]} IS NOT NULL"
        return Drawn(text, ("t", "u"), (), names)

    def _exists(self, t: tuple[str, ...], u: tuple[str, ...]) -> Drawn:
        name = self._chance.choice([name for name in t if name in u] or [t[0]])
        no = self._chance.choice(["", "NOT "])
        listed = ", ".join(t)
        text = (
            f"SELECT {listed} FROM t AS l WHERE {no}EXISTS "
            f"(SELECT 1 FROM u AS r WHERE r.{name} = l.{name})"
        )
        return Drawn(text, ("t", "u"), (), t)

    def _cross(self, t: tuple[str, ...], _: tuple[str, ...]) -> Drawn:
        names = tuple(name for name in self._some(t) if name != "qty")
        listed = ", ".join([*names, "n AS qty"])
        text = (
            f"-- small: u\nSELECT {listed} FROM t CROSS JOIN "
            "(SELECT CAST(count(*) AS BIGINT) AS n FROM u) AS c"
        )
        return Drawn(text, ("t", "u"), (), (*names, "qty"))

    def _value(self, t: tuple[str, ...], _: tuple[str, ...]) -> Drawn:
        name = self._chance.choice(t)
        kind = {"string": "STRING"}.get(KINDS[name], KINDS[name].upper())
        if name in ("share", "seen"):
            text = "SELECT count(*) FROM t"
        elif self._chance.random() < 0.15:
            text = f"SELECT {name} FROM t"  # one row, or none, or too many
        else:
            how = ["sum", "max"] if name in NUMBERS else ["min", "max"]
            text = f"SELECT CAST({self._chance.choice(how)}({name}) AS {kind}) FROM t"
        return Drawn(f"-- returns: value\n{text}", ("t",))


SCALARS: Final = [0, 1, 2, 3, 1.5]
ODD: Final = [None, True, "a", "", 12, -1]
"""Values that few queries expect."""


class TableDrawing:
    """The values and functions of one graph, and random updates of them."""

    def __init__(self, chance: random.Random, duckdb: DuckDb) -> None:
        self.chance = chance
        self._duckdb = duckdb
        self._queries = Queries(chance)
        self._count = 0
        self._nodes: dict[str, tuple[str, ...] | None] = {}
        """Columns of each value that is a table, as it was drawn; None: a scalar."""
        self.uploads: list[Upload] = []
        for _ in range(5):
            self.draw_upload()
        self.tables = [self._new_id() for _ in range(2)]
        self._scalars = [self._new_id() for _ in range(2)]
        self._list, self._words = self._new_id(), self._new_id()

    def draw_upload(self) -> Upload:
        """Draw another table, to be set from now on."""
        parted = [each for each in self.uploads if each.rows.partition_by and each.rows.rows]
        upload = (
            draw_change(self.chance, self.chance.choice(parted))
            if parted and self.chance.random() < 0.6
            else draw_upload(self.chance)
        )
        self.uploads.append(upload)
        self._duckdb.uploads[upload.digest] = upload.rows
        return upload

    def _new_id(self) -> str:
        self._count += 1
        return ulid(self._count)

    def define(self) -> list[AnyUpdate]:
        """All functions and values: 6 sources, and 3 to 8 that are computed, some in chains."""
        updates: list[AnyUpdate] = []
        for each in self.tables:
            upload = self.chance.choice(self.uploads)
            updates.append(PutValue(value_id=each, value=upload_value(upload.digest)))
            self._nodes[each] = tuple(name for name, _ in upload.rows.kinds)
        for each in self._scalars:
            updates.append(PutValue(value_id=each, value=self._scalar()))
            self._nodes[each] = None
        updates.append(PutValue(value_id=self._list, value=["a", "b"]))
        updates.append(PutValue(value_id=self._words, value="a"))
        for _ in range(self.chance.randint(3, 8)):
            updates += self._add()
        return updates

    def _computed(self, value_id: str) -> list[AnyUpdate]:
        """A computed value over what was drawn before it, and its function."""
        func_id = f"7{value_id[1:]}"
        tables, scalars = self._before(value_id)
        if self.chance.random() < 0.15:
            code = self.chance.choice(["value + 1", "sum", "coalesce"])
            inputs: dict[str, Any] = {
                "value + 1": {"value": self.chance.choice(scalars)},
                "sum": {"values": self.chance.choices(scalars, k=2)},
                "coalesce": {"values": self.chance.choices(tables, k=2)},
            }[code]
            gives = self._nodes[inputs["values"][0]] if code == "coalesce" else None
        else:
            late = tables[-4:]  # for long chains
            t, u, p = (
                self.chance.choice(late),
                self.chance.choice(late),
                self.chance.choice(scalars),
            )
            query = self._query(t, u)
            code, gives = query.code, query.gives
            every = {"t": t, "u": u, "p": p, "q": self._words, "w": self._list}
            inputs = {name: every[name] for name in (*query.takes, *query.parameters)}
        self._nodes[value_id] = gives
        return [
            _function(func_id, code),
            PutValue(value_id=value_id, func_id=func_id, inputs=inputs),
        ]

    def _before(self, value_id: str) -> tuple[list[str], list[str]]:
        """Tables and scalars that were drawn before a value."""
        before = list(takewhile(lambda each: each != value_id, self._nodes))
        tables = [each for each in before if self._nodes[each] is not None]
        return tables, [each for each in before if self._nodes[each] is None]

    def _query(self, t: str, u: str) -> Drawn:
        query = self._queries.draw(self._nodes.get(t) or ("id",), self._nodes.get(u) or ("id",))
        self._duckdb.queries[query.code] = query
        return query

    def _scalar(self) -> Any:
        return self.chance.choice(SCALARS if self.chance.random() < 0.93 else ODD)

    def edits(self, sheet: Sheet) -> list[AnyUpdate]:
        """A few updates of a graph that is now as `sheet` says."""
        edits = {
            self._set_scalar: 30, self._set_table: 25, self._change_rule: 18, self._rewire: 5,
            self._add: 5, self._remove: 3, self._set_oddly: 2, self._mistake: 2,
        }  # fmt: skip
        updates: list[AnyUpdate] = []
        while not updates or self.chance.random() < 0.3:
            computed = [each for each in self._nodes if each in sheet.formulas]
            [edit] = self.chance.choices([*edits], [*edits.values()])
            updates += edit(sheet, self.chance.choice(computed)) if computed else self._add()
        return updates

    def _set_scalar(self, *_: Any) -> list[AnyUpdate]:
        return [SetValue(value_id=self.chance.choice(self._scalars), value=self._scalar())]

    def _set_table(self, *_: Any) -> list[AnyUpdate]:
        value = upload_value(self.chance.choice(self.uploads).digest)
        return [SetValue(value_id=self.chance.choice(self.tables), value=value)]

    def _set_oddly(self, *_: Any) -> list[AnyUpdate]:
        """A table where a scalar was, or the other way round."""
        value = self.chance.choice([*ODD, upload_value(self.uploads[0].digest)])
        return [SetValue(value_id=self.chance.choice([*self.tables, *self._scalars]), value=value)]

    def _change_rule(self, sheet: Sheet, value_id: str) -> list[AnyUpdate]:
        func_id, inputs = sheet.formulas[value_id]
        if "t" not in inputs:
            return []
        query = self._query(inputs["t"], inputs.get("u", inputs["t"]))
        self._nodes[value_id] = query.gives
        scalars = {"p": self._scalars[0], "q": self._words, "w": self._list}
        wanted = {"u": inputs["t"], **scalars, **inputs}
        return [_function(func_id, query.code), SetInputs(value_id=value_id, inputs=wanted)]

    def _rewire(self, sheet: Sheet, value_id: str) -> list[AnyUpdate]:
        """Another table, at times without a column that is needed."""
        _, inputs = sheet.formulas[value_id]
        tables, _ = self._before(value_id)
        if "t" not in inputs:
            return []
        return [SetInputs(value_id=value_id, inputs={**inputs, "t": self.chance.choice(tables)})]

    def _add(self, *_: Any) -> list[AnyUpdate]:
        return self._computed(self._new_id())

    def _remove(self, _: Sheet, value_id: str) -> list[AnyUpdate]:
        return [RemoveValue(value_id=value_id)] if self._nodes[value_id] else []

    def _mistake(self, sheet: Sheet, value_id: str) -> list[AnyUpdate]:
        func_id, _ = sheet.formulas[value_id]
        return [_function(func_id, "SELECT nope FROM t")]


def _function(func_id: str, code: str) -> PutFunc:
    runtime = "cel" if code in CEL else "builtin" if code in FUNCTIONS else "sql"
    return PutFunc(func_id=func_id, name="f", runtime=runtime, code=code)

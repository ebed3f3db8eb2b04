"""A graph as a person writes it: sources, values and functions by their names.

Functions are named as people name them: builtins, CEL text, SQL, and Python functions that are
installed. Tables give a value for each of their rows (files, pandas, Arrow, Polars, or dicts of
plain data), or are a value themselves.
"""

import inspect
import re
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from importlib import import_module
from importlib.metadata import entry_points
from pathlib import Path
from threading import Lock
from typing import Any, BinaryIO, Final, Literal, Protocol, TypeAlias, TypeVar, cast, overload

from pydantic import ValidationError

from rebaser_client.csv_files import require_once
from rebaser_client.display import package
from rebaser_client.errors import InvalidDraft
from rebaser_client.plain_values import INDEX, plain
from rebaser_client.row_files import plain_rows, read_rows
from rebaser_core.codecs import json_equal
from rebaser_core.queries import FunctionSnapshot
from rebaser_core.table_values import PinnedTable, upload_value
from rebaser_core.updates import Inputs, PutFunc, PutValue
from rebaser_core.versioning import first_error

F = TypeVar("F", bound=Callable[..., Any])

BUILTIN_PARAMETERS: Final[Mapping[str, tuple[str, ...]]] = {
    **dict.fromkeys(
        ("collect", "sum", "product", "mean", "min", "max", "count", "any", "all"), ("values",)
    ),
    **dict.fromkeys(("coalesce", "json_merge"), ("values",)),
    "concat": ("values", "separator"),
    "identity": ("value",),
    "not": ("value",),
    "round": ("value", "digits"),
    **dict.fromkeys(("subtract", "divide", "equal", "less"), ("left", "right")),
    "if": ("condition", "then", "otherwise"),
    "lookup": ("table", "key", "default"),
    "json_get": ("document", "pointer", "default"),
}
"""Names of the inputs that each builtin takes, in order."""

_OPTIONAL: Final = frozenset({"separator", "digits", "otherwise", "default"})
"""Inputs of builtins that a value may leave out."""

_GROUP: Final = "rebaser.functions"
_CODE: Final = "rebaser_code"
"""The attribute of a decorated function that holds its entry point's name."""

_VERSION: Final = "version"
"""The attribute by which Rebaser knows the version of an installed function."""

_CEL_PLACE: Final = re.compile(r"<input>:(\d+):(\d+): (.*?)(?: \(in container ''\))?$")
"""Form of an error of CEL's engine: line, column from 1, and the mistake."""

_NAME_LENGTH: Final = 80
"""Characters of CEL or SQL that name a function without a name."""


@dataclass(frozen=True, slots=True)
class Function:
    """A function; two with equal runtime, code and name are one."""

    name: str
    runtime: Literal["builtin", "python", "cel", "sql", "arrow", "pyspark"]
    code: str
    parameters: tuple[str, ...] | None = None
    """Names of its inputs in order; None: any names, and no inputs by position."""
    needed: frozenset[str] = field(default=frozenset(), compare=False)
    """Names of the inputs that every value must have."""
    func_id: str | None = field(default=None, compare=False)
    """Id of the function, if it is in the change set."""

    def update(self, func_id: str) -> PutFunc:
        """The update that defines it."""
        return PutFunc(func_id=func_id, name=self.name, runtime=self.runtime, code=self.code)


@dataclass(frozen=True, slots=True)
class FunctionName:
    """A function of the change set that is known by name until the draft is compared with that."""

    name: str
    similar: tuple[str, ...] = field(default=(), compare=False)
    """Names of functions in a file that a mistyped name may mean."""


def builtin(code: str, *, name: str | None = None) -> Function:
    """A function that Rebaser brings, for instance `sum`; docs/functions.md lists them.

    Raises:
        InvalidDraft: there is no such function.

    Example:
        draft.value("total", builtin("sum"), "net", "gross")
    """
    if code not in BUILTIN_PARAMETERS:
        known = ", ".join(sorted(BUILTIN_PARAMETERS))
        raise InvalidDraft(f"there is no builtin function {code!r}; there are {known}")
    parameters = BUILTIN_PARAMETERS[code]
    return Function(name or code, "builtin", code, parameters, frozenset(parameters) - _OPTIONAL)


def cel(expression: str, *, name: str | None = None) -> Function:
    """An expression in CEL, whose variables are the inputs, each given by its name.

    Example:
        draft.value("twice", cel("net * 2"), net="net")
    """
    return Function(name or expression[:_NAME_LENGTH], "cel", expression)


def sql(query: str, *, name: str | None = None) -> Function:
    """A query in SQL whose result is a table, or one value if its first line declares that.

    Inputs that are tables are its tables, others its parameters (`:rate`), each by its name.

    Example:
        query = sql("SELECT day, sum(net) AS net FROM orders GROUP BY day")
        draft.value("by_day", query, orders="orders")
    """
    return Function(name or " ".join(query.split())[:_NAME_LENGTH], "sql", query)


def cel_mistake(expression: str, variables: Iterable[str]) -> str | None:
    """Reason why CEL with these variables cannot be compiled, with its place; None if it can.

    Raises:
        ImportError: the engine is not installed, or not for this machine.
    """
    engine = import_module("cel_expr_python.cel")  # 16 MB, for graphs with CEL alone

    try:
        types = dict.fromkeys(variables, engine.Type.DYN)
        engine.NewEnv(variables=types).compile(expression)
    except Exception as error:  # noqa: BLE001 - the binding has no class for what it refuses
        found = _CEL_PLACE.search(str(error).split("\n", 1)[0])
        if found is None:
            return " ".join(str(error).split())[:200]
        return f"line {found[1]}, column {found[2]}: {found[3]:.120}"
    return None


@overload
def function(
    python: None = None, *, code: str | None = None, version: str | None = None
) -> Callable[[F], F]: ...
@overload
def function(python: F, *, code: str | None = None, version: str | None = None) -> F: ...
def function(
    python: F | None = None, *, code: str | None = None, version: str | None = None
) -> F | Callable[[F], F]:
    """Mark a Python function as one that computes values; it can still be called.

    The function must be installed where Rebaser runs, under an entry point of the group
    `rebaser.functions`.

    Args:
        python: the function; without it, this is a decorator.
        code: the entry point's name (default: the function's name).
        version: lets values be computed by that version alone.

    Raises:
        InvalidDraft: a Rebaser could not import the function.

    Example:
        @function
        def price(*, net: float, tax: float) -> float:
            return net * (1 + tax)
    """

    def mark(marked: F) -> F:
        _require_importable(marked)
        name = code or marked.__name__
        setattr(marked, _CODE, name if version is None else f"{name}@{version}")
        if version is not None:
            setattr(marked, _VERSION, version)
        return marked

    return mark if python is None else mark(python)


def as_function(given: Function | Callable[..., Any]) -> Function:
    """The function to compute values by.

    Raises:
        InvalidDraft: `given` is no function, or a Rebaser could not find it.
    """
    if isinstance(given, Function):
        return given
    if not inspect.isfunction(given):
        raise InvalidDraft(
            f"{given!r:.80} is no function; use builtin('sum'), cel('a + b'), or a Python function"
        )
    _require_importable(given)
    code = getattr(given, _CODE, None) or _entry_point_name(given)
    return Function(code, "python", code, _parameters(given), _needed(given))


def python(code: str, *, name: str | None = None) -> Function:
    """The Python function that is installed where Rebaser runs, by its entry point's name.

    Example:
        draft.value("price", python("price"), net="net")
    """
    return Function(name or code, "python", code)


def arrow(given: str | Callable[..., Any], *, name: str | None = None) -> Function:
    """A Python function of tables, which takes and returns those of pyarrow; no Spark is needed.

    It is installed as others are: `given` is its entry point's name, or the function itself.

    Raises:
        InvalidDraft: `given` is no function, or a Rebaser could not find it.

    Example:
        draft.value("totals", arrow("totals"), orders="orders")
    """
    return _of_tables(given, name, "arrow")


def pyspark(given: str | Callable[..., Any], *, name: str | None = None) -> Function:
    """A Python function of a Spark session and, by name, of DataFrames, which it also returns.

    It is installed as others are: `given` is its entry point's name, or the function itself.

    Raises:
        InvalidDraft: `given` is no function, takes no session, or a Rebaser could not find it.

    Example:
        draft.value("totals by day", pyspark("totals"), orders="orders")
    """
    found = _of_tables(given, name, "pyspark")
    if not callable(given):
        return found
    session = next(iter(inspect.signature(given).parameters), None)
    if session is None:
        raise InvalidDraft(f"{found.name!r} takes nothing: its first argument is a Spark session")
    others = None if found.parameters is None else found.parameters[1:]
    return replace(found, parameters=others, needed=found.needed - {session})


def _of_tables(
    given: str | Callable[..., Any], name: str | None, runtime: Literal["arrow", "pyspark"]
) -> Function:
    if isinstance(given, str):
        return Function(name or given, runtime, given)
    found = as_function(given)
    if found.runtime != "python":
        raise InvalidDraft(f"{found.name!r} is of runtime {found.runtime}, and cannot be another's")
    return replace(found, name=name or found.name, runtime=runtime)


def function_of(there: FunctionSnapshot) -> Function:
    """A function of the change set."""
    parameters = BUILTIN_PARAMETERS.get(there.code) if there.runtime == "builtin" else None
    return Function(
        there.name,
        cast("Any", there.runtime),
        there.code,
        parameters,
        frozenset(parameters or ()) - _OPTIONAL,
        there.id,
    )


def _require_importable(given: Callable[..., Any]) -> None:
    module, name = given.__module__, given.__qualname__
    remedy = (
        "move it to the top level of a module that is installed where Rebaser runs, and name "
        f'it in pyproject.toml below [project.entry-points."{_GROUP}"]; or use cel("…")'
    )
    if given.__name__ == "<lambda>":
        raise InvalidDraft(f"a lambda of {module} cannot compute values: {remedy}")
    if module == "__main__":
        raise InvalidDraft(
            f"{name} is defined in the program itself, which no Rebaser can import: {remedy}"
        )
    if "<locals>" in name:
        raise InvalidDraft(f"{name} of {module} is defined inside a function: {remedy}")


def _entry_point_name(given: Callable[..., Any]) -> str:
    target = f"{given.__module__}:{given.__qualname__}"
    names = sorted(name for name, value in _entry_points() if value == target)
    if names:
        return names[0]
    raise InvalidDraft(
        f"no entry point of group {_GROUP!r} here is {target!r}: add `{given.__name__} = "
        f'"{target}"` under [project.entry-points."{_GROUP}"] to its pyproject.toml and install '
        "it here and where Rebaser runs; or mark it with @function, if it is installed there alone"
    )


@cache
def _entry_points() -> tuple[tuple[str, str], ...]:
    return tuple((point.name, point.value) for point in entry_points(group=_GROUP))


def _needed(given: Callable[..., Any]) -> frozenset[str]:
    parameters = inspect.signature(given).parameters.values()
    empty, several = inspect.Parameter.empty, inspect.Parameter.VAR_KEYWORD
    return frozenset(
        each.name for each in parameters if each.default is empty and each.kind is not several
    )


def _parameters(given: Callable[..., Any]) -> tuple[str, ...] | None:
    """Names of its parameters; None if it takes any names."""
    parameters = inspect.signature(given).parameters.values()
    if any(each.kind is inspect.Parameter.VAR_KEYWORD for each in parameters):
        return None
    return tuple(each.name for each in parameters)


Row: TypeAlias = Mapping[str, Any]


class _ToPylist(Protocol):
    def to_pylist(self) -> list[dict[str, Any]]: ...


class _ToDicts(Protocol):
    def to_dicts(self) -> list[dict[str, Any]]: ...


class _DataFrame(Protocol):
    @property
    def columns(self) -> Any: ...
    def to_dict(self, orient: Any) -> Any: ...


Table: TypeAlias = Iterable[Row] | _ToPylist | _ToDicts | _DataFrame | str | Path
"""Rows as mappings, a table of Arrow, Polars or pandas, or the path of a file: see `read_rows`."""

_COLUMN: Final = re.compile(r"\{([^{}]+)\}")


def rows_of(table: Table) -> list[dict[str, Any]]:
    """The rows with plain cells, as `plain_values` says.

    Raises:
        InvalidDraft: it is no table.
    """
    given: Any = table
    if isinstance(given, str | Path):
        return read_rows(given)
    if hasattr(given, "to_pylist"):
        given = plain_rows(given) if hasattr(given, "schema") else given.to_pylist()
    elif hasattr(given, "to_dicts"):
        given = given.to_dicts()
    elif hasattr(given, "to_dict") and hasattr(given, "columns"):
        given = _records(given)
    elif not isinstance(given, Iterable):
        raise InvalidDraft(f"{type(given).__name__} is no table; give rows, a frame, or a path")
    rows = []
    for number, row in enumerate(given, 1):
        if not isinstance(row, Mapping):
            raise InvalidDraft(f"row {number} is {row!r:.60}; a row has a name for each column")
        rows.append({str(column): plain(cell) for column, cell in row.items()})
    return rows


def _records(frame: Any) -> Iterable[Row]:
    """The rows of a frame of pandas; the names of its index are columns, as in a table."""
    index = frame.index
    named = [level for level in index.names if level is not None and level not in frame.columns]
    is_range = type(index).__name__ == "RangeIndex"
    for place, level in enumerate(index.names):
        labels = index.get_level_values(place)
        if level in named or (is_range and level is None):
            continue
        if labels.dtype.kind not in "iu" or list(labels) != list(range(len(frame))):
            raise InvalidDraft(INDEX)
    rows = frame.reset_index(level=named) if named else frame
    require_once([str(column) for column in rows.columns])
    return cast("Iterable[Row]", rows.to_dict("records"))


def name_in(pattern: str, row: Row) -> str:
    """The pattern with each column in braces replaced by the row's cell.

    Raises:
        InvalidDraft: the row has no such column, or a cell that makes no name.
    """

    def cell(match: re.Match[str]) -> str:
        column = match[1]
        if column not in row:
            raise InvalidDraft(
                f"{pattern!r}: there is no column {column!r}, only {', '.join(map(repr, row))}"
            )
        value = row[column]
        if not isinstance(value, str | int | float) or isinstance(value, bool) or value == "":
            raise InvalidDraft(f"{pattern!r}: {value!r:.40} in column {column!r} makes no name")
        return str(value)

    return _COLUMN.sub(cell, pattern)


_ANY_ID: Final = "0" * 26

AnyFunction: TypeAlias = Function | FunctionName | Callable[..., Any]
"""A function as `builtin`, `cel`, `sql` or `python` return it, a Python function, or one that the
change set has."""


@dataclass(frozen=True, slots=True)
class ValueRef:
    """A value of a draft, as an input of others."""

    name: str


@dataclass(frozen=True, slots=True)
class Family:
    """Values with names of one pattern, one for each row of a table.

    As an input of a single value it stands for all of them; as an input of a family, for the value
    of the row.
    """

    pattern: str
    names: tuple[str, ...]

    def __iter__(self) -> Iterator[ValueRef]:
        return map(ValueRef, self.names)

    def __len__(self) -> int:
        return len(self.names)


Input: TypeAlias = ValueRef | Family | str | Sequence[ValueRef | Family | str]
"""Values by reference or by name; in a family's inputs names may have columns in braces."""


@dataclass(frozen=True, slots=True)
class Source:
    """Content of a source value."""

    value: Any


TableSource: TypeAlias = Any
"""Object with `__arrow_c_stream__` (pyarrow, pandas, Polars, DuckDB, …), or the path of a file."""


@dataclass(frozen=True)
class TableUpload:
    """A table as a file in Parquet that is to be uploaded; equal rows make equal bytes."""

    file: BinaryIO
    """A temporary file."""
    rows: int
    size: int
    """Bytes of the file."""
    digest: str
    """BLAKE3 of the file's bytes."""
    _reading: Lock = field(default_factory=Lock, repr=False, compare=False)
    """Held while the file is read, as by loads of one draft into several branches."""

    def __post_init__(self) -> None:
        weakref.finalize(self, self.file.close)

    def read(self) -> bytes:
        """The bytes of the file."""
        with self._reading:
            self.file.seek(0)
            return self.file.read()


@dataclass(frozen=True, slots=True)
class Computed:
    """Function and inputs of a computed value."""

    function: Function
    inputs: Mapping[str, str | list[str]]
    """Argument → the name of a value, or of several."""

    def input_names(self) -> Iterator[str]:
        """Names of its inputs, with repetitions."""
        for given in self.inputs.values():
            yield from _as_list(given)


@dataclass(frozen=True, slots=True)
class ComputedByName:
    """Definition of a computed value whose function is known by name alone."""

    function: FunctionName
    ordered: list[str | list[str]]
    named: Mapping[str, str | list[str]]

    def input_names(self) -> Iterator[str]:
        """Names of its inputs, with repetitions."""
        for given in (*self.ordered, *self.named.values()):
            yield from _as_list(given)

    def computed(self, name: str, function: Function) -> Computed:
        """Definition of the value of that name with the function that was found."""
        return Computed(function, _bind(name, function, self.ordered, self.named))


Definition: TypeAlias = Source | Computed | ComputedByName


class Draft:
    """Values by name, each defined once. No method does I/O, but for files that it is given.

    Each method may raise `InvalidDraft`, which says what to write instead.

    Example:
        draft = Draft()
        net = draft.source("net", 100)
        draft.value("gross", cel("double(net) * 1.19"), net=net)
        await shop.load(draft)
    """

    def __init__(self) -> None:
        self.definitions: dict[str, Definition] = {}
        """Definitions, in order."""
        self.removed: dict[str, None] = {}
        """Names of values to remove."""
        self.uploads: dict[str, TableUpload] = {}
        """Files of the values that are tables, by their digests."""

    def source(self, name: str, value: Any) -> ValueRef:
        """Define a value with fixed content: any JSON (see `plain_values`)."""
        return self._define(name, Source(plain(value)))

    def table(
        self,
        name: str,
        table: TableSource | None = None,
        *,
        text: Iterable[str] = (),
        partition_by: str | None = None,
        uri: str | None = None,
        version: int | str | None = None,
    ) -> ValueRef:
        """Define a value that is a table, for functions in SQL. Blocks.

        Args:
            name: of the value.
            table: of pyarrow, pandas, Polars or DuckDB, or the path of a file of Parquet or CSV. It
                is uploaded.
            text: columns of a file of CSV that stay text.
            partition_by: a column, such as the day of a row, by whose values queries may compute
                what changed alone.
            uri: in place of `table`, the path of a table of Delta or Parquet that Rebasers see, in
                a folder that the operator allows. They copy it, and it is not partitioned.
            version: of Delta a number; of Parquet the digest that `rebaser tables pin` prints.
        """
        if (table is None) == (uri is None):
            raise InvalidDraft(f"{name!r}: give either a table, or the uri of one")
        if uri is not None and partition_by is not None:
            raise InvalidDraft(f"{name!r}: only a table that is uploaded is partitioned")
        if table is None:
            try:
                pinned = PinnedTable.at(uri, version)
            except ValueError as error:
                raise InvalidDraft(f"{name!r}: {error}") from error
            return self._define(name, Source(pinned.to_value()))
        uploads = package("rebaser_client.table_uploads", extra="arrow")
        upload: TableUpload = uploads.written(table, text, partition_by)
        self.uploads[upload.digest] = upload
        return self._define(name, Source(upload_value(upload.digest)))

    def value(
        self, name: str, function: AnyFunction, /, *inputs: Input, **named: Input
    ) -> ValueRef:
        """Define a value that `function` computes from its inputs, given in order or by name."""
        ordered = [*map(_listed, inputs)]
        by_name = {argument: _listed(each) for argument, each in named.items()}
        return self._define(name, _computed(name, function, ordered, by_name))

    def sources(self, pattern: str, table: Table, column: str | None = None) -> Family:
        """Define a source for each row: the cell in `column`, or the whole row as an object.

        `pattern` names them: "net/{sku}" has the cell of column "sku" in place of the braces.
        """
        names = []
        for row in rows_of(table):
            name = name_in(pattern, row)
            if column is not None and column not in row:
                raise InvalidDraft(
                    f"{name!r}: there is no column {column!r}, only {', '.join(map(repr, row))}"
                )
            names.append(self.source(name, row if column is None else row[column]).name)
        return Family(pattern, tuple(dict.fromkeys(names)))

    def values(
        self, pattern: str, function: AnyFunction, table: Table, /, *inputs: Input, **named: Input
    ) -> Family:
        """Define a computed value for each row, with inputs of the row."""
        known = function if isinstance(function, FunctionName) else as_function(function)
        names = []
        for row in rows_of(table):
            name = name_in(pattern, row)
            ordered = [_listed(each, row) for each in inputs]
            by_name = {argument: _listed(each, row) for argument, each in named.items()}
            names.append(self._define(name, _computed(name, known, ordered, by_name)).name)
        return Family(pattern, tuple(dict.fromkeys(names)))

    def remove(self, *names: str) -> None:
        """Remove values; those that take one as an input lose that input."""
        for name in names:
            if name in self.definitions:
                raise InvalidDraft(f"{name!r} is defined, and cannot be removed, too")
            self.removed[name] = None

    def _define(self, name: str, definition: Definition) -> ValueRef:
        if not name:
            raise InvalidDraft("a value's name is a text that is not empty")
        if name in self.removed:
            raise InvalidDraft(f"{name!r} is removed, and cannot be defined, too")
        _require_fits(name, definition)
        known = self.definitions.setdefault(name, definition)
        if not _same(known, definition):
            raise InvalidDraft(f"two values are called {name!r}; each name stands for one value")
        return ValueRef(name)


def _computed(
    name: str,
    function: AnyFunction,
    ordered: list[str | list[str]],
    named: Mapping[str, str | list[str]],
) -> Computed | ComputedByName:
    if isinstance(function, FunctionName):
        return ComputedByName(function, ordered, named)
    known = as_function(function)
    return Computed(known, _bind(name, known, ordered, named))


def _same(one: Definition, other: Definition) -> bool:
    if isinstance(one, Source) and isinstance(other, Source):
        return json_equal(one.value, other.value)
    return one == other


def _require_fits(name: str, definition: Definition) -> None:
    """Raise `InvalidDraft` for a name that is too long or a value that is no JSON."""
    try:
        if isinstance(definition, Source):
            PutValue(value_id=_ANY_ID, name=name, value=definition.value)
        else:
            given = (
                definition.named if isinstance(definition, ComputedByName) else definition.inputs
            )
            inputs: Inputs = dict.fromkeys(given, _ANY_ID)
            PutValue(value_id=_ANY_ID, name=name, func_id=_ANY_ID, inputs=inputs)
    except ValidationError as error:
        kind = "source" if isinstance(definition, Source) else "value"
        remedy = "; give it plain JSON" if error.errors()[0]["loc"][0] == "value" else ""
        raise InvalidDraft(f"{kind} {name!r:.80}: {first_error(error)}{remedy}") from error


def _listed(given: Input, row: Row | None = None) -> str | list[str]:
    """Names that an input of a single value stands for, or of the value of a row."""
    if isinstance(given, Family):
        return list(given.names) if row is None else name_in(given.pattern, row)
    if isinstance(given, str):
        return given if row is None else name_in(given, row)
    if isinstance(given, ValueRef):
        return given.name
    return [name for each in _several(given) for name in _as_list(_listed(each, row))]


def _several(given: Any) -> Iterable[Any]:
    if isinstance(given, Sequence) and not isinstance(given, bytes):
        return given
    raise InvalidDraft(
        f"{given!r:.60} is no input; an input is a value: define it with source('…', {given!r:.20})"
    )


def _as_list(names: str | list[str]) -> list[str]:
    return [names] if isinstance(names, str) else names


def _bind(
    name: str,
    function: Function,
    ordered: list[str | list[str]],
    named: Mapping[str, str | list[str]],
) -> dict[str, str | list[str]]:
    """Inputs by the names of their arguments."""
    parameters = function.parameters
    if parameters is None:
        if ordered:
            raise InvalidDraft(f"{name!r}: {function.name} takes its inputs by name: net=net")
        return dict(named)
    if parameters[:1] == ("values",) and ordered:
        ordered = [[each for given in ordered for each in _as_list(given)]]
    takes = f"{function.name} takes {', '.join(parameters) or 'no inputs'}"
    if len(ordered) > len(parameters):
        raise InvalidDraft(f"{name!r}: {len(ordered)} inputs, but {takes}")
    bound = dict(zip(parameters, ordered, strict=False))
    for argument, given in named.items():
        if argument not in parameters or argument in bound:
            twice = "twice" if argument in bound else "unknown"
            raise InvalidDraft(f"{name!r}: input {argument!r} is {twice}; {takes}")
        bound[argument] = given
    missing = [each for each in parameters if each in function.needed and each not in bound]
    if missing:
        raise InvalidDraft(f"{name!r}: input {missing[0]!r} is missing; {takes}")
    return bound

"""Graphs in files: YAML, JSON or TOML, with tables in files beside them.

The rows of a table file are values: each with its name, and its content or function.
"""

from collections.abc import Callable, Iterable, Mapping
from itertools import product
from math import prod
from pathlib import Path
from typing import Any, Final

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from rebaser_client.dbt_projects import Judge, is_manifest, read_manifest
from rebaser_client.documents import MAX_SIZE, read_document, too_large
from rebaser_client.draft import (
    BUILTIN_PARAMETERS,
    Draft,
    Function,
    FunctionName,
    Row,
    arrow,
    builtin,
    cel,
    pyspark,
    python,
    sql,
)
from rebaser_client.errors import InvalidDraft
from rebaser_client.row_files import read_rows, row_size
from rebaser_core import codecs
from rebaser_core.errors import MalformedMessage, offer
from rebaser_core.table_values import TABLE, is_table, reference_key
from rebaser_core.versioning import first_error

_EMPTY: Final = (
    "it is empty. A file that says that there are no values at all, and with --prune removes them, "
    "holds `{}`, in TOML `sources = {}`; `rebaser init` writes a file to begin with"
)


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class FunctionEntry(_Part):
    """A function: exactly one of the six."""

    builtin: str | None = None
    cel: str | None = None
    python: str | None = None
    sql: str | None = None
    arrow: str | None = None
    pyspark: str | None = None


class ComputedEntry(_Part):
    function: str
    """A name in `functions`, of a builtin, or of a function that the change set has."""
    inputs: dict[str, str | list[str]] | list[str] = Field(default_factory=list)
    """Names of values, by argument or in order."""


class TableSourceEntry(_Part):
    """A source that is a table: a file, or one version of a table that Rebasers see."""

    file: str | None = None
    """File of CSV or Parquet; a path begins at the graph's file."""
    text: list[str] = Field(default_factory=list)
    """Columns of CSV that stay text, also where they hold numbers."""
    uri: str | None = None
    """Path of a table of Delta or Parquet, in a folder that the operator allows."""
    version: int | str | None = None
    """Version of that table."""
    partition_by: str | None = None
    """Column by which the table is partitioned."""


class TableEntry(_Part):
    """Values for each row of a table; of several files, for each combination of their rows."""

    file: str | list[str]
    """Files of CSV, Parquet or lines of JSON; a path begins at the graph's file."""
    text: list[str] = Field(default_factory=list)
    """Columns of CSV that stay text, also where they hold numbers."""
    sources: dict[str, str | None] = Field(default_factory=dict)
    """Pattern of a name → column; null: the whole row."""
    values: dict[str, ComputedEntry] = Field(default_factory=dict)

    def files(self) -> list[str]:
        return [self.file] if isinstance(self.file, str) else self.file


class _GraphFile(_Part):
    """All keys that a file may have."""

    functions: dict[str, FunctionEntry] = Field(default_factory=dict)
    sources: dict[str, Any] = Field(default_factory=dict)
    values: dict[str, ComputedEntry] = Field(default_factory=dict)
    tables: list[TableEntry] = Field(default_factory=list)
    remove: list[str] = Field(default_factory=list)


_PARTS: Final[tuple[type[_Part], ...]] = (
    _GraphFile,
    FunctionEntry,
    ComputedEntry,
    TableEntry,
    TableSourceEntry,
)
_KEYS: Final = [key for part in _PARTS for key in part.model_fields]


def read_graph_file(path: str | Path, judge: Judge | None = None) -> Draft:
    """The draft in a file, which may be the manifest of a dbt project. Blocks.

    `judge`: judge of the queries of a dbt project, whose mistakes are listed with all others.

    Raises:
        InvalidDraft: it cannot be parsed, or makes no sense; the message names the place.
        OSError: the file, or one with a table, cannot be read.
    """
    path = Path(path)
    try:
        data = _parse(path)
        if is_manifest(data):
            return read_manifest(data, path, judge)
        return _draft(_GraphFile.model_validate(data), path.parent)
    except ValidationError as error:
        raise InvalidDraft(f"{path}: {_mistake(error)}") from error
    except InvalidDraft as error:
        raise InvalidDraft(f"{path}: {error}") from error


def _mistake(error: ValidationError) -> str:
    """The first mistake, with the file's own words."""
    first = error.errors()[0]
    *_, key = place = [str(part) for part in first["loc"]] or ["the file"]
    where = ".".join(place)[:200]
    match first["type"]:
        case "extra_forbidden":
            return f"{where}: no such key{offer(key, _KEYS)}"
        case "model_type":
            part = next(each for each in _PARTS if each.__name__ == first["ctx"]["class_name"])
            hint = "; values that are not computed are `sources`" if part is ComputedEntry else ""
            return f"{where}: an object is expected, with {', '.join(part.model_fields)}{hint}"
        case _ if "inputs" in place:
            value = ".".join(place[: place.index("inputs") + 1])
            return f"{value}: names of values are expected, by argument or as a list"
        case _:
            return first_error(error)


def _parse(path: Path) -> Any:
    data = read_document(path)
    is_toml = path.suffix.lower() == ".toml"  # there, no key at all may be a comment alone
    if data is None or data == [] or (is_toml and not data):
        raise InvalidDraft(_EMPTY)
    return data


def _draft(graph: _GraphFile, directory: Path) -> Draft:
    draft = Draft()
    functions = {name: _function(name, entry) for name, entry in graph.functions.items()}
    for name, value in graph.sources.items():
        _define_source(draft, name, value, directory)
    for name, entry in graph.values.items():
        ordered, named = _inputs(entry)
        draft.value(name, _named(functions, entry), *ordered, **named)
    size = 0
    for table in graph.tables:
        tables = [_table(directory, file, table.text) for file in table.files()]
        size += _size(tables) * max(1, len(table.sources) + len(table.values))
        if size > MAX_SIZE:
            raise too_large(f"{', '.join(table.files())[:200]}, with what is made of each row,")
        rows = _combined(table.files(), tables)
        for pattern, column in table.sources.items():
            draft.sources(pattern, rows, column)
        for pattern, entry in table.values.items():
            ordered, named = _inputs(entry)
            draft.values(pattern, _named(functions, entry), rows, *ordered, **named)
    draft.remove(*graph.remove)
    return draft


def _define_source(draft: Draft, name: str, value: Any, directory: Path) -> None:
    """Define the source: a table, where the name of a file stands under `$table`."""
    if not is_table(value) or reference_key(value) is not None:
        draft.source(name, value)
        return
    given = value[TABLE]
    if other := next((key for key in value if key != TABLE), None):
        words = f"{TABLE}: {{file: …, {other}: …}}"
        raise InvalidDraft(
            f"sources.{name}: {other!r:.80} stands beside {TABLE}: write {words:.200}"
        )
    try:
        entry = TableSourceEntry.model_validate(
            {"file": given} if isinstance(given, str) else given
        )
    except ValidationError as error:
        raise InvalidDraft(f"sources.{name}.{TABLE}: {_mistake(error)}") from error
    file = None if entry.file is None else directory / entry.file
    try:
        draft.table(
            name,
            file,
            text=entry.text,
            partition_by=entry.partition_by,
            uri=entry.uri,
            version=entry.version,
        )
    except FileNotFoundError as error:
        raise InvalidDraft(f"sources.{name}: {_missing(directory, str(entry.file))}") from error


def _missing(directory: Path, file: str) -> str:
    path = directory / file
    beside = (each.name for each in path.parent.iterdir()) if path.parent.is_dir() else ()
    return f"there is no file {file!r:.200}{offer(path.name, beside)}"


def _function(name: str, entry: FunctionEntry) -> Function:
    given = entry.model_dump(exclude_none=True)
    if len(given) != 1:
        raise InvalidDraft(f"function {name!r} is one of {', '.join(_MAKERS)}")
    [(runtime, code)] = given.items()
    return _MAKERS[runtime](code, name=name)


_MAKERS: Final[dict[str, Callable[..., Function]]] = {
    "builtin": builtin, "cel": cel, "python": python, "sql": sql, "arrow": arrow,
    "pyspark": pyspark,
}  # fmt: skip
"""Functions of `draft` that make a function of each runtime."""


def _named(functions: dict[str, Function], entry: ComputedEntry) -> Function | FunctionName:
    if entry.function in functions:
        return functions[entry.function]
    if entry.function in BUILTIN_PARAMETERS:
        return builtin(entry.function)
    return FunctionName(entry.function, (*functions,))


def _inputs(entry: ComputedEntry) -> tuple[list[str], dict[str, str | list[str]]]:
    given = entry.inputs
    return (given, {}) if isinstance(given, list) else ([], given)


def _table(directory: Path, file: str, text: list[str]) -> list[Row]:
    try:
        return list[Row](read_rows(directory / file, text=text))
    except FileNotFoundError as error:
        raise InvalidDraft(f"tables: {_missing(directory, file)}") from error
    except ValueError as error:  # a path with the character NUL
        raise InvalidDraft(f"{file!r:.200} is no path: {error}") from error


def _size(tables: list[list[Row]]) -> int:
    """Size of all combinations of the tables' rows, as `MAX_SIZE` limits it."""
    combinations = prod(map(len, tables))
    return sum(
        combinations // len(rows) * sum(map(row_size, rows)) for rows in tables if combinations
    )


def _combined(files: list[str], tables: list[list[Row]]) -> list[Row]:
    """Each combination of the tables' rows, as one row."""
    places: dict[str, int] = {}
    for place, rows in enumerate(tables):
        for column in dict.fromkeys(column for row in rows for column in row):
            if (first := places.setdefault(column, place)) != place:
                raise InvalidDraft(
                    f"{files[first]} and {files[place]} both have a column {column!r:.80}; rename "
                    "one of them"
                )
    return [{k: v for row in rows for k, v in row.items()} for rows in product(*tables)]


SUFFIXES: Final = (".csv", ".parquet", ".jsonl")

_COLUMNS: Final = ("name", "value", "json", "function", "inputs")
_SAYING: Final = ("value", "json", "function")
"""Columns that define a value."""


def read_table_file(path: str | Path, renamed: Mapping[str, str] | None = None) -> Draft:
    """The draft of a table's values. Blocks.

    Args:
        path: a file with one of `SUFFIXES`.
        renamed: column of the file → its meaning; an empty text leaves the column out.

    Raises:
        InvalidDraft: it is not such a table; the message names the row, from 1, and the column.
        MissingPackage: pyarrow is not installed, and this is Parquet.
        OSError: the file cannot be read.
    """
    path, renamed = Path(path), renamed or {}
    meanings = {**dict(zip(_COLUMNS, _COLUMNS, strict=True)), **renamed}
    text = [column for column, means in meanings.items() if means != "value"]
    rows = read_rows(path, text=text)
    try:
        if not rows:
            raise InvalidDraft("it has no rows")
        columns = _meanings(dict.fromkeys(column for row in rows for column in row), renamed)
        return _Rows(columns).draft(rows)
    except InvalidDraft as error:
        raise InvalidDraft(f"{path}: {error}") from error


def _meanings(columns: Iterable[str], renamed: Mapping[str, str]) -> dict[str, str]:
    """Meaning of each column that counts → its name in the file."""
    known = ", ".join(map(repr, columns)) or "none"
    for column, means in renamed.items():
        if column not in columns:
            raise InvalidDraft(f"there is no column {column!r}; it has {known}")
        if means and means not in _COLUMNS:
            raise InvalidDraft(f"{means!r} is no meaning of a column; {', '.join(_COLUMNS)} are")
    found: dict[str, str] = {}
    for column in columns:
        means = renamed.get(column, column)
        if means and found.setdefault(means, column) != column:
            raise InvalidDraft(f"two columns for {means!r}: {found[means]!r} and {column!r}")
    if "name" not in found:
        raise InvalidDraft(
            f"it has no column 'name'; it has {known}: --map COLUMN=name says which one "
            "names the values. A graph file makes several values of each row"
        )
    unknown = [column for means, column in found.items() if means not in _COLUMNS]
    if unknown:
        leaving = " ".join(f"--map {column}=" for column in unknown)
        raise InvalidDraft(
            f"column {unknown[0]!r} means nothing: --map {unknown[0]}=value says what it means, "
            f"one of {', '.join(_COLUMNS)}; {leaving} leaves out what does not count"
        )
    if not found.keys() & set(_SAYING):
        raise InvalidDraft("it has no column 'value', 'json' or 'function': --map COLUMN=value")
    if "value" in found and "json" in found:
        raise InvalidDraft("it has both 'value' and 'json'; one of them says what a value is")
    return found


class _Rows:
    """Defines the value of each row."""

    def __init__(self, columns: Mapping[str, str]) -> None:
        """Read with `columns`: their meanings → their names in the file."""
        self._columns = columns
        self._functions = {code: builtin(code) for code in BUILTIN_PARAMETERS}

    def draft(self, rows: Iterable[Row]) -> Draft:
        draft = Draft()
        for number, row in enumerate(rows, 1):
            try:
                self._define(draft, row)
            except _InCell as error:
                column = self._columns[error.means]
                raise InvalidDraft(f"row {number}, column {column!r}: {error}") from error
            except InvalidDraft as error:
                raise InvalidDraft(f"row {number}: {error}") from error
        return draft

    def _define(self, draft: Draft, row: Row) -> None:
        name, inputs = _name(self._cell(row, "name"), "name"), self._cell(row, "inputs")
        code = self._cell(row, "function")
        value = self._json(row) if "json" in self._columns else self._cell(row, "value")
        if code is None:
            if inputs is not None:
                raise InvalidDraft(f"{name!r} has inputs and no function: name one, or leave them")
            draft.source(name, value)
            return
        if value is not None:
            raise InvalidDraft(f"{name!r} has a value and a function: leave one of them empty")
        if not isinstance(code, str):
            raise _InCell("function", f"{code!r:.80} names no function; a name is a text")
        function = self._functions.get(code) or FunctionName(code)
        given = {} if inputs is None else _cell_inputs(inputs)
        if isinstance(given, list):
            draft.value(name, function, *given)
        else:
            draft.value(name, function, **given)

    def _cell(self, row: Row, means: str) -> Any:
        column = self._columns.get(means)
        return None if column is None else row.get(column)

    def _json(self, row: Row) -> Any:
        text = self._cell(row, "json")
        return None if text is None else _parsed("json", text)


class _InCell(InvalidDraft):
    """The content of a cell in the column `means` makes no sense."""

    def __init__(self, means: str, message: str) -> None:
        super().__init__(message)
        self.means: Final = means


def _name(given: Any, means: str) -> str:
    if isinstance(given, str | int) and not isinstance(given, bool) and given != "":
        return str(given)
    raise _InCell(means, f"{given!r:.40} names no value; a name is a text that is not empty")


def _cell_inputs(given: Any) -> dict[str, str | list[str]] | list[str]:
    """Names of values, by argument or in order; an argument without names is left out."""
    if isinstance(given, str):
        given = _parsed("inputs", given)
    if isinstance(given, list):
        return [_name(each, "inputs") for each in given]
    if not isinstance(given, dict):
        raise _InCell("inputs", f"{given!r:.40} is no object of names by argument, and no list")
    return {
        argument: [_name(each, "inputs") for each in names]
        if isinstance(names, list)
        else _name(names, "inputs")
        for argument, names in given.items()
        if names is not None
    }


def _parsed(means: str, text: Any) -> Any:
    try:
        return codecs.loads(codecs.JSON, text.encode())
    except (MalformedMessage, AttributeError) as error:
        cause = str(error).removeprefix(f"not {codecs.JSON}: ")
        raise _InCell(means, f"not JSON: {cause}") from error

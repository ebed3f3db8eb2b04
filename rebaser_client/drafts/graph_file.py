"""Graphs in files: YAML, JSON or TOML, with tables in files beside them."""

from itertools import product
from math import prod
from pathlib import Path
from typing import Any, Final

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from rebaser_client.drafts.documents import MAX_SIZE, read_document, too_large
from rebaser_client.drafts.draft import Draft
from rebaser_client.drafts.functions import (
    BUILTIN_PARAMETERS,
    Function,
    FunctionName,
    builtin,
    cel,
    python,
)
from rebaser_client.drafts.row_files import read_rows, row_size
from rebaser_client.drafts.rows import Row
from rebaser_client.errors import InvalidDraft
from rebaser_core.errors import offer
from rebaser_core.versioning import first_error

_EMPTY: Final = (
    "it is empty. A file that says that there are no values at all, and with --prune removes them, "
    "holds `{}`, in TOML `sources = {}`"
)


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class FunctionEntry(_Part):
    """A function: one of the three."""

    builtin: str | None = None
    cel: str | None = None
    python: str | None = None


class ComputedEntry(_Part):
    """What a value is computed by and from."""

    function: str
    """A name in `functions`, of a builtin, or of a function that the change set has."""
    inputs: dict[str, str | list[str]] | list[str] = Field(default_factory=list)
    """Names of values, by argument or in order."""


class TableEntry(_Part):
    """Values for each row of a table; several files stand for each combination of their rows."""

    file: str | list[str]
    """Files of CSV, Parquet or lines of JSON; a path begins at the graph's file."""
    text: list[str] = Field(default_factory=list)
    """Columns of CSV that stay text, also where they hold numbers."""
    sources: dict[str, str | None] = Field(default_factory=dict)
    """Pattern of a name → column; null: the whole row."""
    values: dict[str, ComputedEntry] = Field(default_factory=dict)

    def files(self) -> list[str]:
        """The files, each once or more."""
        return [self.file] if isinstance(self.file, str) else self.file


class GraphFile(_Part):
    """All that a file may say."""

    functions: dict[str, FunctionEntry] = Field(default_factory=dict)
    sources: dict[str, Any] = Field(default_factory=dict)
    values: dict[str, ComputedEntry] = Field(default_factory=dict)
    tables: list[TableEntry] = Field(default_factory=list)
    remove: list[str] = Field(default_factory=list)


_PARTS: Final[tuple[type[_Part], ...]] = (GraphFile, FunctionEntry, ComputedEntry, TableEntry)
_KEYS: Final = [key for part in _PARTS for key in part.model_fields]


def read_graph_file(path: str | Path) -> Draft:
    """The draft that a file describes. Blocks.

    Raises:
        InvalidDraft: it cannot be parsed, or makes no sense; the message names the place.
        OSError: the file, or one with a table, cannot be read.
    """
    path = Path(path)
    try:
        graph = GraphFile.model_validate(_parse(path))
        return _draft(graph, path.parent)
    except ValidationError as error:
        raise InvalidDraft(f"{path}: {_mistake(error)}; docs/graph-files.md shows one") from error
    except InvalidDraft as error:
        raise InvalidDraft(f"{path}: {error}") from error


def _mistake(error: ValidationError) -> str:
    """The first mistake, in the words of the file."""
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


def _draft(graph: GraphFile, directory: Path) -> Draft:
    draft = Draft()
    functions = {name: _function(name, entry) for name, entry in graph.functions.items()}
    for name, value in graph.sources.items():
        draft.source(name, value)
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


def _function(name: str, entry: FunctionEntry) -> Function:
    match entry.builtin, entry.cel, entry.python:
        case str(code), None, None:
            return builtin(code, name=name)
        case None, str(expression), None:
            return cel(expression, name=name)
        case None, None, str(code):
            return python(code, name=name)
    raise InvalidDraft(f"function {name!r} is one of builtin, cel or python")


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

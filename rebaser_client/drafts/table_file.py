"""Tables in files whose rows are values: each with its name, and what it is or is computed by."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

from rebaser_client.drafts.draft import Draft
from rebaser_client.drafts.functions import BUILTIN_PARAMETERS, FunctionName, builtin
from rebaser_client.drafts.row_files import read_rows
from rebaser_client.drafts.rows import Row
from rebaser_client.errors import InvalidDraft
from rebaser_core import codecs
from rebaser_core.errors import MalformedMessage

SUFFIXES: Final = (".csv", ".parquet", ".jsonl")

_COLUMNS: Final = ("name", "value", "json", "function", "inputs")
_SAYING: Final = ("value", "json", "function")
"""Columns that say what a value is."""


def read_table_file(path: str | Path, renamed: Mapping[str, str] | None = None) -> Draft:
    """The draft of a table's values. Blocks.

    Args:
        path: a file with one of `SUFFIXES`.
        renamed: column of the file → what it is here; an empty text leaves the column out.

    Raises:
        InvalidDraft: it is no such table; the message names the row, from 1, and the column.
        MissingPackage: pyarrow is not installed, and this is Parquet.
        OSError: the file cannot be read.
    """
    path, renamed = Path(path), renamed or {}
    meanings = {**dict(zip(_COLUMNS, _COLUMNS, strict=True)), **renamed}
    text = [column for column, means in meanings.items() if means != "value"]
    try:
        rows = read_rows(path, text=text)
        if not rows:
            raise InvalidDraft("it has no rows")
        columns = _meanings(dict.fromkeys(column for row in rows for column in row), renamed)
        return _Rows(columns).draft(rows)
    except InvalidDraft as error:
        raise InvalidDraft(f"{path}: {error}") from error


def _meanings(columns: Iterable[str], renamed: Mapping[str, str]) -> dict[str, str]:
    """What each column that counts is called in the file."""
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
            f"it has no column 'name'; it has {known}: --map COLUMN=name says which one names the "
            "values. A graph file makes several values of each row: docs/graph-files.md"
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
        """`columns`: what they mean here, and what they are called in the file."""
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
        given = {} if inputs is None else _inputs(inputs)
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
    """What a cell of the column `means` holds makes no sense."""

    def __init__(self, means: str, message: str) -> None:
        super().__init__(message)
        self.means: Final = means


def _name(given: Any, means: str) -> str:
    if isinstance(given, str | int) and not isinstance(given, bool) and given != "":
        return str(given)
    raise _InCell(means, f"{given!r:.40} names no value; a name is a text that is not empty")


def _inputs(given: Any) -> dict[str, str | list[str]] | list[str]:
    """Names of values, by argument or in order; an argument without any is left out."""
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

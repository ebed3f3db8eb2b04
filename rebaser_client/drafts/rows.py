"""Tables as rows of plain data: files, pandas, Arrow, Polars, or dicts."""

import csv
import re
from collections.abc import Iterable, Mapping
from io import StringIO
from math import isfinite
from pathlib import Path
from typing import Any, Final, Protocol, TypeAlias

from rebaser_client.display.frames import package
from rebaser_client.errors import InvalidDraft
from rebaser_client.plain_values import plain
from rebaser_core import codecs
from rebaser_core.errors import MalformedMessage
from rebaser_core.plain_json import INT_MAX, INT_MIN

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

_NUMBER: Final = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][-+]?[0-9]+)?")
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
        given = given.to_pylist()
    elif hasattr(given, "to_dicts"):
        given = given.to_dicts()
    elif hasattr(given, "to_dict") and hasattr(given, "columns"):
        given = given.to_dict("records")
    rows = []
    for number, row in enumerate(given, 1):
        if not isinstance(row, Mapping):
            raise InvalidDraft(f"row {number} is {row!r:.60}; a row has a name for each column")
        rows.append({str(column): plain(cell) for column, cell in row.items()})
    return rows


def read_rows(path: str | Path, *, text: Iterable[str] = ()) -> list[dict[str, Any]]:
    """The rows of a file: Parquet, or lines of JSON, by its suffix; any other is CSV.

    `text`: columns of CSV that stay text.

    Raises:
        InvalidDraft: it is no such file.
        MissingPackage: pyarrow is not installed, and this is Parquet.
        OSError: the file cannot be read.
    """
    match Path(path).suffix.lower():
        case ".parquet":
            return _read_parquet(path)
        case ".jsonl":
            return _read_json_lines(path)
    return read_csv(path, text=text)


def _read_parquet(path: str | Path) -> list[dict[str, Any]]:
    parquet = package("pyarrow.parquet", extra="arrow")
    with Path(path).open("rb") as file:
        try:
            rows: list[dict[str, Any]] = parquet.read_table(file).to_pylist()
        except ValueError as error:  # pyarrow's ArrowInvalid is one
            raise InvalidDraft(f"{path}: not Parquet: {error!s:.200}") from error
    return rows


def _read_json_lines(path: str | Path) -> list[dict[str, Any]]:
    rows = []
    with Path(path).open("rb") as file:
        for number, line in enumerate(file, 1):
            if not line.strip():
                continue
            try:
                row = codecs.loads(codecs.JSON, line)
            except MalformedMessage as error:
                raise InvalidDraft(f"{path}, line {number}: {error}") from error
            if not isinstance(row, dict):
                raise InvalidDraft(f"{path}, line {number}: a row is an object, {{column: cell}}")
            rows.append(row)
    return rows


def read_csv(path: str | Path, *, text: Iterable[str] = ()) -> list[dict[str, Any]]:
    """The rows of a CSV file in UTF-8 whose first line names the columns; empty cells are None.

    A column is numbers if each of its cells is one as JSON writes it and fits 64 bits, except
    those in `text`; so 007 stays text. It is integers if all are, else floats.

    Raises:
        InvalidDraft: it is not UTF-8, or a line has more cells than the first one.
        OSError: the file cannot be read.
    """
    rows: list[dict[str, Any]] = []
    try:
        lines = Path(path).read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InvalidDraft(f"{path}: not UTF-8 (byte {error.start})") from error
    reader = csv.DictReader(StringIO(lines, newline=""))
    for row in reader:
        if None in row:
            raise InvalidDraft(f"{path}, line {reader.line_num}: more cells than columns")
        rows.append({column: cell or None for column, cell in row.items()})
    columns = [column for column in reader.fieldnames or () if column not in set(text)]
    for column in columns:
        cells = [row[column] for row in rows if row[column] is not None]
        if cells and all(map(_is_number, cells)):
            whole = all(map(_is_whole, cells))
            for row in rows:
                row[column] = row[column] and _number(row[column], whole=whole)
    return rows


def _is_number(cell: str) -> bool:
    if _NUMBER.fullmatch(cell) is None:
        return False
    return INT_MIN <= int(cell) <= INT_MAX if _is_whole(cell) else isfinite(float(cell))


def _is_whole(cell: str) -> bool:
    return cell.lstrip("-").isdigit()


def _number(cell: str, *, whole: bool) -> int | float:
    return int(cell) if whole else float(cell)


def name_in(pattern: str, row: Row) -> str:
    """The pattern with each column in braces replaced by the row's cell.

    Raises:
        InvalidDraft: the row has no such column, or nothing there that makes a name.
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

"""Tables as rows of plain data: files, pandas, Arrow, Polars, or dicts."""

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final, Protocol, TypeAlias

from rebaser_client.drafts.row_files import read_rows
from rebaser_client.errors import InvalidDraft
from rebaser_client.plain_values import plain

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

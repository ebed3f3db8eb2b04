"""Rows as tables: for pandas, Polars, Arrow, and as HTML for notebooks.

Each library is imported when its table is asked for. In HTML tables, names and values of others are
shown as text.
"""

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from html import escape
from importlib import import_module
from typing import Any, Final, TypeVar

from rebaser_client.errors import MissingPackage
from rebaser_core.errors import many
from rebaser_core.table_values import TABLE, PinnedTable, TableHandle, upload_of

T = TypeVar("T")

Columns = Mapping[str, Sequence[Any]]
"""Column → its cells, all of one length."""


class Tabular(ABC):
    """Rows that can be had as a table of pandas, Arrow or Polars, each imported when asked for."""

    @abstractmethod
    def _columns(self) -> Columns: ...

    def to_pandas(self) -> Any:
        """A `pandas.DataFrame`, a row for each value. Raises `MissingPackage` without pandas."""
        return package("pandas", extra="pandas").DataFrame(self._columns())

    def to_arrow(self) -> Any:
        """A `pyarrow.Table`, a row for each value; a column with several kinds becomes JSON text.

        Raises:
            MissingPackage: pyarrow is not installed.
        """
        arrow = package("pyarrow", extra="arrow")
        made = {}
        for name, cells in self._columns().items():
            try:
                made[name] = arrow.array(cells)
            except (arrow.ArrowException, TypeError, OverflowError):
                made[name] = arrow.array(map(json.dumps, cells), arrow.string())
        return arrow.table(made)

    def to_polars(self) -> Any:
        """A `polars.DataFrame`. Raises `MissingPackage` without Polars or pyarrow."""
        table = self.to_arrow()
        return package("polars").from_arrow(table)

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        """The table for programs that take Arrow. Raises `MissingPackage` without pyarrow."""
        return self.to_arrow().__arrow_c_stream__(requested_schema)


class Rows(list[T], Tabular):
    """A list that is a table, too, and that notebooks show as one: a row for each item.

    `row` returns the cells of an item by column, equal columns for all.
    """

    def __init__(self, items: Iterable[T], row: Callable[[T], Mapping[str, Any]]) -> None:
        super().__init__(items)
        self._row = row

    def _columns(self) -> Columns:
        rows = [self._row(item) for item in self]
        return {name: [row[name] for row in rows] for name in (rows[0] if rows else ())}

    def _repr_html_(self) -> str:
        columns = self._columns()
        return html_table([*columns], [*zip(*columns.values(), strict=True)])


def package(name: str, *, extra: str = "") -> Any:
    """Import a package that the client may do without, or a module that needs such a package.

    Raises:
        MissingPackage: it is not installed; the message names the extra that has it, or itself.
    """
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        wanted = f"'rebaser[{extra}]'" if extra else name
        raise MissingPackage(f"{error.name} is not installed: pip install {wanted}") from error


_DIGITS: Final = 12
"""Characters of a digest that people are shown."""


def table_text(value: object) -> str | None:
    """A value that is a table, in words; None for another value."""
    upload, source, handle = upload_of(value), PinnedTable.of(value), TableHandle.of(value)
    if upload is not None:
        return f"table: upload {upload[:_DIGITS]}"
    if source is not None:
        return f"table: {source}"
    return None if handle is None else f"table: {many(handle.rows, 'row')}"


def value_text(text: str) -> str:
    """The JSON of a value as people read it: a table in words, any other value as it is."""
    if text.startswith(f'{{"{TABLE}"'):
        return table_text(json.loads(text)) or text
    return text


SHOWN: Final = 60
"""Maximum number of rows of a table; a last line says how many more there are."""

_LENGTH: Final = 200
"""Maximum number of characters of a cell."""


def html_table(headings: Sequence[str], rows: Sequence[Sequence[Any]], note: str = "") -> str:
    """The rows as an HTML table, with a note below it."""
    head = "".join(f"<th>{escape(heading)}</th>" for heading in headings)
    body = "".join(
        f"<tr>{''.join(f'<td>{_cell(cell)}</td>' for cell in row)}</tr>" for row in rows[:SHOWN]
    )
    notes = [f"and {len(rows) - SHOWN:,} more"] if len(rows) > SHOWN else []
    notes += [note] if note else []
    below = "".join(f"<div>{escape(each)}</div>" for each in notes)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{below}"


def _cell(cell: Any) -> str:
    if cell is None:
        return ""
    text = cell if isinstance(cell, str) else table_text(cell)
    if isinstance(cell, datetime):
        text = f"{cell:%Y-%m-%d %H:%M:%S}"
    if text is None:
        text = json.dumps(cell, ensure_ascii=False)
    if len(text) > _LENGTH:
        text = f"{text[:_LENGTH]}…"
    return escape(readable(text))


def cut(text: str, most: int) -> str:
    """The text, or its beginning and an ellipsis."""
    return text if len(text) <= most else f"{text[: most - 1]}…"


def readable(text: str) -> str:
    """The text with escapes for characters that cannot be seen: they could reorder the others."""
    return "".join(each if each.isprintable() else ascii(each)[1:-1] for each in text)

"""Rows as tables: for pandas, Polars, Arrow and notebooks.

Each library is imported when its table is asked for. In HTML tables, names and values of others are
shown as text.
"""

import json
from collections.abc import Mapping, Sequence
from html import escape
from importlib import import_module
from typing import Any, Final

from rebaser_client.errors import MissingPackage

Columns = Mapping[str, Sequence[Any]]
"""Column → its cells, all of one length."""


def pandas_frame(columns: Columns) -> Any:
    """The columns as a `pandas.DataFrame`.

    Raises:
        MissingPackage: pandas is not installed.
    """
    return package("pandas", extra="pandas").DataFrame(columns)


def arrow_table(columns: Columns) -> Any:
    """The columns as a `pyarrow.Table`; one with values of several kinds becomes JSON text.

    Raises:
        MissingPackage: pyarrow is not installed.
    """
    arrow = package("pyarrow", extra="arrow")
    made = {}
    for name, cells in columns.items():
        try:
            made[name] = arrow.array(cells)
        except (arrow.ArrowException, TypeError, OverflowError):
            made[name] = arrow.array(map(json.dumps, cells), arrow.string())
    return arrow.table(made)


def polars_frame(columns: Columns) -> Any:
    """The columns as a `polars.DataFrame`; one with values of several kinds becomes JSON text.

    Raises:
        MissingPackage: Polars or pyarrow is not installed.
    """
    table = arrow_table(columns)
    try:
        return import_module("polars").from_arrow(table)
    except ModuleNotFoundError as error:
        raise MissingPackage(f"{error.name} is not installed: pip install polars") from error


def package(name: str, *, extra: str) -> Any:
    """Import a package that the client may do without, or a module that needs such a package.

    Raises:
        MissingPackage: it is not installed; the message names the extra that has it.
    """
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        raise MissingPackage(
            f"{error.name} is not installed: pip install 'rebaser[{extra}]'"
        ) from error


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
    text = cell if isinstance(cell, str) else json.dumps(cell, ensure_ascii=False)
    if len(text) > _LENGTH:
        text = f"{text[:_LENGTH]}…"
    return escape("".join(map(_visible, text)))


def _visible(character: str) -> str:
    """An escape for a character that cannot be seen: it could reorder the text around it."""
    return character if character.isprintable() else ascii(character)[1:-1]

"""Rows as an HTML table, for notebooks. Names and values of others are shown as text."""

import json
from collections.abc import Sequence
from html import escape
from typing import Any, Final

SHOWN: Final = 60
"""Rows of a table at most; a last line says how many more there are."""

_LENGTH: Final = 200
"""Characters of a cell at most."""


def html_table(headings: Sequence[str], rows: Sequence[Sequence[Any]], note: str = "") -> str:
    """The rows as a table, and a note below it."""
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
    """A character that cannot be seen, as an escape: it could reorder the text around it."""
    return character if character.isprintable() else ascii(character)[1:-1]

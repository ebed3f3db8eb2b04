"""How commands print: a table for people, JSON for programs. Both from the same rows."""

import json
import sys
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from rich.console import Console
from rich.table import Table

Row = Mapping[str, Any]


def show(rows: Sequence[Row], headings: Mapping[str, str], *, as_json: bool, nothing: str) -> None:
    """Print `rows`: as JSON whole, as a table the keys of `headings` under their headings.

    In a table numbers stand to the right; without rows it says `nothing`, on stderr.
    """
    if as_json:
        sys.stdout.write(json.dumps(list(rows)) + "\n")
        return
    if not rows:
        sys.stderr.write(nothing + "\n")
        return
    table = Table(box=None, pad_edge=False)
    for key, heading in headings.items():
        number = isinstance(rows[0][key], int | float)
        table.add_column(heading, justify="right" if number else "left", overflow="fold")
    for row in rows:
        table.add_row(*(_cell(row[key]) for key in headings))
    Console(width=None if sys.stdout.isatty() else 200).print(table)


def _cell(value: Any) -> str:
    if value is None:
        return ""
    return f"{value:,}" if isinstance(value, int) else str(value)


def age(moment: datetime) -> float:
    """Seconds since `moment`, by this machine's clock."""
    return round(max(0.0, (datetime.now(UTC) - moment).total_seconds()), 1)

"""How commands print: a table for people, JSON for programs. Both from the same rows."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from rebaser_server.terminal.lines import complain, say_json
from rebaser_server.terminal.tables import Table

Row = Mapping[str, Any]


def show(rows: Sequence[Row], headings: Mapping[str, str], *, as_json: bool, nothing: str) -> None:
    """Print `rows`: all keys as JSON, or a table of the keys in `headings`.

    A table has numbers on the right. If there are no rows, it is `nothing`, on stderr.
    """
    if as_json:
        say_json(list(rows))
        return
    if not rows:
        complain(nothing)
        return
    first = [rows[0][key] for key in headings]
    numbers = [place for place, value in enumerate(first) if isinstance(value, int | float)]
    table = Table(*headings.values(), numbers=numbers, edge=False)
    for row in rows:
        table.add(*(row[key] for key in headings))
    table.show()


def age(moment: datetime) -> float:
    """Seconds since `moment`, by this machine's clock."""
    return round(max(0.0, (datetime.now(UTC) - moment).total_seconds()), 1)

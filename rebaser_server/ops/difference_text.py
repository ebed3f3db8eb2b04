"""The difference of a branch as the page shows it, and as a spreadsheet takes it."""

import csv
import io
import json
import re
from typing import Any, Final

from rebaser_core.queries import ChangedDefinition, ComputedDifference
from rebaser_server.queries.comparisons import Diff

MAX_TEXT: Final = 200
"""Characters of a value in a list."""

_DIGITS: Final = re.compile(r"([0-9]+)")
_FORMULA: Final = ("=", "+", "-", "@", "\t", "\r")
"""How a cell begins that spreadsheets compute."""


def plain_difference(found: Diff) -> Any:
    """Edits and effects by name, as plain data; each value is JSON text, cut to `MAX_TEXT`."""
    return {
        "digest": found.digest,
        "unknown": found.unknown(),
        "changes": [
            {
                "id": change.id,
                "name": change.name,
                "what": change.what,
                "head": _text(change.head),
                "branch": _text(change.branch),
                "base": _text(change.base),
                "both": change.both,
            }
            for change in sorted(found.changes, key=by_name)
        ],
        "computed": [
            {
                "id": each.id,
                "name": each.name,
                "head": cut(result_text(each.head, each.head_status), MAX_TEXT),
                "branch": cut(result_text(each.branch, each.branch_status), MAX_TEXT),
            }
            for each in sorted(found.computed or (), key=by_name)
        ],
    }


def by_name(one: ChangedDefinition | ComputedDifference) -> list[str | int]:
    """Return the key of an order in which `net/9` comes before `net/10`."""
    parts = _DIGITS.split((one.name or one.id).casefold())
    return [int(part) if place % 2 else part for place, part in enumerate(parts)]


def effects_csv(found: Diff) -> str:
    """Values as JSON; a name that a spreadsheet would take for a formula has an apostrophe."""
    text = io.StringIO()
    writer = csv.writer(text)
    writer.writerow(("value", "id", "head", "branch"))
    for each in sorted(found.computed or (), key=by_name):
        name = each.name or ""
        safe = f"'{name}" if name.startswith(_FORMULA) else name
        head = result_text(each.head, each.head_status) or "null"
        branch = result_text(each.branch, each.branch_status) or "null"
        writer.writerow((safe, each.id, head, branch))
    return text.getvalue()


def side_text(data: Any) -> str:
    """A side of a difference as JSON; nothing for what is not there."""
    return "" if data is None else json.dumps(data, ensure_ascii=False)


def result_text(data: Any, status: str | None) -> str:
    """A side of a computed difference: the status of what has no value, else as `side_text`."""
    if status in ("failed", "blocked"):
        return status
    return "null" if data is None and status else side_text(data)


def _text(data: Any) -> str:
    return cut(side_text(data), MAX_TEXT)


def cut(text: str, most: int) -> str:
    """The text, or its beginning and an ellipsis."""
    return text if len(text) <= most else f"{text[: most - 1]}…"

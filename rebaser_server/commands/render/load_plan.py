"""What loading a draft would change, as a table or as JSON."""

import json
from typing import Any, Final

from rebaser_client.plan import LoadPlan, PlannedChange
from rebaser_server.commands.render.output import show
from rebaser_server.terminal.lines import say, say_json

_LISTED: Final = 40
"""Changes that are listed for people at most."""

_HEADINGS: Final = {
    "name": "value",
    "change": "what",
    "part": "of it",
    "before": "in the change set",
    "after": "in the file",
}


def show_plan(plan: LoadPlan, *, as_json: bool) -> None:
    """Print the changes and their number."""
    if as_json:
        changes = [_plain(change) for change in plan.changes]
        warned = {"warnings": list(plan.warnings)} if plan.warnings else {}
        say_json({"changes": changes, "unchanged": plan.unchanged, **warned})
        return
    if not plan:
        say(f"nothing differs: {plan.summary()}")
        return
    rows = [
        _plain(change) | {"before": _text(change.before), "after": _text(change.after)}
        for change in plan.changes[:_LISTED]
    ]
    show(rows, _HEADINGS, as_json=False, nothing="")
    more = len(plan.changes) - _LISTED
    say(*([f"and {more:,} more"] if more > 0 else []), plan.summary(), *plan.warnings)


def _plain(change: PlannedChange) -> dict[str, Any]:
    return {
        "name": change.name,
        "change": change.change,
        "part": change.what,
        "before": change.before,
        "after": change.after,
    }


def _text(side: Any) -> str | None:
    """A side as people read it: text in quotes where it would read like another value."""
    if side is None or (isinstance(side, str) and not _reads_like_json(side)):
        return side
    return json.dumps(side, ensure_ascii=False)


def _reads_like_json(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return text in ("", "null", "true", "false") or text[:1] in ('"', "[", "{")
    return True

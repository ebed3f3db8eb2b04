"""What the commands for workspaces and change sets print."""

import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any, Final

from rebaser_core.registry_records import ChangeSetRecordV1, WorkspaceRecordV1
from rebaser_server.queries.diff import Change, Comparison
from rebaser_server.terminal.lines import say, say_json
from rebaser_server.terminal.tables import Table

_MOST: Final = 40
"""Rows of what was computed otherwise that are printed for people."""

_WIDEST: Final = 60
"""Characters of a value that are."""


def show_workspaces(records: Sequence[WorkspaceRecordV1], *, as_json: bool) -> None:
    """Print them, the oldest first."""
    records = sorted(records, key=lambda record: record.created_at)
    if as_json:
        say_json([record.wire() for record in records])
        return
    table = Table("workspace", "name", "head", "created", "by")
    for record in records:
        table.add(
            str(record.workspace_id),
            record.name,
            str(record.head),
            record.created_at,
            record.by or "",
        )
    table.show()


def show_change_sets(
    records: Sequence[ChangeSetRecordV1], paused: Sequence[str | None], *, as_json: bool
) -> None:
    """Print them in the order given; `paused` says of each since when."""
    if as_json:
        both = zip(records, paused, strict=True)
        say_json([{**record.wire(), "pausedSince": since} for record, since in both])
        return
    table = Table("change set", "name", "kind", "state", "created", "by")
    for record, since in zip(records, paused, strict=True):
        table.add(
            str(record.change_set_id),
            record.name,
            record.kind.value,
            record.standing.value if since is None else f"{record.standing.value}, paused",
            record.created_at,
            record.by or "",
        )
    table.show()


def show_change_set(record: ChangeSetRecordV1, *, as_json: bool) -> None:
    """Print all that is registered of it."""
    if as_json:
        say_json(record.wire())
        return
    table = Table("", "")
    facts = {
        "workspace": record.workspace_id,
        "change set": record.change_set_id,
        "name": record.name,
        "kind": record.kind.value,
        "state": record.standing.value,
        "forked from": record.base and f"{record.base.change_set_id} at {record.base.commit}",
        "created": record.created_at,
        "by": record.by,
        "closed": record.closed_at,
        "applied as": record.application and record.application.at_head,
        "head's commit": record.application and record.application.commit,
        "problem": record.problem,
    }
    for fact, value in facts.items():
        if value is not None:
            table.add(fact, str(value))
    table.show()


def show_comparison(found: Comparison, *, as_json: bool, as_batch: bool) -> None:
    """Print the difference: for people, for programs, or as the batch that it is."""
    if as_batch:
        say_json([update.wire() for update in found.updates])
    elif as_json:
        say_json(
            {
                "digest": found.digest,
                "changes": [asdict(change) for change in found.changes],
                "updates": [update.wire() for update in found.updates],
                "computed": found.computed and [asdict(one) for one in found.computed],
            }
        )
    else:
        _show(found)


def _show(found: Comparison) -> None:
    if not found.updates:
        say("no difference")
    else:
        table = Table("value or function", "what", "head", "branch", "")
        for change in found.changes:
            table.add(
                change.name or change.id,
                change.what,
                _short(change.head),
                _short(change.branch),
                _note(change),
            )
        table.show()
    if found.computed:
        table = Table("computed", "head", "branch")
        for one in found.computed[:_MOST]:
            table.add(one.name or one.id, _short(one.head), _short(one.branch))
        table.show()
        if len(found.computed) > _MOST:
            say(f"and {len(found.computed) - _MOST:,} more")
    if found.updates:
        say(f"digest {found.digest}")


def _note(change: Change) -> str:
    return f"head changed it, too; it was {_short(change.base)}" if change.both else ""


def _short(value: Any) -> str:
    text = "-" if value is None else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= _WIDEST else f"{text[:_WIDEST]}..."

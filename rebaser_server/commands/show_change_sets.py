"""What the commands for workspaces and change sets print."""

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any, Final

from rich.console import Console
from rich.table import Table
from rich.text import Text

from rebaser_core.change_sets import ChangeSetRecordV1, WorkspaceRecordV1
from rebaser_server.questions.comparing import Change, Comparison

_MOST: Final = 40
"""Rows of what was computed otherwise that are printed for people."""

_WIDEST: Final = 60
"""Characters of a value that are."""


def show_workspaces(records: Sequence[WorkspaceRecordV1], *, as_json: bool) -> None:
    """Print them, the oldest first."""
    records = sorted(records, key=lambda record: record.created_at)
    if as_json:
        _json([record.wire() for record in records])
        return
    table = Table("workspace", "name", "head", "created", "by", box=None)
    for record in records:
        table.add_row(
            str(record.workspace_id),
            Text(record.name),
            str(record.head),
            record.created_at,
            Text(record.by or ""),
        )
    _print(table)


def show_change_sets(
    records: Sequence[ChangeSetRecordV1], paused: Sequence[str | None], *, as_json: bool
) -> None:
    """Print them in the order given; `paused` says of each since when."""
    if as_json:
        both = zip(records, paused, strict=True)
        _json([{**record.wire(), "pausedSince": since} for record, since in both])
        return
    table = Table("change set", "name", "kind", "state", "created", "by", box=None)
    for record, since in zip(records, paused, strict=True):
        table.add_row(
            str(record.change_set_id),
            Text(record.name),
            record.kind.value,
            record.standing.value if since is None else f"{record.standing.value}, paused",
            record.created_at,
            Text(record.by or ""),
        )
    _print(table)


def show_change_set(record: ChangeSetRecordV1, *, as_json: bool) -> None:
    """Print all that is registered of it."""
    if as_json:
        _json(record.wire())
        return
    table = Table("", "", box=None, show_header=False)
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
            table.add_row(fact, Text(str(value)))
    _print(table)


def show_comparison(found: Comparison, *, as_json: bool, as_batch: bool) -> None:
    """Print the difference: for people, for programs, or as the batch that it is."""
    if as_batch:
        _json([update.wire() for update in found.updates])
    elif as_json:
        _json(
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
        sys.stdout.write("no difference\n")
    else:
        table = Table("value or function", "what", "head", "branch", "", box=None)
        for change in found.changes:
            table.add_row(
                Text(change.name or change.id),
                change.what,
                Text(_short(change.head)),
                Text(_short(change.branch)),
                Text(_note(change)),
            )
        _print(table)
    if found.computed:
        table = Table("computed", "head", "branch", box=None)
        for one in found.computed[:_MOST]:
            table.add_row(Text(one.name or one.id), _short(one.head), _short(one.branch))
        _print(table)
        if len(found.computed) > _MOST:
            sys.stdout.write(f"and {len(found.computed) - _MOST:,} more\n")
    if found.updates:
        sys.stdout.write(f"digest {found.digest}\n")


def _note(change: Change) -> str:
    return f"head changed it, too; it was {_short(change.base)}" if change.both else ""


def _short(value: Any) -> str:
    text = "-" if value is None else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= _WIDEST else f"{text[:_WIDEST]}..."


def _json(what: Any) -> None:
    sys.stdout.write(json.dumps(what) + "\n")


def _print(table: Table) -> None:
    Console(width=None if sys.stdout.isatty() else 200).print(table)

"""What the commands for workspaces and change sets print."""

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from rebaser_core.records import ChangeSetRecordV1, CommentRecordV1, WorkspaceRecordV1
from rebaser_server.terminal.lines import say, say_json
from rebaser_server.terminal.tables import Table

if TYPE_CHECKING:
    from rebaser_client.reader import BranchDifference
    from rebaser_core.queries import ChangedDefinition

_MOST: Final = 40
"""Computed values that differ, as printed for people at most."""

_WIDEST: Final = 60
"""Characters of a value that are printed for people at most."""


def show_workspaces(records: Sequence[WorkspaceRecordV1], *, ids: bool, as_json: bool) -> None:
    """Print them, the oldest first."""
    records = sorted(records, key=lambda record: record.created_at)
    if as_json:
        say_json([record.to_wire() for record in records])
        return
    table = Table("workspace", "created", "by", *(["id", "id of head"] if ids else []))
    for record in records:
        its_ids = [str(record.workspace_id), str(record.head)] if ids else []
        table.add(record.name, record.created_at, record.by or "", *its_ids)
    table.show()


def show_change_sets(
    records: Sequence[ChangeSetRecordV1],
    paused: Sequence[str | None],
    *,
    ids: bool,
    as_json: bool,
) -> None:
    """Print them in the order given; `paused` has for each the start of its pause, or None."""
    if as_json:
        both = zip(records, paused, strict=True)
        say_json([{**record.to_wire(), "pausedSince": since} for record, since in both])
        return
    table = Table("change set", "kind", "state", "created", "by", *(["id"] if ids else []))
    for record, since in zip(records, paused, strict=True):
        table.add(
            record.name,
            record.kind.value,
            record.standing.value if since is None else f"{record.standing.value}, paused",
            record.created_at,
            record.by or "",
            *([str(record.change_set_id)] if ids else []),
        )
    table.show()


def show_comments(comments: Sequence[CommentRecordV1], *, as_json: bool) -> None:
    """Print them in the order given."""
    if as_json:
        say_json([comment.to_wire() for comment in comments])
        return
    table = Table("time", "author", "comment")
    for comment in comments:
        table.add(comment.created_at, comment.by or "", comment.text)
    table.show()


def show_change_set(
    record: ChangeSetRecordV1, address: str, base: str | None, *, ids: bool, as_json: bool
) -> None:
    """Print the record of a change set; `address` and `base` are its own and its origin's."""
    if as_json:
        say_json(record.to_wire())
        return
    table = Table("", "")
    facts: dict[str, object] = {
        "change set": address,
        "kind": record.kind.value,
        "state": record.standing.value,
        "forked from": record.base and f"{base} at {record.base.commit}",
        "created": record.created_at,
        "by": record.by,
        "closed": record.closed_at,
        "head's commit": record.application and record.application.commit,
        "problem": record.problem,
    }
    if ids:
        facts |= {
            "workspace id": record.workspace_id,
            "change set id": record.change_set_id,
            "applied as": record.application and record.application.at_head,
        }
    for fact, value in facts.items():
        if value is not None:
            table.add(fact, str(value))
    table.show()


def show_comparison(comparison: "BranchDifference", *, as_json: bool, as_batch: bool) -> None:
    """Print the difference as tables, as JSON, or as a batch of updates."""
    if as_batch:
        say_json([update.to_wire() for update in comparison.updates])
    elif as_json:
        say_json(
            {
                "digest": comparison.digest,
                "changes": [change.to_wire() for change in comparison.changes],
                "updates": [update.to_wire() for update in comparison.updates],
                "computed": comparison.computed and [one.to_wire() for one in comparison.computed],
                "behind": comparison.behind,
                "uncomputed": comparison.uncomputed,
            }
        )
    else:
        _show(comparison)


def _show(comparison: "BranchDifference") -> None:
    if not comparison.updates:
        say("no difference")
    else:
        table = Table("value or function", "what", "head", "branch", "")
        for change in comparison.changes:
            table.add(
                change.name or change.id,
                change.what,
                _short(change.head),
                _short(change.branch),
                _note(change),
            )
        table.show()
    if comparison.computed:
        table = Table("computed", "head", "branch")
        for one in comparison.computed[:_MOST]:
            head = _result(one.head, one.head_status)
            table.add(one.name or one.id, head, _result(one.branch, one.branch_status))
        table.show()
        if len(comparison.computed) > _MOST:
            say(f"and {len(comparison.computed) - _MOST:,} more")
    if comparison.unknown():
        say(comparison.unknown())
    if comparison.updates:
        say(f"digest {comparison.digest}")


def _note(change: "ChangedDefinition") -> str:
    return f"head changed it, too; it was {_short(change.base)}" if change.both else ""


def _result(value: Any, status: str | None) -> str:
    return status if status in ("failed", "blocked") else _short(value)


def _short(value: Any) -> str:
    text = "-" if value is None else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= _WIDEST else f"{text[:_WIDEST]}..."

"""The output of `rebaser diff`, and of `change-sets apply` before it asks."""

from collections.abc import Sequence
from typing import Any, Final

from rebaser_client.effects import (
    by_name,
    cut,
    is_failing,
    move_text,
    percentage,
    result_text,
    side_text,
)
from rebaser_client.reader import BranchDifference
from rebaser_core.errors import many
from rebaser_core.queries import ChangedDefinition
from rebaser_server.commands.render.tables import ComparedTable
from rebaser_server.terminal.lines import say
from rebaser_server.terminal.tables import Table

_MOST: Final = 20
"""Maximum number of edits, of failures and of families that are printed for people."""
_WIDEST: Final = 60
"""Maximum number of characters of a value that are printed for people."""
_DIGEST: Final = 12
"""Digits of a digest that are printed for people."""


def plain_comparison(
    comparison: BranchDifference, tables: Sequence[ComparedTable] | None
) -> dict[str, Any]:
    """The whole difference as plain data."""
    plain: dict[str, Any] = {
        "digest": comparison.digest,
        "changes": [change.to_wire() for change in comparison.changes],
        "updates": [update.to_wire() for update in comparison.updates],
        "computed": [one.to_wire() for one in comparison.computed or ()],
        "families": [
            {
                "pattern": each.pattern,
                "values": each.size,
                "failed": each.failed,
                "head": each.head,
                "branch": each.branch,
            }
            for each in comparison.families()
        ],
        "behind": comparison.behind,
        "uncomputed": comparison.uncomputed,
    }
    return plain if tables is None else plain | {"tables": [each.plain() for each in tables]}


def show_comparison(
    comparison: BranchDifference, tables: Sequence[ComparedTable], *, whole: bool
) -> None:
    """Print edits, then effects by name pattern, or each of them if the `whole` is wanted."""
    _show_edits(comparison, whole=whole)
    if whole:
        _show_effects(comparison)
    else:
        _show_families(comparison)
    say(*(each.line() for each in tables))
    if comparison.unknown():
        say(comparison.unknown())
    _say_digest(comparison)


def show_before_apply(comparison: BranchDifference, *, whole: bool) -> None:
    """Print edits, and in words what applying them does; each effect if the `whole` is wanted."""
    _show_edits(comparison, whole=whole)
    if whole:
        _show_effects(comparison)
    _say_digest(comparison)
    say(*comparison.particulars(), "If anything changes this meanwhile, nothing is applied.")


def _say_digest(comparison: BranchDifference) -> None:
    if comparison.updates:
        say(f"digest {comparison.digest[:_DIGEST]}")


def _show_edits(comparison: BranchDifference, *, whole: bool) -> None:
    if not comparison.updates:
        say("no difference")
        return
    table = Table("value or function", "what", "head", "branch", "")
    ordered = sorted(comparison.changes, key=lambda change: (not change.both, by_name(change)))
    for change in ordered if whole else ordered[:_MOST]:
        table.add(
            change.name or change.id,
            change.what,
            _side(change.head),
            _side(change.branch),
            _note(change),
        )
    table.show()
    if not whole:
        _say_more(len(ordered) - _MOST, "edit")


def _show_effects(comparison: BranchDifference) -> None:
    if not comparison.computed:
        return
    table = Table("computed", "head", "branch", "change")
    for one in sorted(comparison.computed, key=by_name):
        head = cut(result_text(one.head, one.head_status), _WIDEST)
        branch = cut(result_text(one.branch, one.branch_status), _WIDEST)
        table.add(one.name or one.id, head, branch, percentage(one.head, one.branch))
    table.show()


def _show_families(comparison: BranchDifference) -> None:
    families = comparison.families()
    if not families:
        return
    is_alone = all(each.size == 1 for each in families)
    moves = [] if is_alone else ["largest moves"]
    headings = "computed", "values", "head", "branch", "change", *moves
    table = Table(*headings, numbers=(1, 2, 3, 4))
    for each in families[:_MOST]:
        largest = "" if each.size == 1 else ", ".join(map(move_text, each.largest))
        table.add(each.title, each.size, *each.sides(), each.change, *(largest for _ in moves))
    table.show()
    _say_more(len(families) - _MOST, "pattern")
    failing = list(filter(is_failing, comparison.computed or ()))
    say(*map(move_text, failing[:_MOST]))
    _say_more(len(failing) - _MOST, "failing value")


def _say_more(number: int, what: str) -> None:
    if number > 0:
        say(f"and {many(number, f'more {what}')}: --all lists all")


def _note(change: ChangedDefinition) -> str:
    return f"head changed it, too; it was {_side(change.base)}" if change.both else ""


def _side(data: Any) -> str:
    return cut(side_text(data), _WIDEST) or "-"

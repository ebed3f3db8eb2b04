"""`rebaser workspaces`, `change-sets` and `diff`: create, fork, compare, apply, abandon, delete."""

import argparse
import shlex
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Final

from rebaser_client.display import cut
from rebaser_client.effects import (
    by_name,
    effects_csv,
    is_failing,
    move_text,
    percentage,
    result_text,
    side_text,
)
from rebaser_client.reader import BranchDifference
from rebaser_core.errors import ClientError, many
from rebaser_core.ids import ChangeSet
from rebaser_core.jetstream import deadlines
from rebaser_core.records import (
    ChangeSetRecordV1,
    ChangeSetStatus,
    CommentRecordV1,
    WorkspaceRecordV1,
)
from rebaser_server.cluster.pauses import PauseStore, paused_since
from rebaser_server.commands.support.addresses import find_registered, workspace_of
from rebaser_server.commands.support.arguments import (
    Exit,
    UnusableInput,
    confirmed,
    refused_at_terminal,
)
from rebaser_server.commands.support.deployment import Deployment, warn_if_paused, with_deployment
from rebaser_server.commands.support.progress import failures, until_computed
from rebaser_server.commands.support.value_source import read_difference
from rebaser_server.commands.tables import ComparedTable, compared_tables
from rebaser_server.terminal.lines import complain, say, say_csv, say_json
from rebaser_server.terminal.tables import Table, show_cells

_BRING_UP_WITHIN: Final = 30.0
"""Seconds that a comparison waits for a branch to follow head, and for both to be computed."""

_DIGITS: Final = 64


@with_deployment
async def list_workspaces(deployment: Deployment, arguments: argparse.Namespace) -> None:
    _show_workspaces(await deployment.client.workspaces.all(), arguments)


@with_deployment
async def create_workspace(deployment: Deployment, arguments: argparse.Namespace) -> None:
    await deployment.client.addresses.check_free(arguments.name)
    workspace = await deployment.client.workspaces.create(arguments.name)
    _show_workspaces([workspace.record], arguments)


@with_deployment
async def delete_workspace(deployment: Deployment, arguments: argparse.Namespace) -> int:
    workspaces = deployment.client.workspaces
    record = await workspace_of(deployment, arguments.workspace)
    if not arguments.yes:
        count = len(await workspaces.change_sets(record.workspace_id, closed=True))
        if not await confirmed(f"Delete {record.name!r} and its {many(count, 'change set')}?"):
            complain("not deleted")
            return Exit.FAILED
    there = await workspaces.change_sets(record.workspace_id)
    await warn_if_paused(deployment, *map(_ids, there), waiting="the deletion")
    await workspaces.delete_workspace(record.workspace_id)
    records = await workspaces.change_sets(record.workspace_id, closed=True)
    _show_change_sets(records, [None] * len(records), arguments)
    return Exit.OK


def _show_workspaces(records: Sequence[WorkspaceRecordV1], arguments: argparse.Namespace) -> None:
    records = sorted(records, key=lambda record: record.created_at)
    rows = [(record.name, record.created_at, record.by) for record in records]
    plain = [record.to_wire() for record in records]
    nothing = "no workspaces: `rebaser workspaces create NAME` makes one"
    show_cells(("workspace", "created", "by"), rows, arguments, plain=plain, nothing=nothing)


@with_deployment
async def list_change_sets(deployment: Deployment, arguments: argparse.Namespace) -> None:
    workspace = await workspace_of(deployment, arguments.workspace)
    records = await deployment.client.workspaces.change_sets(
        workspace.workspace_id, closed=arguments.all
    )
    pauses = await PauseStore(deployment.streams).all()
    since = [paused_since(pauses, _ids(record)) for record in records]
    _show_change_sets(records, since, arguments)


@with_deployment
async def fork(deployment: Deployment, arguments: argparse.Namespace) -> None:
    word, name = arguments.workspace, arguments.name
    if word is None and "/" in name:
        word, _, name = name.partition("/")
    workspace = (await workspace_of(deployment, word)).workspace_id
    client, addresses = deployment.client, deployment.client.addresses
    await addresses.check_free(name, workspace)
    base = None
    if arguments.base is not None:
        found = await addresses.find(f"{workspace}/{arguments.base}", closed=True)
        base = found.record.change_set_id
    record = await client.workspaces.fork(workspace, name, base=base, commit=arguments.commit)
    await warn_if_paused(deployment, _ids(record), waiting="the new branch, which is registered,")
    await client.change_set(record.workspace_id, record.change_set_id).refresh()
    await _show(deployment, arguments, record)


@with_deployment
async def describe(deployment: Deployment, arguments: argparse.Namespace) -> None:
    name = arguments.rename
    record = (await find_registered(deployment, arguments, closed=name is None)).record
    change_set = deployment.client.change_set(*_ids(record))
    if name not in (None, record.name):
        await deployment.client.addresses.check_free(name, record.workspace_id)
    if arguments.comment is not None:
        await change_set.comment(arguments.comment)
    if name is not None:  # last: a comment may be refused, and this is not
        record = await change_set.rename(name)
    await _show(deployment, arguments, record, await change_set.comments())


@with_deployment
async def refresh(deployment: Deployment, arguments: argparse.Namespace) -> None:
    record = await _find_branch(deployment, arguments)
    change_set = deployment.client.change_set(*_ids(record))
    await warn_if_paused(deployment, _ids(record))
    await change_set.refresh()
    await _show(deployment, arguments, await change_set.describe())


@with_deployment
async def abandon(deployment: Deployment, arguments: argparse.Namespace) -> int:
    record = await _find_branch(deployment, arguments, closed=arguments.delete)
    change_set = deployment.client.change_set(*_ids(record))
    action = "Delete" if arguments.delete else "Abandon"
    question = f"{action} {record.name or record.change_set_id}? It takes no more requests"
    if await refused_at_terminal(question, arguments):
        complain("nothing was changed")
        return Exit.FAILED
    await warn_if_paused(deployment, _ids(record))
    await (change_set.delete() if arguments.delete else change_set.abandon())
    await _show(deployment, arguments, await change_set.describe())
    return Exit.OK


@with_deployment
async def diff(deployment: Deployment, arguments: argparse.Namespace) -> None:
    record = await _find_branch(deployment, arguments, closed=True)
    comparison = await _compare(deployment, record, computed=True)
    tables = None
    if arguments.rows:
        handle = deployment.client.change_set(*_ids(record))
        tables = await compared_tables(handle, comparison)
    if arguments.json:
        say_json(_plain_comparison(comparison, tables))
    elif arguments.csv:
        say_csv(effects_csv(comparison.computed or ()))
    else:
        _show_comparison(comparison, tables or (), whole=arguments.all)


async def _is_brought_up(
    deployment: Deployment, record: ChangeSetRecordV1, comparison: BranchDifference
) -> bool:
    """Make an open branch follow head, and both compute; return whether that is done in time."""
    if record.status is not ChangeSetStatus.OPEN:
        return False
    branch = _ids(record)
    await warn_if_paused(deployment, branch)
    with suppress(TimeoutError, ClientError):
        async with deadlines.within(_BRING_UP_WITHIN):
            if comparison.behind != 0:
                await deployment.client.change_set(*branch).refresh()
            await until_computed(deployment, branch, None)
            await until_computed(deployment, ChangeSet(record.workspace_id, record.head), None)
        return True
    return False


@with_deployment
async def apply(deployment: Deployment, arguments: argparse.Namespace) -> int:
    record = await _find_branch(deployment, arguments)
    reviewed = arguments.reviewed
    if not arguments.yes and reviewed is None:
        comparison = await _compare(deployment, record)
        _show_before_apply(comparison, whole=arguments.all)
        if not await confirmed(comparison.question()):
            complain("not applied")
            return Exit.FAILED
        reviewed = comparison.digest
    elif reviewed is not None and len(reviewed) < _DIGITS:
        reviewed = await _whole_digest(deployment, record, reviewed)
    head = ChangeSet(record.workspace_id, record.head)
    await warn_if_paused(deployment, _ids(record), head)
    record = await deployment.client.change_set(*_ids(record)).apply(reviewed=reviewed)
    await _show(deployment, arguments, record)
    if arguments.wait and record.application is not None and record.application.commit is not None:
        return await _await_head(deployment, record, record.application.commit)
    return Exit.OK


async def _await_head(deployment: Deployment, record: ChangeSetRecordV1, commit: int) -> int:
    """Wait until head's values are computed, and say on stderr which failed."""
    head = ChangeSet(record.workspace_id, record.head)
    await until_computed(deployment, head, commit)
    failed = await failures(deployment, head, commit)
    complain("the values of head are computed", *failed.lines())
    return Exit.VALUES_FAILED if failed.stand else Exit.OK


async def _find_branch(
    deployment: Deployment, arguments: argparse.Namespace, *, closed: bool = False
) -> ChangeSetRecordV1:
    """The record of the branch. Raises `UnusableInput`: it is the head of its workspace."""
    found = await find_registered(deployment, arguments, closed=closed)
    if found.record.change_set_id != found.record.head:
        return found.record
    what = f"{found.address!r} is the head of its workspace; `{arguments.action}` takes a branch"
    shown = f"`rebaser change-sets list {shlex.quote(found.address)}` shows them"
    raise UnusableInput(f"{what}: {shown}")


async def _show(
    deployment: Deployment,
    arguments: argparse.Namespace,
    record: ChangeSetRecordV1,
    comments: Sequence[CommentRecordV1] | None = None,
) -> None:
    if arguments.json:
        said = None if comments is None else [each.to_wire() for each in comments]
        say_json(record.to_wire() | ({} if said is None else {"comments": said}))
        return
    addresses, base = deployment.client.addresses, None
    if record.base is not None:
        base = await addresses.address_of(ChangeSet(record.workspace_id, record.base.change_set_id))
    table = Table("", "")
    facts: dict[str, object] = {
        "change set": await addresses.address_of(_ids(record)),
        "kind": record.kind.value,
        "state": record.status.value,
        "forked from": record.base and f"{base} at {record.base.commit}",
        "created": record.created_at,
        "by": record.by,
        "closed": record.closed_at,
        "head's commit": record.application and record.application.commit,
        "problem": record.problem,
    }
    for fact, value in facts.items():
        if value is not None:
            table.add(fact, str(value))
    table.show()
    if comments:
        said_by = Table("time", "author", "comment")
        for each in comments:
            said_by.add(each.created_at, each.by or "", each.text)
        said_by.show()


def _ids(record: ChangeSetRecordV1) -> ChangeSet:
    return ChangeSet(record.workspace_id, record.change_set_id)


async def _compare(
    deployment: Deployment, record: ChangeSetRecordV1, *, computed: bool = True
) -> BranchDifference:
    """Compare the branch with head; with what it computes, once both are computed if need be."""
    change_set = _ids(record)
    comparison = await read_difference(deployment, change_set, computed=computed)
    if comparison.uncomputed and await _is_brought_up(deployment, record, comparison):
        comparison = await read_difference(deployment, change_set, computed=True)
    return comparison


async def _whole_digest(deployment: Deployment, record: ChangeSetRecordV1, beginning: str) -> str:
    """The digest of the difference as it is now if it begins so; else one that nothing has."""
    digest = (await _compare(deployment, record, computed=False)).digest
    return digest if digest.startswith(beginning) else beginning


def _show_change_sets(
    records: Sequence[ChangeSetRecordV1],
    paused: Sequence[str | None],
    arguments: argparse.Namespace,
) -> None:
    """Print change sets; `paused` has for each the start of its pause, or None."""
    rows, plain = [], []
    for each, since in zip(records, paused, strict=True):
        state = f"{each.status.value}{', paused' if since else ''}"
        rows.append((each.name, each.kind.value, state, each.created_at, each.by))
        plain.append({**each.to_wire(), "pausedSince": since})
    headings = ("change set", "kind", "state", "created", "by")
    show_cells(headings, rows, arguments, plain=plain, nothing="no change sets")


_MOST: Final = 20
"""Maximum number of edits, of failures and of families that are printed for people."""
_WIDEST: Final = 60
"""Maximum number of characters of a value that are printed for people."""
_SHOWN_DIGITS: Final = 12
"""Digits of a digest that are printed for people."""


def _plain_comparison(
    comparison: BranchDifference, tables: Sequence[ComparedTable] | None
) -> dict[str, Any]:
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


def _show_comparison(
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


def _show_before_apply(comparison: BranchDifference, *, whole: bool) -> None:
    """Print edits, and in words what applying them does; each effect if the `whole` is wanted."""
    _show_edits(comparison, whole=whole)
    if whole:
        _show_effects(comparison)
    _say_digest(comparison)
    say(*comparison.particulars(), "If anything changes this meanwhile, nothing is applied.")


def _say_digest(comparison: BranchDifference) -> None:
    if comparison.updates:
        say(f"digest {comparison.digest[:_SHOWN_DIGITS]}")


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
            (f"head changed it, too; it was {_side(change.base)}" if change.both else ""),
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


def _side(data: Any) -> str:
    return cut(side_text(data), _WIDEST) or "-"

"""`rebaser change-sets` and `diff`: fork the head of a workspace, compare, apply or abandon."""

import argparse
import re
import shlex
from typing import TYPE_CHECKING, Any, Final

from rebaser_server.commands.support.arguments import (
    Exit,
    Parser,
    UnusableInput,
    add_address,
    add_command,
    add_group,
    add_wait,
    add_workspace,
    commit_number,
    confirmed,
    new_name,
    refused_at_terminal,
    unless_confirmed,
    with_deployment,
)
from rebaser_server.terminal.lines import complain, say_json, say_script

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rebaser_client.reader import BranchDifference
    from rebaser_core.records import ChangeSetRecordV1, CommentRecordV1
    from rebaser_server.commands.support.deployment import Deployment

_BRING_UP_WITHIN: Final = 30.0
"""Seconds that a comparison waits for a branch to follow head, and for both to be computed."""

_DIGEST: Final = re.compile("[0-9a-f]{12,64}")
"""A digest, or as many of its first digits as `rebaser diff` prints, or more."""
_DIGITS: Final = 64
"""Digits of a whole digest."""


def add(commands: Any) -> None:
    """Declare the commands."""
    group = add_group(
        commands,
        "change-sets",
        about="list, fork, refresh, apply or abandon change sets, and more",
    )

    listing = add_command(
        group, "list", _list, about="list the open change sets of a workspace", csv=True
    )
    add_workspace(listing)
    listing.add_argument("--all", action="store_true", help="list the closed ones, too")

    fork = add_command(
        group, "fork", _fork, about="create a branch of head or of another change set"
    )
    add_workspace(fork)
    fork.add_argument("name", type=new_name, help="name of the branch, or WORKSPACE/NAME")
    fork.add_argument("--base", help="name or id of the change set to fork (default: head)")
    fork.add_argument(
        "--commit", type=commit_number, help="commit of the base at which to fork (default: latest)"
    )

    describe = add_command(
        group, "describe", _describe, about="show a change set and the comments on it"
    )
    add_address(describe)
    describe.add_argument(
        "--rename", type=new_name, metavar="NAME", help="give it another name (default: none)"
    )
    describe.add_argument("--comment", metavar="TEXT", help="comment on it (default: no comment)")

    refresh = add_command(
        group, "refresh", _refresh, about="merge the changes of head into a branch now"
    )
    add_address(refresh)

    apply = add_command(
        group,
        "apply",
        _apply,
        about="show what a branch changes, ask, and apply it to head",
        validate=_applicable,
    )
    add_address(apply)
    apply.add_argument("--yes", action="store_true", help="apply without showing it and asking")
    apply.add_argument(
        "--reviewed",
        metavar="DIGEST",
        help="apply only the difference with that digest, without asking (default: ask)",
    )
    _add_all(apply)
    add_wait(apply, "wait until the values of head that depend on it are computed")

    abandon = add_command(group, "abandon", _abandon, about="close a branch without effect on head")
    add_address(abandon)
    abandon.add_argument(
        "--delete", action="store_true", help="also delete its data after the retention time"
    )
    abandon.add_argument("--yes", action="store_true", help="close it without asking")

    diff = add_command(
        commands,
        "diff",
        _diff,
        about="show what a branch would change in head, and what that changes",
        csv=True,
    )
    add_address(diff)
    _add_all(diff)
    diff.add_argument("--rows", action="store_true", help="also show which rows of tables differ")


def _add_all(parser: Parser) -> None:
    parser.add_argument(
        "--all",
        action="store_true",
        help="list all edits and effects (default: the first edits, and effects by name pattern)",
    )


def _applicable(arguments: argparse.Namespace) -> str | None:
    """Fault of an apply that could not ask, or whose review is none."""
    asks = unless_confirmed(yes="--yes", reviewed="--reviewed DIGEST")
    reviewed = arguments.reviewed
    if reviewed is not None and not _DIGEST.fullmatch(reviewed):
        return f"--reviewed takes the digest that `rebaser diff` prints, got {reviewed!r}"
    return asks(arguments)


@with_deployment
async def _list(deployment: "Deployment", arguments: argparse.Namespace) -> None:
    from rebaser_core.ids import ChangeSet
    from rebaser_server.cluster.pauses import PauseStore, paused_since
    from rebaser_server.commands.render.history import show_change_sets
    from rebaser_server.commands.support.addresses import workspace_of

    workspace = await workspace_of(deployment, arguments.workspace)
    records = await deployment.client.workspaces.change_sets(
        workspace.workspace_id, closed=arguments.all
    )
    pauses = await PauseStore(deployment.streams).all()
    since = [paused_since(pauses, ChangeSet(r.workspace_id, r.change_set_id)) for r in records]
    show_change_sets(records, since, arguments)


@with_deployment
async def _fork(deployment: "Deployment", arguments: argparse.Namespace) -> None:
    from rebaser_server.commands.support.addresses import workspace_of

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
    await client.change_set(record.workspace_id, record.change_set_id).refresh()
    await _show(deployment, arguments, record)


@with_deployment
async def _describe(deployment: "Deployment", arguments: argparse.Namespace) -> None:
    name = arguments.rename
    record = await _find(deployment, arguments, closed=name is None)
    change_set = deployment.client.change_set(record.workspace_id, record.change_set_id)
    if name is not None:
        if name != record.name:
            await deployment.client.addresses.check_free(name, record.workspace_id)
        record = await change_set.rename(name)
    if arguments.comment is not None:
        await change_set.comment(arguments.comment)
    await _show(deployment, arguments, record, await change_set.comments())


@with_deployment
async def _refresh(deployment: "Deployment", arguments: argparse.Namespace) -> None:
    record = await _find_branch(deployment, arguments)
    change_set = deployment.client.change_set(record.workspace_id, record.change_set_id)
    await change_set.refresh()
    await _show(deployment, arguments, await change_set.describe())


@with_deployment
async def _abandon(deployment: "Deployment", arguments: argparse.Namespace) -> int:
    record = await _find_branch(deployment, arguments, closed=arguments.delete)
    change_set = deployment.client.change_set(record.workspace_id, record.change_set_id)
    action = "Delete" if arguments.delete else "Abandon"
    question = f"{action} {record.name or record.change_set_id}? It takes no more requests"
    if await refused_at_terminal(question, arguments):
        complain("nothing was changed")
        return Exit.FAILED
    await (change_set.delete() if arguments.delete else change_set.abandon())
    await _show(deployment, arguments, await change_set.describe())
    return Exit.OK


@with_deployment
async def _diff(deployment: "Deployment", arguments: argparse.Namespace) -> None:
    from rebaser_client.effects import effects_csv
    from rebaser_server.commands.render.comparisons import plain_comparison, show_comparison
    from rebaser_server.commands.render.tables import compared_tables

    record = await _find_branch(deployment, arguments, closed=True)
    comparison = await _compare(deployment, record, computed=True)
    tables = None
    if arguments.rows:
        handle = deployment.client.change_set(record.workspace_id, record.change_set_id)
        tables = await compared_tables(handle, comparison)
    if arguments.json:
        say_json(plain_comparison(comparison, tables))
    elif arguments.csv:
        say_script(effects_csv(comparison.computed or ()).rstrip("\n"))
    else:
        show_comparison(comparison, tables or (), whole=arguments.all)


async def _is_brought_up(
    deployment: "Deployment", record: "ChangeSetRecordV1", comparison: "BranchDifference"
) -> bool:
    """Make an open branch follow head, and both compute; return whether that is done in time."""
    from contextlib import suppress

    from rebaser_core.errors import ClientError
    from rebaser_core.ids import ChangeSet
    from rebaser_core.jetstream import deadlines
    from rebaser_core.records import ChangeSetStatus
    from rebaser_server.commands.render.progress import until_computed
    from rebaser_server.commands.support.deployment import warn_if_paused

    if record.status is not ChangeSetStatus.OPEN:
        return False
    branch = ChangeSet(record.workspace_id, record.change_set_id)
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
async def _apply(deployment: "Deployment", arguments: argparse.Namespace) -> int:
    from rebaser_server.commands.render.comparisons import show_before_apply

    record = await _find_branch(deployment, arguments)
    reviewed = arguments.reviewed
    if not arguments.yes and reviewed is None:
        comparison = await _compare(deployment, record)
        show_before_apply(comparison, whole=arguments.all)
        if not await confirmed(comparison.question()):
            complain("not applied")
            return Exit.FAILED
        reviewed = comparison.digest
    elif reviewed is not None and len(reviewed) < _DIGITS:
        reviewed = await _whole_digest(deployment, record, reviewed)
    record = await deployment.client.change_set(record.workspace_id, record.change_set_id).apply(
        reviewed=reviewed
    )
    await _show(deployment, arguments, record)
    if arguments.wait and record.application is not None and record.application.commit is not None:
        return await _await_head(deployment, record, record.application.commit)
    return Exit.OK


async def _await_head(deployment: "Deployment", record: "ChangeSetRecordV1", commit: int) -> int:
    """Wait until head's values are computed, and say on stderr which failed."""
    from rebaser_core.ids import ChangeSet
    from rebaser_server.commands.render.progress import failures, until_computed

    head = ChangeSet(record.workspace_id, record.head)
    await until_computed(deployment, head, commit)
    failed = await failures(deployment, head, commit)
    complain("the values of head are computed", *failed.lines())
    return Exit.VALUES_FAILED if failed.stand else Exit.OK


async def _find(
    deployment: "Deployment", arguments: argparse.Namespace, *, closed: bool = False
) -> "ChangeSetRecordV1":
    from rebaser_server.commands.support.addresses import find_registered

    return (await find_registered(deployment, arguments, closed=closed)).record


async def _find_branch(
    deployment: "Deployment", arguments: argparse.Namespace, *, closed: bool = False
) -> "ChangeSetRecordV1":
    """The record of the branch.

    Raises:
        UnusableInput: it is the head of its workspace.
    """
    from rebaser_core.ids import ChangeSet

    record = await _find(deployment, arguments, closed=closed)
    if record.change_set_id != record.head:
        return record
    ids = ChangeSet(record.workspace_id, record.change_set_id)
    address = await deployment.client.addresses.address_of(ids)
    what = f"{address!r} is the head of its workspace; `{arguments.action}` takes a branch"
    raise UnusableInput(f"{what}: `rebaser change-sets list {shlex.quote(address)}` shows them")


async def _show(
    deployment: "Deployment",
    arguments: argparse.Namespace,
    record: "ChangeSetRecordV1",
    comments: "Sequence[CommentRecordV1] | None" = None,
) -> None:
    from rebaser_core.ids import ChangeSet
    from rebaser_server.commands.render.history import show_change_set

    addresses, base = deployment.client.addresses, None
    if record.base is not None:
        base = await addresses.address_of(ChangeSet(record.workspace_id, record.base.change_set_id))
    address = await addresses.address_of(ChangeSet(record.workspace_id, record.change_set_id))
    show_change_set(record, address, base, comments, as_json=arguments.json)


async def _compare(
    deployment: "Deployment", record: "ChangeSetRecordV1", *, computed: bool = True
) -> "BranchDifference":
    """Compare the branch with head; with what it computes, once both are computed if need be."""
    from rebaser_core.ids import ChangeSet
    from rebaser_server.commands.support.value_source import read_difference

    change_set = ChangeSet(record.workspace_id, record.change_set_id)
    comparison = await read_difference(deployment, change_set, computed=computed)
    if comparison.uncomputed and await _is_brought_up(deployment, record, comparison):
        comparison = await read_difference(deployment, change_set, computed=True)
    return comparison


async def _whole_digest(
    deployment: "Deployment", record: "ChangeSetRecordV1", beginning: str
) -> str:
    """The digest of the difference as it is now if it begins so; else one that nothing has."""
    digest = (await _compare(deployment, record, computed=False)).digest
    return digest if digest.startswith(beginning) else beginning

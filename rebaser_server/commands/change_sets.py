"""`rebaser change-sets` and `diff`: fork the head of a workspace, compare, apply or abandon."""

import argparse
from typing import TYPE_CHECKING, Any

from rebaser_server.commands.support.arguments import (
    add_command,
    add_group,
    add_named_change_set,
    add_workspace,
    with_deployment,
)
from rebaser_server.commands.support.exit_codes import Exit
from rebaser_server.commands.support.questions import confirmed, unless_confirmed
from rebaser_server.terminal.lines import complain

if TYPE_CHECKING:
    from rebaser_core.records.registry_records import ChangeSetRecordV1
    from rebaser_server.commands.support.deployment import Deployment
    from rebaser_server.queries.diff import Diff


def add(commands: Any) -> None:
    """Declare the commands."""
    group = add_group(
        commands,
        "change-sets",
        about="list, describe, fork, rename, refresh, apply, abandon or delete change sets",
    )

    listing = add_command(group, "list", _list, about="list the open change sets of a workspace")
    add_workspace(listing)
    listing.add_argument("--all", action="store_true", help="list the closed ones, too")

    fork = add_command(
        group, "fork", _fork, about="create a branch of head or of another change set"
    )
    add_workspace(fork)
    fork.add_argument("name", help="name of the branch")
    fork.add_argument("--base", help="name or ULID of the change set to fork (default: head)")
    fork.add_argument(
        "--commit", type=int, help="commit of the base at which to fork (default: latest)"
    )

    for name, handler, about in (
        ("describe", _describe, "show the record of a change set"),
        ("rename", _rename, "give a change set another name"),
        ("refresh", _act, "merge the changes of head into a branch now"),
    ):
        command = add_command(group, name, handler, about=about)
        add_named_change_set(command)
        if name == "rename":
            command.add_argument("name", help="the new name")

    apply = add_command(
        group,
        "apply",
        _apply,
        about="show what a branch changes, ask, and apply it to head",
        validate=unless_confirmed(yes="--yes", reviewed="--reviewed DIGEST"),
    )
    add_named_change_set(apply)
    apply.add_argument("--yes", action="store_true", help="apply without showing it and asking")
    apply.add_argument(
        "--reviewed",
        metavar="DIGEST",
        help="apply only the difference with that digest, without asking (default: ask)",
    )

    for name, about in (
        ("abandon", "close a branch without effect on head"),
        ("delete", "close a branch, and delete its data after the retention time"),
    ):
        add_named_change_set(add_command(group, name, _act, about=about))

    diff = add_command(commands, "diff", _diff, about="show what a branch would change in head")
    add_named_change_set(diff)
    diff.add_argument(
        "--computed", action="store_true", help="also show computed values that differ"
    )
    diff.add_argument("--batch", action="store_true", help="show only the updates, as a JSON array")


@with_deployment
async def _list(deployment: "Deployment", arguments: argparse.Namespace) -> None:
    from rebaser_core.ids import ChangeSet
    from rebaser_server.cluster.pauses import PauseStore, paused_since
    from rebaser_server.commands.render.change_sets import show_change_sets

    records = await deployment.client.workspaces.change_sets(
        arguments.workspace, closed=arguments.all
    )
    pauses = await PauseStore(deployment.js, deployment.subjects).all()
    since = [paused_since(pauses, ChangeSet(r.workspace_id, r.change_set_id)) for r in records]
    show_change_sets(records, since, as_json=arguments.json)


@with_deployment
async def _fork(deployment: "Deployment", arguments: argparse.Namespace) -> None:
    from rebaser_server.commands.render.change_sets import show_change_set

    workspaces = deployment.client.workspaces
    base = None
    if arguments.base is not None:
        base = (await workspaces.find(arguments.workspace, arguments.base)).change_set_id
    record = await workspaces.fork(
        arguments.workspace, arguments.name, base=base, commit=arguments.commit
    )
    await workspaces.refresh(record.workspace_id, record.change_set_id)
    show_change_set(record, as_json=arguments.json)


@with_deployment
async def _describe(deployment: "Deployment", arguments: argparse.Namespace) -> None:
    from rebaser_server.commands.render.change_sets import show_change_set

    show_change_set(await _find(deployment, arguments), as_json=arguments.json)


@with_deployment
async def _rename(deployment: "Deployment", arguments: argparse.Namespace) -> None:
    from rebaser_server.commands.render.change_sets import show_change_set

    record = await _find(deployment, arguments)
    renamed = await deployment.client.workspaces.rename(
        record.workspace_id, record.change_set_id, arguments.name
    )
    show_change_set(renamed, as_json=arguments.json)


@with_deployment
async def _act(deployment: "Deployment", arguments: argparse.Namespace) -> None:
    """Refresh, abandon or delete: the client's method of the command's name."""
    from rebaser_server.commands.render.change_sets import show_change_set

    workspaces = deployment.client.workspaces
    record = await _find(deployment, arguments)
    change_set = record.workspace_id, record.change_set_id
    await getattr(workspaces, arguments.action)(*change_set)
    show_change_set(await workspaces.describe(*change_set), as_json=arguments.json)


@with_deployment
async def _diff(deployment: "Deployment", arguments: argparse.Namespace) -> None:
    from rebaser_server.commands.render.change_sets import show_comparison

    record = await _find(deployment, arguments)
    comparison = await _compare(deployment, record, computed=arguments.computed)
    show_comparison(comparison, as_json=arguments.json, as_batch=arguments.batch)


@with_deployment
async def _apply(deployment: "Deployment", arguments: argparse.Namespace) -> int:
    from rebaser_server.commands.render.change_sets import show_change_set, show_comparison

    record = await _find(deployment, arguments)
    reviewed = arguments.reviewed
    if not arguments.yes and reviewed is None:
        comparison = await _compare(deployment, record)
        show_comparison(comparison, as_json=False, as_batch=False)
        if not await confirmed("Apply this to head?"):
            complain("not applied")
            return Exit.FAILED
        reviewed = comparison.digest
    record = await deployment.client.workspaces.apply(
        record.workspace_id, record.change_set_id, reviewed=reviewed
    )
    show_change_set(record, as_json=arguments.json)
    return Exit.OK


async def _find(deployment: "Deployment", arguments: argparse.Namespace) -> "ChangeSetRecordV1":
    return await deployment.client.workspaces.find(arguments.workspace, arguments.change_set)


async def _compare(
    deployment: "Deployment", record: "ChangeSetRecordV1", *, computed: bool = False
) -> "Diff":
    from rebaser_core.ids import ChangeSet
    from rebaser_server.queries.cached_state import open_state_loader
    from rebaser_server.queries.diff import diff

    change_set = ChangeSet(record.workspace_id, record.change_set_id)
    loader = open_state_loader(deployment.js, deployment.settings, change_set)
    return await diff(loader, computed=computed)

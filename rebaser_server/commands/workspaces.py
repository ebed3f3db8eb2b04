"""`rebaser workspaces`: create, list and delete workspaces."""

import argparse
from typing import TYPE_CHECKING, Any

from rebaser_core.errors import many
from rebaser_server.commands.support.arguments import (
    add_command,
    add_group,
    add_ids,
    add_workspace,
    change_set_id,
    with_deployment,
    workspace_id,
)
from rebaser_server.commands.support.exit_codes import Exit
from rebaser_server.commands.support.questions import confirmed, unless_confirmed
from rebaser_server.terminal.lines import complain

if TYPE_CHECKING:
    from rebaser_server.commands.support.deployment import Deployment


def add(commands: Any) -> None:
    """Declare the commands."""
    group = add_group(commands, "workspaces", about="create, list or delete workspaces")
    add_ids(add_command(group, "list", _list, about="list all workspaces"))

    create = add_command(
        group, "create", _create, about="create a workspace and its head change set"
    )
    create.add_argument("name", help="name of the workspace")
    create.add_argument(
        "--head",
        type=change_set_id,
        metavar="ULID",
        help="make this existing change set the head (default: a new one)",
    )
    create.add_argument(
        "--workspace",
        type=workspace_id,
        metavar="ULID",
        help="the workspace of that change set (default: a new one)",
    )
    add_ids(create)

    delete = add_command(
        group,
        "delete",
        _delete,
        about="close all change sets of a workspace; delete their data after the retention time",
        validate=unless_confirmed(yes="--yes"),
    )
    add_workspace(delete, required=True)
    add_ids(delete)
    delete.add_argument("--yes", action="store_true", help="delete without asking")


@with_deployment
async def _list(deployment: "Deployment", arguments: argparse.Namespace) -> None:
    from rebaser_server.commands.render.change_sets import show_workspaces

    records = await deployment.client.workspaces.all()
    show_workspaces(records, ids=arguments.ids, as_json=arguments.json)


@with_deployment
async def _create(deployment: "Deployment", arguments: argparse.Namespace) -> None:
    from rebaser_server.commands.render.change_sets import show_workspaces

    if arguments.workspace is None and arguments.head is None:
        await deployment.client.addresses.check_free(arguments.name)
    workspace = await deployment.client.workspaces.create(
        arguments.name, workspace_id=arguments.workspace, head=arguments.head
    )
    show_workspaces([workspace.record], ids=arguments.ids, as_json=arguments.json)


@with_deployment
async def _delete(deployment: "Deployment", arguments: argparse.Namespace) -> int:
    from rebaser_server.commands.render.change_sets import show_change_sets
    from rebaser_server.commands.support.addresses import workspace_of

    workspaces = deployment.client.workspaces
    record = await workspace_of(deployment, arguments.workspace)
    workspace = record.workspace_id
    if not arguments.yes:
        count = len(await workspaces.change_sets(workspace, closed=True))
        if not await confirmed(f"Delete {record.name!r} and its {many(count, 'change set')}?"):
            complain("not deleted")
            return Exit.FAILED
    await workspaces.delete_workspace(workspace)
    records = await workspaces.change_sets(workspace, closed=True)
    show_change_sets(records, [None] * len(records), ids=arguments.ids, as_json=arguments.json)
    return Exit.OK

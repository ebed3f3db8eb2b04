"""`rebaser workspaces`: create, list and delete workspaces."""

import argparse
from typing import TYPE_CHECKING, Any

from rebaser_core.errors import many
from rebaser_server.commands.support.arguments import (
    Exit,
    add_command,
    add_group,
    add_workspace,
    confirmed,
    new_name,
    unless_confirmed,
    with_deployment,
)
from rebaser_server.terminal.lines import complain

if TYPE_CHECKING:
    from rebaser_server.commands.support.deployment import Deployment


def add(commands: Any) -> None:
    """Declare the commands."""
    group = add_group(commands, "workspaces", about="create, list or delete workspaces")
    add_command(group, "list", _list, about="list all workspaces", csv=True)

    create = add_command(
        group, "create", _create, about="create a workspace and its head change set"
    )
    create.add_argument("name", type=new_name, help="name of the workspace")

    delete = add_command(
        group,
        "delete",
        _delete,
        about="close all change sets of a workspace; delete their data after the retention time",
        validate=unless_confirmed(yes="--yes"),
    )
    add_workspace(delete, required=True)
    delete.add_argument("--yes", action="store_true", help="delete without asking")


@with_deployment
async def _list(deployment: "Deployment", arguments: argparse.Namespace) -> None:
    from rebaser_server.commands.render.history import show_workspaces

    records = await deployment.client.workspaces.all()
    show_workspaces(records, arguments)


@with_deployment
async def _create(deployment: "Deployment", arguments: argparse.Namespace) -> None:
    from rebaser_server.commands.render.history import show_workspaces

    await deployment.client.addresses.check_free(arguments.name)
    workspace = await deployment.client.workspaces.create(arguments.name)
    show_workspaces([workspace.record], arguments)


@with_deployment
async def _delete(deployment: "Deployment", arguments: argparse.Namespace) -> int:
    from rebaser_server.commands.render.history import show_change_sets
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
    show_change_sets(records, [None] * len(records), arguments)
    return Exit.OK

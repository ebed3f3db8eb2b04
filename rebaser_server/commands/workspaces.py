"""`rebaser workspaces` and `use`: create, list, delete workspaces; keep an address for commands."""

import argparse
from typing import TYPE_CHECKING, Any

from rebaser_core.errors import many
from rebaser_server.commands.support.arguments import (
    Exit,
    add_address,
    add_command,
    add_group,
    add_workspace,
    confirmed,
    new_name,
    unless_confirmed,
    with_deployment,
)
from rebaser_server.terminal.lines import complain, say, say_json

if TYPE_CHECKING:
    from rebaser_server.commands.support.deployment import Deployment
    from rebaser_server.settings.settings import Settings


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


def add_use(commands: Any) -> None:
    """Declare the command."""
    use = add_command(
        commands,
        "use",
        _use,
        about="keep the address of a change set for later commands, or show it",
        validate=lambda arguments: (
            "give an ADDRESS, or --clear" if arguments.clear and arguments.address else None
        ),
    )
    add_address(use, default="show the one in use")
    use.add_argument("--clear", action="store_true", help="forget the address in use")


async def _use(settings: "Settings", arguments: argparse.Namespace) -> int | None:
    from rebaser_server.commands.support.addresses import use_address

    if arguments.address:
        return await _keep(settings, arguments)
    if arguments.clear:
        use_address(settings, None)
    return _show(settings, as_json=arguments.json)


@with_deployment
async def _keep(deployment: "Deployment", arguments: argparse.Namespace) -> int:
    from rebaser_server.commands.support.addresses import change_set_of, use_address

    change_set = await change_set_of(deployment, arguments)
    use_address(deployment.settings, await deployment.client.addresses.address_of(change_set))
    return _show(deployment.settings, as_json=arguments.json)


def _show(settings: "Settings", *, as_json: bool) -> int:
    """Print the address in use, which a variable may have set."""
    from rebaser_server.commands.support.addresses import address_in_use

    used = address_in_use(settings)
    if as_json:
        say_json({"address": used and used.address, "source": used and used.source})
    elif used is None:
        complain("no address is in use: `rebaser use ADDRESS` keeps one")
    else:
        say(f"{used.address} ({used.source})")
    return Exit.OK

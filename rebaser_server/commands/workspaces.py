"""`rebaser workspaces`: create, list and delete workspaces."""

import argparse
from collections.abc import Sequence

from rebaser_core.errors import many
from rebaser_core.records import WorkspaceRecordV1
from rebaser_server.commands.change_sets import show_change_sets
from rebaser_server.commands.support.addresses import workspace_of
from rebaser_server.commands.support.arguments import Exit, confirmed
from rebaser_server.commands.support.deployment import Deployment, with_deployment
from rebaser_server.terminal.lines import complain
from rebaser_server.terminal.tables import show_cells


@with_deployment
async def list_workspaces(deployment: Deployment, arguments: argparse.Namespace) -> None:
    _show(await deployment.client.workspaces.all(), arguments)


@with_deployment
async def create(deployment: Deployment, arguments: argparse.Namespace) -> None:
    await deployment.client.addresses.check_free(arguments.name)
    workspace = await deployment.client.workspaces.create(arguments.name)
    _show([workspace.record], arguments)


@with_deployment
async def delete(deployment: Deployment, arguments: argparse.Namespace) -> int:
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


def _show(records: Sequence[WorkspaceRecordV1], arguments: argparse.Namespace) -> None:
    records = sorted(records, key=lambda record: record.created_at)
    rows = [(record.name, record.created_at, record.by) for record in records]
    plain = [record.to_wire() for record in records]
    show_cells(("workspace", "created", "by"), rows, arguments, plain=plain)

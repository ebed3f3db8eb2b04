"""`rebaser tables`: show the values that are tables, what one has, its rows, and which differ."""

import argparse
from typing import TYPE_CHECKING, Any, Final

from rebaser_server.commands.support.arguments import (
    Exit,
    add_address,
    add_address_and_names,
    add_command,
    add_group,
    commit_number,
    whole_number,
    with_deployment,
)
from rebaser_server.terminal.lines import complain

if TYPE_CHECKING:
    from rebaser_client.change_set import ChangeSetHandle
    from rebaser_client.table_reads import TableValue
    from rebaser_server.commands.support.deployment import Deployment

_HEAD: Final = 10


def add(commands: Any) -> None:
    """Declare the commands."""
    tables = add_group(
        commands,
        "tables",
        about="show the values that are tables, and which rows differ",
        default="ls",
    )
    listing = add_command(tables, "ls", _list, about="list the values that are tables")
    add_address(listing)
    show = add_command(
        tables, "show", _show, about="show a table's columns, size, and what it is computed from"
    )
    head = add_command(tables, "head", _head, about="print the first rows of a table")
    head.add_argument(
        "-n",
        type=whole_number,
        default=_HEAD,
        metavar="ROWS",
        dest="rows",
        help="number of rows (default: %(default)s)",
    )
    head.add_argument("--csv", action="store_true", help="print CSV")
    diff = add_command(
        tables, "diff", _diff, about="show which rows of a table differ from head's, or from before"
    )
    diff.add_argument(
        "--key",
        metavar="COLUMNS",
        help="columns that identify a row, with commas between; '' compares whole rows "
        "(default: those that the value's function declares, else whole rows)",
    )
    diff.add_argument(
        "--since",
        type=commit_number,
        metavar="COMMIT",
        help="compare with that commit of the change set (default: the last one of head)",
    )
    for command in (show, head, diff):
        add_address_and_names(
            command, about="name or id of the value (default: none; one is needed)"
        )
    for command in (listing, show, head, diff):
        command.add_argument(
            "--at",
            type=commit_number,
            metavar="COMMIT",
            help="show what is as of that commit (default: latest)",
        )


@with_deployment
async def _list(deployment: "Deployment", arguments: argparse.Namespace) -> None:
    from rebaser_server.commands.render.tables import show_tables
    from rebaser_server.commands.support.addresses import change_set_of

    change_set = await change_set_of(deployment, arguments, closed=True)
    handle = deployment.client.change_set(*change_set)
    await show_tables(handle, at=arguments.at, as_json=arguments.json)


@with_deployment
async def _show(deployment: "Deployment", arguments: argparse.Namespace) -> int:
    from rebaser_server.commands.render.tables import show_table

    found = await _one_table(deployment, arguments, "show")
    if found is None:
        return Exit.BAD_SETTINGS
    await show_table(*found, as_json=arguments.json)
    return Exit.OK


@with_deployment
async def _head(deployment: "Deployment", arguments: argparse.Namespace) -> int:
    from rebaser_server.commands.render.tables import show_rows

    found = await _one_table(deployment, arguments, "head")
    if found is None:
        return Exit.BAD_SETTINGS
    rows = await found[1].head(max(0, arguments.rows))
    show_rows(rows, as_csv=arguments.csv, as_json=arguments.json)
    return Exit.OK


@with_deployment
async def _diff(deployment: "Deployment", arguments: argparse.Namespace) -> int:
    from rebaser_server.commands.render.tables import show_difference

    found = await _one_table(deployment, arguments, "diff")
    if found is None:
        return Exit.BAD_SETTINGS
    key = arguments.key
    if key is not None:
        key = [name.strip() for name in key.split(",") if name.strip()]
    difference = await found[1].diff(key, commit=arguments.since)
    show_difference(difference, as_json=arguments.json)
    return Exit.OK


async def _one_table(
    deployment: "Deployment", arguments: argparse.Namespace, command: str
) -> "tuple[ChangeSetHandle, TableValue] | None":
    """The table that the arguments name, and its change set; None, after a complaint, for none."""
    from rebaser_server.commands.support.addresses import change_set_and_names, whole_ids

    change_set, names = await change_set_and_names(deployment, arguments, closed=True)
    if len(names) != 1:
        which = " or ".join(names) or "NAME"
        complain(f"rebaser: name one value: rebaser tables {command} ADDRESS {which}")
        return None
    [name] = await whole_ids(deployment, change_set, names)
    handle = deployment.client.change_set(*change_set)
    return handle, await handle.table(name, at=arguments.at)

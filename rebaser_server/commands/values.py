"""`rebaser values`: show the values of a change set, as a list or as a tree, and set one."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rebaser_server.commands.support.arguments import (
    STDIN,
    Exit,
    UnusableInput,
    add_address,
    add_address_and_names,
    add_command,
    add_group,
    add_value,
    add_wait,
    commit_number,
    read_text,
    whole_number,
    with_deployment,
    with_input,
)
from rebaser_server.terminal.lines import complain

if TYPE_CHECKING:
    from rebaser_server.commands.support.deployment import Deployment


def add(commands: Any) -> None:
    """Declare the commands."""
    values = add_group(
        commands,
        "values",
        about="show the values of a change set, or set one",
        default="get",
    )

    get = add_command(values, "get", _get, about="list values, or show them as a tree", csv=True)
    add_address_and_names(
        get, about="names or ids of values to show, or the top of a tree (default: all)"
    )
    get.add_argument(
        "--tree",
        action="store_true",
        help="show values by the parts of their names, with their inputs",
    )
    get.add_argument(
        "--depth",
        type=whole_number,
        metavar="PARTS",
        help="show a tree, with names of at most that many parts below the top (default: all)",
    )
    get.add_argument(
        "--at",
        type=commit_number,
        metavar="COMMIT",
        help="show the values as of that commit (default: latest)",
    )
    get.add_argument(
        "--all", action="store_true", help="show all, also at a terminal (default: the first)"
    )

    put = add_command(values, "set", _set, about="set a value that is not computed")
    add_address(put)
    add_value(put, "name", "name or id of the value")
    put.add_argument("value", help="the new value as JSON; - reads it from stdin")
    put.add_argument("--text", action="store_true", help="take the value as text, not as JSON")
    put.add_argument(
        "--table",
        action="store_true",
        help="take the value as the URI of a table of Delta or Parquet that Rebasers copy, which "
        "may end with @VERSION (default: the newest, which is read here)",
    )
    add_wait(put)


@with_deployment
async def _get(deployment: "Deployment", arguments: argparse.Namespace) -> int:
    from rebaser_server.commands.render.values import show_state, show_tree, show_values
    from rebaser_server.commands.support.addresses import change_set_and_names
    from rebaser_server.commands.support.value_source import read_values

    change_set, names = await change_set_and_names(deployment, arguments, closed=True)
    registry = deployment.client.workspaces.registry
    if await registry.is_key(change_set):
        await show_state(deployment, change_set, names, arguments)
        return Exit.OK
    is_tree = arguments.tree or arguments.depth is not None
    if is_tree and len(names) > 1:
        complain(f"rebaser: a tree has one top: {' or '.join(names)}?")
        return Exit.BAD_SETTINGS
    read = await read_values(deployment, change_set, arguments.at)
    if is_tree:
        depth, whole = arguments.depth, arguments.all
        show_tree(read, "".join(names), depth=depth, whole=whole, as_json=arguments.json)
    else:
        show_values(read, names, arguments)
    return Exit.OK


def _read_value(arguments: argparse.Namespace) -> Any:
    from rebaser_client.documents import parse_json
    from rebaser_client.errors import InvalidDraft
    from rebaser_core.table_values import PinnedTable

    text = arguments.value if arguments.value != STDIN else read_text(Path(STDIN))
    if arguments.table:
        uri, _, version = text.rpartition("@")
        if not uri or "/" in version:
            return text  # the newest, for which the settings are needed
        try:
            return PinnedTable.at(uri, int(version) if version.isdecimal() else version).to_value()
        except ValueError as error:
            raise UnusableInput(str(error)) from error
    try:
        return text if arguments.text else parse_json(text)
    except InvalidDraft as error:
        usage = "" if arguments.address else "; give NAME and VALUE, with an address before them"
        raise UnusableInput(
            f"{text[:80]!r} is not JSON as it is sent: {error}; --text takes it as text{usage}"
        ) from error


@with_input(_read_value)
@with_deployment
async def _set(deployment: "Deployment", arguments: argparse.Namespace) -> int:
    from rebaser_client.plan import input_ids, is_computed
    from rebaser_server.commands.render.progress import follow
    from rebaser_server.commands.render.values import find_value
    from rebaser_server.commands.support.addresses import change_set_of
    from rebaser_server.commands.support.value_source import read_values

    content = arguments.input
    if arguments.table and isinstance(content, str):
        import asyncio

        from rebaser_server.commands.tables import newest_version

        found = await asyncio.to_thread(newest_version, deployment.settings, content)
        content = found.table.to_value()
    change_set = await change_set_of(deployment, arguments)
    read = await read_values(deployment, change_set)
    value = find_value(read, arguments.name)
    if value.func_id is not None:
        inputs = (read.values[each].name or each for each in input_ids(value))
        raise is_computed(arguments.name, inputs)
    updates = [{"setValue": {"valueId": value.id, "value": content}}]
    return await follow(
        deployment, change_set, updates, as_json=arguments.json, computed=arguments.wait
    )

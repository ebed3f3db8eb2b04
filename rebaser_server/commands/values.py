"""`rebaser values`: what a change set holds, as a list or by name as a tree; and setting one."""

import argparse
import json
import sys
from typing import TYPE_CHECKING, Any

from rebaser_server.commands.support.addressing import existing
from rebaser_server.commands.support.arguments import Parser, add_change_set, runs
from rebaser_server.commands.support.exit_codes import Exit
from rebaser_server.settings.settings import Settings
from rebaser_server.terminal.lines import complain

if TYPE_CHECKING:
    from rebaser_server.commands.support.deployment import Deployment


def add(commands: Any) -> None:
    """Declare the commands."""
    values: Parser = commands.add_parser(
        "values", help="show values of a change set, or set one: get (need not be said), tree, set"
    )
    verbs = values.add_subparsers(required=True, metavar="VERB")
    values.unsaid = "get"

    get = verbs.add_parser("get", help="list values")
    add_change_set(get)
    get.add_argument("name", nargs="*", help="names or ids of the values to show; all")
    _at(get)
    runs(get, _get)

    tree = verbs.add_parser("tree", help="values by the parts of their names, with their inputs")
    add_change_set(tree)
    tree.add_argument("name", nargs="?", default="", help="only this one and those below; all")
    tree.add_argument("--depth", type=int, metavar="PARTS", help="names of so many parts below it")
    _at(tree)
    runs(tree, _tree)

    put = verbs.add_parser("set", help="set what a value is")
    add_change_set(put)
    put.add_argument("name", help="name or id of a value that is not computed")
    put.add_argument("value", help="JSON; - for stdin")
    put.add_argument("--text", action="store_true", help="the value is text as it stands")
    put.add_argument("--wait", action="store_true", help="until what depends on it is computed")
    runs(put, _set)


def _at(parser: Parser) -> None:
    parser.add_argument("--at", type=int, metavar="COMMIT", help="as of that commit; the last")


async def _get(at: "Deployment", settings: Settings, arguments: argparse.Namespace) -> None:
    from rebaser_server.commands.render.values import show_values, state_at

    change_set = await existing(at, arguments)
    state = await state_at(at, settings, change_set, arguments.at)
    show_values(state, arguments.name, as_json=arguments.json)


async def _tree(at: "Deployment", settings: Settings, arguments: argparse.Namespace) -> None:
    from rebaser_server.commands.render.tree import show_tree
    from rebaser_server.commands.render.values import state_at

    change_set = await existing(at, arguments)
    state = await state_at(at, settings, change_set, arguments.at)
    show_tree(state, arguments.name, depth=arguments.depth, as_json=arguments.json)


async def _set(at: "Deployment", settings: Settings, arguments: argparse.Namespace) -> int:
    from rebaser_server.commands.render.progress import follow
    from rebaser_server.commands.render.values import named, state_at

    text = sys.stdin.read() if arguments.value == "-" else arguments.value
    try:
        data = text if arguments.text else json.loads(text)
    except ValueError as error:
        complain(f"rebaser: {text[:80]!r} is no JSON: {error}; for text as it is: --text")
        return Exit.FAILED
    change_set = await existing(at, arguments)
    value = named((await state_at(at, settings, change_set)).graph, arguments.name)
    if value.func_id is not None:
        complain(
            f"rebaser: {arguments.name!r} is computed; set what it is computed from: "
            f"{', '.join(value.input_ids()) or 'it has no inputs'}"
        )
        return Exit.FAILED
    updates = [{"setValue": {"valueId": value.id, "value": data}}]
    return await follow(at, change_set, updates, as_json=arguments.json, computed=arguments.wait)

"""`rebaser values`: what a change set holds."""

import argparse
import asyncio
from typing import Any

from rebaser_server.commands.arguments import add_change_set, add_json, change_set_in
from rebaser_server.commands.exits import Exit
from rebaser_server.settings import Settings


def add(commands: Any) -> None:
    """Declare the command."""
    values = commands.add_parser("values", help="show the values of a change set")
    add_change_set(values)
    values.add_argument("name", nargs="*", help="names or ids of the values to show; all")
    values.add_argument("--at", type=int, metavar="COMMIT", help="as of that commit; the last")
    add_json(values)
    values.set_defaults(command=_values)


def _values(settings: Settings, arguments: argparse.Namespace) -> int:
    from rebaser_server.commands.show import show_values

    change_set = change_set_in(arguments)
    asyncio.run(
        show_values(settings, change_set, arguments.name, at=arguments.at, as_json=arguments.json)
    )
    return Exit.OK

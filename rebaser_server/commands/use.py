"""`rebaser use`: keep an address for commands that are given none."""

import argparse
from typing import TYPE_CHECKING, Any

from rebaser_server.commands.support.arguments import add_address, add_command, with_deployment
from rebaser_server.commands.support.exit_codes import Exit
from rebaser_server.terminal.lines import complain, say, say_json

if TYPE_CHECKING:
    from rebaser_server.commands.support.deployment import Deployment
    from rebaser_server.settings.settings import Settings


def add(commands: Any) -> None:
    """Declare the command."""
    use = add_command(
        commands,
        "use",
        _use,
        about="keep the address of a change set for commands that are given none, or show it",
        validate=lambda arguments: (
            "give an ADDRESS, or --clear" if arguments.clear and arguments.address else None
        ),
    )
    add_address(use, default="show the one in use")
    use.add_argument("--clear", action="store_true", help="forget the address in use")


async def _use(settings: "Settings", arguments: argparse.Namespace) -> int | None:
    from rebaser_server.commands.support.context import use_address

    if arguments.address:
        return await _keep(settings, arguments)
    if arguments.clear:
        use_address(settings, None)
    return _show(settings, as_json=arguments.json)


@with_deployment
async def _keep(deployment: "Deployment", arguments: argparse.Namespace) -> int:
    from rebaser_server.commands.support.addresses import change_set_of
    from rebaser_server.commands.support.context import use_address

    change_set = await change_set_of(deployment, arguments)
    use_address(deployment.settings, await deployment.client.addresses.address_of(change_set))
    return _show(deployment.settings, as_json=arguments.json)


def _show(settings: "Settings", *, as_json: bool) -> int:
    """Print the address in use, which a variable may have set."""
    from rebaser_server.commands.support.context import address_in_use

    used = address_in_use(settings)
    if as_json:
        say_json({"address": used and used.address, "source": used and used.source})
    elif used is None:
        complain("no address is in use: `rebaser use ADDRESS` keeps one")
    else:
        say(f"{used.address} ({used.source})")
    return Exit.OK

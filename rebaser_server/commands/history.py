"""`rebaser log` and `rebaser revert`: the commits of a change set, and undoing one of them."""

import argparse
from typing import TYPE_CHECKING, Any

from rebaser_server.commands.support.arguments import add_address, add_command, with_deployment
from rebaser_server.commands.support.waiting import add_wait

if TYPE_CHECKING:
    from rebaser_server.commands.support.deployment import Deployment


def add(commands: Any) -> None:
    """Declare the commands."""
    log = add_command(
        commands, "log", _log, about="show the requests of a change set and their outcomes"
    )
    add_address(log)
    log.add_argument(
        "--last", type=int, metavar="N", help="show only the last N requests (default: all)"
    )
    log.add_argument(
        "--after",
        type=int,
        default=0,
        metavar="COMMIT",
        help="show only commits after this one (default: %(default)s)",
    )

    revert = add_command(
        commands, "revert", _revert, about="undo one commit of a change set, by a new commit"
    )
    add_address(revert)
    revert.add_argument("commit", type=int, help="number of the commit, as in `rebaser log`")
    revert.add_argument(
        "--force", action="store_true", help="also undo what a later commit changed again"
    )
    revert.add_argument(
        "--dry-run", action="store_true", help="show the updates without sending them"
    )
    revert.add_argument("--yes", action="store_true", help="send them without asking")
    add_wait(revert)


@with_deployment
async def _log(deployment: "Deployment", arguments: argparse.Namespace) -> None:
    from rebaser_server.commands.render.history import show_log
    from rebaser_server.commands.support.addresses import change_set_of

    change_set = await change_set_of(deployment, arguments, closed=True)
    after, most = arguments.after, arguments.last
    await show_log(deployment, change_set, after=after, most=most, as_json=arguments.json)


@with_deployment
async def _revert(deployment: "Deployment", arguments: argparse.Namespace) -> int:
    from rebaser_server.commands.render.history import show_revert
    from rebaser_server.commands.support.addresses import change_set_of

    return await show_revert(
        deployment,
        await change_set_of(deployment, arguments),
        arguments,
    )

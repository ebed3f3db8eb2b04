"""`rebaser log` and `revert`: what happened to a change set, and having it undone."""

import argparse
from typing import TYPE_CHECKING, Any

from rebaser_server.commands.support.addressing import existing
from rebaser_server.commands.support.arguments import add_change_set, runs
from rebaser_server.settings.settings import Settings

if TYPE_CHECKING:
    from rebaser_server.commands.support.deployment import Deployment


def add(commands: Any) -> None:
    """Declare the commands."""
    log = commands.add_parser("log", help="show what happened to a change set, oldest first")
    add_change_set(log)
    log.add_argument("--last", type=int, metavar="N", help="only the last N requests")
    log.add_argument("--after", type=int, default=0, metavar="COMMIT", help="only later ones")
    runs(log, _log)

    revert = commands.add_parser("revert", help="undo one commit of a change set, by a new one")
    add_change_set(revert)
    revert.add_argument("commit", type=int, help="as `rebaser log` shows it")
    revert.add_argument(
        "--force", action="store_true", help="undo also what was changed again since"
    )
    revert.add_argument("--dry-run", action="store_true", help="only show what would be done")
    runs(revert, _revert)


async def _log(at: "Deployment", _: Settings, arguments: argparse.Namespace) -> None:
    from rebaser_server.commands.render.history import show_log

    change_set = await existing(at, arguments)
    after, most = arguments.after, arguments.last
    await show_log(at, change_set, after=after, most=most, as_json=arguments.json)


async def _revert(at: "Deployment", settings: Settings, arguments: argparse.Namespace) -> int:
    from rebaser_server.commands.render.history import show_revert

    return await show_revert(
        at,
        settings,
        await existing(at, arguments),
        arguments.commit,
        force=arguments.force,
        dry_run=arguments.dry_run,
        as_json=arguments.json,
    )

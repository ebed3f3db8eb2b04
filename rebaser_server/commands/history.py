"""`rebaser log` and `revert`: what happened to a change set, and having it undone."""

import argparse
import asyncio
from typing import Any

from rebaser_server.commands.arguments import add_change_set, add_json, change_set_in
from rebaser_server.commands.exits import Exit
from rebaser_server.settings import Settings


def add(commands: Any) -> None:
    """Declare the commands."""
    log = commands.add_parser("log", help="show what happened to a change set, oldest first")
    add_change_set(log)
    log.add_argument("--last", type=int, metavar="N", help="only the last N requests")
    log.add_argument("--after", type=int, default=0, metavar="COMMIT", help="only later ones")
    add_json(log)
    log.set_defaults(command=_log)

    revert = commands.add_parser("revert", help="undo one commit of a change set, by a new one")
    add_change_set(revert)
    revert.add_argument("commit", type=int, help="as `rebaser log` shows it")
    revert.add_argument(
        "--force", action="store_true", help="undo also what was changed again since"
    )
    revert.add_argument("--dry-run", action="store_true", help="only show what would be done")
    add_json(revert)
    revert.set_defaults(command=_revert)


def _log(settings: Settings, arguments: argparse.Namespace) -> int:
    from rebaser_server.commands.show_history import show_log

    asyncio.run(
        show_log(
            settings,
            change_set_in(arguments),
            after=arguments.after,
            most=arguments.last,
            as_json=arguments.json,
        )
    )
    return Exit.OK


def _revert(settings: Settings, arguments: argparse.Namespace) -> int:
    from rebaser_server.commands.show_history import show_revert

    asyncio.run(
        show_revert(
            settings,
            change_set_in(arguments),
            arguments.commit,
            force=arguments.force,
            dry_run=arguments.dry_run,
            as_json=arguments.json,
        )
    )
    return Exit.OK

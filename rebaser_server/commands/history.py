"""`rebaser log`, `revert` and `why`: commits, undoing one, and the edits that made a value.

`log --follow` shows the work on a change set as it happens.
"""

import argparse
from typing import TYPE_CHECKING, Any

from rebaser_server.commands.support.arguments import (
    Exit,
    add_address,
    add_address_and_names,
    add_command,
    add_wait,
    commit_number,
    commit_or_last,
    whole_number,
    with_deployment,
)
from rebaser_server.terminal.lines import complain, say, say_json

if TYPE_CHECKING:
    from rebaser_core.activities import ActivityV1
    from rebaser_server.commands.support.deployment import Deployment


def add(commands: Any) -> None:
    """Declare the commands."""
    log = add_command(
        commands,
        "log",
        _log,
        about="show the requests of a change set and their outcomes",
        csv=True,
    )
    add_address(log)
    log.add_argument(
        "--follow",
        action="store_true",
        help="show the work on the change set as it happens, until Ctrl-C",
    )
    log.add_argument(
        "--last",
        type=whole_number,
        metavar="N",
        help="show only the last N requests (default: all)",
    )

    revert = add_command(
        commands, "revert", _revert, about="undo one commit of a change set, by a new commit"
    )
    add_address(revert)
    revert.add_argument(
        "commit",
        type=commit_or_last,
        metavar="COMMIT",
        help="number of the commit, as in `rebaser log`; `last` for the latest one of a request",
    )
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

    if arguments.follow:
        await _follow(deployment, arguments)
        return
    change_set = await change_set_of(deployment, arguments, closed=True)
    await show_log(deployment, change_set, arguments)


async def _follow(deployment: "Deployment", arguments: argparse.Namespace) -> None:
    from rebaser_client.outcomes import watching
    from rebaser_server.commands.support.addresses import change_set_of

    change_set = await change_set_of(deployment, arguments, new=True)
    async with watching(deployment.streams, change_set) as activities:
        async for activity in activities:
            if arguments.json:
                say_json(activity.model_dump(mode="json", by_alias=True))
            else:
                say(_line(activity))


def _line(activity: "ActivityV1") -> str:
    details = " ".join(f"{key}={value}" for key, value in activity.details.items())
    return f"{_time(activity)}  {activity.kind.value:<15} {details}"


def _time(activity: "ActivityV1") -> str:
    """Time of publication, from its id; the id itself if no calendar has that time."""
    from rebaser_core.records import utc_text

    try:
        return utc_text(activity.id.datetime)
    except (ValueError, OverflowError):
        return str(activity.id)


@with_deployment
async def _revert(deployment: "Deployment", arguments: argparse.Namespace) -> int:
    from rebaser_server.commands.render.history import show_revert
    from rebaser_server.commands.support.addresses import change_set_of

    return await show_revert(
        deployment,
        await change_set_of(deployment, arguments),
        arguments,
    )


def add_why(commands: Any) -> None:
    """Declare the command."""
    why = add_command(
        commands, "why", _why, about="show which edits made a value what it is, or keep it back"
    )
    add_address_and_names(why, about="name or id of the value (default: none; one is needed)")
    why.add_argument(
        "--at",
        type=commit_number,
        metavar="COMMIT",
        help="explain the value as of that commit (default: latest)",
    )


@with_deployment
async def _why(deployment: "Deployment", arguments: argparse.Namespace) -> int:
    from rebaser_server.commands.render.values import show_provenance
    from rebaser_server.commands.support.addresses import change_set_and_names, whole_ids
    from rebaser_server.commands.support.deployment import warn_if_paused

    change_set, names = await change_set_and_names(deployment, arguments, closed=True)
    if len(names) != 1:
        complain(f"rebaser: name one value: rebaser why ADDRESS {' or '.join(names) or 'NAME'}")
        return Exit.BAD_SETTINGS
    [name] = await whole_ids(deployment, change_set, names)
    provenance = await deployment.client.change_set(*change_set).why(name, at=arguments.at)
    if provenance.waits is not None and arguments.at is None:
        await warn_if_paused(deployment, change_set, "the update")
    await show_provenance(deployment, change_set, name, provenance, as_json=arguments.json)
    return Exit.OK

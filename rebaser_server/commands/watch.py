"""`rebaser watch`: the work on a change set, one line for each event as it happens."""

import argparse
from typing import TYPE_CHECKING, Any

from rebaser_server.commands.support.arguments import add_address, add_command, with_deployment
from rebaser_server.terminal.lines import say, say_json

if TYPE_CHECKING:
    from rebaser_core.activities import ActivityV1
    from rebaser_server.commands.support.deployment import Deployment


def add(commands: Any) -> None:
    """Declare the command."""
    watch = add_command(
        commands, "watch", _watch, about="show the work on a change set as it happens, until Ctrl-C"
    )
    add_address(watch)


@with_deployment
async def _watch(deployment: "Deployment", arguments: argparse.Namespace) -> None:
    from rebaser_client.outcomes import watching
    from rebaser_server.commands.support.addresses import change_set_of

    change_set = await change_set_of(deployment, arguments, new=True)
    async with watching(deployment.js, deployment.subjects, change_set) as activities:
        async for activity in activities:
            if arguments.json:
                say_json(activity.model_dump(mode="json", by_alias=True))
            else:
                say(_line(activity))


def _line(activity: "ActivityV1") -> str:
    details = " ".join(f"{key}={value}" for key, value in activity.details.items())
    return f"{_time(activity)}  {activity.kind.value:<15} {details}"


def _time(activity: "ActivityV1") -> str:
    """When it was published, by its id; the id itself where no calendar has that time."""
    from rebaser_core.records import utc_text

    try:
        return utc_text(activity.id.datetime)
    except (ValueError, OverflowError):
        return str(activity.id)

"""`rebaser watch`: the work on a change set, one line for each event as it happens."""

import argparse
from typing import TYPE_CHECKING, Any

from rebaser_server.commands.support.arguments import add_change_set, add_command, with_deployment
from rebaser_server.terminal.lines import say, say_json

if TYPE_CHECKING:
    from rebaser_core.activities import ActivityV1
    from rebaser_server.commands.support.deployment import Deployment


def add(commands: Any) -> None:
    """Declare the command."""
    watch = add_command(
        commands, "watch", _watch, about="show the work on a change set as it happens, until Ctrl-C"
    )
    add_change_set(watch)


@with_deployment
async def _watch(deployment: "Deployment", arguments: argparse.Namespace) -> None:
    from rebaser_client.activity_feed import watching

    change_set = await deployment.check_change_set(arguments)
    async with watching(deployment.js, deployment.subjects, change_set) as activities:
        async for activity in activities:
            if arguments.json:
                say_json(activity.model_dump(mode="json", by_alias=True))
            else:
                say(_line(activity))


def _line(activity: "ActivityV1") -> str:
    details = " ".join(f"{key}={value}" for key, value in activity.details.items())
    moment = activity.id.datetime.astimezone().strftime("%H:%M:%S.%f")[:-3]
    return f"{moment}  {activity.kind.value:<15} {details}"

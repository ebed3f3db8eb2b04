"""`rebaser watch`: what Rebasers tell while they work, as it happens."""

import argparse
import asyncio
from typing import Any

from rebaser_server.commands.support.addressing import addressed
from rebaser_server.commands.support.arguments import add_change_set, add_json
from rebaser_server.commands.support.exit_codes import Exit
from rebaser_server.settings.settings import Settings
from rebaser_server.terminal.lines import say, say_json


def add(commands: Any) -> None:
    """Declare the command."""
    watch = commands.add_parser("watch", help="follow the work on a change set until Ctrl-C")
    add_change_set(watch)
    add_json(watch)
    watch.set_defaults(command=_watch)


def _watch(settings: Settings, arguments: argparse.Namespace) -> int:
    from rebaser_client.activity_feed import watching
    from rebaser_server.commands.support.deployment import deployment

    async def body() -> None:
        async with deployment(settings) as at:
            change_set = await addressed(at, arguments)
            async with watching(at.js, at.subjects, change_set) as told:
                async for activity in told:
                    if arguments.json:
                        say_json(activity.model_dump(mode="json", by_alias=True))
                    else:
                        say(_line(activity))

    asyncio.run(body())
    return Exit.OK


def _line(activity: Any) -> str:
    details = " ".join(f"{key}={value}" for key, value in activity.details.items())
    moment = activity.id.datetime.astimezone().strftime("%H:%M:%S.%f")[:-3]
    return f"{moment}  {activity.kind.value:<15} {details}"

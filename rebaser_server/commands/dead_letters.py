"""`rebaser dead-letters`: look at requests that were given up, replay them, or throw them away."""

import argparse
import asyncio
from typing import Any

from rebaser_server.commands.support.arguments import add_json, runs
from rebaser_server.commands.support.exit_codes import Exit
from rebaser_server.settings.settings import Settings
from rebaser_server.terminal.lines import say, say_json


def add(commands: Any) -> None:
    """Declare the commands."""
    letters = commands.add_parser("dead-letters", help="requests that were given up")
    verbs = letters.add_subparsers(required=True, metavar="VERB")

    listed = verbs.add_parser("list", help="the latest, the latest first")
    listed.add_argument("--limit", type=int, default=50)
    add_json(listed)
    listed.set_defaults(command=_list)

    shown = verbs.add_parser("show", help="one, with what it asked for")
    shown.add_argument("sequence", type=int)
    add_json(shown)
    shown.set_defaults(command=_show)

    replayed = verbs.add_parser("replay", help="enqueue again what it asked for")
    replayed.add_argument("sequence", type=int, nargs="+")
    add_json(replayed)
    replayed.set_defaults(command=_replay)

    purged = verbs.add_parser("purge", help="throw letters away for good")
    purged.add_argument("sequence", type=int, nargs="*")
    purged.add_argument("--all", action="store_true")
    runs(
        purged,
        _purge,
        complaint=lambda given: (
            "name the letters by NUMBER, or say --all"
            if given.all is bool(given.sequence)
            else None
        ),
    )


def _list(settings: Settings, arguments: argparse.Namespace) -> int:
    from rebaser_server.commands.render.output import show
    from rebaser_server.commands.support.dead_letters import latest
    from rebaser_server.commands.support.deployment import deployment

    async def rows() -> list[dict[str, Any]]:
        async with deployment(settings) as at:
            return [x.summary() for x in await latest(at.js, at.subjects, arguments.limit)]

    headings = {
        "sequence": "number",
        "at": "died at",
        "workspace": "workspace",
        "changeSet": "change set",
        "attempts": "attempts",
        "reason": "reason",
    }
    show(asyncio.run(rows()), headings, as_json=arguments.json, nothing="no dead letters")
    return Exit.OK


def _show(settings: Settings, arguments: argparse.Namespace) -> int:
    from rebaser_server.commands.support.dead_letters import letter
    from rebaser_server.commands.support.deployment import deployment

    async def body() -> dict[str, Any]:
        async with deployment(settings) as at:
            found = await letter(at.js, at.subjects, at.batches, arguments.sequence)
            return {**found.summary(), "headers": found.headers, "asked": found.asked()}

    say_json(asyncio.run(body()), indent=2)
    return Exit.OK


def _replay(settings: Settings, arguments: argparse.Namespace) -> int:
    from rebaser_server.commands.support.dead_letters import replay
    from rebaser_server.commands.support.deployment import deployment

    async def body() -> None:
        async with deployment(settings) as at:
            done = []
            for sequence in arguments.sequence:
                request_id = await replay(at.js, at.subjects, at.batches, at.client, sequence)
                done.append({"sequence": sequence, "request": str(request_id)})
                if not arguments.json:
                    say(f"{sequence}: enqueued again as request {request_id}")
            if arguments.json:
                say_json(done)

    asyncio.run(body())
    return Exit.OK


async def _purge(at: Any, _: Settings, arguments: argparse.Namespace) -> None:
    stream = at.subjects.dead_letters_stream
    before = (await at.js.stream_info(stream))["state"]["messages"]
    if arguments.all:
        await at.js.purge(stream)
    for sequence in arguments.sequence:
        await at.js.delete_message(stream, sequence)
    gone = before - (await at.js.stream_info(stream))["state"]["messages"]
    if arguments.json:
        say_json({"purged": gone})
    else:
        say(f"{gone} thrown away")

"""`rebaser dead-letters`: show, replay and purge the requests that Rebaser gave up."""

import argparse
from typing import TYPE_CHECKING, Any, Final

from rebaser_server.commands.support.arguments import (
    Parser,
    add_command,
    add_group,
    whole_number,
    with_deployment,
)
from rebaser_server.terminal.lines import say, say_json

if TYPE_CHECKING:
    from rebaser_server.commands.support.deployment import Deployment

_HEADINGS: Final = {
    "sequence": "number",
    "at": "died at",
    "address": "change set",
    "attempts": "attempts",
    "reason": "reason",
}


def add(commands: Any) -> None:
    """Declare the commands."""
    group = add_group(
        commands,
        "dead-letters",
        about="show, replay or purge requests that Rebaser gave up",
        default="show",
    )

    show = add_command(
        group,
        "show",
        _show,
        about="list dead letters, the latest first, or show one with its updates",
        validate=lambda arguments: (
            "one letter is shown as JSON: leave --csv out"
            if arguments.csv and arguments.sequence is not None
            else None
        ),
        csv=True,
    )
    _add_number(show, nargs="?")
    show.add_argument(
        "--limit",
        type=whole_number,
        default=50,
        help="number of letters to list (default: %(default)s)",
    )

    replay = add_command(
        group, "replay", _replay, about="enqueue the updates of dead letters as new requests"
    )
    _add_number(replay, nargs="+")

    purge = add_command(
        group,
        "purge",
        _purge,
        about="delete dead letters for good",
        validate=lambda arguments: (
            "give the NUMBER of each letter, or --all"
            if arguments.all is bool(arguments.sequence)
            else None
        ),
    )
    _add_number(purge, nargs="*")
    purge.add_argument("--all", action="store_true", help="delete all dead letters")


def _add_number(parser: Parser, **options: Any) -> None:
    defaults = {"*": " (default: none)", "?": " (default: list them)"}
    default = defaults.get(options.get("nargs", ""), "")
    parser.add_argument(
        "sequence",
        type=whole_number,
        metavar="NUMBER",
        help=f"number of the letter, as in `rebaser dead-letters`{default}",
        **options,
    )


@with_deployment
async def _show(deployment: "Deployment", arguments: argparse.Namespace) -> None:
    from rebaser_server.commands.support.addresses import add_addresses
    from rebaser_server.ops.dead_letters import latest, load
    from rebaser_server.terminal.tables import show

    if arguments.sequence is not None:
        letter = await load(deployment.streams, deployment.batches, arguments.sequence)
        content = {"headers": letter.headers, "asked": letter.content()}
        say_json({**letter.summary(), **content}, indent=2)
        return
    letters = await latest(deployment.streams, arguments.limit)
    rows = [letter.summary() for letter in letters]
    await add_addresses(deployment, rows)
    show(rows, _HEADINGS, arguments, nothing="no dead letters")


@with_deployment
async def _replay(deployment: "Deployment", arguments: argparse.Namespace) -> None:
    from rebaser_server.ops.dead_letters import replay

    replayed = []
    for sequence in arguments.sequence:
        request_id = await replay(
            deployment.streams, deployment.batches, deployment.client, sequence
        )
        replayed.append({"sequence": sequence, "request": str(request_id)})
        if not arguments.json:
            say(f"{sequence}: enqueued again as request {request_id}")
    if arguments.json:
        say_json(replayed)


@with_deployment
async def _purge(deployment: "Deployment", arguments: argparse.Namespace) -> None:
    from rebaser_server.ops.dead_letters import check

    js, stream = deployment.streams.js, deployment.streams.dead_letters_stream
    for sequence in arguments.sequence:
        await check(deployment.streams, sequence)
    before = (await js.stream_info(stream)).state.messages
    if arguments.all:
        await js.purge(stream)
    for sequence in arguments.sequence:
        await js.delete_message(stream, sequence)
    purged = before - (await js.stream_info(stream)).state.messages
    if arguments.json:
        say_json({"purged": purged})
    else:
        say(f"{purged} purged")

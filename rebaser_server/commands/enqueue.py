"""`rebaser enqueue`: send a file of updates, and wait for the outcome."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from rebaser_server.commands.support.arguments import (
    Exit,
    UnusableInput,
    add_address,
    add_command,
    add_wait,
    read_text,
    request_id,
    with_deployment,
    with_input,
)
from rebaser_server.terminal.lines import say, say_json

if TYPE_CHECKING:
    from rebaser_server.commands.support.deployment import Deployment

_BATCH: Final = (
    'a batch is a JSON array of updates, such as [{"setValue": {"valueId": "…", "value": 5}}]'
)
_TABLE: Final = "; `rebaser load` takes tables, and graph files with values for their rows"
_HINT: Final = "; --unregistered starts one that no list of change sets shows"


def add(commands: Any) -> None:
    """Declare the command."""
    enqueue = add_command(
        commands,
        "enqueue",
        _enqueue,
        about="send a file of updates to a change set",
        validate=lambda arguments: (
            "--strict needs --wait: only the reply tells of corrections"
            if arguments.strict and not arguments.wait
            else None
        ),
    )
    add_address(enqueue)
    enqueue.add_argument("file", type=Path, help="file with a JSON array of updates; - reads stdin")
    enqueue.add_argument(
        "--request-id",
        type=request_id,
        metavar="ULID",
        help="id of the request; sent again, it takes effect once (default: a new id)",
    )
    add_wait(
        enqueue, "wait until the request is committed and the values that depend on it are computed"
    )
    enqueue.add_argument(
        "--strict",
        action="store_true",
        help="end with exit code 6 if Rebaser corrected any update; needs --wait",
    )
    enqueue.add_argument(
        "--unregistered",
        action="store_true",
        help="accept a new change set, which no list of change sets shows",
    )


def _read(arguments: argparse.Namespace) -> list[Any]:
    """The updates in the file."""
    from rebaser_client.documents import parse_json
    from rebaser_client.errors import InvalidDraft
    from rebaser_client.requests import validate
    from rebaser_core.errors import MalformedMessage

    file: Path = arguments.file
    text = read_text(file)
    try:
        updates = parse_json(text)
    except InvalidDraft as error:
        hint = _TABLE if file.suffix.lower() in (".csv", ".tsv") else ""
        raise UnusableInput(f"{file}: {error}; {_BATCH}{hint}") from error
    if not isinstance(updates, list):
        raise UnusableInput(f"{file}: not a JSON array of updates; {_BATCH}")
    try:
        validate(updates)
    except MalformedMessage as error:
        raise UnusableInput(f"{file}: {error}; {_BATCH}") from error
    return updates


@with_input(_read)
@with_deployment
async def _enqueue(deployment: "Deployment", arguments: argparse.Namespace) -> int:
    from rebaser_server.commands.render.progress import follow
    from rebaser_server.commands.support.addresses import change_set_of

    new = arguments.unregistered
    change_set = await change_set_of(deployment, arguments, new=new, hint=_HINT)
    if arguments.wait:
        return await follow(
            deployment,
            change_set,
            arguments.input,
            as_json=arguments.json,
            request_id=arguments.request_id,
            strict=arguments.strict,
        )
    sent = await deployment.client.enqueue_updates(
        *change_set, arguments.input, request_id=arguments.request_id
    )
    if arguments.json:
        say_json({"request": str(sent)})
    else:
        say(sent)
    return Exit.OK

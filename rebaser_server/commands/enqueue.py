"""`rebaser enqueue`: send a file of updates, and wait for the outcome."""

import argparse
from typing import Any, Final

from rebaser_client.documents import parse_json
from rebaser_client.errors import InvalidDraft
from rebaser_client.requests import validate
from rebaser_core.errors import MalformedMessage
from rebaser_server.commands.support.addresses import change_set_of
from rebaser_server.commands.support.arguments import Exit, UnusableInput, read_text, with_input
from rebaser_server.commands.support.deployment import Deployment, with_deployment
from rebaser_server.commands.support.progress import follow
from rebaser_server.terminal.lines import say_result

_BATCH: Final = (
    'a batch is a JSON array of updates, such as [{"setValue": {"valueId": "…", "value": 5}}]'
)
_TABLE: Final = "; `rebaser load` takes tables, and graph files with values for their rows"
_HINT: Final = "; --unregistered starts one that no list of change sets shows"


def _read(arguments: argparse.Namespace) -> list[Any]:
    file = arguments.file
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
async def enqueue(deployment: Deployment, arguments: argparse.Namespace) -> int:
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
    say_result({"request": str(sent)}, sent, as_json=arguments.json)
    return Exit.OK

"""`rebaser enqueue`: send a file of updates, and see it through."""

import argparse
import asyncio
import json
import sys
from pathlib import Path
from typing import Any, Final

from rebaser_server.commands.support.addressing import addressed, existing
from rebaser_server.commands.support.arguments import add_change_set, add_json, ulid
from rebaser_server.commands.support.exit_codes import Exit
from rebaser_server.settings.settings import Settings
from rebaser_server.terminal.lines import complain, say, say_json

_BATCH: Final = "a batch is a JSON array of updates: docs/wire.md has what they look like"
_HINT: Final = "; --unregistered begins one, which no list of change sets has"


def add(commands: Any) -> None:
    """Declare the command."""
    enqueue = commands.add_parser("enqueue", help="enqueue the updates in a file")
    add_change_set(enqueue)
    enqueue.add_argument(
        "file", type=Path, help="a JSON array of updates, as docs/wire.md has them; - for stdin"
    )
    enqueue.add_argument(
        "--request-id", type=_request_id, help="send again, once: the id that was printed before"
    )
    enqueue.add_argument(
        "--wait", action="store_true", help="until it is committed and its update has run"
    )
    enqueue.add_argument(
        "--strict", action="store_true", help="with --wait: any correction is an error (code 6)"
    )
    enqueue.add_argument(
        "--unregistered",
        action="store_true",
        help="the change set may be a new one, in no list of any workspace",
    )
    add_json(enqueue)
    enqueue.set_defaults(command=_enqueue)


def _request_id(text: str) -> Any:
    from rebaser_core.ids import RequestId

    return ulid(RequestId)(text)


def _enqueue(settings: Settings, arguments: argparse.Namespace) -> int:
    from rebaser_server.commands.render.progress import follow
    from rebaser_server.commands.support.deployment import deployment

    if arguments.strict and not arguments.wait:
        complain("rebaser: --strict needs --wait: without a reply no correction is known")
        return Exit.BAD_SETTINGS
    updates = _read(arguments.file)
    if updates is None:
        return Exit.FAILED

    async def body() -> Exit:
        async with deployment(settings) as at:
            if arguments.unregistered:
                change_set = await addressed(at, arguments)
            else:
                change_set = await existing(at, arguments, _HINT)
            if arguments.wait:
                return await follow(
                    at,
                    change_set,
                    updates,
                    as_json=arguments.json,
                    request_id=arguments.request_id,
                    strict=arguments.strict,
                )
            request_id = await at.client.enqueue_updates(
                *change_set, updates, request_id=arguments.request_id
            )
            if arguments.json:
                say_json({"request": str(request_id)})
            else:
                say(request_id)
            return Exit.OK

    return asyncio.run(body())


def _read(file: Path) -> list[Any] | None:
    try:
        text = sys.stdin.read() if str(file) == "-" else file.read_text("utf-8")
        updates = json.loads(text)
    except OSError as error:
        complain(f"rebaser: {file}: {error.strerror}")
        return None
    except ValueError as error:
        complain(f"rebaser: {file} is not JSON ({error}); {_BATCH}")
        return None
    if not isinstance(updates, list):
        complain(f"rebaser: {file}: not a JSON array of updates; {_BATCH}")
        return None
    return updates

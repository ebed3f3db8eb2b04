"""`rebaser pause` and `resume`: stop work on a change set, a workspace or everything."""

import argparse
from typing import TYPE_CHECKING, Any, Final

from rebaser_server.commands.support.arguments import (
    Parser,
    add_address,
    add_command,
    with_deployment,
)
from rebaser_server.terminal.lines import complain, say, say_json

if TYPE_CHECKING:
    from rebaser_core.records import PauseScope
    from rebaser_server.commands.support.deployment import Deployment

_SCOPE: Final = "WORKSPACE for all its change sets, WORKSPACE/head or WORKSPACE/BRANCH for one"
_HEADINGS: Final = {"address": "paused", "since": "since", "by": "by", "reason": "reason"}


def add(commands: Any) -> None:
    """Declare the commands."""
    pause = add_command(
        commands,
        "pause",
        _pause,
        about="stop work on a change set, a workspace or all, or list pauses",
        validate=_validate_pause,
    )
    pause.description = f"{pause.description}; requests wait meanwhile"
    _add_scope(pause, default="list all pauses")
    pause.add_argument("--reason", help="reason, for the list of pauses (default: none)")

    resume = add_command(
        commands,
        "resume",
        _resume,
        about="end a pause; Rebaser works off the requests that waited",
        validate=_validate,
    )
    _add_scope(resume, default="none")


def _add_scope(parser: Parser, *, default: str) -> None:
    add_address(parser, about=_SCOPE, default=default)
    parser.add_argument("--all", action="store_true", help="everything in all workspaces")


def _validate_pause(arguments: argparse.Namespace) -> str | None:
    if arguments.all or arguments.reason is not None:
        return _validate(arguments)
    return None


def _validate(arguments: argparse.Namespace) -> str | None:
    if arguments.all is bool(arguments.address):
        return "give a WORKSPACE, a WORKSPACE/BRANCH, or --all"
    return None


@with_deployment
async def _pause(deployment: "Deployment", arguments: argparse.Namespace) -> None:
    from rebaser_server.cluster.pauses import PauseStore, pauses_to_json
    from rebaser_server.commands.support.addresses import add_addresses, scope_of
    from rebaser_server.commands.support.deployment import describe

    if not arguments.all and not arguments.address:
        await _list(deployment, arguments)
        return
    scope = await scope_of(deployment, arguments)
    book = PauseStore(deployment.streams)
    author = deployment.settings.author or None
    record = await book.pause(scope, by=author, reason=arguments.reason)
    if arguments.json:
        [row] = pauses_to_json([record])
        await add_addresses(deployment, [row])
        say_json(row)
    else:
        say(f"{await describe(deployment, scope)} is paused; Rebasers finish the requests in hand")


@with_deployment
async def _resume(deployment: "Deployment", arguments: argparse.Namespace) -> None:
    from rebaser_server.cluster.pauses import PauseStore, pauses_to_json
    from rebaser_server.commands.support.addresses import add_addresses, scope_of
    from rebaser_server.commands.support.deployment import describe, resume_hint

    scope = await scope_of(deployment, arguments)
    book = PauseStore(deployment.streams)
    before = await book.of(scope)
    tasks = await book.resume(scope)
    pauses = await book.all()
    wider = [pauses[each] for each in _around(scope) if each in pauses]
    if arguments.json:
        still = pauses_to_json(wider)
        await add_addresses(deployment, still)
        say_json({"resumed": before is not None, "tasks": tasks, "stillPaused": still})
        return
    outcome = "is resumed" if before else "was not paused"
    say(f"{await describe(deployment, scope)} {outcome}; change sets with work: {tasks}")
    for record in wider:
        wider_name = await describe(deployment, record.scope)
        hint = await resume_hint(deployment, record.scope)
        complain(f"it still waits: {wider_name} is paused; {hint} ends that")


def _around(scope: "PauseScope") -> list["PauseScope"]:
    """The wider scopes: a pause of one of them covers `scope`, too."""
    from rebaser_core.records import PauseScope

    wider = [PauseScope(), PauseScope(scope.workspace_id)]
    return wider[: sum(each is not None for each in scope)]


async def _list(deployment: "Deployment", arguments: argparse.Namespace) -> None:
    from rebaser_server.cluster.pauses import PauseStore, pauses_to_json
    from rebaser_server.commands.support.addresses import add_addresses
    from rebaser_server.terminal.tables import show

    pauses = await PauseStore(deployment.streams).all()
    rows = pauses_to_json(pauses.values())
    await add_addresses(deployment, rows, whole=None if arguments.json else "all change sets")
    show(rows, _HEADINGS, arguments, nothing="nothing is paused")

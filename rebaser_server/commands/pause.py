"""`rebaser pause`, `resume` and `pauses`: stop work on a change set, a workspace or everything."""

import argparse
from typing import TYPE_CHECKING, Any, Final

from rebaser_server.commands.support.arguments import (
    Parser,
    add_command,
    change_set_id,
    with_deployment,
    workspace_id,
)
from rebaser_server.terminal.lines import complain, say, say_json

if TYPE_CHECKING:
    from rebaser_core.records.pause_record import PauseScope
    from rebaser_server.commands.support.deployment import Deployment

_HEADINGS: Final = {
    "workspace": "workspace",
    "changeSet": "change set",
    "since": "since",
    "by": "by",
    "reason": "reason",
}


def add(commands: Any) -> None:
    """Declare the commands."""
    pause = add_command(
        commands,
        "pause",
        _pause,
        about="stop work on a change set, a workspace or everything; requests wait meanwhile",
        validate=_validate,
    )
    _add_scope(pause)
    pause.add_argument("--reason", help="reason, shown by `rebaser pauses` (default: none)")

    resume = add_command(
        commands,
        "resume",
        _resume,
        about="end a pause; Rebaser works off the requests that waited",
        validate=_validate,
    )
    _add_scope(resume)

    add_command(
        commands, "pauses", _pauses, about="list what is paused, since when, by whom, and why"
    )


def _add_scope(parser: Parser) -> None:
    parser.add_argument(
        "workspace", nargs="?", type=workspace_id, help="the workspace's ULID (default: none)"
    )
    parser.add_argument(
        "change_set",
        nargs="?",
        type=change_set_id,
        help="the change set's ULID (default: the whole workspace)",
    )
    parser.add_argument("--all", action="store_true", help="everything in all workspaces")


def _validate(arguments: argparse.Namespace) -> str | None:
    if arguments.all is (arguments.workspace is not None):
        return "give a WORKSPACE, a WORKSPACE and a CHANGE_SET, or --all"
    return None


@with_deployment
async def _pause(deployment: "Deployment", arguments: argparse.Namespace) -> None:
    from rebaser_core.records.pause_record import PauseScope
    from rebaser_server.cluster.pauses import PauseStore, pauses_to_json
    from rebaser_server.commands.support.pauses import describe

    scope = PauseScope(arguments.workspace, arguments.change_set)
    if scope.change_set_id is not None:
        await deployment.check_change_set(arguments)
    book = PauseStore(deployment.js, deployment.subjects)
    author = deployment.settings.author or None
    record = await book.pause(scope, by=author, reason=arguments.reason)
    if arguments.json:
        say_json(pauses_to_json([record])[0])
    else:
        say(f"{describe(scope)} is paused; Rebasers finish the requests in hand")


@with_deployment
async def _resume(deployment: "Deployment", arguments: argparse.Namespace) -> None:
    from rebaser_core.records.pause_record import PauseScope
    from rebaser_server.cluster.pauses import PauseStore, pauses_to_json
    from rebaser_server.commands.support.pauses import describe, resume_hint

    scope = PauseScope(arguments.workspace, arguments.change_set)
    book = PauseStore(deployment.js, deployment.subjects)
    before = await book.of(scope)
    poked = await book.resume(scope)
    pauses = await book.all()
    wider = [pauses[each] for each in _around(scope) if each in pauses]
    if arguments.json:
        facts = {
            "resumed": before is not None,
            "poked": poked,
            "stillPaused": pauses_to_json(wider),
        }
        say_json(facts)
        return
    outcome = "is resumed" if before else "was not paused"
    say(f"{describe(scope)} {outcome}; change sets with work: {poked}")
    for record in wider:
        complain(
            f"it still waits: {describe(record.scope)} is paused; {resume_hint(record.scope)} "
            "ends that"
        )


def _around(scope: "PauseScope") -> list["PauseScope"]:
    """The wider scopes: a pause of one of them covers `scope`, too."""
    from rebaser_core.records.pause_record import PauseScope

    wider = [PauseScope(), PauseScope(scope.workspace_id)]
    return wider[: sum(each is not None for each in scope)]


@with_deployment
async def _pauses(deployment: "Deployment", arguments: argparse.Namespace) -> None:
    from rebaser_server.cluster.pauses import PauseStore, pauses_to_json
    from rebaser_server.commands.render.output import show

    pauses = pauses_to_json((await PauseStore(deployment.js, deployment.subjects).all()).values())
    rows = (
        pauses
        if arguments.json
        else [
            {**row, "workspace": row["workspace"] or "all", "changeSet": row["changeSet"] or "all"}
            for row in pauses
        ]
    )
    show(rows, _HEADINGS, as_json=arguments.json, nothing="nothing is paused")

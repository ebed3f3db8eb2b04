"""`rebaser pause`, `resume` and `pauses`: leave a change set, a workspace or everything alone."""

import argparse
from typing import TYPE_CHECKING, Any, Final

from rebaser_core.ids import ChangeSetId, WorkspaceId
from rebaser_core.pause_record import Scope
from rebaser_server.commands.support.addressing import addressed
from rebaser_server.commands.support.arguments import Parser, runs, ulid
from rebaser_server.commands.support.pauses import resume_hint, told
from rebaser_server.settings.settings import Settings
from rebaser_server.terminal.lines import complain, say, say_json

if TYPE_CHECKING:
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
    pause = commands.add_parser(
        "pause", help="work no more on a change set, a workspace or everything; requests queue"
    )
    _which(pause)
    pause.add_argument("--reason", help="for whoever looks")
    runs(pause, _pause, complaint=_complaint)

    resume = commands.add_parser("resume", help="take a pause back; what queued is worked off")
    _which(resume)
    runs(resume, _resume, complaint=_complaint)

    runs(commands.add_parser("pauses", help="what is paused, since when, and by whom"), _pauses)


def _which(parser: Parser) -> None:
    parser.add_argument("workspace", nargs="?", type=ulid(WorkspaceId), help="a ULID")
    parser.add_argument(
        "change_set", nargs="?", type=ulid(ChangeSetId), help="a ULID; without it the workspace"
    )
    parser.add_argument("--all", action="store_true", help="everything, all workspaces")


def _complaint(arguments: argparse.Namespace) -> str | None:
    if arguments.all is (arguments.workspace is not None):
        return "name a WORKSPACE, or a WORKSPACE and a CHANGE_SET, or say --all"
    return None


async def _pause(at: "Deployment", settings: Settings, arguments: argparse.Namespace) -> None:
    from rebaser_server.cluster.pauses import PauseBook, plain

    scope = Scope(arguments.workspace, arguments.change_set)
    if scope.change_set_id is not None:
        await addressed(at, arguments)
    book = PauseBook(at.js, at.subjects)
    record = await book.pause(scope, by=settings.author or None, reason=arguments.reason)
    if arguments.json:
        say_json(plain([record])[0])
    else:
        say(f"{told(scope)} is paused; what is in hand is finished")


async def _resume(at: "Deployment", _: Settings, arguments: argparse.Namespace) -> None:
    from rebaser_server.cluster.pauses import PauseBook, plain

    scope = Scope(arguments.workspace, arguments.change_set)
    book = PauseBook(at.js, at.subjects)
    was = await book.of(scope)
    poked = await book.resume(scope)
    found = await book.all()
    wider = [found[each] for each in _around(scope) if each in found]
    if arguments.json:
        facts = {"resumed": was is not None, "poked": poked, "stillPaused": plain(wider)}
        say_json(facts)
        return
    said = f"{told(scope)} is resumed" if was else f"{told(scope)} was not paused"
    say(f"{said}; change sets with work: {poked}")
    for record in wider:
        complain(
            f"it still waits, since {told(record.scope)} is paused: {resume_hint(record.scope)}"
        )


def _around(scope: Scope) -> list[Scope]:
    """The wider scopes: a pause of one of them holds what is in `scope`, too."""
    wider = [Scope(), Scope(scope.workspace_id)]
    return wider[: sum(each is not None for each in scope)]


async def _pauses(at: "Deployment", _: Settings, arguments: argparse.Namespace) -> None:
    from rebaser_server.cluster.pauses import PauseBook, plain
    from rebaser_server.commands.render.output import show

    found = plain((await PauseBook(at.js, at.subjects).all()).values())
    rows = (
        found
        if arguments.json
        else [
            {**row, "workspace": row["workspace"] or "all", "changeSet": row["changeSet"] or "all"}
            for row in found
        ]
    )
    show(rows, _HEADINGS, as_json=arguments.json, nothing="nothing is paused")

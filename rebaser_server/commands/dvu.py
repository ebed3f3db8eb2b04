"""`rebaser dvu`: dependent values updates: who runs what, stop one, have values computed again."""

import argparse
from typing import TYPE_CHECKING, Any, Final

from rebaser_server.commands.support.addressing import existing
from rebaser_server.commands.support.arguments import add_change_set, runs
from rebaser_server.commands.support.exit_codes import Exit
from rebaser_server.settings.settings import Settings
from rebaser_server.terminal.lines import complain, say, say_json

if TYPE_CHECKING:
    from rebaser_server.commands.support.deployment import Deployment

_HEADINGS: Final = {
    "workspace": "workspace",
    "changeSet": "change set",
    "state": "state",
    "affected": "affected",
    "done": "done",
    "since": "since",
    "failures": "failures",
    "instance": "Rebaser",
}
_FAILED: Final = {"name": "name or id", "status": "status", "message": "message"}


def add(commands: Any) -> None:
    """Declare the commands."""
    dvu = commands.add_parser("dvu", help="dependent values updates: status, cancel, run")
    verbs = dvu.add_subparsers(required=True, metavar="VERB")

    status = verbs.add_parser(
        "status", help="updates that run or are due; of one change set also what failed"
    )
    add_change_set(status, nargs="?")
    status.add_argument("--limit", type=int, default=50, help="failed values to list")
    runs(
        status,
        _status,
        complaint=lambda given: (
            None
            if (given.workspace is None) is (given.change_set is None)
            else "name a WORKSPACE and a CHANGE_SET, or neither"
        ),
    )

    cancel = verbs.add_parser(
        "cancel", help="stop the update in hand; it stays due and is tried again a minute later"
    )
    add_change_set(cancel)
    cancel.add_argument("--pause", action="store_true", help="and pause the change set before")
    cancel.add_argument("--reason", help="of the pause")
    runs(cancel, _cancel)

    run = verbs.add_parser("run", help="have values computed again, now")
    add_change_set(run)
    run.add_argument("name", nargs="*", help="names or ids of computed values")
    run.add_argument("--failed", action="store_true", help="all values that failed")
    run.add_argument("--wait", action="store_true", help="until they are computed")
    runs(
        run,
        _run,
        complaint=lambda given: (
            "name the values, or say --failed" if given.failed is bool(given.name) else None
        ),
    )


async def _status(at: "Deployment", settings: Settings, arguments: argparse.Namespace) -> None:
    from rebaser_server.commands.render.dvu_status import failed_in, updates
    from rebaser_server.commands.render.output import show

    if arguments.workspace is None:
        show(
            await updates(at),
            _HEADINGS,
            as_json=arguments.json,
            nothing="no update runs or is due",
        )
        return
    change_set = await existing(at, arguments)
    rows = await updates(at, change_set)
    failed = await failed_in(at, settings, change_set)
    if arguments.json:
        say_json({"updates": rows, **failed})
        return
    show(rows, _HEADINGS, as_json=False, nothing="no update runs or is due")
    show(failed["values"][: arguments.limit], _FAILED, as_json=False, nothing="no value failed")
    if failed["failed"]:
        say(
            f"failed: {failed['failed']:,}, and blocked by them: {failed['blocked']:,}; "
            "once the cause is mended: `rebaser dvu run WORKSPACE CHANGE_SET --failed`"
        )


async def _cancel(at: "Deployment", settings: Settings, arguments: argparse.Namespace) -> int:
    from rebaser_core.pause_record import Scope
    from rebaser_server.cluster.pauses import PauseBook
    from rebaser_server.commands.render.dvu_status import cancel

    change_set = await existing(at, arguments)
    if arguments.pause:
        book = PauseBook(at.js, at.subjects)
        await book.pause(Scope(*change_set), by=settings.author or None, reason=arguments.reason)
    cancelled = await cancel(at, change_set)
    if arguments.json:
        facts = {"cancelled": bool(cancelled), "held": cancelled is not None}
        say_json({**facts, "paused": arguments.pause})
    elif cancelled:
        again = "when it is resumed" if arguments.pause else "a minute later"
        say(f"cancelled; it stays due and is tried again {again}")
    elif cancelled is None:
        complain("no Rebaser has it in hand: `rebaser dvu status` shows what is")
    else:
        complain("no update of it is being computed")
    return Exit.OK if cancelled or arguments.pause else Exit.FAILED


async def _run(at: "Deployment", _: Settings, arguments: argparse.Namespace) -> int:
    from rebaser_server.commands.render.failures import failures
    from rebaser_server.commands.render.progress import until_clean
    from rebaser_server.commands.support.pauses import warn_if_paused

    change_set = await existing(at, arguments)
    await warn_if_paused(at, change_set)
    commit = await at.client.operations.recompute(
        *change_set, None if arguments.failed else arguments.name
    )
    if not arguments.wait:
        if arguments.json:
            say_json({"commit": commit, "computed": False})
        else:
            say(f"commit {commit}; the update follows")
        return Exit.OK
    await until_clean(at, change_set)
    failed = await failures(at, change_set, commit, arguments.name, everything=arguments.failed)
    if arguments.json:
        say_json({"commit": commit, "computed": True, "values": failed.plain()})
    else:
        say(f"commit {commit}; they are computed", *failed.lines())
    return Exit.VALUES_FAILED if failed.affected else Exit.OK

"""`rebaser dvu`: dependent values updates: list them, cancel one, compute values again."""

import argparse
from typing import TYPE_CHECKING, Any, Final

from rebaser_server.commands.support.arguments import (
    add_change_set,
    add_command,
    add_group,
    change_set_id,
    with_deployment,
    workspace_id,
)
from rebaser_server.commands.support.exit_codes import Exit
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
_NO_UPDATE: Final = "no update runs or is due"


def add(commands: Any) -> None:
    """Declare the commands."""
    group = add_group(
        commands, "dvu", about="show, cancel or run dependent values updates: status, cancel, run"
    )

    status = add_command(
        group,
        "status",
        _status,
        about="list updates that run or are due; for one change set also the values that failed",
        validate=lambda arguments: (
            None
            if (arguments.workspace is None) is (arguments.change_set is None)
            else "give a WORKSPACE and a CHANGE_SET, or neither"
        ),
    )
    for name, kind in (("workspace", workspace_id), ("change_set", change_set_id)):
        status.add_argument(name, nargs="?", type=kind, help="a ULID (default: all)")
    status.add_argument(
        "--limit",
        type=int,
        default=50,
        help="number of failed values to list (default: %(default)s)",
    )

    cancel = add_command(
        group,
        "cancel",
        _cancel,
        about="stop the running update; it stays due, and Rebaser tries it again a minute later",
    )
    add_change_set(cancel)
    cancel.add_argument("--pause", action="store_true", help="pause the change set first")
    cancel.add_argument("--reason", help="reason of the pause (default: none)")

    run = add_command(
        group,
        "run",
        _run,
        about="compute values again, now",
        validate=lambda arguments: (
            "give the names of the values, or --failed"
            if arguments.failed is bool(arguments.name)
            else None
        ),
    )
    add_change_set(run)
    run.add_argument("name", nargs="*", help="names or ids of computed values (default: none)")
    run.add_argument("--failed", action="store_true", help="compute all values that failed")
    run.add_argument("--wait", action="store_true", help="wait until they are computed")


@with_deployment
async def _status(deployment: "Deployment", arguments: argparse.Namespace) -> None:
    from rebaser_server.commands.render.dvu_status import failed_in, updates
    from rebaser_server.commands.render.output import show

    if arguments.workspace is None:
        rows = await updates(deployment)
        show(rows, _HEADINGS, as_json=arguments.json, nothing=_NO_UPDATE)
        return
    change_set = await deployment.require_change_set(arguments)
    rows = await updates(deployment, change_set)
    failed = await failed_in(deployment, change_set)
    if arguments.json:
        say_json({"updates": rows, **failed})
        return
    show(rows, _HEADINGS, as_json=False, nothing=_NO_UPDATE)
    show(failed["values"][: arguments.limit], _FAILED, as_json=False, nothing="no value failed")
    if failed["failed"]:
        say(
            f"failed: {failed['failed']:,}, and blocked by them: {failed['blocked']:,}; "
            "remove the cause, then: `rebaser dvu run WORKSPACE CHANGE_SET --failed`"
        )


@with_deployment
async def _cancel(deployment: "Deployment", arguments: argparse.Namespace) -> int:
    from rebaser_core.records.pause_record import PauseScope
    from rebaser_server.cluster.pauses import PauseStore
    from rebaser_server.commands.render.dvu_status import cancel

    change_set = await deployment.require_change_set(arguments)
    if arguments.pause:
        book = PauseStore(deployment.js, deployment.subjects)
        author = deployment.settings.author or None
        await book.pause(PauseScope(*change_set), by=author, reason=arguments.reason)
    cancelled = await cancel(deployment, change_set)
    if arguments.json:
        facts = {"cancelled": bool(cancelled), "held": cancelled is not None}
        say_json({**facts, "paused": arguments.pause})
    elif cancelled:
        again = "when the pause ends" if arguments.pause else "a minute later"
        say(f"cancelled; the update stays due, and Rebaser tries it again {again}")
    elif cancelled is None:
        complain("no Rebaser works on this change set: `rebaser dvu status` lists what runs")
    else:
        complain("no update of this change set runs")
    return Exit.OK if cancelled or arguments.pause else Exit.FAILED


@with_deployment
async def _run(deployment: "Deployment", arguments: argparse.Namespace) -> int:
    from rebaser_server.commands.render.failures import failures
    from rebaser_server.commands.render.progress import until_computed
    from rebaser_server.commands.support.pauses import warn_if_paused

    change_set = await deployment.require_change_set(arguments)
    await warn_if_paused(deployment, change_set)
    commit = await deployment.client.operations.recompute(
        *change_set, None if arguments.failed else arguments.name
    )
    if not arguments.wait:
        if arguments.json:
            say_json({"commit": commit, "computed": False})
        else:
            say(f"commit {commit}; the update follows")
        return Exit.OK
    await until_computed(deployment, change_set, commit)
    failed = await failures(
        deployment, change_set, commit, arguments.name, everything=arguments.failed
    )
    if arguments.json:
        say_json({"commit": commit, "computed": True, "values": failed.plain()})
    else:
        say(f"commit {commit}; the values are computed", *failed.lines())
    return Exit.VALUES_FAILED if failed.affected else Exit.OK

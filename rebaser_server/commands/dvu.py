"""`rebaser dvu`: dependent values updates: list them, cancel one, compute values again."""

import argparse
import shlex
from typing import TYPE_CHECKING, Any, Final

from rebaser_server.commands.support.arguments import (
    Exit,
    add_address,
    add_address_and_names,
    add_command,
    add_group,
    add_wait,
    with_deployment,
)
from rebaser_server.terminal.lines import complain, say, say_json

if TYPE_CHECKING:
    from rebaser_core.ids import ChangeSet
    from rebaser_server.commands.support.deployment import Deployment

_HEADINGS: Final = {
    "address": "change set",
    "state": "state",
    "affected": "affected",
    "done": "done",
    "since": "since",
    "failures": "failures",
    "why": "why",
    "instance": "Rebaser",
}
_FAILED: Final = {"name": "name or id", "status": "status", "message": "message"}
_IMPURE: Final = {
    "function": "function that is not pure",
    "value": "value",
    "before": "was",
    "now": "is, from the same inputs",
    "at": "found",
}
_WHICH: Final = "give the names of the values, or --failed"
_LISTED: Final = 50
"""Number of failed values that people get; JSON has all."""
_NO_UPDATE: Final = "no update runs or is due"


def add(commands: Any) -> None:
    """Declare the commands."""
    group = add_group(commands, "dvu", about="show, cancel or run dependent values updates")

    status = add_command(
        group,
        "status",
        _status,
        about="list updates that run or are due; for one change set also the values that failed, "
        "and functions that are not pure",
    )
    add_address(status, default="all change sets")

    cancel = add_command(
        group,
        "cancel",
        _cancel,
        about="stop the running update; it stays due, and Rebaser tries it again a minute later",
    )
    add_address(cancel)

    run = add_command(
        group,
        "run",
        _run,
        about="compute values again, now",
        validate=lambda arguments: (
            _WHICH if not arguments.failed and arguments.address is None else None
        ),
    )
    add_address_and_names(
        run,
        about="names or ids of computed values, or of functions for all that they compute "
        "(default: none)",
    )
    run.add_argument("--failed", action="store_true", help="compute all values that failed")
    add_wait(run, "wait until they are computed")


@with_deployment
async def _status(deployment: "Deployment", arguments: argparse.Namespace) -> None:
    from rebaser_server.commands.render.progress import failed_in, impure_in, updates
    from rebaser_server.commands.support.addresses import add_addresses, change_set_of
    from rebaser_server.terminal.tables import show

    if not arguments.address:
        rows = await updates(deployment)
        await add_addresses(deployment, rows)
        show(rows, _HEADINGS, arguments, nothing=_NO_UPDATE)
        return
    change_set = await change_set_of(deployment, arguments, closed=True)
    rows = await updates(deployment, change_set)
    await add_addresses(deployment, rows)
    failed, impure = (
        await failed_in(deployment, change_set),
        await impure_in(deployment, change_set),
    )
    if arguments.json:
        say_json({"updates": rows, **failed, "impure": impure})
        return
    show(rows, _HEADINGS, nothing=_NO_UPDATE)
    show(failed["values"][:_LISTED], _FAILED, nothing="no value failed")
    if failed["failed"]:
        say(
            f"failed: {failed['failed']:,}, and blocked by them: {failed['blocked']:,}; "
            f"remove the cause, then: `rebaser dvu run {shlex.join(arguments.address)} --failed`"
        )
    if impure:
        found = await deployment.client.change_set(*change_set).values(
            *(each["value"] for each in impure), missing_ok=True
        )
        names = {each.id: each.name for each in found.values()}
        impure = [{**each, "value": names.get(each["value"]) or each["value"]} for each in impure]
        show(impure, _IMPURE)
        say(
            "values of a function that is not pure may be wrong; mend it, then: "
            f"`rebaser dvu run {shlex.join(arguments.address)} FUNCTION`"
        )


@with_deployment
async def _cancel(deployment: "Deployment", arguments: argparse.Namespace) -> int:
    from rebaser_server.commands.support.addresses import change_set_of
    from rebaser_server.ops.answers import cancel_update

    change_set = await change_set_of(deployment, arguments)
    cancelled = await cancel_update(deployment.streams, change_set)
    if arguments.json:
        say_json({"cancelled": bool(cancelled), "held": cancelled is not None})
    elif cancelled:
        say("cancelled; the update stays due, and Rebaser tries it again a minute later")
    elif cancelled is None:
        complain("no Rebaser works on this change set: `rebaser dvu status` lists what runs")
    else:
        complain("no update of this change set runs")
    return Exit.OK if cancelled else Exit.FAILED


async def _computed_values(
    deployment: "Deployment", change_set: "ChangeSet", names: list[str]
) -> list[str]:
    """Names or ids of values; for a function's name, the ids of the values that it computes.

    Raises:
        NoSuchValue: neither a value nor a function that computes one has such a name.
    """
    from rebaser_client.errors import NoSuchValue
    from rebaser_core.errors import offer
    from rebaser_server.commands.support.value_source import read_values

    handle = deployment.client.change_set(*change_set)
    missing = names and (await handle.values(*names, missing_ok=True)).missing
    if not missing:
        return names
    read = await read_values(deployment, change_set)
    computed: dict[str, list[str]] = {}
    for value in read.values.values():
        if value.func_id is not None:
            for known in {value.func_id, read.function_name(value.func_id)}:
                computed.setdefault(known, []).append(value.id)
    for name in missing:
        if name not in computed and name not in read.names:
            raise NoSuchValue(
                f"no value is called {name!r}, and no function that computes one"
                f"{offer(name, [*read.names, *computed])}"
            )
    found = [computed.get(name, [name]) if name in missing else [name] for name in names]
    return list(dict.fromkeys(each for ids in found for each in ids))


@with_deployment
async def _run(deployment: "Deployment", arguments: argparse.Namespace) -> int:
    from rebaser_server.commands.render.progress import failures, until_computed
    from rebaser_server.commands.support.addresses import change_set_and_names, whole_ids
    from rebaser_server.commands.support.deployment import warn_if_paused

    change_set, names = await change_set_and_names(deployment, arguments)
    if arguments.failed is bool(names):
        complain(f"rebaser: {_WHICH}")
        return Exit.BAD_SETTINGS
    await warn_if_paused(deployment, change_set)
    names = await _computed_values(
        deployment, change_set, await whole_ids(deployment, change_set, names)
    )
    commit = await deployment.client.change_set(*change_set).recompute(
        None if arguments.failed else names
    )
    if not arguments.wait:
        if arguments.json:
            say_json({"commit": commit, "computed": False})
        else:
            say(f"commit {commit}; the update follows")
        return Exit.OK
    await until_computed(deployment, change_set, commit)
    failed = await failures(deployment, change_set, None if arguments.failed else commit, names)
    if arguments.json:
        say_json({"commit": commit, "computed": True, "values": failed.plain()})
    else:
        say(f"commit {commit}; the values are computed", *failed.lines())
    return Exit.VALUES_FAILED if failed.stand else Exit.OK

"""`rebaser dvu`: dependent values updates: list them, cancel one, compute values again."""

import argparse
import asyncio
import shlex
from typing import Any, Final

from rebaser_client.errors import NoSuchValue
from rebaser_core.commits import CommitV2, code_reason, decode_commit_at
from rebaser_core.errors import MessageError, UnknownSubject, offer
from rebaser_core.ids import ChangeSet
from rebaser_server.cluster.pauses import Paused, PauseStore, paused_since
from rebaser_server.commands.declarations import WHICH_VALUES
from rebaser_server.commands.support.addresses import (
    add_addresses,
    change_set_and_names,
    change_set_of,
    whole_ids,
)
from rebaser_server.commands.support.arguments import Exit
from rebaser_server.commands.support.deployment import Deployment, warn_if_paused, with_deployment
from rebaser_server.commands.support.progress import failures, until_computed
from rebaser_server.commands.support.value_source import read_values
from rebaser_server.commit_log.log import UNFINISHED, unfinished_subjects
from rebaser_server.ops.answers import cancel_update, statuses
from rebaser_server.terminal.lines import complain, say, say_json, say_result
from rebaser_server.terminal.tables import show

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
_LISTED: Final = 50
"""Number of failed values that people get; JSON has all."""
_NO_UPDATE: Final = "no update runs or is due"


@with_deployment
async def status(deployment: Deployment, arguments: argparse.Namespace) -> None:
    if not arguments.address:
        rows = await _updates(deployment)
        await add_addresses(deployment, rows)
        show(rows, _HEADINGS, arguments, nothing=_NO_UPDATE)
        return
    change_set = await change_set_of(deployment, arguments, closed=True)
    rows = await _updates(deployment, change_set)
    await add_addresses(deployment, rows)
    failed = await _failed_in(deployment, change_set)
    impure = await _impure_in(deployment, change_set)
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
        show(impure, _IMPURE, nothing="no value is impure")
        say(
            "values of a function that is not pure may be wrong; mend it, then: "
            f"`rebaser dvu run {shlex.join(arguments.address)} FUNCTION`"
        )


@with_deployment
async def cancel(deployment: Deployment, arguments: argparse.Namespace) -> int:
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
    deployment: Deployment, change_set: ChangeSet, names: list[str]
) -> list[str]:
    """Names or ids of values; for a function's name, the ids of the values that it computes.

    Raises:
        NoSuchValue: neither a value nor a function that computes one has such a name.
    """
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
async def run(deployment: Deployment, arguments: argparse.Namespace) -> int:
    change_set, names = await change_set_and_names(deployment, arguments)
    if arguments.failed is bool(names):
        complain(f"rebaser: {WHICH_VALUES}")
        return Exit.BAD_SETTINGS
    await warn_if_paused(deployment, change_set)
    names = await whole_ids(deployment, change_set, names)
    names = await _computed_values(deployment, change_set, names)
    wanted = None if arguments.failed else names
    commit = await deployment.client.change_set(*change_set).recompute(wanted)
    if not arguments.wait:
        plain = {"commit": commit, "computed": False}
        say_result(plain, f"commit {commit}; the update follows", as_json=arguments.json)
        return Exit.OK
    await until_computed(deployment, change_set, commit)
    failed = await failures(deployment, change_set, None if arguments.failed else commit, names)
    done = {"commit": commit, "computed": True, "values": failed.plain()}
    lines = (f"commit {commit}; the values are computed", *failed.lines())
    say_result(done, *lines, as_json=arguments.json)
    return Exit.VALUES_FAILED if failed.stand else Exit.OK


Row = dict[str, Any]


async def _updates(deployment: Deployment, only: ChangeSet | None = None) -> list[Row]:
    """Running or due updates, those that do not run first.

    The commit log says whether an update is due. Its progress comes from its Rebaser, if the
    ops endpoint of that is enabled.
    """
    streams = deployment.streams
    reports, due, paused = await asyncio.gather(
        statuses(streams), _due(deployment, only), PauseStore(streams).all()
    )
    held: dict[tuple[str, str], tuple[str, Row | None]] = {}
    crowded = {  # Rebasers that hold more change sets than their status names
        str(report["instance"])
        for report in reports
        if report["slots"]["busy"] > len(report["holdings"])
    }
    for report in reports:
        for holding in report.get("holdings", ()):
            key = holding["workspace"], holding["changeSet"]
            if holding["update"] or key not in held:
                held[key] = report["instance"], holding["update"]
    rows = [_row(change_set, commit, held, crowded, paused) for change_set, commit in due.items()]
    return sorted(rows, key=lambda row: (row["state"] == "running", row["changeSet"]))


def _row(
    change_set: ChangeSet,
    commit: CommitV2,
    held: dict[tuple[str, str], tuple[str, Row | None]],
    crowded: set[str],
    paused: Paused,
) -> Row:
    owner = commit.control.owner.rpartition("/")[0]
    instance, update = held.get((str(change_set[0]), str(change_set[1])), (None, None))
    if update is not None:
        state = "running"
    elif paused_since(paused, change_set) is not None:
        state = "paused"
    elif instance is None and owner in crowded:
        state = "not named"
    elif commit.control.claim is not None:
        state = "claimed, not running"
    else:
        state = "due, not running"
    return {
        **change_set.plain(),
        "state": state,
        "affected": update and update["affected"],
        "done": update and update["done"],
        "since": update and update["since"],
        "failures": commit.control.dvu_failures,
        "why": code_reason(commit.code),
        "instance": instance or owner or None,
    }


async def _due(deployment: Deployment, only: ChangeSet | None) -> dict[ChangeSet, CommitV2]:
    """Change sets with an update due, and their last commits, which have a header."""
    streams, due = deployment.streams, dict[ChangeSet, CommitV2]()
    for subject in [streams.commits(only)] if only else await unfinished_subjects(streams):
        stored = await streams.js.get_message(streams.commits_stream, last_by_subject=subject)
        if stored is None or UNFINISHED not in stored.headers:
            continue
        try:
            commit = decode_commit_at(stored.sequence, stored.headers, stored.payload)
            change_set = streams.parse_change_set(subject)
        except (MessageError, UnknownSubject):  # `rebaser doctor` reports them
            continue
        if commit.control.dvu_due:
            due[change_set] = commit
    return due


async def _impure_in(deployment: Deployment, change_set: ChangeSet) -> list[Row]:
    """Functions of the workspace that came to two results from the same inputs.

    A Rebaser whose ops endpoint is enabled says so; without one, there are none.
    """
    reports = await statuses(deployment.streams, enough=lambda each: "impure" in each)
    found: list[Row] = next((each["impure"] for each in reports if "impure" in each), [])
    return [row for row in found if row["workspace"] == str(change_set.workspace_id)]


async def _failed_in(deployment: Deployment, change_set: ChangeSet) -> Row:
    """Number of failed values and of those that they block, and the failed ones."""
    read = await read_values(deployment, change_set)
    values = [v for v in read.values.values() if v.status in ("failed", "blocked")]
    failed = [v for v in values if v.status == "failed"]
    return {
        "failed": len(failed),
        "blocked": len(values) - len(failed),
        "values": [
            {"id": v.id, "name": v.name or v.id, "status": v.status, "message": v.message}
            for v in failed
        ],
    }

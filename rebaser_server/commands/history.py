"""`rebaser log` and `revert`: commits, and undoing one.

`log --follow` shows the work on a change set as it happens.
"""

import argparse
import json
from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from rebaser_client.display import cut, table_text
from rebaser_client.outcomes import watching
from rebaser_client.reader import LogEntry, read_log
from rebaser_core.activities import ActivityV1
from rebaser_core.commits import CallEffect, RequestOutcome
from rebaser_core.errors import ClientError, RebaserError
from rebaser_core.ids import ChangeSet, RequestId
from rebaser_core.messages import (
    EnqueueUpdatesResponseV3,
    ErrorStatus,
    SuccessStatusV3,
    total_count,
)
from rebaser_core.records import utc_text
from rebaser_core.updates import AnyUpdate, PutFunc, PutValue, RemoveFunc, RemoveValue, SetValue
from rebaser_server.commands.support.addresses import change_set_of
from rebaser_server.commands.support.arguments import LAST, Exit, refused_at_terminal
from rebaser_server.commands.support.deployment import Deployment, warn_if_paused, with_deployment
from rebaser_server.commands.support.progress import failures, until_computed
from rebaser_server.commands.support.value_source import read_revert_plan
from rebaser_server.terminal.lines import complain, say, say_json
from rebaser_server.terminal.tables import show_cells

if TYPE_CHECKING:
    from rebaser_client.reader import RevertPlan


@with_deployment
async def log(deployment: Deployment, arguments: argparse.Namespace) -> None:
    """Print the requests and their outcomes, oldest first."""
    if arguments.follow:
        await _follow(deployment, arguments)
        return
    change_set = await change_set_of(deployment, arguments, closed=True)
    entries = await read_log(deployment.streams, change_set, limit=arguments.last)
    rows = [
        (
            *(str(each.commit), utc_text(each.time), str(each.request), each.outcome.value),
            *(_what(each), each.author, each.by),
        )
        for each in entries
    ]
    headings = ("commit", "time", "request", "outcome", "what", "author", "by")
    plain = [entry.as_dict() for entry in entries]
    show_cells(headings, rows, arguments, plain=plain, nothing="no commits yet")


async def _follow(deployment: Deployment, arguments: argparse.Namespace) -> None:
    change_set = await change_set_of(deployment, arguments, new=True)
    async with watching(deployment.streams, change_set) as activities:
        async for activity in activities:
            if arguments.json:
                say_json(activity.model_dump(mode="json", by_alias=True))
            else:
                details = " ".join(f"{key}={value}" for key, value in activity.details.items())
                say(f"{_time(activity)}  {activity.kind.value:<15} {details}")


def _time(activity: ActivityV1) -> str:
    """Time of publication, from its id; the id itself if no calendar has that time."""
    try:
        return utc_text(activity.id.datetime)
    except (ValueError, OverflowError):
        return str(activity.id)


_LISTED: Final = 20
"""Maximum number of a revert's updates that are put into words."""


_STATUSES: Final = {"applying": "being applied"}


class NothingToRevert(RebaserError):
    """The commits that are kept have no change by a request."""


def _what(entry: LogEntry) -> str:
    if entry.message is not None:
        return entry.message
    if entry.call is not None:
        return _call(entry.call)
    parts = []
    if entry.merged is not None:
        parts.append(f"head's changes up to {entry.merged}")
    if entry.status is not None:
        parts.append(f"the change set is {_STATUSES.get(entry.status, entry.status)}")
    if entry.computed:
        parts.append("results of an update")
    elif entry.updates is None:
        parts.append("a large batch")
    else:
        parts += [f"{count} {kind}" for kind, count in entry.updates.items()]
    if entry.corrections:
        parts.append(f"{total_count(entry.corrections)} corrected")
    return ", ".join(parts) or "no update"


_RESULT: Final = 60
"""Characters of a call's result that a table shows."""


def _call(call: CallEffect) -> str:
    if call.handler is None:
        return "timer"
    return f"{call.handler} → {cut(json.dumps(call.result, ensure_ascii=False), _RESULT)}"


@with_deployment
async def revert(deployment: Deployment, arguments: argparse.Namespace) -> Exit:
    """Enqueue the batch that undoes a commit, unless it is empty; print it and the reply.

    A person at a terminal sees it and is asked first. With `--wait`, wait until the values that
    depend on it are computed. Returns the exit code: whether the person or Rebaser rejected the
    batch, or values failed because of it.

    Raises:
        NotRetained, NotRevertible, NothingToRevert, ReadRefused: it cannot be undone; nothing was
            enqueued.
    """
    change_set = await change_set_of(deployment, arguments)
    as_json, commit = arguments.json, arguments.commit
    if commit == LAST:
        commit = await _last_change(deployment, change_set)
    plan = await read_revert_plan(deployment, change_set, commit, force=arguments.force)
    if not as_json:
        say(*_changes(plan, await _names(deployment, change_set, plan)))
    request_id, response, failed = None, None, None
    if plan.updates and not arguments.dry_run:
        if await refused_at_terminal(f"Undo commit {plan.commit} by this?", arguments):
            complain("nothing was sent")
            return Exit.FAILED
        await warn_if_paused(deployment, change_set)
        request_id, reply = await deployment.client.enqueue_updates_with_reply(
            *change_set, plan.updates
        )
        response = await reply
    done = response.status if response is not None else None
    if arguments.wait and isinstance(done, SuccessStatusV3):
        reached = done.success.commit or 0
        await until_computed(deployment, change_set, reached)
        failed = await failures(deployment, change_set, reached)
    if as_json:
        values = {} if failed is None else {"values": failed.plain()}
        say_json(_plain(plan, response) | values)
    else:
        say(*_outcome(plan, request_id, response))
        say(*(failed.lines() if failed is not None else ()))
    if isinstance(done, ErrorStatus):
        return Exit.FAILED
    return Exit.VALUES_FAILED if failed is not None and failed.stand else Exit.OK


async def _last_change(deployment: Deployment, change_set: ChangeSet) -> int:
    """The latest commit by which a request changed the change set itself, not head.

    Raises:
        NothingToRevert: no commit that is kept is one.
    """
    for entry in reversed(await read_log(deployment.streams, change_set, limit=None)):
        is_change = entry.outcome is RequestOutcome.APPLIED and entry.updates != {}
        if is_change and not entry.computed and entry.merged is None:
            return entry.commit
    raise NothingToRevert("no request has changed it, as far as commits are kept: `rebaser log`")


def _plain(plan: "RevertPlan", response: EnqueueUpdatesResponseV3 | None) -> dict[str, Any]:
    return {
        "commit": plan.commit,
        "updates": [update.to_wire() for update in plan.updates],
        "left": plan.skipped,
        "response": None if response is None else response.to_wire(),
    }


async def _names(
    deployment: Deployment, change_set: ChangeSet, plan: "RevertPlan"
) -> dict[str, str]:
    """Names of the values that the plan changes, by id, as far as a Rebaser answers."""
    ids = [str(update.value_id) for update in plan.updates[:_LISTED] if hasattr(update, "value_id")]
    if not ids:
        return {}
    with suppress(ClientError):
        handle = deployment.client.change_set(*change_set)
        found = await handle.values(*ids, missing_ok=True)
        return {each.id: each.name for each in found.values() if each.name is not None}
    return {}


def _changes(plan: "RevertPlan", names: Mapping[str, str]) -> list[str]:
    """Lines about the first updates of the plan, and about those that it leaves out."""
    lines = [_words(update, names) for update in plan.updates[:_LISTED]]
    if len(plan.updates) > _LISTED:
        lines.append(f"and {len(plan.updates) - _LISTED:,} more: --json lists all")
    return lines + [
        f"not undone, because a later commit changed or uses it: {left}" for left in plan.skipped
    ]


def _words(update: AnyUpdate, names: Mapping[str, str]) -> str:
    """Effect of an update in words, with the name of its value or function."""
    match update:
        case PutFunc():
            return f"function {update.name} is defined as it was"
        case RemoveFunc():
            return f"function {update.func_id} is removed"
        case PutValue():
            return f"{update.name or update.value_id} is defined as it was"
    name = names.get(str(update.value_id), str(update.value_id))
    match update:
        case SetValue():
            text = table_text(update.value) or json.dumps(update.value, ensure_ascii=False)
            return f"{name} is {text} again"
        case RemoveValue():
            return f"{name} is removed"
        case _:
            return f"{name} has the inputs that it had"


def _outcome(
    plan: "RevertPlan", request_id: RequestId | None, response: EnqueueUpdatesResponseV3 | None
) -> list[str]:
    if not plan.updates:
        return [f"nothing of commit {plan.commit} is left to undo"]
    if response is None:
        return ["not sent (--dry-run)"]
    if isinstance(response.status, SuccessStatusV3):
        done = response.status.success
        return [
            f"request {request_id} undoes commit {plan.commit} and is commit {done.commit}",
            *(f"  not all of it: {each.code}: {each.detail}" for each in done.corrections),
        ]
    return [f"rejected: {response.status.error.message}"]

"""The output of `rebaser log` and `rebaser revert`, and the revert itself."""

import argparse
import json
from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from rebaser_client.errors import ClientError
from rebaser_client.outcomes import changed_by
from rebaser_client.reader import LogEntry, read_log
from rebaser_core.ids import ChangeSet, RequestId
from rebaser_core.messages import (
    EnqueueUpdatesResponseV2,
    ErrorStatus,
    SuccessStatusV2,
    total_count,
)
from rebaser_core.records import utc_text
from rebaser_core.updates import AnyUpdate, PutFunc, PutValue, RemoveFunc, RemoveValue, SetValue
from rebaser_server.commands.render.failures import failures
from rebaser_server.commands.render.progress import until_computed
from rebaser_server.commands.support.deployment import Deployment
from rebaser_server.commands.support.exit_codes import Exit
from rebaser_server.commands.support.questions import refused_at_terminal
from rebaser_server.commands.support.value_source import read_revert_plan
from rebaser_server.terminal.lines import complain, say, say_json
from rebaser_server.terminal.tables import Table

if TYPE_CHECKING:
    from rebaser_client.reader import RevertPlan

_LISTED: Final = 20
"""Updates of a revert that are said in words at most."""
_STANDINGS: Final = {"applying": "being applied"}


async def show_log(
    deployment: Deployment, change_set: ChangeSet, *, after: int, most: int | None, as_json: bool
) -> None:
    """Print the requests and their outcomes, oldest first."""
    entries = await read_log(
        deployment.js, deployment.subjects, change_set, after=after, limit=most
    )
    if as_json:
        say_json([entry.as_dict() for entry in entries])
    else:
        _table(entries).show()


def _table(entries: list[LogEntry]) -> Table:
    table = Table("commit", "time", "request", "outcome", "what", "author", "by")
    for entry in entries:
        table.add(
            str(entry.commit),
            utc_text(entry.time),
            str(entry.request),
            entry.outcome.value,
            _what(entry),
            entry.author or "",
            entry.by,
        )
    return table


def _what(entry: LogEntry) -> str:
    if entry.message is not None:
        return entry.message
    parts = []
    if entry.merged is not None:
        parts.append(f"head's changes up to {entry.merged}")
    if entry.standing is not None:
        parts.append(f"the change set is {_STANDINGS.get(entry.standing, entry.standing)}")
    if entry.computed:
        parts.append("results of an update")
    elif entry.updates is None:
        parts.append("a large batch")
    else:
        parts += [f"{count} {kind}" for kind, count in entry.updates.items()]
    if entry.corrections:
        parts.append(f"{total_count(entry.corrections)} corrected")
    return ", ".join(parts) or "no update"


async def show_revert(
    deployment: Deployment,
    change_set: ChangeSet,
    arguments: argparse.Namespace,
) -> Exit:
    """Enqueue the batch that undoes a commit, unless it is empty; print it and the reply.

    A person at a terminal is shown it and asked first. With `--wait`, wait until the values that
    depend on it are computed. Returns the exit code: whether the person or Rebaser rejected the
    batch, or values failed because of it.

    Raises:
        NotRetained, NotRevertible, ReadRefused: the commit cannot be undone; nothing was enqueued.
    """
    as_json = arguments.json
    plan = await read_revert_plan(deployment, change_set, arguments.commit, force=arguments.force)
    if not as_json:
        say(*_changes(plan, await _names(deployment, change_set, plan)))
    request_id, response, failed = None, None, None
    if plan.updates and not arguments.dry_run:
        if await refused_at_terminal(f"Undo commit {plan.commit} by this?", arguments):
            complain("nothing was sent")
            return Exit.FAILED
        request_id, reply = await deployment.client.enqueue_updates_with_reply(
            *change_set, plan.updates
        )
        response = await reply
    done = response.status if response is not None else None
    if arguments.wait and isinstance(done, SuccessStatusV2):
        reached = done.success.commit or 0
        await until_computed(deployment, change_set, reached)
        failed = await failures(deployment, change_set, reached, changed_by(plan.updates))
    if as_json:
        values = {} if failed is None else {"values": failed.plain()}
        say_json(_plain(plan, response) | values)
    else:
        say(_outcome(plan, request_id, response))
        say(*(failed.lines() if failed is not None else ()))
    if isinstance(done, ErrorStatus):
        return Exit.FAILED
    return Exit.VALUES_FAILED if failed is not None and failed.stand else Exit.OK


def _plain(plan: "RevertPlan", response: EnqueueUpdatesResponseV2 | None) -> dict[str, Any]:
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
        found = await deployment.client.reader(*change_set).values(*ids)
        return {each.id: each.name for each in found.values() if each.name is not None}
    return {}


def _changes(plan: "RevertPlan", names: Mapping[str, str]) -> list[str]:
    """Lines about the first of the plan's updates, and about those that it leaves out."""
    lines = [_words(update, names) for update in plan.updates[:_LISTED]]
    if len(plan.updates) > _LISTED:
        lines.append(f"and {len(plan.updates) - _LISTED:,} more: --json lists all")
    return lines + [
        f"not undone, because a later commit changed it again: {left}" for left in plan.skipped
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
            return f"{name} is {json.dumps(update.value, ensure_ascii=False)} again"
        case RemoveValue():
            return f"{name} is removed"
        case _:
            return f"{name} has the inputs that it had"


def _outcome(
    plan: "RevertPlan", request_id: RequestId | None, response: EnqueueUpdatesResponseV2 | None
) -> str:
    if not plan.updates:
        return "nothing to undo"
    if response is None:
        return "not sent (--dry-run)"
    if isinstance(response.status, SuccessStatusV2):
        commit = response.status.success.commit
        return f"request {request_id} undoes commit {plan.commit} and is commit {commit}"
    return f"rejected: {response.status.error.message}"

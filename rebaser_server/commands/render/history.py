"""The output of commands for commits, reverts, workspaces, change sets and drafts.

The revert itself is here, too.
"""

import argparse
import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from rebaser_client.display import table_text
from rebaser_client.plan import LoadPlan, PlannedChange
from rebaser_client.reader import LogEntry, read_log
from rebaser_core.calls import ServiceRecordV1
from rebaser_core.commits import CallEffect, RequestOutcome
from rebaser_core.errors import ClientError, RebaserError
from rebaser_core.ids import ChangeSet, RequestId
from rebaser_core.messages import (
    EnqueueUpdatesResponseV3,
    ErrorStatus,
    SuccessStatusV3,
    total_count,
)
from rebaser_core.records import ChangeSetRecordV1, CommentRecordV1, WorkspaceRecordV1, utc_text
from rebaser_core.updates import AnyUpdate, PutFunc, PutValue, RemoveFunc, RemoveValue, SetValue
from rebaser_server.commands.render.progress import failures, until_computed
from rebaser_server.commands.support.arguments import LAST, Exit, refused_at_terminal
from rebaser_server.commands.support.deployment import Deployment
from rebaser_server.commands.support.value_source import read_revert_plan
from rebaser_server.terminal.lines import complain, say, say_json
from rebaser_server.terminal.tables import Table, show, show_cells

if TYPE_CHECKING:
    from rebaser_client.reader import RevertPlan

_LISTED: Final = 20
"""Maximum number of a revert's updates that are put into words."""
_STATUSES: Final = {"applying": "being applied"}


class NothingToRevert(RebaserError):
    """The commits that are kept have no change by a request."""


async def show_log(
    deployment: Deployment, change_set: ChangeSet, arguments: argparse.Namespace
) -> None:
    """Print the requests and their outcomes, oldest first."""
    entries = await read_log(deployment.streams, change_set, limit=arguments.last)
    rows = [
        (
            *(str(each.commit), utc_text(each.time), str(each.request), each.outcome.value),
            *(_what(each), each.author, each.by),
        )
        for each in entries
    ]
    headings = ("commit", "time", "request", "outcome", "what", "author", "by")
    show_cells(headings, rows, arguments, plain=[entry.as_dict() for entry in entries])


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
    result = json.dumps(call.result, ensure_ascii=False)
    cut = result if len(result) <= _RESULT else f"{result[: _RESULT - 1]}…"
    return f"{call.handler} → {cut}"


async def show_revert(
    deployment: Deployment,
    change_set: ChangeSet,
    arguments: argparse.Namespace,
) -> Exit:
    """Enqueue the batch that undoes a commit, unless it is empty; print it and the reply.

    A person at a terminal sees it and is asked first. With `--wait`, wait until the values that
    depend on it are computed. Returns the exit code: whether the person or Rebaser rejected the
    batch, or values failed because of it.

    Raises:
        NotRetained, NotRevertible, NothingToRevert, ReadRefused: it cannot be undone; nothing was
            enqueued.
    """
    as_json = arguments.json
    commit = arguments.commit
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
        say(_outcome(plan, request_id, response))
        say(*(failed.lines() if failed is not None else ()))
    if isinstance(done, ErrorStatus):
        return Exit.FAILED
    return Exit.VALUES_FAILED if failed is not None and failed.stand else Exit.OK


async def _last_change(deployment: Deployment, change_set: ChangeSet) -> int:
    """The latest commit by which a request changed the change set.

    Raises:
        NothingToRevert: no commit that is kept is one.
    """
    for entry in reversed(await read_log(deployment.streams, change_set, limit=None)):
        if entry.outcome is RequestOutcome.APPLIED and not entry.computed and entry.updates != {}:
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
            return f"{name} is {_json(update.value)} again"
        case RemoveValue():
            return f"{name} is removed"
        case _:
            return f"{name} has the inputs that it had"


def _outcome(
    plan: "RevertPlan", request_id: RequestId | None, response: EnqueueUpdatesResponseV3 | None
) -> str:
    if not plan.updates:
        return f"nothing of commit {plan.commit} is left to undo"
    if response is None:
        return "not sent (--dry-run)"
    if isinstance(response.status, SuccessStatusV3):
        commit = response.status.success.commit
        return f"request {request_id} undoes commit {plan.commit} and is commit {commit}"
    return f"rejected: {response.status.error.message}"


def show_workspaces(records: Sequence[WorkspaceRecordV1], arguments: argparse.Namespace) -> None:
    """Print workspaces, the oldest first."""
    records = sorted(records, key=lambda record: record.created_at)
    rows = [(record.name, record.created_at, record.by) for record in records]
    plain = [record.to_wire() for record in records]
    show_cells(("workspace", "created", "by"), rows, arguments, plain=plain)


def show_services(records: Sequence[ServiceRecordV1], arguments: argparse.Namespace) -> None:
    """Print services, by name."""
    rows = [(each.name, each.version, ", ".join(sorted(each.handlers))) for each in records]
    plain = [record.to_wire() for record in records]
    show_cells(("service", "version", "handlers"), rows, arguments, plain=plain)


def show_change_sets(
    records: Sequence[ChangeSetRecordV1],
    paused: Sequence[str | None],
    arguments: argparse.Namespace,
) -> None:
    """Print change sets; `paused` has for each the start of its pause, or None."""
    both = list(zip(records, paused, strict=True))
    states = [f"{each.status.value}{', paused' if since else ''}" for each, since in both]
    rows = [
        (each.name, each.kind.value, state, each.created_at, each.by)
        for each, state in zip(records, states, strict=True)
    ]
    plain = [{**record.to_wire(), "pausedSince": since} for record, since in both]
    show_cells(("change set", "kind", "state", "created", "by"), rows, arguments, plain=plain)


def show_change_set(
    record: ChangeSetRecordV1,
    address: str,
    base: str | None,
    comments: Sequence[CommentRecordV1] | None,
    *,
    as_json: bool,
) -> None:
    """Print the record of a change set, with its address and that of its origin, `base`.

    `comments`, if they are given, follow in their order.
    """
    if as_json:
        said = None if comments is None else [each.to_wire() for each in comments]
        say_json(record.to_wire() | ({} if said is None else {"comments": said}))
        return
    table = Table("", "")
    facts: dict[str, object] = {
        "change set": address,
        "kind": record.kind.value,
        "state": record.status.value,
        "forked from": record.base and f"{base} at {record.base.commit}",
        "created": record.created_at,
        "by": record.by,
        "closed": record.closed_at,
        "head's commit": record.application and record.application.commit,
        "problem": record.problem,
    }
    for fact, value in facts.items():
        if value is not None:
            table.add(fact, str(value))
    table.show()
    if comments:
        said_by = Table("time", "author", "comment")
        for each in comments:
            said_by.add(each.created_at, each.by or "", each.text)
        said_by.show()


_LISTED_CHANGES: Final = 40
"""Maximum number of changes that are listed for people."""

_HEADINGS: Final = {
    "name": "value",
    "change": "what",
    "part": "of it",
    "before": "in the change set",
    "after": "in the file",
}


def show_plan(plan: LoadPlan, *, as_json: bool) -> None:
    """Print the changes and their number."""
    if as_json:
        changes = [_plain_change(change) for change in plan.changes]
        warned = {"warnings": list(plan.warnings)} if plan.warnings else {}
        say_json({"changes": changes, "unchanged": plan.unchanged, **warned})
        return
    if not plan:
        say(f"nothing differs: {plan.summary()}")
        return
    rows = [
        _plain_change(change)
        | {
            "before": plan.text(change.before) or _text(change.before),
            "after": plan.text(change.after) or _text(change.after),
        }
        for change in plan.changes[:_LISTED_CHANGES]
    ]
    show(rows, _HEADINGS)
    more = len(plan.changes) - _LISTED_CHANGES
    say(*([f"and {more:,} more"] if more > 0 else []), plan.summary(), *plan.warnings)


def _plain_change(change: PlannedChange) -> dict[str, Any]:
    return {
        "name": change.name,
        "change": change.change,
        "part": change.what,
        "before": change.before,
        "after": change.after,
    }


def _text(side: Any) -> str | None:
    """A side as people read it: text in quotes if it would read like another value."""
    if side is None or (isinstance(side, str) and not _reads_like_json(side)):
        return side
    return _json(side)


def _json(value: Any) -> str:
    return table_text(value) or json.dumps(value, ensure_ascii=False)


def _reads_like_json(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return text in ("", "null", "true", "false") or text[:1] in ('"', "[", "{")
    return True

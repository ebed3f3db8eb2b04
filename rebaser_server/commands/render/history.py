"""The output of `rebaser log` and `rebaser revert`, and the revert itself."""

import json
from typing import Any

from rebaser_client.log_reader import LogEntry, read_log
from rebaser_core.corrections import total_count
from rebaser_core.ids import ChangeSet
from rebaser_core.messages import EnqueueUpdatesResponseV2, ErrorStatus, SuccessStatusV2
from rebaser_core.records.registry_records import utc_text
from rebaser_server.commands.support.deployment import Deployment
from rebaser_server.commands.support.exit_codes import Exit
from rebaser_server.queries.cached_state import open_state_loader
from rebaser_server.queries.revert import RevertPlan, plan_revert
from rebaser_server.terminal.lines import say, say_json
from rebaser_server.terminal.tables import Table


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
    updates = entry.updates
    parts = [] if updates is None else [f"{count} {kind}" for kind, count in updates.items()]
    if updates is None and entry.outcome.value == "applied":
        parts.append("a large batch")
    if entry.corrections:
        parts.append(f"{total_count(entry.corrections)} corrected")
    return ", ".join(parts)


async def show_revert(
    deployment: Deployment,
    change_set: ChangeSet,
    commit: int,
    *,
    force: bool,
    dry_run: bool,
    as_json: bool,
) -> int:
    """Enqueue the batch that undoes `commit`, unless it is empty; print it and the reply.

    Returns the exit code: a failure if Rebaser rejected the batch.

    Raises:
        NotRetained, NotRevertible: the commit cannot be undone; nothing was enqueued.
    """
    loader = open_state_loader(deployment.js, deployment.settings, change_set)
    plan = await plan_revert(loader, commit, force=force)
    response = None
    if plan.updates and not dry_run:
        _, reply = await deployment.client.enqueue_updates_with_reply(*change_set, plan.updates)
        response = await reply
    if as_json:
        say_json(_plain(plan, response))
    else:
        _print(plan, response)
    failed = response is not None and isinstance(response.status, ErrorStatus)
    return Exit.FAILED if failed else Exit.OK


def _plain(plan: RevertPlan, response: EnqueueUpdatesResponseV2 | None) -> dict[str, Any]:
    return {
        "commit": plan.commit,
        "updates": [update.to_wire() for update in plan.updates],
        "left": plan.skipped,
        "response": None if response is None else response.to_wire(),
    }


def _print(plan: RevertPlan, response: EnqueueUpdatesResponseV2 | None) -> None:
    for update in plan.updates:
        say(json.dumps(update.to_wire(), ensure_ascii=False))
    for left in plan.skipped:
        say(f"not undone, because a later commit changed it again: {left}")
    if not plan.updates:
        say("nothing to undo")
    elif response is None:
        say("not sent (--dry-run)")
    elif isinstance(response.status, SuccessStatusV2):
        say(f"done by commit {response.status.success.commit}")
    else:
        say(f"rejected: {response.status.error.message}")

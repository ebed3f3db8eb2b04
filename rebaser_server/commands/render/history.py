"""The output of `rebaser log` and `rebaser revert`, and the revert itself."""

import json
from typing import TYPE_CHECKING, Any, Final

from rebaser_client.log_reader import LogEntry, read_log
from rebaser_client.outcomes.failures import changed_by
from rebaser_core.corrections import total_count
from rebaser_core.ids import ChangeSet
from rebaser_core.messages import EnqueueUpdatesResponseV2, ErrorStatus, SuccessStatusV2
from rebaser_core.records.registry_records import utc_text
from rebaser_server.commands.render.failures import failures
from rebaser_server.commands.render.progress import until_computed
from rebaser_server.commands.support.deployment import Deployment
from rebaser_server.commands.support.exit_codes import Exit
from rebaser_server.commands.support.value_source import read_revert_plan
from rebaser_server.terminal.lines import say, say_json
from rebaser_server.terminal.tables import Table

if TYPE_CHECKING:
    from rebaser_client.queries.revert_plan import RevertPlan

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
    commit: int,
    *,
    force: bool,
    dry_run: bool,
    computed: bool,
    as_json: bool,
) -> Exit:
    """Enqueue the batch that undoes `commit`, unless it is empty; print it and the reply.

    With `computed`, wait until the values that depend on it are. Returns the exit code: whether
    Rebaser rejected the batch, or values failed because of it.

    Raises:
        NotRetained, NotRevertible, ReadRefused: the commit cannot be undone; nothing was enqueued.
    """
    plan = await read_revert_plan(deployment, change_set, commit, force=force)
    response, failed = None, None
    if plan.updates and not dry_run:
        _, reply = await deployment.client.enqueue_updates_with_reply(*change_set, plan.updates)
        response = await reply
    done = response.status if response is not None else None
    if computed and isinstance(done, SuccessStatusV2):
        reached = done.success.commit or 0
        await until_computed(deployment, change_set, reached)
        failed = await failures(deployment, change_set, reached, changed_by(plan.updates))
    if as_json:
        values = {} if failed is None else {"values": failed.plain()}
        say_json(_plain(plan, response) | values)
    else:
        _print(plan, response)
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


def _print(plan: "RevertPlan", response: EnqueueUpdatesResponseV2 | None) -> None:
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

"""What `rebaser log` and `rebaser revert` print and do."""

import json
from typing import Any

from rebaser_client.log_reader import Entry, history
from rebaser_core.corrections import count_of
from rebaser_core.ids import ChangeSet
from rebaser_core.messages import EnqueueUpdatesResponseV2, ErrorStatus, SuccessStatusV2
from rebaser_server.commands.support.deployment import Deployment
from rebaser_server.commands.support.exit_codes import Exit
from rebaser_server.queries.cached_state import archive_of
from rebaser_server.queries.revert import Reversal, reversal
from rebaser_server.settings.settings import Settings
from rebaser_server.terminal.lines import say, say_json
from rebaser_server.terminal.tables import Table


async def show_log(
    at: Deployment, change_set: ChangeSet, *, after: int, most: int | None, as_json: bool
) -> None:
    """Print the requests that were settled, oldest first."""
    entries = await history(at.js, at.subjects, change_set, after=after, most=most)
    if as_json:
        say_json([entry.plain() for entry in entries])
    else:
        _table(entries).show()


def _table(entries: list[Entry]) -> Table:
    table = Table("commit", "time", "request", "outcome", "what", "author", "by")
    for entry in entries:
        table.add(
            str(entry.commit),
            entry.time.isoformat(" ", "seconds"),
            str(entry.request),
            entry.outcome.value,
            _what(entry),
            entry.author or "",
            entry.by,
        )
    return table


def _what(entry: Entry) -> str:
    if entry.message is not None:
        return entry.message
    updates = entry.updates
    said = [] if updates is None else [f"{count} {kind}" for kind, count in updates.items()]
    if updates is None and entry.outcome.value == "applied":
        said.append("a large batch")
    if entry.corrections:
        said.append(f"{count_of(entry.corrections)} corrected")
    return ", ".join(said)


async def show_revert(
    at: Deployment,
    settings: Settings,
    change_set: ChangeSet,
    commit: int,
    *,
    force: bool,
    dry_run: bool,
    as_json: bool,
) -> int:
    """Enqueue the batch that takes `commit` back, unless it is empty; print it and the answer.

    The exit code: of a failure if the batch was refused.

    Raises:
        NotRetained, NotToRevert: it cannot be taken back; nothing was enqueued.
    """
    found = await reversal(archive_of(at.js, settings, change_set), commit, force=force)
    response = None
    if found.updates and not dry_run:
        _, reply = await at.client.enqueue_updates_with_reply(*change_set, found.updates)
        response = await reply
    if as_json:
        say_json(_plain(found, response))
    else:
        _print(found, response)
    failed = response is not None and isinstance(response.status, ErrorStatus)
    return Exit.FAILED if failed else Exit.OK


def _plain(found: Reversal, response: EnqueueUpdatesResponseV2 | None) -> dict[str, Any]:
    return {
        "commit": found.commit,
        "updates": [update.wire() for update in found.updates],
        "left": found.left,
        "response": None if response is None else response.wire(),
    }


def _print(found: Reversal, response: EnqueueUpdatesResponseV2 | None) -> None:
    for update in found.updates:
        say(json.dumps(update.wire(), ensure_ascii=False))
    for left in found.left:
        say(f"left as it is, since it was changed again: {left}")
    if not found.updates:
        say("nothing to undo")
    elif response is None:
        say("not done")
    elif isinstance(response.status, SuccessStatusV2):
        say(f"done by commit {response.status.success.commit}")
    else:
        say(f"refused: {response.status.error.message}")

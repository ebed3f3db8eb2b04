"""What `rebaser log` and `rebaser revert` print and do."""

import json
from typing import Any

from rebaser_client.client import RebaserClient
from rebaser_client.history import Entry, history
from rebaser_core.ids import ChangeSet
from rebaser_core.jetstream import connected
from rebaser_core.messages import EnqueueUpdatesResponseV2, SuccessStatusV2
from rebaser_core.subjects import Subjects
from rebaser_server.connection import connect_options, jetstream
from rebaser_server.questions.reading import archive_of
from rebaser_server.questions.reverting import Reversal, reversal
from rebaser_server.settings import Settings
from rebaser_server.tables import Table
from rebaser_server.terminal import say, say_json


async def show_log(
    settings: Settings, change_set: ChangeSet, *, after: int, most: int | None, as_json: bool
) -> None:
    """Print the requests that were settled, oldest first."""
    async with connected(connect_options(settings)) as nc:
        js, subjects = jetstream(nc, settings.nats), Subjects(settings.nats.prefix)
        entries = await history(js, subjects, change_set, after=after, most=most)
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
        said.append(f"{len(entry.corrections)} corrected")
    return ", ".join(said)


async def show_revert(
    settings: Settings,
    change_set: ChangeSet,
    commit: int,
    *,
    force: bool,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Enqueue the batch that takes `commit` back, unless it is empty; print it and the answer.

    Raises:
        NotRetained, NotToRevert: it cannot be taken back; nothing was enqueued.
    """
    async with connected(connect_options(settings)) as nc:
        js = jetstream(nc, settings.nats)
        found = await reversal(archive_of(js, settings, change_set), commit, force=force)
        response = None
        if found.updates and not dry_run:
            async with RebaserClient.on(
                nc, js, prefix=settings.nats.prefix, author=settings.author
            ) as client:
                _, reply = await client.enqueue_updates_with_reply(*change_set, found.updates)
                response = await reply
    if as_json:
        say_json(_plain(found, response))
    else:
        _print(found, response)


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

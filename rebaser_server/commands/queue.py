"""`rebaser queue`: the requests that wait, or the tasks of change sets with work to do."""

import argparse
from typing import TYPE_CHECKING, Any, Final

from rebaser_server.commands.support.arguments import add_command, whole_number, with_deployment

if TYPE_CHECKING:
    from rebaser_core.jetstream import JetStream
    from rebaser_server.commands.support.deployment import Deployment


_OF_QUEUES: Final = {
    "address": "change set",
    "requests": "requests",
    "oldestSeconds": "oldest, s",
    "paused": "paused since",
}
_OF_TASKS: Final = {"address": "change set", "ageSeconds": "age, s", "owner": "owner by the log"}


def add(commands: Any) -> None:
    """Declare the command."""
    queue = add_command(
        commands,
        "queue",
        _queue,
        about="list the requests that wait, by change set",
        csv=True,
    )
    queue.add_argument(
        "--limit",
        type=whole_number,
        default=50,
        help="number of change sets to list, the longest queue or oldest task first (default: "
        "%(default)s)",
    )
    queue.add_argument(
        "--tasks",
        action="store_true",
        help="list the tasks: one for each change set with work to do",
    )


@with_deployment
async def _queue(deployment: "Deployment", arguments: argparse.Namespace) -> None:
    from rebaser_server.commands.support.addresses import add_addresses
    from rebaser_server.terminal.tables import show

    read, headings, nothing = (
        (_oldest_tasks, _OF_TASKS, "no task: nothing to do")
        if arguments.tasks
        else (_queues, _OF_QUEUES, "no request waits")
    )
    rows = await read(deployment, arguments.limit)
    await add_addresses(deployment, rows)
    show(rows, headings, arguments, nothing=nothing)


async def _queues(deployment: "Deployment", limit: int) -> list[dict[str, Any]]:
    """The longest queues, at most `limit`."""
    from rebaser_server.cluster.pauses import PauseStore, paused_since
    from rebaser_server.terminal.tables import age

    streams = deployment.streams
    js, stream = streams.js, streams.requests_stream
    depths = await js.stream_subjects(stream)
    deepest = sorted(depths.items(), key=lambda item: (-item[1], item[0]))
    pauses = await PauseStore(streams).all()
    rows = []
    for subject, depth in deepest[:limit]:
        first = await js.get_message(stream, sequence=1, next_by_subject=subject)
        change_set = streams.parse_change_set(subject)
        rows.append(
            {
                "workspace": str(change_set.workspace_id),
                "changeSet": str(change_set.change_set_id),
                "requests": depth,
                "oldestSeconds": age(first.time) if first else 0.0,
                "paused": paused_since(pauses, change_set),
            }
        )
    return rows


async def _oldest_tasks(deployment: "Deployment", limit: int) -> list[dict[str, Any]]:
    from rebaser_server.terminal.tables import age

    js, streams = deployment.streams.js, deployment.streams
    rows = []
    for subject in list(await js.stream_subjects(streams.tasks_stream))[:limit]:
        task = await js.get_message(streams.tasks_stream, last_by_subject=subject)
        if task is None:  # acknowledged since the stream listed it
            continue
        change_set = streams.parse_change_set(subject)
        log = streams.commits(change_set)
        rows.append(
            {
                "workspace": str(change_set.workspace_id),
                "changeSet": str(change_set.change_set_id),
                "ageSeconds": age(task.time),
                "owner": await _owner(js, streams.commits_stream, log),
            }
        )
    return sorted(rows, key=lambda row: -row["ageSeconds"])


async def _owner(js: "JetStream", stream: str, subject: str) -> str | None:
    """The owner in the change set's last commit, or None if it was released."""
    from rebaser_core.commits import Commit

    entry = await js.get_message(stream, last_by_subject=subject)
    if entry is None:
        return None
    return Commit.decode(entry.headers, entry.payload).control.owner or None

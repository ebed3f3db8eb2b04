"""`rebaser queue`, `tasks` and `watch`: waiting requests, change sets with work, events."""

import argparse
from typing import TYPE_CHECKING, Any

from rebaser_server.commands.support.arguments import (
    add_address,
    add_command,
    add_ids,
    whole_number,
    with_deployment,
)
from rebaser_server.terminal.lines import say, say_json

if TYPE_CHECKING:
    from rebaser_core.activities import ActivityV1
    from rebaser_core.jetstream import JetStream
    from rebaser_server.commands.support.deployment import Deployment


def add(commands: Any) -> None:
    """Declare the commands."""
    queue = add_command(
        commands, "queue", _queue, about="list the requests that wait, by change set"
    )
    queue.add_argument(
        "--limit",
        type=whole_number,
        default=50,
        help="number of change sets to list, longest queue first (default: %(default)s)",
    )
    add_ids(queue)

    tasks = add_command(
        commands, "tasks", _tasks, about="list the tasks: one for each change set with work to do"
    )
    tasks.add_argument(
        "--limit",
        type=whole_number,
        default=50,
        help="number of tasks to list, oldest first (default: %(default)s)",
    )
    add_ids(tasks)


@with_deployment
async def _queue(deployment: "Deployment", arguments: argparse.Namespace) -> None:
    from rebaser_server.commands.support.addresses import add_addresses, address_headings
    from rebaser_server.terminal.tables import show

    headings = address_headings(ids=arguments.ids) | {
        "requests": "requests",
        "oldestSeconds": "oldest, s",
        "paused": "paused since",
    }
    rows = await _queues(deployment, arguments.limit)
    await add_addresses(deployment, rows)
    show(rows, headings, as_json=arguments.json, nothing="no request waits")


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


@with_deployment
async def _tasks(deployment: "Deployment", arguments: argparse.Namespace) -> None:
    from rebaser_server.commands.support.addresses import add_addresses, address_headings
    from rebaser_server.terminal.tables import show

    headings = address_headings(ids=arguments.ids) | {
        "ageSeconds": "age, s",
        "owner": "owner by the log",
    }
    rows = await _oldest_tasks(deployment, arguments.limit)
    await add_addresses(deployment, rows)
    show(rows, headings, as_json=arguments.json, nothing="no task: nothing to do")


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


def add_watch(commands: Any) -> None:
    """Declare the command."""
    watch = add_command(
        commands, "watch", _watch, about="show the work on a change set as it happens, until Ctrl-C"
    )
    add_address(watch)


@with_deployment
async def _watch(deployment: "Deployment", arguments: argparse.Namespace) -> None:
    from rebaser_client.outcomes import watching
    from rebaser_server.commands.support.addresses import change_set_of

    change_set = await change_set_of(deployment, arguments, new=True)
    async with watching(deployment.streams, change_set) as activities:
        async for activity in activities:
            if arguments.json:
                say_json(activity.model_dump(mode="json", by_alias=True))
            else:
                say(_line(activity))


def _line(activity: "ActivityV1") -> str:
    details = " ".join(f"{key}={value}" for key, value in activity.details.items())
    return f"{_time(activity)}  {activity.kind.value:<15} {details}"


def _time(activity: "ActivityV1") -> str:
    """Time of publication, from its id; the id itself if no calendar has that time."""
    from rebaser_core.records import utc_text

    try:
        return utc_text(activity.id.datetime)
    except (ValueError, OverflowError):
        return str(activity.id)

"""`rebaser queue` and `rebaser tasks`: what waits, and what is in work."""

import argparse
import asyncio
from typing import Any

from rebaser_server.commands.support.arguments import add_json
from rebaser_server.commands.support.exit_codes import Exit
from rebaser_server.settings.settings import Settings


def add(commands: Any) -> None:
    """Declare the commands."""
    queue = commands.add_parser("queue", help="requests that wait, by change set")
    queue.add_argument("--limit", type=int, default=50, help="change sets to list, deepest first")
    add_json(queue)
    queue.set_defaults(command=_queue)

    tasks = commands.add_parser("tasks", help="tasks: one for each change set with work to do")
    tasks.add_argument("--limit", type=int, default=50, help="tasks to list, oldest first")
    add_json(tasks)
    tasks.set_defaults(command=_tasks)


def _queue(settings: Settings, arguments: argparse.Namespace) -> int:
    from rebaser_server.cluster.pauses import PauseBook, paused_since
    from rebaser_server.commands.render.output import age, show
    from rebaser_server.commands.support.deployment import deployment

    async def rows() -> list[dict[str, Any]]:
        async with deployment(settings) as at:
            stream = at.subjects.requests_stream
            depths = await at.js.stream_subjects(stream)
            deepest = sorted(depths.items(), key=lambda item: (-item[1], item[0]))
            paused = await PauseBook(at.js, at.subjects).all()
            listed = []
            for subject, depth in deepest[: arguments.limit]:
                first = await at.js.get_message(stream, sequence=1, next_by_subject=subject)
                change_set = at.subjects.change_set_of(subject)
                listed.append(
                    {
                        "workspace": str(change_set.workspace_id),
                        "changeSet": str(change_set.change_set_id),
                        "requests": depth,
                        "oldestSeconds": age(first.time) if first else 0.0,
                        "paused": paused_since(paused, change_set),
                    }
                )
            return listed

    headings = {
        "workspace": "workspace",
        "changeSet": "change set",
        "requests": "requests",
        "oldestSeconds": "oldest, s",
        "paused": "paused since",
    }
    show(asyncio.run(rows()), headings, as_json=arguments.json, nothing="no request waits")
    return Exit.OK


def _tasks(settings: Settings, arguments: argparse.Namespace) -> int:
    from rebaser_server.commands.render.output import age, show
    from rebaser_server.commands.support.deployment import deployment

    async def rows() -> list[dict[str, Any]]:
        async with deployment(settings) as at:
            stream = at.subjects.tasks_stream
            listed = []
            for subject in list(await at.js.stream_subjects(stream))[: arguments.limit]:
                task = await at.js.get_message(stream, last_by_subject=subject)
                if task is None:  # done meanwhile
                    continue
                change_set = at.subjects.change_set_of(subject)
                log = at.subjects.commits(change_set)
                owner = await _owner(at.js, at.subjects.commits_stream, log)
                listed.append(
                    {
                        "workspace": str(change_set.workspace_id),
                        "changeSet": str(change_set.change_set_id),
                        "ageSeconds": age(task.time),
                        "owner": owner,
                    }
                )
            return sorted(listed, key=lambda row: -row["ageSeconds"])

    headings = {
        "workspace": "workspace",
        "changeSet": "change set",
        "ageSeconds": "age, s",
        "owner": "owner by the log",
    }
    show(asyncio.run(rows()), headings, as_json=arguments.json, nothing="no task: nothing to do")
    return Exit.OK


async def _owner(js: Any, stream: str, subject: str) -> str | None:
    """Who the change set's last commit says owns it; None if nobody does."""
    from rebaser_core.commits import Commit

    line = await js.get_message(stream, last_by_subject=subject)
    if line is None:
        return None
    return Commit.decode(line.headers, line.payload).head.owner or None

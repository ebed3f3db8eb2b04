"""Work under way: requests and tasks that wait, pauses that keep them back, and dead letters."""

import argparse
from functools import partial
from typing import Any, Final

from rebaser_core.errors import many
from rebaser_core.records import PauseScope, seconds_since
from rebaser_server.cluster.pauses import PauseStore, paused_since, pauses_to_json
from rebaser_server.commands.support.addresses import add_addresses, scope_of
from rebaser_server.commands.support.deployment import (
    Deployment,
    describe,
    resume_hint,
    with_deployment,
)
from rebaser_server.commit_log.log import CommitLog
from rebaser_server.ops.dead_letters import check, latest, load, replay
from rebaser_server.terminal.lines import complain, say, say_json, say_result
from rebaser_server.terminal.tables import show

_OF_QUEUES: Final = {
    "address": "change set",
    "requests": "requests",
    "oldestSeconds": "oldest, s",
    "paused": "paused since",
}
_OF_TASKS: Final = {"address": "change set", "ageSeconds": "age, s", "owner": "owner by the log"}


@with_deployment
async def queue(deployment: Deployment, arguments: argparse.Namespace) -> None:
    read, headings, nothing = (
        (_oldest_tasks, _OF_TASKS, "no task: nothing to do")
        if arguments.tasks
        else (_queues, _OF_QUEUES, "no request waits")
    )
    rows = await read(deployment, arguments.limit)
    await add_addresses(deployment, rows)
    show(rows, headings, arguments, nothing=nothing)


async def _queues(deployment: Deployment, limit: int) -> list[dict[str, Any]]:
    streams = deployment.streams
    js, stream = streams.js, streams.requests_stream
    depths = await js.stream_subjects(stream)
    deepest = sorted(depths.items(), key=lambda item: (-item[1], item[0]))
    pauses = await PauseStore(streams).all()
    rows = []
    for subject, depth in deepest[:limit]:
        first = await js.get_message(stream, sequence=1, next_by_subject=subject)
        change_set = streams.parse_change_set(subject)
        oldest, paused = (
            seconds_since(first.time) if first else 0.0,
            paused_since(pauses, change_set),
        )
        facts = {"requests": depth, "oldestSeconds": oldest, "paused": paused}
        rows.append({**change_set.plain(), **facts})
    return rows


async def _oldest_tasks(deployment: Deployment, limit: int) -> list[dict[str, Any]]:
    js, streams = deployment.streams.js, deployment.streams
    rows = []
    for subject in list(await js.stream_subjects(streams.tasks_stream))[:limit]:
        task = await js.get_message(streams.tasks_stream, last_by_subject=subject)
        if task is None:  # acknowledged since the stream listed it
            continue
        change_set = streams.parse_change_set(subject)
        _, commit = await CommitLog(streams, change_set).last()
        owner = None if commit is None else commit.control.owner or None
        facts = {"ageSeconds": seconds_since(task.time), "owner": owner}
        rows.append({**change_set.plain(), **facts})
    return sorted(rows, key=lambda row: -row["ageSeconds"])


_PAUSES: Final = {"address": "paused", "since": "since", "by": "by", "reason": "reason"}


@with_deployment
async def pause(deployment: Deployment, arguments: argparse.Namespace) -> None:
    if not arguments.all and not arguments.address:
        pauses = await PauseStore(deployment.streams).all()
        rows = pauses_to_json(pauses.values())
        await add_addresses(deployment, rows, whole=None if arguments.json else "all change sets")
        show(rows, _PAUSES, arguments, nothing="nothing is paused")
        return
    scope = await scope_of(deployment, arguments)
    book = PauseStore(deployment.streams)
    author = deployment.settings.author or None
    before = await book.of(scope)
    record = await book.pause(scope, by=author, reason=arguments.reason)
    if arguments.json:
        [row] = pauses_to_json([record])
        await add_addresses(deployment, [row])
        say_json(row)
    else:
        say(f"{await describe(deployment, scope)} is paused; Rebasers finish the requests in hand")
    if before is not None:
        operator, reason = before.by or "somebody", before.reason or "no reason given"
        complain(
            f"it was paused since {before.since} by {operator}: {reason}; `resume` ends both pauses"
        )


@with_deployment
async def resume(deployment: Deployment, arguments: argparse.Namespace) -> None:
    scope = await scope_of(deployment, arguments)
    book = PauseStore(deployment.streams)
    before = await book.of(scope)
    tasks = await book.resume(scope)
    pauses = await book.all()
    wider = [record for each, record in pauses.items() if _is_below(scope, each)]
    narrower = [record for each, record in pauses.items() if _is_below(each, scope)]
    if arguments.json:
        still = pauses_to_json([*wider, *narrower])
        await add_addresses(deployment, still)
        say_json({"resumed": before is not None, "tasks": tasks, "stillPaused": still})
        return
    outcome = "is resumed" if before else "was not paused"
    say(f"{await describe(deployment, scope)} {outcome}; change sets with work: {tasks}")
    for record in wider:
        wider_name = await describe(deployment, record.scope)
        hint = await resume_hint(deployment, record.scope)
        complain(f"it still waits: {wider_name} is paused; {hint} ends that")
    if narrower:
        count = many(len(narrower), "narrower pause")
        complain(f"a part of it still waits: {count} in force, which `rebaser pause` lists")


def _is_below(scope: PauseScope, other: PauseScope) -> bool:
    """Whether the other scope is wider, so that its pause covers this one, too."""
    return other != scope and other in (PauseScope(), PauseScope(scope.workspace_id))


_LETTERS: Final = {
    "sequence": "number",
    "at": "died at",
    "address": "change set",
    "attempts": "attempts",
    "reason": "reason",
}


@with_deployment
async def show_letters(deployment: Deployment, arguments: argparse.Namespace) -> None:
    if arguments.sequence is not None:
        letter = await deployment.with_batches(
            lambda batches: load(deployment.streams, batches, arguments.sequence)
        )
        content = {"headers": letter.headers, "asked": letter.content()}
        say_json({**letter.summary(), **content}, indent=2)
        return
    letters = await latest(deployment.streams, arguments.limit)
    rows = [letter.summary() for letter in letters]
    await add_addresses(deployment, rows)
    show(rows, _LETTERS, arguments, nothing="no dead letters")


@with_deployment
async def replay_letters(deployment: Deployment, arguments: argparse.Namespace) -> None:
    replayed, lines = [], []
    try:
        for sequence in arguments.sequence:
            send = partial(replay, deployment.streams, client=deployment.client, sequence=sequence)
            request_id = await deployment.with_batches(send)
            replayed.append({"sequence": sequence, "request": str(request_id)})
            lines.append(f"{sequence}: enqueued again as request {request_id}")
    finally:  # also of those before one that cannot be replayed; a closed pipe ends none
        say_result(replayed, *lines, as_json=arguments.json)


@with_deployment
async def purge_letters(deployment: Deployment, arguments: argparse.Namespace) -> None:
    js, stream = deployment.streams.js, deployment.streams.dead_letters_stream
    for sequence in arguments.sequence:
        await check(deployment.streams, sequence)
    purged = await js.purge(stream) if arguments.all else len({*arguments.sequence})
    for sequence in arguments.sequence:
        await js.delete_message(stream, sequence)
    say_result({"purged": purged}, f"{purged} purged", as_json=arguments.json)

"""A request from the command line to its commit and the update behind it, with a progress bar."""

import asyncio
import json
import sys
from typing import Any, Final

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn

from rebaser_client.watching import watching
from rebaser_core.activities import ActivityKind, ActivityV1
from rebaser_core.commits import Commit
from rebaser_core.ids import ChangeSet, RequestId
from rebaser_core.messages import EnqueueUpdatesResponseV2, ErrorStatus
from rebaser_server.commands.deployment import Deployment
from rebaser_server.commands.pausing import warn_if_paused

LOOK_EVERY: Final = 2.0
"""Seconds without news after which the log is asked: news may be lost, the log is not."""


async def follow(
    at: Deployment,
    change_set: ChangeSet,
    updates: list[Any],
    *,
    as_json: bool,
    request_id: RequestId | None = None,
    computed: bool = True,
) -> bool:
    """Enqueue, await the reply and, if `computed`, the update that follows; whether applied."""
    await warn_if_paused(at, change_set)
    with _progress() as progress:
        bar = progress.add_task("enqueue", total=None)
        async with watching(at.js, at.subjects, change_set) as told:
            request_id, reply = await at.client.enqueue_updates_with_reply(
                *change_set, updates, request_id=request_id
            )
            progress.update(bar, description="waiting for its commit")
            response = await reply
            if computed and not isinstance(response.status, ErrorStatus):
                progress.update(bar, description="dependent values update")
                await _until_clean(at, change_set, told, progress, bar)
    _report(str(request_id), response, as_json=as_json, computed=computed)
    return not isinstance(response.status, ErrorStatus)


async def until_clean(at: Deployment, change_set: ChangeSet) -> None:
    """Return once the log says that no update is due, with a progress bar meanwhile."""
    with _progress() as progress:
        bar = progress.add_task("dependent values update", total=None)
        async with watching(at.js, at.subjects, change_set) as told:
            await _until_clean(at, change_set, told, progress, bar)


def _progress() -> Progress:
    return Progress(
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        console=Console(stderr=True),
        disable=not sys.stderr.isatty(),
    )


async def _until_clean(
    at: Deployment, change_set: ChangeSet, told: Any, progress: Progress, bar: Any
) -> None:
    """Return once the log says that no update is due."""
    while await _due(at, change_set):
        try:
            async with asyncio.timeout(LOOK_EVERY):
                _draw(await anext(told), progress, bar)
        except TimeoutError:
            continue


def _draw(activity: ActivityV1, progress: Progress, bar: Any) -> None:
    details = activity.details
    if activity.kind is ActivityKind.DVU_STARTED:
        progress.update(bar, total=details["affected"], completed=0)
    elif activity.kind is ActivityKind.DVU_PROGRESS:
        progress.update(bar, total=details["of"], completed=details["done"])


async def _due(at: Deployment, change_set: ChangeSet) -> bool:
    line = await at.js.get_message(
        at.subjects.commits_stream, last_by_subject=at.subjects.commits(change_set)
    )
    return line is not None and Commit.decode(line.headers, line.payload).head.dvu_due


def _report(
    request_id: str, response: EnqueueUpdatesResponseV2, *, as_json: bool, computed: bool
) -> None:
    if as_json:
        plain = response.model_dump(mode="json", by_alias=True)
        sys.stdout.write(json.dumps(plain) + "\n")
        return
    status = response.status
    if isinstance(status, ErrorStatus):
        sys.stdout.write(f"request {request_id} failed: {status.error.message}\n")
        return
    commit = status.success.commit
    how = "its values are up to date" if computed else "what depends on it follows"
    sys.stdout.write(f"request {request_id} is commit {commit}; {how}\n")
    for correction in status.success.corrections:
        sys.stdout.write(f"  update {correction.index}: {correction.code}: {correction.detail}\n")

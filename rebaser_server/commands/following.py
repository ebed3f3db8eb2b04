"""A request from the command line to its commit and the update behind it, with a progress bar."""

from typing import Any, Final

from rebaser_client.watching import Activities, watching
from rebaser_core import deadlines
from rebaser_core.activities import ActivityKind, ActivityV1
from rebaser_core.commits import Commit
from rebaser_core.ids import ChangeSet, RequestId
from rebaser_core.messages import EnqueueUpdatesResponseV2, ErrorStatus
from rebaser_server.commands.deployment import Deployment
from rebaser_server.commands.pausing import warn_if_paused
from rebaser_server.tables import ProgressBar, progress_bar
from rebaser_server.terminal import say, say_json

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
    with progress_bar("enqueue") as bar:
        async with watching(at.js, at.subjects, change_set) as told:
            request_id, reply = await at.client.enqueue_updates_with_reply(
                *change_set, updates, request_id=request_id
            )
            bar.describe("waiting for its commit")
            response = await reply
            if computed and not isinstance(response.status, ErrorStatus):
                bar.describe("dependent values update")
                await _until_clean(at, change_set, told, bar)
    _report(str(request_id), response, as_json=as_json, computed=computed)
    return not isinstance(response.status, ErrorStatus)


async def until_clean(at: Deployment, change_set: ChangeSet) -> None:
    """Return once the log says that no update is due, with a progress bar meanwhile."""
    with progress_bar("dependent values update") as bar:
        async with watching(at.js, at.subjects, change_set) as told:
            await _until_clean(at, change_set, told, bar)


async def _until_clean(
    at: Deployment, change_set: ChangeSet, told: Activities, bar: ProgressBar
) -> None:
    """Return once the log says that no update is due."""
    while await _due(at, change_set):
        try:
            async with deadlines.within(LOOK_EVERY):
                _draw(await anext(told), bar)
        except TimeoutError:
            continue


def _draw(activity: ActivityV1, bar: ProgressBar) -> None:
    details = activity.details
    if activity.kind is ActivityKind.DVU_STARTED:
        bar.draw(0, details["affected"])
    elif activity.kind is ActivityKind.DVU_PROGRESS:
        bar.draw(details["done"], details["of"])


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
        say_json(plain)
        return
    status = response.status
    if isinstance(status, ErrorStatus):
        say(f"request {request_id} failed: {status.error.message}")
        return
    commit = status.success.commit
    how = "its values are up to date" if computed else "what depends on it follows"
    say(f"request {request_id} is commit {commit}; {how}")
    for correction in status.success.corrections:
        say(f"  update {correction.index}: {correction.code}: {correction.detail}")

"""A request from the command line to its commit and the update behind it, with a progress bar."""

from typing import Any, Final

from rebaser_client.activity_feed import ActivityFeed, watching
from rebaser_core.activities import ActivityKind, ActivityV1
from rebaser_core.commits import Commit
from rebaser_core.ids import ChangeSet, RequestId
from rebaser_core.jetstream import deadlines
from rebaser_core.messages import ErrorStatus
from rebaser_server.commands.render.failures import changed_by, failures
from rebaser_server.commands.render.result import RequestResult
from rebaser_server.commands.support.deployment import Deployment
from rebaser_server.commands.support.exit_codes import Exit
from rebaser_server.commands.support.pauses import warn_if_paused
from rebaser_server.terminal.lines import say, say_json
from rebaser_server.terminal.tables import ProgressBar, progress_bar

POLL_INTERVAL: Final = 2.0
"""Seconds without an activity after which the log is read: activities may be lost."""


async def follow(
    deployment: Deployment,
    change_set: ChangeSet,
    updates: list[Any],
    *,
    as_json: bool,
    request_id: RequestId | None = None,
    computed: bool = True,
    strict: bool = False,
) -> Exit:
    """Enqueue, await the reply and, if `computed`, the update that follows; print the outcome.

    The exit code tells whether Rebaser rejected the request, values failed because of it, or
    all updates were left out; with `strict`, whether any was corrected.
    """
    await warn_if_paused(deployment, change_set)
    failed = None
    with progress_bar("enqueue") as bar:
        async with watching(deployment.js, deployment.subjects, change_set) as activities:
            request_id, reply = await deployment.client.enqueue_updates_with_reply(
                *change_set, updates, request_id=request_id
            )
            bar.describe("waiting for its commit")
            response = await reply
            if computed and not isinstance(response.status, ErrorStatus):
                bar.describe("dependent values update")
                await _until_clean(deployment, change_set, activities, bar)
                commit = response.status.success.commit or 0
                failed = await failures(deployment, change_set, commit, changed_by(updates))
    result = RequestResult(response, len(updates), failed, strict=strict)
    if as_json:
        say_json(result.plain())
    else:
        say(*result.lines())
    return result.code


async def until_clean(deployment: Deployment, change_set: ChangeSet) -> None:
    """Return once the log says that no update is due; show a progress bar until then."""
    with progress_bar("dependent values update") as bar:
        async with watching(deployment.js, deployment.subjects, change_set) as activities:
            await _until_clean(deployment, change_set, activities, bar)


async def _until_clean(
    deployment: Deployment, change_set: ChangeSet, activities: ActivityFeed, bar: ProgressBar
) -> None:
    """Return once the log says that no update is due."""
    while await _due(deployment, change_set):
        try:
            async with deadlines.within(POLL_INTERVAL):
                _draw(await anext(activities), bar)
        except TimeoutError:
            continue


def _draw(activity: ActivityV1, bar: ProgressBar) -> None:
    details = activity.details
    if activity.kind is ActivityKind.DVU_STARTED:
        bar.draw(0, details["affected"])
    elif activity.kind is ActivityKind.DVU_PROGRESS:
        bar.draw(details["done"], details["of"])


async def _due(deployment: Deployment, change_set: ChangeSet) -> bool:
    entry = await deployment.js.get_message(
        deployment.subjects.commits_stream, last_by_subject=deployment.subjects.commits(change_set)
    )
    return entry is not None and Commit.decode(entry.headers, entry.payload).control.dvu_due

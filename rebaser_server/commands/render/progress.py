"""A request from the command line to its commit and the update behind it, with a progress bar."""

from typing import Any, Final

from rebaser_client.activity_feed import Activities, watching
from rebaser_core.activities import ActivityKind, ActivityV1
from rebaser_core.commits import Commit
from rebaser_core.ids import ChangeSet, RequestId
from rebaser_core.jetstream import deadlines
from rebaser_core.messages import ErrorStatus
from rebaser_server.commands.render.failures import changed_by, failures
from rebaser_server.commands.render.result import Result
from rebaser_server.commands.support.deployment import Deployment
from rebaser_server.commands.support.exit_codes import Exit
from rebaser_server.commands.support.pauses import warn_if_paused
from rebaser_server.terminal.lines import say, say_json
from rebaser_server.terminal.tables import ProgressBar, progress_bar

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
    strict: bool = False,
) -> Exit:
    """Enqueue, await the reply and, if `computed`, the update that follows; say what came of it.

    The exit code tells of a refusal, of values that the request made fail, and of updates
    that were left out: all of them or, if `strict`, any correction.
    """
    await warn_if_paused(at, change_set)
    failed = None
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
                commit = response.status.success.commit or 0
                failed = await failures(at, change_set, commit, changed_by(updates))
    result = Result(response, len(updates), failed, strict=strict)
    if as_json:
        say_json(result.plain())
    else:
        say(*result.lines())
    return result.code


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

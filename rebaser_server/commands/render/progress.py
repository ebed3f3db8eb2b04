"""A request from the command line to its commit and the update behind it, with a progress bar."""

from collections.abc import Iterable

from rebaser_client.outcomes import changed_by
from rebaser_client.requests import Updates
from rebaser_core.ids import ChangeSet, RequestId
from rebaser_core.messages import ErrorStatus
from rebaser_server.commands.render.failures import failures
from rebaser_server.commands.render.result import RequestResult
from rebaser_server.commands.render.wait_text import WaitText
from rebaser_server.commands.support.deployment import Deployment
from rebaser_server.commands.support.exit_codes import Exit
from rebaser_server.commands.support.pauses import warn_if_paused
from rebaser_server.terminal.lines import say, say_json
from rebaser_server.terminal.tables import ProgressBar, progress_bar


async def follow(
    deployment: Deployment,
    change_set: ChangeSet,
    updates: Updates,
    *,
    as_json: bool,
    request_id: RequestId | None = None,
    computed: bool = True,
    strict: bool = False,
    named: Iterable[str] = (),
) -> Exit:
    """Enqueue, await the reply and, if `computed`, the update that follows; print the outcome.

    The exit code tells whether Rebaser rejected the request, values that it affects or that are
    `named` have no result, or all updates were left out; with `strict`, whether any was corrected.
    """
    await warn_if_paused(deployment, change_set)
    failed = None
    with progress_bar("enqueue") as bar:
        request_id, reply = await deployment.client.enqueue_updates_with_reply(
            *change_set, updates, request_id=request_id
        )
        bar.describe("waiting for its commit")
        response = await WaitText(deployment, change_set, bar).until(reply)
        if computed and not isinstance(response.status, ErrorStatus):
            commit = response.status.success.commit or 0
            await _until_computed(deployment, change_set, commit, bar)
            failed = await failures(
                deployment, change_set, commit, changed_by(updates), named=named
            )
    result = RequestResult(response, len(updates), failed, strict=strict)
    if as_json:
        say_json(result.plain())
    else:
        say(*result.lines())
    return result.code


async def standing(
    deployment: Deployment, change_set: ChangeSet, named: Iterable[str], *, as_json: bool
) -> Exit:
    """Wait until nothing is left to be computed, where nothing was sent; print what has no result.

    The exit code tells whether a value that is `named` failed or is blocked.
    """
    settled = await deployment.client.settled(*change_set)
    failed = await failures(deployment, change_set, settled.commit + 1, (), named=named)
    if not as_json:
        say(*failed.lines())
    return Exit.VALUES_FAILED if failed.stand else Exit.OK


async def until_computed(deployment: Deployment, change_set: ChangeSet, commit: int | None) -> None:
    """Return once all that the commit, or the last one, left to be computed is; show a bar."""
    with progress_bar("dependent values update") as bar:
        await _until_computed(deployment, change_set, commit, bar)


async def _until_computed(
    deployment: Deployment, change_set: ChangeSet, commit: int | None, bar: ProgressBar
) -> None:
    bar.describe("dependent values update")
    text = WaitText(deployment, change_set, bar)
    async for progress in deployment.client.progress(*change_set, commit):
        await text.show(progress)

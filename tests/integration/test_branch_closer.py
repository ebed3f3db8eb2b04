"""A branch that is closed is done with: nothing of it is computed any more."""

from itertools import pairwise

from rebaser_core.ids import ChangeSet
from rebaser_server.runtime.tasks import background
from tests.helpers.batches import set_to
from tests.helpers.deployment import Deployment
from tests.helpers.eventually import eventually
from tests.helpers.workspace import Team
from tests.integration.test_killed_branches import Mortal, ask


async def test_head_that_comes_with_the_end_of_a_branch_has_nothing_computed_there(
    deployment: Deployment,
) -> None:
    """Where there is nothing to apply it is closed in the very line that takes over head's."""
    await deployment.start()
    team = await Team(deployment).begin()
    branch = await team.fork()
    await team.send(team.head, [set_to(team.sum.tax, 60)])

    await team.client.change_set(*branch).apply()
    await deployment.at_rest()

    heads = await heads_of(deployment, branch)
    closed = next(n for n, head in enumerate(heads) if head.closing is not None)
    assert not heads[closed].dvu_due
    assert all(head.claim is None for head in heads[closed:])
    assert all(b.clean_sequence >= a.clean_sequence for a, b in pairwise(heads))


async def heads_of(deployment: Deployment, change_set: ChangeSet) -> list:
    log = deployment.archive(change_set).log
    until, _ = await log.last()
    first = await log.oldest()
    assert first is not None
    return [line.control async for _, line in log.entries(first.previous, until)]


async def test_a_fork_of_a_closed_branch_has_computed_what_that_had_not(
    deployment: Deployment,
) -> None:
    """Closing gives up what was to be computed there, but not in what is forked from it."""
    daemon = await deployment.start()
    team = await Team(deployment).begin()
    await team.becomes(team.head, team.sum.gross, 3)
    closed = await team.fork()
    await deployment.at_rest()
    daemon.kill()
    await team.client.enqueue_updates(*closed, [set_to(team.sum.net, 40)])
    await ask(deployment, closed, "abandon")
    owner = await Mortal.of(deployment, closed)
    await owner.handle()  # and nobody computes anything
    await owner.own.release()

    fork = await team.fork("again", base=closed.change_set_id)
    await deployment.start()
    await team.client.change_set(*fork).refresh()

    await team.becomes(fork, team.sum.gross, 42)
    await deployment.at_rest()
    assert await team.value(closed, team.sum.gross) == 3


async def test_a_branch_that_waits_for_head_ensures_a_task_for_head(deployment: Deployment) -> None:
    """The run before may have ended when the difference was stored, and nobody told of it."""
    daemon = await deployment.start()
    team = await Team(deployment).begin()
    branch = await team.fork()
    await team.send(branch, [set_to(team.sum.net, 40)])
    await deployment.at_rest()
    daemon.kill()
    await ask(deployment, branch, "apply")
    owner = await Mortal.of(deployment, branch)
    await owner.handle()
    await owner.send()
    js, streams = deployment.js, deployment.streams
    stored = await js.get_message(streams.tasks_stream, last_by_subject=streams.task(team.head))
    assert stored is not None
    await js.delete_message(streams.tasks_stream, stored.sequence)

    async with background(owner.deliver()):

        async def there_is_one() -> bool:
            return streams.task(team.head) in await js.stream_subjects(streams.tasks_stream)

        await eventually(there_is_one)

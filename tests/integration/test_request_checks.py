"""Requests of a stream that was made anew are refused, named by the doctor, and replayed (S-5)."""

from rebaser_core.ids import ChangeSet
from rebaser_server.commands.support.arguments import Exit
from rebaser_server.ops.dead_letters import replay
from rebaser_server.processor.request_queue import RequestQueue
from tests.helpers.batches import new_id, put
from tests.helpers.deployment import Deployment, new_change_sets
from tests.helpers.eventually import eventually
from tests.helpers.scripted_owner import Owner
from tests.integration.test_backup import LOST, doctor
from tests.integration.test_other_pasts import make_anew


async def test_a_request_below_the_last_sequence_that_was_not_handled_stays(
    deployment: Deployment,
) -> None:
    """Others' requests fill a stream made anew up to the sequence that was handled."""
    mine, others = new_change_sets(2)
    client, requests = deployment.client, deployment.streams.requests_stream
    first = await deployment.start("first")
    for number in range(4):
        await client.enqueue_updates(*mine, [put(new_id(), number)])
    await deployment.at_rest()
    first.kill()
    await make_anew(deployment, requests)
    await client.enqueue_updates(*mine, [put(new_id(), 5)])
    for number in range(4):
        await client.enqueue_updates(*others, [put(new_id(), number)])

    lines = await deployment.js.stream_subjects(
        deployment.streams.commits_stream, deployment.streams.commits(mine)
    )

    second = await deployment.start("second")
    await eventually(lambda: bool(second.said("history broken")))

    async def only_mine_is_left() -> bool:
        left = await deployment.js.stream_subjects(requests)
        return left == {deployment.streams.requests(mine): 1}

    await eventually(only_mine_is_left)
    assert "made anew" in second.said("history broken")[0]["reason"]
    assert len((await deployment.graph(mine)).values) == 4
    assert lines == await deployment.js.stream_subjects(
        deployment.streams.commits_stream, deployment.streams.commits(mine)
    )
    await doctor_has_them_replayed(deployment, mine, "made anew")


async def doctor_has_them_replayed(
    deployment: Deployment, change_set: ChangeSet, what: str
) -> None:
    """The doctor names them and moves them to the dead letters; a replay enqueues them anew."""

    async def is_named_alone() -> bool:  # once what the others have in hand has come to rest
        code, found = await doctor(deployment)
        named = [what in finding for finding in found if LOST not in finding]
        return (code, named) == (Exit.REPAIRABLE, [True])

    await eventually(is_named_alone, within=60)
    assert (await doctor(deployment, repair=True))[0] == Exit.OK
    [letter] = await deployment.dead_letters(change_set)
    batches = deployment.archive(change_set).batches
    streams = deployment.streams
    await replay(streams, batches, deployment.client, letter.stream_sequence)
    state, first = (
        await deployment.archive(change_set).load(),
        await RequestQueue(streams, change_set).lowest(),
    )
    assert first is not None
    assert first.sequence > state.control.last_sequence


async def test_a_stream_that_ends_before_what_was_handled_is_named(
    deployment: Deployment,
) -> None:
    """With the number above which it has to begin; a purge to there mends it."""
    owner = await Owner.of(deployment, new_change_sets(1)[0])
    for number in range(3):
        await owner.commit([put(new_id(), number)])

    code, [what] = await doctor(deployment)

    assert (code, what.startswith("ends at 0, but 3 was handled")) == (Exit.DAMAGED, True)
    await deployment.js.purge(deployment.streams.requests_stream, below_sequence=4)
    assert await doctor(deployment) == (Exit.OK, [])

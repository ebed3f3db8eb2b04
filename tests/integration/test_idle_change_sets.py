"""A change set at rest costs nothing: no line is written before there is work (W2b)."""

from rebaser_core.ids import ChangeSet
from rebaser_core.requests import ensure_task
from tests.helpers.batches import ExampleGraph
from tests.helpers.deployment import Deployment, new_change_sets
from tests.helpers.eventually import eventually

POKES = 20


async def test_pokes_write_no_lines_and_find_a_request_all_the_same(
    deployment: Deployment,
) -> None:
    [used, stray], values = new_change_sets(2), ExampleGraph()
    daemon = await deployment.start(QUIET_PERIOD="0.05")
    await deployment.client.enqueue_updates(*used, values.define(3, 4))
    await deployment.at_rest()
    before = await lines(deployment)

    for number in range(1, POKES + 1):
        for change_set in (used, stray):
            await ensure_task(deployment.streams, change_set)
        await eventually(lambda number=number: len(daemon.said("quiet")) > 2 * number, within=60)
        await deployment.at_rest()

    assert await lines(deployment) == before
    assert stray not in [deployment.streams.parse_change_set(subject) for subject in before]
    await deployment.client.enqueue_updates(*stray, values.define(5, 6))
    await deployment.at_rest()
    assert (await deployment.graph(stray)).values[values.gross].value == 11


async def lines(deployment: Deployment) -> dict[str, int]:
    """Of each change set's log, without those that a purge takes."""
    stream = deployment.streams.commits_stream
    return dict(await deployment.js.stream_subjects(stream))


async def test_a_history_that_stays_broken_grows_by_no_lines(deployment: Deployment) -> None:
    """Here the requests' stream was lost, and ends before what was handled (S-5)."""
    [change_set], values = new_change_sets(1), ExampleGraph()
    first = await deployment.start("first")
    await deployment.client.enqueue_updates(*change_set, values.define(3, 4))
    await deployment.at_rest()
    first.kill()
    await lose_the_requests(deployment, change_set)
    before = await lines(deployment)

    second = await deployment.start("second")
    await eventually(lambda: bool(second.said("history broken")), within=60)

    assert await lines(deployment) == before


async def lose_the_requests(deployment: Deployment, change_set: ChangeSet) -> None:
    """As whoever deletes the stream and makes it again, from its beginning."""
    stream = deployment.streams.requests_stream
    config = await deployment.js.stream_config(stream)
    await deployment.js.delete_stream(stream)
    await deployment.js.ensure_stream(config)
    await ensure_task(deployment.streams, change_set)

"""Many change sets: what is at rest costs nothing, what is known slows nothing."""

import asyncio
from collections.abc import Sequence

import pytest

from rebaser_core.ids import ChangeSet, ChangeSetId, WorkspaceId
from rebaser_core.subjects import TASKS_CONSUMER
from rebaser_server.cluster.reconciler import Reconciler, UnfinishedScanner
from tests.helpers.batches import ExampleGraph
from tests.helpers.deployment import Deployment
from tests.helpers.eventually import eventually
from tests.helpers.idle_change_sets import load

LARGE = pytest.mark.slow
AT_ONCE = 32


@pytest.mark.parametrize("count", [300, pytest.param(9_900, marks=LARGE)])
async def test_change_sets_in_hand_with_nothing_to_do_have_no_consumer(
    deployment: Deployment, count: int
) -> None:
    """Each has its task and its owner; the next request of any is applied as ever."""
    workspaces = [WorkspaceId() for _ in range(30)]
    change_sets = [ChangeSet(workspaces[n % 30], ChangeSetId()) for n in range(count)]
    # The lease of production: reports every fraction of a second would be all the work there is.
    lease = {"ACK_WAIT": "120"}
    await deployment.js.delete_consumer(deployment.streams.tasks_stream, TASKS_CONSUMER)
    await deployment.start(CONCURRENCY=str(count + 100), QUIET_PERIOD="600", **lease)

    await _apply(deployment, change_sets)

    await eventually(lambda: _readers(deployment, 0), within=120)
    tasks = await deployment.js.stream_subjects(deployment.streams.tasks_stream)
    assert len(tasks) == count
    await _apply(deployment, change_sets[:: count // 20])


@pytest.mark.parametrize("known", [2_000, pytest.param(1_000_000, marks=LARGE)])
async def test_the_reconciler_does_not_read_known_change_sets(
    deployment: Deployment, known: int
) -> None:
    change_sets = await load(deployment.js, known)
    stream = deployment.streams.commits_stream
    unfinished = UnfinishedScanner(deployment.js, stream)

    await unfinished.scan(100)
    before = unfinished._next
    await unfinished.scan(100)

    assert (unfinished._next - before) % known == 100
    assert await Reconciler(deployment.streams, 60).reconcile() == 0
    await deployment.start()
    await _apply(deployment, change_sets[:: known // 5])
    await deployment.at_rest()


async def _readers(deployment: Deployment, count: int) -> bool:
    info = await deployment.js.stream_info(deployment.streams.requests_stream)
    return bool(info.state.consumer_count == count)


async def _apply(deployment: Deployment, change_sets: Sequence[ChangeSet]) -> None:
    todo, values = iter(change_sets), ExampleGraph()

    async def send() -> None:
        for change_set in todo:
            _, reply = await deployment.client.enqueue_updates_with_reply(
                *change_set, values.define()
            )
            assert (await reply).status.success

    await asyncio.gather(*(send() for _ in range(AT_ONCE)))

"""More change sets than slots: they take turns without a checkpoint each, which is made up for."""

import asyncio
from collections.abc import Sequence

import pytest

from rebaser_core.ids import ChangeSet
from rebaser_server.commit_log.log import UNSAVED
from rebaser_server.graph_application.state_machine import open_checkpoints
from tests.helpers.batches import ExampleGraph, set_to
from tests.helpers.deployment import Deployment, new_change_sets
from tests.helpers.eventually import eventually


async def send(deployment: Deployment, change_sets: Sequence[ChangeSet], batch: object) -> None:
    async def one(change_set: ChangeSet) -> None:
        _, reply = await deployment.client.enqueue_updates_with_reply(*change_set, batch)
        await reply

    await asyncio.gather(*map(one, change_sets))


async def commits_in_checkpoints(
    deployment: Deployment, change_sets: Sequence[ChangeSet]
) -> list[bool]:
    """Whether each change set's last checkpoint has its last request."""
    checkpoints = open_checkpoints(deployment.settings.store)

    def is_saved(change_set: ChangeSet, last: int) -> bool:
        metadata = checkpoints.metadata(change_set)
        return metadata is not None and metadata["control"]["lastSequence"] == last

    controls = [(await deployment.archive(each).log.last())[1] for each in change_sets]
    return [
        control is not None
        and await asyncio.to_thread(is_saved, change_set, control.control.last_sequence)
        for change_set, control in zip(change_sets, controls, strict=True)
    ]


async def is_marked(deployment: Deployment, change_set: ChangeSet) -> bool:
    streams = deployment.streams
    last = await deployment.js.get_message(
        streams.commits_stream, last_by_subject=streams.commits(change_set)
    )
    return last is not None and UNSAVED in last.headers


@pytest.mark.long
async def test_change_sets_take_turns_and_their_checkpoints_follow(deployment: Deployment) -> None:
    """W10d: none is written to make room; X2b: the process makes up for each later."""
    change_sets, values = new_change_sets(6), ExampleGraph()
    await deployment.start(CONCURRENCY="2", QUIET_PERIOD="0.6", RECONCILE_INTERVAL="3600")

    await send(deployment, change_sets, values.define())
    for number in range(3):
        await send(deployment, change_sets, [set_to(values.net, number)])

    async def all_saved() -> bool:
        return all(await commits_in_checkpoints(deployment, change_sets))

    await eventually(all_saved, within=60)
    await deployment.at_rest()
    for change_set in change_sets:
        assert not await is_marked(deployment, change_set)
        graph = await deployment.graph(change_set)
        assert graph.values[values.net].value == 2


@pytest.mark.long
async def test_what_a_killed_daemon_left_without_a_checkpoint_another_one_finds(
    deployment: Deployment,
) -> None:
    """X2b: by the header of the last commit, as the reconciler reads the logs."""
    change_sets, values = new_change_sets(3), ExampleGraph()
    daemon = await deployment.start(CONCURRENCY="1", QUIET_PERIOD="600", RECONCILE_INTERVAL="3600")
    for change_set in change_sets:
        await send(deployment, [change_set], values.define())

    async def two_made_room() -> bool:
        marked = [await is_marked(deployment, change_set) for change_set in change_sets[:2]]
        return all(marked)

    await eventually(two_made_room)
    daemon.kill()
    await deployment.start(QUIET_PERIOD="0.3", RECONCILE_INTERVAL="0.5")

    async def all_saved() -> bool:
        return all(await commits_in_checkpoints(deployment, change_sets))

    await eventually(all_saved, within=60)


async def test_what_a_dead_daemon_had_in_hand_goes_on_without_a_checkpoint_first(
    deployment: Deployment,
) -> None:
    """Its next owner writes one when the change set is quiet, as its owner would have."""
    [change_set], values = new_change_sets(1), ExampleGraph()
    daemon = await deployment.start("first", QUIET_PERIOD="600")
    await send(deployment, [change_set], values.define())

    async def is_settled_by(owner: str) -> bool:
        _, last = await deployment.archive(change_set).log.last()
        assert last is not None
        return last.control.owner.startswith(f"{owner}/") and not last.control.unfinished

    await eventually(lambda: is_settled_by("first"))
    daemon.kill()
    await deployment.start("second", QUIET_PERIOD="600")
    await eventually(lambda: is_settled_by("second"))
    await send(deployment, [change_set], [set_to(values.net, 1)])
    assert not open_checkpoints(deployment.settings.store).last_commit(change_set)

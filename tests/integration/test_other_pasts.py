"""A log, a store or requests of another past are refused: no state is made of two (S-5, S-6)."""

from dataclasses import replace

import pytest

from rebaser_core.commits import CommitV2, ControlState
from rebaser_core.ids import ChangeSet, RequestId
from rebaser_core.stream_configs import stream_configs
from rebaser_server.commit_log.state_loader import StateCache
from rebaser_server.errors import HistoryInconsistent
from rebaser_server.graph_application.content import graph_of
from rebaser_server.service.composition import provisioner_of
from tests.helpers.batches import new_id, put, set_to
from tests.helpers.deployment import Deployment, new_change_sets
from tests.helpers.scripted_owner import EVERYTHING, Owner

OTHER_PAST = "different pasts"


async def make_anew(deployment: Deployment, stream: str) -> None:
    """Have an empty stream, whose sequences begin at 1 again."""
    [config] = [
        config
        for config in stream_configs(
            deployment.streams, provisioner_of(deployment.js, deployment.settings).options
        )
        if config.name == stream
    ]
    await deployment.js.delete_stream(stream)
    await deployment.js.create_stream(config)


async def checkpointed(
    deployment: Deployment, change_set: ChangeSet, count: int
) -> tuple[int, str]:
    """Commit so many batches, and a checkpoint of the last; its commit and a value's id."""
    owner, value = await Owner.of(deployment, change_set, EVERYTHING), new_id()
    await owner.commit([put(value, 0)])
    for number in range(1, count):
        await owner.commit([set_to(value, number)])
    return await owner.checkpoint(), value


async def test_a_line_behind_others_commits_that_follows_no_checkpoint_is_refused(
    deployment: Deployment,
) -> None:
    """Other change sets' commits fill the numbers up to that of the checkpoint."""
    mine, others = new_change_sets(2)
    checkpoint, _ = await checkpointed(deployment, mine, 5)
    await make_anew(deployment, deployment.streams.commits_stream)
    with pytest.raises(HistoryInconsistent, match="older backup"):
        await Owner.of(deployment, mine)

    await checkpointed(deployment, others, checkpoint + 5)

    with pytest.raises(HistoryInconsistent, match=OTHER_PAST):
        await Owner.of(deployment, mine)
    with pytest.raises(HistoryInconsistent, match=OTHER_PAST):
        await deployment.archive(mine).load()


async def test_a_commit_of_the_checkpoints_number_and_another_id_is_refused(
    deployment: Deployment,
) -> None:
    [change_set] = new_change_sets(1)
    checkpoint, _ = await checkpointed(deployment, change_set, 5)
    await make_anew(deployment, deployment.streams.commits_stream)
    log = deployment.archive(change_set).log
    for lines in range(checkpoint + 2):
        await write_line(deployment, change_set, lines)

    for at in (checkpoint, None):
        with pytest.raises(HistoryInconsistent, match=f"commit {checkpoint} is .*{OTHER_PAST}"):
            await deployment.archive(change_set).load(at)
    assert (await log.last())[0] == checkpoint + 2


@pytest.mark.parametrize("lines", [2, 6])
async def test_a_state_that_a_reader_keeps_is_dropped_with_its_past(
    deployment: Deployment, lines: int
) -> None:
    """Whether the log ends before it, or has another commit in its place."""
    [change_set] = new_change_sets(1)
    owner = await Owner.of(deployment, change_set)
    for number in range(5):
        await owner.commit([put(new_id(), number)])
    reader = replace(deployment.archive(change_set), cache=StateCache(1 << 30))
    assert len((await reader.read(graph_of)).values) == 5
    assert owner.own.state.commit == 6
    await make_anew(deployment, deployment.streams.commits_stream)
    for previous in range(lines):
        await write_line(deployment, change_set, previous)

    assert not (await reader.read(graph_of)).values


async def write_line(deployment: Deployment, change_set: ChangeSet, previous: int) -> None:
    """Write a commit that changes no value."""
    line = CommitV2(id=RequestId(), previous=previous, control=ControlState())
    await deployment.archive(change_set).log.append([line])

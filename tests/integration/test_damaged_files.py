"""A bit that flips in NATS's files is found and named, and nothing goes on as if it had not."""

import asyncio
from pathlib import Path

import pytest

from rebaser_server.commands.support.arguments import Exit
from rebaser_server.errors import HistoryInconsistent
from tests.helpers.batches import new_id, put
from tests.helpers.deployment import Deployment, new_change_sets
from tests.helpers.scripted_owner import Owner
from tests.integration.test_backup import doctor

COMMITS = 10


async def flip(deployment: Deployment, directory: Path, marker: bytes) -> None:
    """Flip a bit behind the marker in the log's file, while the server is stopped."""
    stream = directory / "nats/jetstream/$G/streams" / deployment.streams.commits_stream
    await asyncio.to_thread(deployment.nats.stop)
    [file] = (stream / "msgs").glob("*.blk")
    octets = bytearray(file.read_bytes())
    octets[octets.rindex(marker) + len(marker) + 1] ^= 1
    file.write_bytes(octets)
    await asyncio.to_thread(deployment.nats.start)


@pytest.fixture
async def owner(deployment: Deployment) -> Owner:
    await deployment.js.purge(deployment.streams.requests_stream, below_sequence=100)
    owner = await Owner.of(deployment, new_change_sets(1)[0])
    for number in range(COMMITS):
        await owner.commit([put(new_id(), number)])
    return owner


async def test_a_log_whose_last_commit_is_damaged_is_not_taken_for_an_empty_one(
    deployment: Deployment, owner: Owner, tmp_path: Path
) -> None:
    """Without a checkpoint, which would know better."""
    await flip(deployment, tmp_path, b"previous")

    with pytest.raises(HistoryInconsistent, match="its last one cannot be read"):
        await owner.archive.load()
    with pytest.raises(HistoryInconsistent, match="its last one cannot be read"):
        await Owner.of(deployment, owner.archive.change_set)


async def test_a_damaged_commit_in_the_middle_is_missed(
    deployment: Deployment, owner: Owner, tmp_path: Path
) -> None:
    """Behind the checkpoint by whoever loads the state, before it by the doctor."""
    middle = await owner.archive.log.entry(COMMITS // 2)
    assert middle is not None
    await flip(deployment, tmp_path, str(middle.id).encode())

    with pytest.raises(HistoryInconsistent, match="commits are missing"):
        await owner.archive.load()

    await owner.checkpoint()
    await owner.archive.load()
    code, [what] = await doctor(deployment)
    assert (code, "commits are missing" in what) == (Exit.REPAIRABLE, True)


@pytest.mark.long
async def test_the_doctor_does_not_wait_for_a_last_commit_that_nats_cannot_read(
    deployment: Deployment, owner: Owner, tmp_path: Path
) -> None:
    await owner.checkpoint()
    await flip(deployment, tmp_path, b"previous")

    code, findings = await doctor(deployment)

    assert code == Exit.DAMAGED
    assert any("its last one cannot be read" in finding for finding in findings)

"""Messages that NATS had confirmed and has no more are noticed, said and kept until read (S-8)."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from rebaser_server.cluster.nats_watch import Loss, StreamEnds
from rebaser_server.commands.support.arguments import Exit
from rebaser_server.commit_log.batch_store import open_shared_files
from rebaser_server.files import STREAM_ENDS
from tests.helpers.deployment import Deployment, deployed, new_change_sets
from tests.helpers.eventually import eventually
from tests.helpers.nats_process import MONITORING, NatsServer, running
from tests.integration.test_doctor import doctor
from tests.integration.test_ops_endpoint import started
from tests.integration.test_other_pasts import make_anew


@pytest.fixture
def ends(deployment: Deployment) -> StreamEnds:
    return ends_of(deployment)


def ends_of(deployment: Deployment) -> StreamEnds:
    files = open_shared_files(deployment.settings.store, deployment.streams)
    return StreamEnds(deployment.streams, files)


async def stored(deployment: Deployment, count: int) -> None:
    """Have so many requests in their stream, each for another change set."""
    for change_set in new_change_sets(count):
        await deployment.js.publish(deployment.streams.requests(change_set), b"")


async def lost(ends: StreamEnds) -> list[Loss]:
    return await ends.losses(await ends.noted())


async def test_nothing_is_lost_where_messages_come_and_go(
    deployment: Deployment, ends: StreamEnds
) -> None:
    assert await lost(ends) == []  # of a store that knows no end
    await ends.note(await ends.present())
    await stored(deployment, 3)
    assert await lost(ends) == []  # of one that knew them empty
    await ends.note(await ends.present())

    await stored(deployment, 2)
    await deployment.js.purge(deployment.streams.requests_stream, below_sequence=5)

    assert await lost(ends) == []


@pytest.mark.parametrize("later", [0, 2, 3, 5])
async def test_an_end_that_was_seen_and_is_not_there_is_a_loss(
    deployment: Deployment, ends: StreamEnds, later: int
) -> None:
    """Whether the stream comes as far again since, or further."""
    await stored(deployment, 3)
    await ends.note(await ends.present())
    await make_anew(deployment, deployment.streams.requests_stream)
    await stored(deployment, later)

    [loss] = await lost(ends)

    assert (loss.stream, loss.noted.sequence) == (deployment.streams.requests_stream, 3)
    assert loss.found.sequence == later


async def test_the_doctor_names_a_loss_until_a_person_has_read_of_it(
    deployment: Deployment, ends: StreamEnds, capsys: Any
) -> None:
    await stored(deployment, 3)
    await ends.note(await ends.present())
    await make_anew(deployment, deployment.streams.requests_stream)

    code, [found] = await doctor(deployment, capsys)
    again, [forgotten] = await doctor(deployment, capsys, repair=True)

    assert (code, again) == (Exit.REPAIRABLE, Exit.OK)
    assert (found["check"], found["where"]) == ("losses", deployment.streams.requests_stream)
    assert found["what"].startswith(f"{found['where']} ended at 3 at ")
    assert forgotten["repaired"]
    assert await doctor(deployment, capsys) == (Exit.OK, [])


async def test_a_rebaser_says_at_its_start_what_is_lost_and_goes_on(
    deployment: Deployment, ends: StreamEnds, capsys: Any
) -> None:
    await stored(deployment, 3)
    await ends.note(await ends.present())
    await make_anew(deployment, deployment.streams.requests_stream)

    daemon = await started(deployment)

    [line] = daemon.said("confirmed messages lost")
    assert line["stream"] == deployment.streams.requests_stream
    assert await lost(ends) == []  # what is there counts
    _, findings = await doctor(deployment, capsys)
    assert [finding["check"] for finding in findings] == ["losses"]


async def test_a_rebaser_notes_the_ends_at_once_where_nats_syncs_periodically(
    tmp_path: Path,
) -> None:
    """Elsewhere once a period, which no test is as long as."""
    with running(NatsServer(tmp_path / "nats", MONITORING)) as server:
        async with deployed(server, tmp_path) as deployment:
            ends, stream = ends_of(deployment), deployment.streams.requests_stream
            await started(deployment, RECONCILE_INTERVAL="600", NATS__MONITORING=server.monitoring)
            await stored(deployment, 3)

            async def has_them() -> bool:
                return (await ends.noted())[stream].sequence == 3

            await eventually(has_them)


async def test_a_restart_of_nats_that_syncs_periodically_is_said_once(tmp_path: Path) -> None:
    """What came after the last look may be lost; what was there then is not."""
    with running(NatsServer(tmp_path / "nats", MONITORING)) as server:
        async with deployed(server, tmp_path) as deployment:
            ends = ends_of(deployment)
            await stored(deployment, 3)
            await ends.note(await ends.present())
            server.kill()
            await asyncio.to_thread(server.start)

            said = []
            for _ in range(2):
                daemon = await started(deployment, NATS__MONITORING=server.monitoring)
                said.append(daemon.said("confirmed messages may be lost"))

    assert [len(lines) for lines in said] == [1, 0]


@pytest.mark.parametrize("payload", [b"", b"[]", b'{"REBASER_REQUESTS": {"sequence": 1}}'])
async def test_ends_that_cannot_be_read_are_none(ends: StreamEnds, payload: bytes) -> None:
    ends.files.put(STREAM_ENDS, payload)

    assert await ends.noted() == {}

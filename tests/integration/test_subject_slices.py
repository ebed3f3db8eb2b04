"""Rounds over what waits are bounded: of many change sets each round looks at a part (X1)."""

import asyncio
import json
from typing import Any

import pytest
from nats.aio.msg import Msg

from rebaser_core.jetstream import JetStream, NatsUnreachable, NotListed, api
from rebaser_server.cluster.membership import Membership
from rebaser_server.cluster.reconciler import Reconciler, StrayRequests, SubjectSlices
from rebaser_server.ops import status
from tests.helpers.deployment import Deployment, new_change_sets
from tests.helpers.poison_data import publish_raw

MANY, FEW = 50, 8


async def lists(deployment: Deployment) -> list[Any]:
    """What is asked of NATS from now on that makes it go through all subjects."""
    asked = list[Any]()

    async def see(message: Msg) -> None:
        if message.data and "subjects_filter" in json.loads(message.data):
            asked.append(message.subject)

    await deployment.nc.subscribe("$JS.API.STREAM.INFO.>", cb=see)
    await deployment.nc.flush()
    return asked


async def test_slices_of_a_stream_go_round_through_all_subjects(deployment: Deployment) -> None:
    """Each is bounded, wherever the first one begins; what comes meanwhile has its turn."""
    streams = [deployment.streams.requests(each) for each in new_change_sets(MANY)]
    for subject in streams[:-1]:
        await deployment.js.publish(subject, b"x")
    stream = deployment.streams.requests_stream
    slices = SubjectSlices(deployment.js, stream, few=FEW, size=10)
    asked = await lists(deployment)

    seen = set[str]()
    for number in range(12):
        if number == 3:
            await deployment.js.publish(streams[-1], b"x")
        some = await slices.next()
        assert len(some) <= 10
        seen.update(some)

    assert seen == set(streams)
    await deployment.nc.flush()
    assert asked == []


async def test_few_subjects_are_listed_at_once(deployment: Deployment) -> None:
    streams = {deployment.streams.requests(each) for each in new_change_sets(FEW)}
    slices = SubjectSlices(deployment.js, deployment.streams.requests_stream, few=FEW)

    assert set(await slices.next()) == set()
    for subject in streams:
        await deployment.js.publish(subject, b"x")
    assert set(await slices.next()) == streams


@pytest.mark.parametrize("with_tasks", [3, MANY - 3])
async def test_of_many_change_sets_each_without_a_task_gets_one(
    deployment: Deployment, with_tasks: int
) -> None:
    """Whether the tasks are few or many, and however many are paused."""
    js, streams, change_sets = deployment.js, deployment.streams, new_change_sets(MANY)
    for number, change_set in enumerate(change_sets):
        await js.publish(streams.requests(change_set), b"x")
        if number < with_tasks:
            await js.publish(streams.task(change_set), b"")
    paused = change_sets[-1]
    reconciler = Reconciler(streams, 60, paused=paused.__eq__, few=FEW)
    before = await lists(deployment)

    made = [await reconciler.reconcile() for _ in range(2)]

    await deployment.nc.flush()
    assert sum(made) == MANY - 1 - with_tasks
    if with_tasks > FEW:
        assert before == []
    assert len(await js.stream_subjects(streams.tasks_stream)) == MANY - 1


async def test_a_stray_among_many_requests_is_moved(deployment: Deployment) -> None:
    """Also one whose subject is no text."""
    js, streams = deployment.js, deployment.streams
    for change_set in new_change_sets(MANY):
        await js.publish(streams.requests(change_set), b"x")
    strays = [b"rebaser.requests.\xff.x", b"rebaser.requests.x"]
    await publish_raw(deployment.nats.port, [(subject, b"body") for subject in strays])
    mover = StrayRequests(streams, Membership(streams, "me"), few=FEW)

    for _ in range(2):
        await mover.move()

    assert len(await js.stream_subjects(streams.requests_stream)) == MANY
    letters = await js.stream_info(streams.dead_letters_stream)
    assert letters.state.messages == len(strays)


async def test_the_page_counts_what_waits_and_lists_none_of_very_many(
    deployment: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A look at the page asks NATS for no more than while few wait."""
    monkeypatch.setattr(status, "_MOST_SUBJECTS", FEW)
    monkeypatch.setattr(status, "_FRESH", 0)
    queues, asked = status.QueueWatch(deployment.streams), await lists(deployment)
    for change_set in new_change_sets(FEW):
        await deployment.js.publish(deployment.streams.requests(change_set), b"x")
    few = await queues.look()
    await deployment.js.publish(deployment.streams.requests(new_change_sets(1)[0]), b"x")
    await deployment.nc.flush()
    asked.clear()

    very_many = await queues.look()

    await deployment.nc.flush()
    assert (few.change_sets_waiting, len(few.deepest)) == (FEW, FEW)
    assert (very_many.change_sets_waiting, very_many.deepest) == (FEW + 1, [])
    assert asked == []


async def test_a_list_of_subjects_has_a_limit_of_its_own(deployment: Deployment) -> None:
    """Hundreds of thousands take NATS longer than any other question."""
    js, stream = deployment.js, deployment.streams.requests_stream
    pending = [
        await js.publish_async(deployment.streams.requests(each), b"x")
        for each in new_change_sets(5_000)
    ]
    for each in pending:
        await each.result(30)

    hurried = JetStream(deployment.nc, timeout=0.001)

    assert len(await hurried.stream_subjects(stream)) == len(pending)


async def test_one_subject_is_asked_for_like_anything_else(deployment: Deployment) -> None:
    """NATS finds it at once; so a lost answer is not waited for as long as for a list."""
    subject = deployment.streams.requests(new_change_sets(1)[0])
    await deployment.js.publish(subject, b"x")
    hurried, stream = JetStream(deployment.nc, timeout=0.1), deployment.streams.requests_stream

    assert await deployment.js.stream_subjects(stream, subject) == {subject: 1}
    deployment.nats.freeze()
    with pytest.raises(NatsUnreachable, match=r"within 0\.1 s"):
        async with asyncio.timeout(30):
            await hurried.stream_subjects(stream, subject)

    deployment.nats.thaw()


async def test_a_list_that_takes_too_long_does_not_blame_the_connection(
    deployment: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(api, "LISTING_TIMEOUT", 0.2)
    stream = deployment.streams.requests_stream
    deployment.nats.freeze()

    with pytest.raises(NotListed, match=f"has not listed the subjects of {stream}"):
        await JetStream(deployment.nc, timeout=0.1).stream_subjects(stream)

    deployment.nats.thaw()

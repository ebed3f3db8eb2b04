"""Requests that a run has handled are deleted, and no other one is (W9)."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from nats.aio.msg import Msg

from rebaser_core.ids import ChangeSet
from rebaser_core.jetstream import ConnectOptions, JetStream, StreamConfig, connected
from rebaser_core.subjects import Subjects
from rebaser_server.processor import request_queue
from rebaser_server.processor.request_queue import MAX_TOGETHER, HandledRequests
from rebaser_server.service.composition import prepare
from rebaser_server.settings.settings import Settings
from tests.helpers.deployment import new_change_sets
from tests.helpers.eventually import eventually
from tests.helpers.nats_process import NatsServer

SUBJECTS = Subjects()
STREAM = SUBJECTS.requests_stream


@pytest.fixture
async def js(nats_server: NatsServer, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[JetStream]:
    monkeypatch.setattr(request_queue, "MAX_DELAY", 600)  # however slow the machine is
    async with connected(ConnectOptions(servers=(nats_server.url,))) as nc:
        await prepare(JetStream(nc), Settings())
        yield JetStream(nc)


@pytest.fixture
def change_set() -> ChangeSet:
    return new_change_sets(1)[0]


async def store(js: JetStream, change_set: ChangeSet, count: int) -> list[int]:
    subject = SUBJECTS.requests(change_set)
    return [(await js.publish(subject, b"x")).sequence for _ in range(count)]


def handled_of(js: JetStream, change_set: ChangeSet) -> HandledRequests:
    return HandledRequests(js, STREAM, SUBJECTS.requests(change_set))


async def left(js: JetStream, change_set: ChangeSet) -> int:
    subject = SUBJECTS.requests(change_set)
    return (await js.stream_subjects(STREAM, subject)).get(subject, 0)


@asynccontextmanager
async def asked(js: JetStream) -> AsyncIterator[list[str]]:
    """The calls that delete something, by their verbs."""
    verbs = list[str]()

    async def note(message: Msg) -> None:
        verbs.append(message.subject.removeprefix("$JS.API.STREAM.").rpartition(".")[0])

    subjects = ("$JS.API.STREAM.MSG.DELETE.*", "$JS.API.STREAM.PURGE.*")
    heard = [await js.nc.subscribe(subject, cb=note) for subject in subjects]
    await js.nc.flush()
    yield verbs
    await js.nc.flush()
    for one in heard:
        await one.unsubscribe()


async def test_one_is_deleted_by_its_sequence(js: JetStream, change_set: ChangeSet) -> None:
    [first, _] = await store(js, change_set, 2)
    settled = handled_of(js, change_set)

    async with asked(js) as verbs:
        await settled.add(first)
        await settled.wait()

    assert verbs == ["MSG.DELETE"]
    assert await left(js, change_set) == 1


async def test_several_are_deleted_by_one_call_that_spares_what_came_later(
    js: JetStream, change_set: ChangeSet
) -> None:
    [other] = new_change_sets(1)
    await store(js, other, 3)
    stored = await store(js, change_set, 5)
    settled = handled_of(js, change_set)

    async with asked(js) as verbs:
        for sequence in stored[:3]:
            await settled.add(sequence)
        await settled.wait()

    assert verbs == ["PURGE"]
    assert await left(js, change_set) == 2
    assert await left(js, other) == 3


async def test_no_more_than_so_many_are_held_back(js: JetStream, change_set: ChangeSet) -> None:
    settled = handled_of(js, change_set)
    async with asked(js) as verbs:
        for sequence in await store(js, change_set, MAX_TOGETHER + 1):
            await settled.add(sequence)
        await eventually(lambda: verbs == ["PURGE"])
        await settled.wait()

    assert verbs == ["PURGE", "MSG.DELETE"]
    assert not await left(js, change_set)


async def test_none_is_held_back_for_long(
    js: JetStream, change_set: ChangeSet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A large request may take seconds, and what is handled takes room in the stream."""
    monkeypatch.setattr(request_queue, "MAX_DELAY", 0)
    settled = handled_of(js, change_set)
    for sequence in await store(js, change_set, 3):
        await settled.add(sequence)

    async def none_is_left() -> bool:
        return not await left(js, change_set)

    await eventually(none_is_left)


async def test_one_that_is_gone_already_counts_as_deleted(
    js: JetStream, change_set: ChangeSet
) -> None:
    stored = await store(js, change_set, 100)
    await js.delete_message(STREAM, stored[7])
    await js.delete_message(STREAM, stored[-1])
    settled = handled_of(js, change_set)

    for sequence in stored:
        await settled.add(sequence)
        if sequence == stored[-2]:
            await settled.send()
    await settled.wait()

    assert not await left(js, change_set)


async def test_where_the_stream_may_not_be_purged_each_is_deleted_by_its_sequence(
    js: JetStream,
) -> None:
    await js.create_stream(StreamConfig(name="KEPT", subjects=["kept"], deny_purge=True))
    stored = [(await js.publish("kept", b"x")).sequence for _ in range(4)]
    settled = HandledRequests(js, "KEPT", "kept")

    for sequence in stored[:3]:
        await settled.add(sequence)
    await settled.wait()

    assert (await js.stream_info("KEPT")).state.messages == 1


async def test_after_a_cancelled_wait_all_are_deleted_by_the_next(
    js: JetStream, change_set: ChangeSet, nats_server: NatsServer
) -> None:
    """A run whose slot is wanted stops to wait for a request, and sends its deletes there."""
    stored = await store(js, change_set, 3)
    settled = handled_of(js, change_set)
    nats_server.freeze()
    try:
        for sequence in stored:
            await settled.add(sequence)
        sent = js.nc.stats["out_msgs"]
        waiting = asyncio.create_task(settled.wait())
        await eventually(lambda: js.nc.stats["out_msgs"] > sent)
        waiting.cancel()
        await asyncio.wait([waiting])
    finally:
        nats_server.thaw()

    assert settled
    await settled.wait()
    assert not settled
    assert not await left(js, change_set)

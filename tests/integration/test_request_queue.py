"""Requests that wait are committed together, and each is as if it had been alone.

Each has its own line, reply and place; of lines sent ahead of their receipts only the first so
many are ever in the log, whoever else writes.
"""

import asyncio
from collections.abc import AsyncIterator

import pytest
from ulid import ULID

from rebaser_core.commits import CommitV2, ControlState, RequestOutcome
from rebaser_core.ids import ChangeSet, RequestId
from rebaser_core.jetstream import ConnectOptions, JetStream, OrderedPushConsumer, connected
from rebaser_core.streams import Streams
from rebaser_core.subjects import Subjects
from rebaser_server.commit_log.log import MAX_COMMITS, CommitLog
from rebaser_server.processor.request_queue import RequestQueue
from rebaser_server.service.composition import prepare
from rebaser_server.settings.settings import Settings
from tests.helpers.deployment import Deployment, new_change_sets
from tests.helpers.eventually import eventually
from tests.helpers.nats_process import NatsServer

SUBJECTS = Subjects()


@pytest.fixture
async def js(nats_server: NatsServer) -> AsyncIterator[JetStream]:
    async with connected(ConnectOptions(servers=(nats_server.url,))) as nc:
        await prepare(JetStream(nc), Settings())
        yield JetStream(nc)


def lines(count: int, behind: int, *, epoch: int = 1) -> list[CommitV2]:
    """As a run foresees them if nobody else writes."""
    head = ControlState(epoch=epoch)
    return [CommitV2(id=RequestId(), previous=behind + n, control=head) for n in range(count)]


async def written(js: JetStream, change_set: ChangeSet) -> list[tuple[int, CommitV2]]:
    last, _ = await CommitLog(Streams(js=js), change_set).last()
    return [line async for line in CommitLog(Streams(js=js), change_set).entries(0, last)]


def ids(found: list[tuple[int, CommitV2]]) -> list[RequestId]:
    return [line.id for _, line in found]


async def test_lines_that_are_there_already_are_recognised(js: JetStream) -> None:
    """Their receipts were lost: they are sent again, and those that are not there are added."""
    [change_set] = new_change_sets(1)
    sent = lines(6, behind=0)
    await CommitLog(Streams(js=js), change_set).append(sent[:4])

    sequences = await CommitLog(Streams(js=js), change_set).append(sent)

    found = await written(js, change_set)
    assert ids(found) == [line.id for line in sent]
    assert sequences == [sequence for sequence, _ in found]


async def test_more_commits_are_sent_together_the_longer_no_other_change_set_writes(
    js: JetStream,
) -> None:
    one, other = new_change_sets(2)
    log, last = CommitLog(Streams(js=js), one), 0
    assert log.pipeline_depth == 1

    while log.pipeline_depth < MAX_COMMITS:
        *_, last = await log.append(lines(log.pipeline_depth, behind=last))
    await CommitLog(Streams(js=js), other).append(lines(1, behind=0))
    await log.append(lines(2, behind=last))

    assert log.pipeline_depth == 1


async def test_a_backlog_is_handled_in_order_each_with_its_commit_and_reply(
    deployment: Deployment,
) -> None:
    """Also where one in the middle is sent twice, and others can never be applied."""
    [change_set] = new_change_sets(1)
    js, client, value = deployment.js, deployment.client, str(ULID())
    define = {"putValue": {"valueId": value, "value": None}}
    sent = [RequestId() for _ in range(150)]
    answers = []
    for number, request_id in enumerate(sent):
        update = {"setValue": {"valueId": value, "value": number}} if number else define
        _, answer = await client.enqueue_updates_with_reply(
            *change_set, [update], request_id=request_id
        )
        answers.append(asyncio.ensure_future(answer))
        if number % 50 == 20:
            await js.publish(SUBJECTS.requests(change_set), b"nonsense")

    await deployment.start("one")
    async with asyncio.timeout(60):
        responses = [await answer for answer in answers]
    await deployment.at_rest()

    log = CommitLog(Streams(js=js), change_set)
    settled = [line.settled async for _, line in log.entries(0, (await log.last())[0])]
    applied = [h.id for h in settled if h is not None and h.outcome is RequestOutcome.APPLIED]
    assert applied == sent
    assert len([h for h in settled if h is not None and h.outcome is RequestOutcome.DEAD]) == 3
    commits = [response.status.success.commit for response in responses]
    assert commits == sorted(set(commits))
    for response, commit in zip(responses, commits, strict=True):
        line = await log.entry(commit)
        assert line is not None
        assert line.settled is not None
        assert line.settled.id == response.id
    graph = await deployment.graph(change_set)
    assert graph.values[value].value == 149


async def test_requests_before_one_of_an_unreadable_version_are_handled(
    deployment: Deployment,
) -> None:
    """Of a version that nobody here reads: it stays first in line, and holds up what follows."""
    [change_set] = new_change_sets(1)
    js, value = deployment.js, str(ULID())
    for number in range(30):
        update = {"putValue": {"valueId": value, "value": number}}
        await deployment.client.enqueue_updates(*change_set, [update])
    newer = {
        "X-CONTENT-TYPE": "application/cbor",
        "X-MESSAGE-TYPE": "EnqueueUpdatesRequest",
        "X-MESSAGE-VERSION": "99",
    }
    stays = (await js.publish(SUBJECTS.requests(change_set), b"x", headers=newer)).sequence
    await deployment.client.enqueue_updates(*change_set, [])

    await deployment.start("one")

    async def only_those_are_left() -> bool:
        _, last = await CommitLog(Streams(js=js), change_set).last()
        first = await RequestQueue(Streams(js=js), change_set).lowest_sequence()
        return last is not None and last.control.last_sequence == stays - 1 and first == stays

    await eventually(only_those_are_left, within=60)


async def test_requests_are_read_without_the_cursor_passing_them_unseen(js: JetStream) -> None:
    """What is ready is the next, in order, and no more than was asked for."""
    [change_set] = new_change_sets(1)
    subject = SUBJECTS.requests(change_set)
    for number in range(10):
        await js.publish(subject, b"%d" % number)

    async with OrderedPushConsumer(js, SUBJECTS.requests_stream, subject) as reader:
        first = await reader.next()

        async def all_came() -> bool:
            return len(reader._inbox.queue) == 9

        await eventually(all_came)
        some = await reader.take_buffered(4)
        rest = await reader.take_buffered(100)

    assert first is not None
    assert [delivery.payload for delivery in (first, *some)] == [b"0", b"1", b"2", b"3", b"4"]
    assert [delivery.payload for delivery in rest] == [b"5", b"6", b"7", b"8", b"9"]


async def test_a_queue_that_is_cancelled_while_it_closes_leaves_no_consumer(
    js: JetStream, nats_server: NatsServer
) -> None:
    """Such as that of a run that lost its lease, and whose last deletes are not answered."""
    [change_set] = new_change_sets(1)
    await js.publish(SUBJECTS.requests(change_set), b"x")
    is_closing = asyncio.Event()

    async def run() -> None:
        async with RequestQueue(Streams(js=js), change_set) as queue:
            request = await queue.next(60)
            assert request is not None
            nats_server.freeze()
            await queue.handled.add(request.stream_sequence)
            is_closing.set()  # and then it waits for the answer

    running = asyncio.create_task(run())
    try:
        await is_closing.wait()
        running.cancel()
    finally:
        nats_server.thaw()
    await asyncio.wait([running])

    async def no_consumer_is_left() -> bool:
        return not (await js.stream_info(SUBJECTS.requests_stream)).state.consumer_count

    assert running.cancelled()
    await eventually(no_consumer_is_left, within=60)

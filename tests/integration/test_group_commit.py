"""Commits that are stored as one atomic batch are a log like any other."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from math import floor
from pathlib import Path
from typing import Any

import pytest

from rebaser_core.activities import Activity
from rebaser_core.commits import CommitV2, ControlState, RequestOutcome, SettledRequest
from rebaser_core.ids import ChangeSet, RequestId
from rebaser_core.jetstream import (
    ApiError,
    BatchMessage,
    ConnectOptions,
    JetStream,
    NatsUnreachable,
    PubAck,
    StreamConfig,
    connected,
)
from rebaser_core.jetstream.api import JetStreamRequests
from rebaser_core.streams import Streams
from rebaser_core.subjects import Subjects
from rebaser_server.commit_log import log as commit_log
from rebaser_server.commit_log.log import MAX_COMMITS, NEVER, CommitLog, GroupCommit
from rebaser_server.errors import AppendRefused, Fenced
from rebaser_server.processor.dead_letters import ATTEMPTS
from rebaser_server.processor.ownership import acquire_ownership
from rebaser_server.service.composition import prepare
from rebaser_server.settings.settings import Settings
from tests.chaos.processes import nats_servers
from tests.helpers.batches import ExampleGraph, new_id, put, set_to
from tests.helpers.deployment import Deployment, new_change_sets, recording
from tests.helpers.eventually import eventually
from tests.helpers.nats_process import NatsServer

SUBJECTS = Subjects()


@pytest.fixture
async def js(nats_server: NatsServer, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[JetStream]:
    """Where two commits are worth a batch."""
    monkeypatch.setattr(commit_log, "ON_ONE_SERVER", 2)
    async with connected(ConnectOptions(servers=(nats_server.url,))) as nc:
        await prepare(JetStream(nc), Settings())
        yield JetStream(nc)


class Sent:
    """The batches that were sent, and a reply that is lost on purpose."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.sizes: list[int] = []
        self.loses_reply = False
        real = JetStreamRequests.publish_batch

        async def publish_batch(
            js: JetStream, messages: Sequence[BatchMessage], **options: int
        ) -> PubAck:
            self.sizes.append(len(messages))
            ack = await real(js, messages, **options)
            if self.loses_reply:
                raise NatsUnreachable("the reply was lost")
            return ack

        monkeypatch.setattr(JetStreamRequests, "publish_batch", publish_batch)


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> Sent:
    return Sent(monkeypatch)


def commits(count: int, behind: int, *, epoch: int = 1, text: str = "") -> list[CommitV2]:
    """As a run foresees them if no other run writes."""
    control = ControlState(epoch=epoch, owner=text)
    return [CommitV2(id=RequestId(), previous=behind + n, control=control) for n in range(count)]


async def written(js: JetStream, change_set: ChangeSet) -> list[tuple[int, CommitV2]]:
    last, _ = await CommitLog(Streams(js=js), change_set).last()
    return [entry async for entry in CommitLog(Streams(js=js), change_set).entries(0, last)]


@pytest.mark.parametrize("together", [True, False])
async def test_commits_of_a_group_are_read_back_one_behind_the_other(
    js: JetStream, sent: Sent, monkeypatch: pytest.MonkeyPatch, together: bool
) -> None:
    """W7: although other change sets' commits made the sequences other ones than foreseen.

    As one batch, or each sent ahead of the receipt of the one before it.
    """
    monkeypatch.setattr(commit_log, "ON_ONE_SERVER", 2 if together else NEVER)
    one, other = new_change_sets(2)
    log = CommitLog(Streams(js=js), one)
    first = await log.append(commits(3, behind=0))
    await CommitLog(Streams(js=js), other).append(commits(1, behind=0))

    later = commits(5, behind=first[-1])
    then = await log.append(later)

    found = await written(js, one)
    assert [entry.id for _, entry in found][3:] == [entry.id for entry in later]
    assert [sequence for sequence, _ in found] == [*first, *then]
    assert [entry.previous for _, entry in found] == [0, *first, *then[:-1]]
    assert sent.sizes == ([3, 5] if together else [])


@pytest.mark.parametrize("together", [True, False])
async def test_nothing_of_a_group_is_stored_behind_another_owners_commit(
    js: JetStream, sent: Sent, monkeypatch: pytest.MonkeyPatch, together: bool
) -> None:
    """W7: nor what would follow in the sequence behind it."""
    monkeypatch.setattr(commit_log, "ON_ONE_SERVER", 2 if together else NEVER)
    [change_set] = new_change_sets(1)
    [taken] = await CommitLog(Streams(js=js), change_set).append(commits(1, behind=0))
    [theirs] = commits(1, behind=taken, epoch=2)
    await CommitLog(Streams(js=js), change_set).append([theirs])

    with pytest.raises(Fenced):
        await CommitLog(Streams(js=js), change_set).append(commits(5, behind=taken))

    assert [entry.id for _, entry in await written(js, change_set)][1:] == [theirs.id]
    assert sent.sizes == ([5] if together else [])


async def test_a_batch_whose_reply_is_lost_is_stored_once(js: JetStream, sent: Sent) -> None:
    [change_set] = new_change_sets(1)
    sent.loses_reply = True
    ours = commits(4, behind=0)

    sequences = await CommitLog(Streams(js=js), change_set).append(ours)

    found = await written(js, change_set)
    assert [sequence for sequence, _ in found] == sequences
    assert [entry.id for _, entry in found] == [entry.id for entry in ours]


async def test_a_commit_that_does_not_fit_leaves_those_before_it(js: JetStream) -> None:
    """The batch is not sent; one by one it is found out which one cannot be stored."""
    [change_set] = new_change_sets(1)
    sound, [huge] = commits(2, behind=0), commits(1, behind=2, text="x" * (1 << 20))

    with pytest.raises(AppendRefused) as refused:
        await CommitLog(Streams(js=js), change_set).append([*sound, huge])

    found = await written(js, change_set)
    assert [entry.id for _, entry in found] == [entry.id for entry in sound]
    assert refused.value.sequences == [sequence for sequence, _ in found]


async def test_a_stream_that_takes_no_batches_gets_one_commit_after_the_other(
    js: JetStream, sent: Sent
) -> None:
    """`doctor` says so, and nothing else differs."""
    name = SUBJECTS.commits_stream
    config = await js.stream_config(name)
    await js.update_stream(config | StreamConfig(allow_atomic=False))
    [change_set] = new_change_sets(1)
    ours = commits(5, behind=0)

    await CommitLog(Streams(js=js), change_set).append(ours)

    found = await written(js, change_set)
    assert [entry.id for _, entry in found] == [entry.id for entry in ours]
    assert not sent.sizes


async def test_batches_that_are_refused_for_the_moment_are_not_tried_at_once(
    js: JetStream, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stream takes some fifty at a time."""

    async def publish_batch(*_: object, **__: object) -> PubAck:
        raise ApiError(400, 10210, "too many")

    monkeypatch.setattr(JetStreamRequests, "publish_batch", publish_batch)
    [change_set] = new_change_sets(1)
    group = GroupCommit(Streams(js=js))
    ours = commits(5, behind=0)

    await CommitLog(Streams(js=js), change_set, group).append(ours)

    found = await written(js, change_set)
    assert [entry.id for _, entry in found] == [entry.id for entry in ours]
    assert group.min_size == NEVER


async def test_a_backlog_is_committed_in_batches(deployment: Deployment) -> None:
    """By a daemon of its own; each request has its commit, in order."""
    [change_set] = new_change_sets(1)
    requests = [
        str(await deployment.client.enqueue_updates(*change_set, [])) for _ in range(MAX_COMMITS)
    ]
    async with recording(deployment) as log:
        await deployment.start()
        await eventually(lambda: log.settled(change_set) == requests)

    stream = deployment.streams.commits_stream
    sequences = [entry.previous for entry in log.lines[change_set] if entry.settled is not None]
    messages = [
        await deployment.js.get_message(stream, sequence=sequence + 1) for sequence in sequences
    ]
    assert sum("Nats-Batch-Id" in message.headers for message in messages if message) > 1


@pytest.mark.long
async def test_on_three_servers_logs_that_grow_together_stay_whole(
    tmp_path: Path, sent: Sent
) -> None:
    async with (
        nats_servers(tmp_path, cluster=True) as servers,
        connected(ConnectOptions(servers=[each.url for each in servers])) as nc,
    ):
        js, settings = JetStream(nc), Settings.model_validate({"nats": {"replicas": 3}})
        await eventually(lambda: _prepared(js, settings), within=60)
        group = GroupCommit(Streams(js=js))
        change_sets = new_change_sets(10)

        async def grow(change_set: ChangeSet) -> list[RequestId]:
            log, ours, last = CommitLog(Streams(js=js), change_set, group), list[RequestId](), 0
            for count in (1, 2, 8, 64, 3):
                more = commits(count, behind=last)
                *_, last = await log.append(more)
                ours += [entry.id for entry in more]
            return ours

        grown = await asyncio.gather(*map(grow, change_sets))

        for change_set, ours in zip(change_sets, grown, strict=True):
            assert [entry.id for _, entry in await written(js, change_set)] == ours
    assert len(sent.sizes) >= 10


async def _prepared(js: JetStream, settings: Settings) -> bool:
    try:
        await prepare(js, settings)
    except (ApiError, NatsUnreachable):
        return False
    return True


async def test_in_a_group_each_request_ends_as_it_would_alone(deployment: Deployment) -> None:
    """W5, W7, W8, L1: settled before, applied, corrected, refused or dead, in their order."""
    [change_set], values = new_change_sets(1), ExampleGraph()
    unknown, long = {"removeValue": {"valueId": new_id()}}, [put(new_id(), "x" * 200)]
    sent: list[tuple[str, RequestOutcome, int]] = []
    requests = deployment.streams.requests(change_set)

    async def send(batch: Any, outcome: RequestOutcome, corrections: int = 0) -> None:
        request = await deployment.client.enqueue_updates(*change_set, batch)
        sent.append((str(request), outcome, corrections))

    own = await acquire_ownership(deployment.archive(change_set), "former")
    for number in range(1, 9):
        await send([put(new_id(), 0)], RequestOutcome.REFUSED)
        refused = SettledRequest(
            id=RequestId.from_str(sent[-1][0]), sequence=number, outcome=RequestOutcome.REFUSED
        )
        await own.write(refused, last_sequence=number)
    await own.release()
    settled_before = len(sent)
    await send(values.define(), RequestOutcome.APPLIED)
    for number in range(1, 21):
        await send([set_to(values.net, number)], RequestOutcome.APPLIED)
        await send([unknown], RequestOutcome.APPLIED, 1)
        await send(long, RequestOutcome.REFUSED)
        if number % 5 == 0:
            nonsense = await deployment.js.publish(requests, b"nonsense")
            dead = str(RequestId.from_int(nonsense.sequence))
            sent.append((dead, RequestOutcome.DEAD, 0))
    stored = await stored_at(deployment, change_set)
    heard: list[str] = []

    async def hear(message: Any) -> None:
        told = Activity.decode(message.headers, message.data)
        if told.kind.startswith("request"):
            heard.append(str(told.request_id))

    await deployment.nc.subscribe(deployment.streams.activities(change_set), cb=hear)
    async with recording(deployment) as recorder:
        await deployment.start(LIMITS__VALUE_BYTES="100")
        await deployment.at_rest()
        await eventually(lambda: len(recorder.settled(change_set)) == len(sent))
        await eventually(lambda: heard == [request for request, _, _ in sent])

    settled = [line.settled for line in recorder.lines[change_set] if line.settled is not None]
    clients = [each for each in settled if each.covers is None]
    assert [(str(each.id), each.outcome, len(each.corrections)) for each in clients] == sent
    letters = await deployment.dead_letters(change_set)
    assert [letter.headers[ATTEMPTS] for letter in letters] == ["1"] * 4
    own_lines = [line for line in recorder.lines[change_set] if line.settled in clients]
    times = [line.id.milliseconds for line in own_lines[settled_before:]]
    assert times == pytest.approx(stored[settled_before:], abs=1)  # both are rounded
    graph = await deployment.graph(change_set)
    assert graph.values[values.gross].value == 20 + graph.values[values.tax].value


async def stored_at(deployment: Deployment, change_set: ChangeSet) -> list[int]:
    """When NATS stored the requests that wait, in milliseconds since 1970: how W7 counts."""
    found, after = list[int](), 0
    subject = deployment.streams.requests(change_set)
    while message := await deployment.js.get_message(
        deployment.streams.requests_stream, sequence=after + 1, next_by_subject=subject
    ):
        found.append(floor(message.time.timestamp() * 1000))
        after = message.sequence
    return found

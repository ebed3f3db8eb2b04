"""Whatever lies in the streams, it is settled, and the change set goes on."""

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
from blake3 import blake3
from nats.aio.client import Client

from rebaser_client.client import RebaserClient
from rebaser_core.ids import ChangeSet, RequestId
from rebaser_core.jetstream import ConnectOptions, JetStream, ObjectStore, Unsendable, connected
from rebaser_core.messages import (
    EnqueueUpdatesRequest,
    EnqueueUpdatesRequestV1,
    InObjectStore,
)
from rebaser_core.subjects import Subjects
from rebaser_server.server import prepare
from rebaser_server.settings import Settings
from tests.chaos.fleet import Seat, nats_servers, seats
from tests.chaos.fuzz import fuzzed
from tests.chaos.history import History, Kind
from tests.chaos.judge import judge
from tests.chaos.poison import poison
from tests.chaos.recorder import Recorder, recording
from tests.chaos.workload import Values
from tests.harness import eventually
from tests.integration.deployment import new_change_sets

SUBJECTS = Subjects()


class Bench:
    """One daemon that gives up at the first failure, and what it takes to send it anything."""

    def __init__(self, nc: Client, seat: Seat, history: History, recorder: Recorder) -> None:
        self.nc = nc
        self.js = JetStream(nc)
        self.seat = seat
        self.history = history
        self.recorder = recorder

    async def put(
        self, change_set: ChangeSet, headers: dict[str, str], payload: bytes
    ) -> int | None:
        """Store it as it is; its sequence, or None if no client could have sent it."""
        try:
            ack = await self.js.publish(SUBJECTS.requests(change_set), payload, headers=headers)
        except Unsendable:
            return None
        return ack.sequence

    async def still_answers(
        self, change_set: ChangeSet, values: Values, *, within: float = 60
    ) -> bool:
        """Whether a sound request behind all others is applied."""
        async with RebaserClient.on(self.nc, self.js) as client, asyncio.timeout(within):
            batch = values.define(random.Random(0))
            _, reply = await client.enqueue_updates_with_reply(*change_set, batch)
            response = await reply
        await eventually(self.recorder.caught_up)
        return hasattr(response.status, "success")

    def outcomes(self) -> dict[int, str]:
        """What became of each request, by sequence."""
        lines = (event.data["commit"].get("handled") for event in self.history.of(Kind.COMMIT))
        return {line["sequence"]: line["outcome"] for line in lines if line is not None}

    def complaints(self) -> list[object]:
        ended = [e for e in self.history.of(Kind.DAEMON) if e.data["what"] == "exited"]
        found = [v for v in judge(self.history) if v.rule in ("S2", "S3", "S4", "RECORD")]
        return [*ended, *found, *self.seat.unforeseen()]


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    history = History()
    async with AsyncExitStack() as stack:
        servers = await stack.enter_async_context(nats_servers(tmp_path, cluster=False))
        nc = await stack.enter_async_context(connected(ConnectOptions(servers=(servers[0].url,))))
        settings = Settings.model_validate({"ack_wait": 2, "progress_every": 0.4})
        await prepare(JetStream(nc), settings)
        recorder = await stack.enter_async_context(recording(nc, SUBJECTS, history))
        [seat] = await stack.enter_async_context(seats(1, tmp_path, history, servers))
        seat.start({"ATTEMPTS": "1"})
        assert seat.daemon is not None
        await seat.daemon.ready()
        yield Bench(nc, seat, history, recorder)


@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.slow)])
async def test_damaged_requests_are_settled_and_the_next_one_is_applied(
    bench: Bench, seed: int
) -> None:
    rng = random.Random(seed)
    [change_set], values = new_change_sets(1), Values(rng)
    messages, sent = 300 if seed == 1 else 5_000, set()
    for _ in range(messages):
        bad = poison(rng, change_set)
        message = fuzzed(rng, change_set, values)
        if rng.random() < 0.2:
            message = bad.headers, bad.payload
        sent.add(await bench.put(change_set, *message))

    assert await bench.still_answers(change_set, values, within=60 + messages / 20)

    outcomes = bench.outcomes()
    assert sent - {None} <= outcomes.keys()
    assert {"applied", "dead", "stale"} <= set(outcomes.values())
    assert not bench.complaints()


async def test_a_batch_that_is_none_is_settled(bench: Bench) -> None:
    """An address is right, and what lies there is not."""
    rng = random.Random(3)
    [change_set], values = new_change_sets(1), Values(rng)
    bucket = ObjectStore(bench.js, SUBJECTS.batches_bucket)
    for size in (0, 1, 100, 200_000):
        payload = rng.randbytes(size)
        name = blake3(payload).hexdigest()
        await bucket.put(name, payload)
        request = EnqueueUpdatesRequestV1(
            id=RequestId(),
            workspace_id=change_set.workspace_id,
            change_set_id=change_set.change_set_id,
            updates_address=InObjectStore(object=name),
        )
        assert await bench.put(change_set, *EnqueueUpdatesRequest.encode(request))

    assert await bench.still_answers(change_set, values)

    outcomes = bench.outcomes()
    assert [outcomes[sequence] for sequence in (1, 2, 3, 4)] == 4 * ["dead"]
    assert not bench.complaints()


async def test_tasks_that_are_none_stop_nobody(bench: Bench) -> None:
    """Bodies, headers, and subjects that name no change set."""
    rng = random.Random(4)
    [change_set], values = new_change_sets(1), Values(rng)
    for number in range(30):
        stray = SUBJECTS.subject("rebaser.tasks", f"{number}", "x", rng.choice(("process", "else")))
        await bench.js.publish(stray, rng.randbytes(number), headers={"X": "y" * number})

    assert await bench.still_answers(change_set, values)

    async def none_left() -> bool:
        info = await bench.js.stream_info(SUBJECTS.tasks_stream)
        return not info["state"]["messages"]

    await eventually(none_left, within=30)
    assert not bench.complaints()


async def test_answers_that_are_none_are_nobodys(bench: Bench) -> None:
    """Anybody may write to an inbox: the client that waits there still gets its answer."""
    rng = random.Random(5)
    [change_set], values = new_change_sets(1), Values(rng)
    async with RebaserClient.on(bench.nc, bench.js) as client, asyncio.timeout(30):
        request_id = RequestId()
        batch = values.define(rng)
        inbox = client._replies.inbox(request_id)
        for number in range(50):
            headers, payload = fuzzed(rng, change_set, values)
            if number % 2:
                headers |= {"X-MESSAGE-TYPE": "EnqueueUpdatesResponse"}
            try:
                await bench.nc.publish(inbox, payload, headers=headers)
            except ValueError:
                continue
        _, reply = await client.enqueue_updates_with_reply(
            *change_set, batch, request_id=request_id
        )
        response = await reply

    assert response.id == request_id

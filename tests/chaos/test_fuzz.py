"""Whatever lies in the streams, it is settled, and the change set goes on."""

import random
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from blake3 import blake3

from rebaser_core.ids import RequestId
from rebaser_core.jetstream import ObjectStore
from rebaser_core.messages import (
    EnqueueUpdatesRequest,
    EnqueueUpdatesRequestV1,
    ObjectRef,
)
from tests.chaos.operational_checks import RSS
from tests.chaos.testbed import SUBJECTS, Bench, benched
from tests.chaos.workload import Values
from tests.helpers.deployment import new_change_sets
from tests.helpers.eventually import eventually


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    async with benched(tmp_path) as bench:
        yield bench


@pytest.mark.parametrize(
    "messages", [300, pytest.param(20_000, marks=pytest.mark.slow)], ids=["300", "20,000"]
)
async def test_damaged_requests_are_settled_and_the_next_one_is_applied(
    bench: Bench, messages: int
) -> None:
    rng = random.Random(messages)
    [change_set], values = new_change_sets(1), Values(rng)

    sent = await bench.put_damaged(rng, change_set, values, messages)
    answered = await bench.still_answers(change_set, values)

    outcomes = bench.outcomes()
    assert answered
    assert set(sent) - {None} <= outcomes.keys()
    assert {"applied", "dead", "stale"} <= set(outcomes.values())
    assert not bench.complaints()
    assert (bench.seat.rss() or 0) <= RSS


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
            updates_address=ObjectRef(object=name),
        )
        assert await bench.put(change_set, *EnqueueUpdatesRequest.encode(request))

    assert await bench.still_answers(change_set, values)

    outcomes = bench.outcomes()
    assert [outcomes[sequence] for sequence in (1, 2, 3, 4)] == 4 * ["dead"]
    assert not bench.complaints()


async def test_invalid_tasks_stop_no_daemon(bench: Bench) -> None:
    """Bodies, headers, and subjects that name no change set."""
    rng = random.Random(4)
    [change_set], values = new_change_sets(1), Values(rng)
    for number in range(30):
        stray = SUBJECTS.join("rebaser.tasks", f"{number}", "x", rng.choice(("process", "else")))
        await bench.js.publish(stray, rng.randbytes(number), headers={"X": "y" * number})

    assert await bench.still_answers(change_set, values)

    async def none_left() -> bool:
        info = await bench.js.stream_info(SUBJECTS.tasks_stream)
        return not info.state.messages

    await eventually(none_left, within=60)
    assert not bench.complaints()

"""What a Rebaser that leaves had in hand goes on elsewhere, also where nobody can hear of it."""

import signal

import pytest

from rebaser_core.ids import ChangeSet
from rebaser_core.subjects import TASKS_CONSUMER
from tests.helpers.batches import ExampleGraph, set_to
from tests.helpers.deployment import Daemon, Deployment, Recorder, new_change_sets, recording
from tests.helpers.eventually import eventually

LEASE = {"ACK_WAIT": "120", "QUIET_PERIOD": "100"}
"""Nothing comes back by itself while a test lasts, and nothing is quiet."""


@pytest.mark.long
async def test_a_task_given_back_before_nats_stopped_is_taken_up_afterwards(
    deployment: Deployment,
) -> None:
    """F5: a server forgets over its own stop that a task was given back."""
    [change_set], values = new_change_sets(1), ExampleGraph()
    await deployment.js.delete_consumer(deployment.streams.tasks_stream, TASKS_CONSUMER)
    async with recording(deployment) as recorder:
        first = await deployment.start(**LEASE)
        await deployment.client.enqueue_updates(*change_set, values.define())
        await settled(recorder, change_set, 1)
        first.send(signal.SIGTERM)
        await first.ended()
        deployment.nats.stop()
        deployment.nats.start()
        await deployment.client.enqueue_updates(*change_set, [set_to(values.net, 5)])

        second = await deployment.start(**LEASE)

        await settled(recorder, change_set, 2)
    await eventually(lambda: bool(second.said("orphaned tasks reclaimed")))


async def test_a_leaving_rebasers_task_gets_a_slot_at_a_full_one(
    deployment: Deployment,
) -> None:
    """The server counts a task that was given back among those in hand."""
    [one, other], values = new_change_sets(2), ExampleGraph()
    await deployment.js.delete_consumer(deployment.streams.tasks_stream, TASKS_CONSUMER)
    async with recording(deployment) as recorder:
        first = await deployment.start("first", CONCURRENCY="1", **LEASE)
        await deployment.client.enqueue_updates(*one, values.define())
        await settled(recorder, one, 1)
        second = await deployment.start("second", CONCURRENCY="1", **LEASE)
        await deployment.client.enqueue_updates(*other, ExampleGraph().define())
        await settled(recorder, other, 1)

        first.send(signal.SIGTERM)

        await eventually(lambda: str(one.change_set_id) in taken_by(second), within=60)


def taken_by(daemon: Daemon) -> list[str]:
    """The change sets whose tasks it had, without a line for those that had no work (W2b)."""
    return [event["change_set"] for event in daemon.said("taken")]


async def settled(recorder: Recorder, change_set: ChangeSet, count: int) -> None:
    await eventually(lambda: len(recorder.settled(change_set)) >= count, within=60)

"""A consumer that lets too few tasks be in hand is told of; more slots would stay empty."""

import pytest

from rebaser_core.jetstream import ConsumerConfig
from rebaser_core.subjects import TASKS_CONSUMER
from rebaser_server.cluster.membership import Membership
from rebaser_server.cluster.upkeep import CapacityCheck
from tests.helpers.deployment import Deployment


@pytest.mark.parametrize(("most", "missing"), [(-1, 0), (100, 0), (99, 1), (10, 90)])
async def test_slots_that_no_task_can_reach_are_counted(
    deployment: Deployment, most: int, missing: int
) -> None:
    js, stream = deployment.js, deployment.streams.tasks_stream
    config = await js.consumer_config(stream, TASKS_CONSUMER)
    await js.delete_consumer(stream, TASKS_CONSUMER)
    await js.create_consumer(stream, config | ConsumerConfig(max_ack_pending=most))
    alone = Membership(deployment.streams, "only")

    assert await CapacityCheck(deployment.streams, alone, slots=100).check() == missing

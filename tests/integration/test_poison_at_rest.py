"""Whatever is stored or said, a Rebaser starts, stays and goes on with all that is sound."""

import asyncio
import random
from contextlib import suppress

import pytest

from rebaser_core.jetstream import JetStreamError, KeyValue
from rebaser_core.messages import SuccessStatusV3
from tests.helpers.batches import ExampleGraph
from tests.helpers.deployment import Deployment, new_change_sets
from tests.helpers.eventually import eventually
from tests.helpers.poison_data import (
    meta_subject,
    poison_heartbeat,
    poison_key,
    poison_line,
    poison_meta,
    poison_record,
    poison_subject,
    publish_raw,
)

EAGER = {"STORE__ORPHAN_RETENTION": "1", "RECONCILE_INTERVAL": "0.3"}
OF_EACH = 20


async def store_poison(deployment: Deployment, rng: random.Random, *, octets: bool) -> None:
    """Some of every kind; with `octets` also streams that are no text."""
    js, streams = deployment.js, deployment.streams
    for number in range(OF_EACH):
        name = f"object-{number}"
        await js.publish(meta_subject(name), poison_meta(rng, name))
        for bucket in (streams.change_sets_bucket, streams.pauses_bucket):
            key = poison_key(rng)
            if key == "all":  # which would pause all, and rightly so
                continue
            with suppress(JetStreamError):
                await KeyValue(js, bucket).put(key, poison_record(rng))
        [change_set] = new_change_sets(1)
        headers, payload = poison_line(rng)
        await js.publish(streams.commits(change_set), payload, headers=headers)
        await js.publish(streams.task(change_set))
    raw = [(b"rebaser.members.x", poison_heartbeat(rng)) for _ in range(OF_EACH)]
    for kind, end in (
        ("requests", ()),
        ("tasks", ("process",)),
        ("commits", ()),
        ("dead-letters", ()),
        ("outcomes", ()),
        ("values", ()),
        ("cancellations", ()),
    ):
        raw += [(poison_subject(rng, kind, end, octets=octets), b"") for _ in range(OF_EACH)]
    await publish_raw(deployment.nats.port, raw)


async def is_served(deployment: Deployment) -> bool:
    [change_set] = new_change_sets(1)
    _, reply = await deployment.client.enqueue_updates_with_reply(
        *change_set, ExampleGraph().define()
    )
    async with asyncio.timeout(60):
        return isinstance((await reply).status, SuccessStatusV3)


@pytest.mark.parametrize("octets", [False, True])
async def test_a_rebaser_starts_and_stays_whatever_is_stored(
    deployment: Deployment, *, octets: bool
) -> None:
    rng = random.Random(1)
    await store_poison(deployment, rng, octets=octets)

    daemon = await deployment.start(**EAGER)
    assert await is_served(deployment)
    await store_poison(deployment, rng, octets=octets)  # now it is heard, too

    async def all_rounds_came() -> bool:
        assert daemon.process.poll() is None, daemon.said_in_all()
        return bool(daemon.said("garbage collected"))

    await eventually(all_rounds_came, within=60)
    assert await is_served(deployment)
    assert daemon.process.poll() is None
    assert daemon.said("round failed") == []

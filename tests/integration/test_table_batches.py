"""Batches that are tables of Arrow take effect once, as their rows would, and survive a crash."""

import pyarrow as pa
import pytest
from blake3 import blake3

from rebaser_client.errors import RequestIdUsed, RequestRefused
from rebaser_core.ids import ChangeSet, RequestId
from rebaser_core.jetstream import ObjectStore
from rebaser_core.messages import ObjectRef, StoreRef, UpdatesBatch, UpdatesBatchV1
from rebaser_core.requests import INLINE_UPDATES
from rebaser_server.errors import NeedsNewerVersion
from rebaser_server.processor.dead_letters import REASON
from tests.helpers.batches import ExampleGraph, new_id, set_to
from tests.helpers.deployment import Deployment, new_change_sets
from tests.integration.test_foreign_batches import request

COUNT = INLINE_UPDATES + 100
"""Rows that are too many for a message."""
PAIR = pa.struct([("values", pa.list_(pa.string()))])


class Ladder:
    """Each value but the first is the sum of the one before it and of that one."""

    def __init__(self) -> None:
        self.func = new_id()
        self.ids = [new_id() for _ in range(COUNT)]
        self.define = [
            {"putFunc": {"funcId": self.func, "name": "sum", "runtime": "builtin", "code": "sum"}}
        ]

    def table(self, first: int = 1, *, odd: bool = False) -> pa.Table:
        """With `odd`, the last takes an input that is not there, too."""
        inputs = [{"values": [before, self.ids[0]]} for before in self.ids[:-1]]
        if odd:
            inputs[-1]["values"].append(new_id())
        return pa.table(
            {
                "id": self.ids,
                "name": [f"rung {number}" for number in range(COUNT)],
                "value": pa.array([first, *[None] * (COUNT - 1)]),
                "function": pa.array([None, *[self.func] * (COUNT - 1)]),
                "inputs": pa.array([None, *inputs], PAIR),
            }
        )


async def last_of(deployment: Deployment, change_set: ChangeSet, ladder: Ladder) -> object:
    return (await deployment.graph(change_set)).values[ladder.ids[-1]].value


async def test_a_table_takes_effect_once_and_survives_a_crash(deployment: Deployment) -> None:
    [change_set], ladder, client = new_change_sets(1), Ladder(), deployment.client
    daemon = await deployment.start()
    request_id = RequestId()

    async def send() -> None:
        outcome = await client.change_set(*change_set).enqueue_table(
            ladder.table(), functions=ladder.define, request_id=request_id
        )
        assert outcome.corrections == ()

    await send()
    daemon.kill()
    await client.enqueue_updates(*change_set, [set_to(ladder.ids[0], 2)])
    await deployment.start()
    await send()
    await deployment.at_rest()

    assert await last_of(deployment, change_set, ladder) == 2 * COUNT
    with pytest.raises(RequestIdUsed):
        await client.change_set(*change_set).enqueue_table(
            ladder.table(3), functions=ladder.define, request_id=request_id
        )


@pytest.mark.long
async def test_a_batch_of_a_newer_release_in_the_log_is_left_to_it(deployment: Deployment) -> None:
    [change_set], ladder = new_change_sets(1), Ladder()
    daemon = await deployment.start()
    await deployment.client.change_set(*change_set).enqueue_table(ladder.table())
    daemon.kill()
    loader = deployment.archive(change_set)
    [line] = [
        entry
        async for _, entry in loader.log.entries(0, (await loader.log.last())[0])
        if entry.settled is not None
    ]
    [address] = [line.settled.updates] if line.settled else []
    assert isinstance(address, StoreRef)
    loader.batches._results.put(address.store, b'{"v9": {}}')

    with pytest.raises(NeedsNewerVersion, match="version 9"):
        await loader.load()


@pytest.mark.long
async def test_an_odd_row_is_corrected_and_the_batch_kept_as_performed(
    deployment: Deployment,
) -> None:
    [change_set], ladder, client = new_change_sets(1), Ladder(), deployment.client
    daemon = await deployment.start()

    outcome = await client.change_set(*change_set).enqueue_table(
        ladder.table(odd=True), functions=ladder.define, wait="computed"
    )

    [correction] = outcome.corrections
    assert (correction.index, correction.code) == (COUNT, "missing-input")
    assert await last_of(deployment, change_set, ladder) == COUNT
    daemon.kill()
    await client.enqueue_updates(*change_set, [set_to(ladder.ids[0], 3)])
    await deployment.start()
    await deployment.at_rest()
    assert await last_of(deployment, change_set, ladder) == 3 * COUNT


async def test_a_table_that_is_none_is_buried_and_the_next_request_applied(
    deployment: Deployment,
) -> None:
    [change_set], values, lost = new_change_sets(1), ExampleGraph(), RequestId()
    _, payload = UpdatesBatch.encode(UpdatesBatchV1(id=lost, updates=[], table="AAAA"))
    bucket = ObjectStore(deployment.js, deployment.streams.batches_bucket)
    name = blake3(payload).hexdigest()
    await bucket.put(name, payload)
    await request(deployment, change_set, lost, ObjectRef(object=name))
    await deployment.client.enqueue_updates(*change_set, values.define(3, 4))

    await deployment.start(LIMITS__VALUE_BYTES="10")
    await deployment.at_rest()

    [letter] = await deployment.dead_letters(change_set)
    assert "a table that is no Arrow IPC stream" in letter.headers[REASON]
    assert (await deployment.graph(change_set)).values[values.gross].value == 7
    long = pa.table({"id": [new_id() for _ in range(COUNT)], "value": ["x" * 9] * COUNT})
    with pytest.raises(RequestRefused, match=r"update 0, '.*': a value of more"):
        await deployment.client.change_set(*change_set).enqueue_table(long)

"""A batch that is not what it should be costs its own request, and no other.

A batch is its request's: another that names it neither gets it nor takes it away.
"""

from typing import Any

import pytest
from blake3 import blake3

from rebaser_client.reader import read_log
from rebaser_core.ids import ChangeSet, RequestId
from rebaser_core.jetstream import ObjectStore
from rebaser_core.messages import (
    EnqueueUpdatesRequest,
    EnqueueUpdatesRequestV1,
    ObjectRef,
    StoreRef,
    SuccessStatusV3,
    UpdatesAddress,
    UpdatesBatch,
    UpdatesBatchV1,
)
from rebaser_core.versioning import MESSAGE_ID
from rebaser_server.graph_application.content import graph_of
from rebaser_server.processor.dead_letters import REASON
from tests.helpers.batches import ExampleGraph, new_id, set_to
from tests.helpers.deployment import Deployment, new_change_sets
from tests.helpers.poison_data import meta_subject


async def place(deployment: Deployment, request_id: RequestId, updates: list) -> ObjectRef:
    """Leave the batch where clients leave large ones."""
    batch = UpdatesBatchV1.model_validate({"id": str(request_id), "updates": updates})
    _, payload = UpdatesBatch.encode(batch)
    name = blake3(payload).hexdigest()
    await ObjectStore(deployment.js, deployment.streams.batches_bucket).put(name, payload)
    return ObjectRef(object=name)


async def request(
    deployment: Deployment, change_set: ChangeSet, request_id: RequestId, address: UpdatesAddress
) -> None:
    message = EnqueueUpdatesRequestV1(
        id=request_id,
        workspace_id=change_set.workspace_id,
        change_set_id=change_set.change_set_id,
        updates_address=address,
    )
    headers, payload = EnqueueUpdatesRequest.encode(message)
    headers.pop(MESSAGE_ID)  # else the server takes one for another change set for a duplicate
    subject = deployment.streams.requests(change_set)
    await deployment.js.publish(subject, payload, headers=headers)


def named(value_id: str, value: int) -> dict[str, Any]:
    return {"putValue": {"valueId": value_id, "name": "taken", "value": value}}


async def test_a_request_that_names_anothers_batch_is_buried_and_the_other_one_is_applied(
    deployment: Deployment,
) -> None:
    """Who is done with a batch throws it away; it would be gone when its own request comes (W7)."""
    [change_set], values = new_change_sets(1), ExampleGraph()
    owner, thief = RequestId(), RequestId()
    # A correction has what was sent replaced, and thrown away.
    misfit = set_to(ExampleGraph().net, 1)
    address = await place(deployment, owner, [*values.define(3, 4), misfit])
    await request(deployment, change_set, thief, address)
    await request(deployment, change_set, owner, address)

    await deployment.start(MAX_ATTEMPTS="1")
    await deployment.at_rest()

    [letter] = await deployment.dead_letters(change_set)
    assert "is of request" in letter.headers[REASON]
    graph = await deployment.graph(change_set)
    assert graph.values[values.gross].value == 7


async def test_a_committed_batch_cannot_be_overwritten_by_a_client(
    deployment: Deployment,
) -> None:
    [change_set], values = new_change_sets(1), ExampleGraph()
    applied = RequestId()
    address = await place(deployment, applied, values.define(3, 4))
    await request(deployment, change_set, applied, address)
    first = await deployment.start()
    await deployment.at_rest()
    first.kill()

    for name in (address.object, f"{address.object}-other"):
        await deployment.js.publish(meta_subject(name), b"this is no JSON")
    await deployment.client.enqueue_updates(*change_set, [set_to(values.net, 5)])
    await deployment.start()
    await deployment.at_rest()

    assert (await deployment.graph(change_set)).values[values.gross].value == 9
    past = await deployment.archive(change_set).load(await first_commit(deployment, change_set))
    assert graph_of(past).values[values.net].value == 3


async def first_commit(deployment: Deployment, change_set: ChangeSet) -> int:
    [earliest, *_] = await read_log(deployment.streams, change_set, limit=None)
    return earliest.commit


@pytest.mark.parametrize("kind", [ObjectRef, StoreRef])
async def test_a_request_cannot_throw_away_what_another_change_sets_line_refers_to(
    deployment: Deployment, kind: type[ObjectRef | StoreRef]
) -> None:
    """By naming its address and its request's id, where the batch has to be corrected."""
    victim, thief = new_change_sets(2)
    applied, value = RequestId(), new_id()
    address = await place(deployment, applied, [named(value, 3)])
    await deployment.start()
    await request(deployment, victim, applied, address)
    await deployment.client.enqueue_updates(*thief, [named(new_id(), 1)])
    await deployment.at_rest()
    other = address if kind is ObjectRef else StoreRef(store=address.object)

    await request(deployment, thief, applied, other)
    await deployment.at_rest()

    assert (await deployment.graph(victim)).values[value].value == 3
    past = await deployment.archive(victim).load(await first_commit(deployment, victim))
    assert graph_of(past).values[value].value == 3


async def test_a_batch_whose_description_cannot_be_read_is_buried(deployment: Deployment) -> None:
    """Its request becomes a dead letter, whatever lies where the description should be."""
    descriptions = b"this is no JSON", b"{}", b"[]", b'{"nuid": ">"}'
    change_sets, values = new_change_sets(len(descriptions)), ExampleGraph()
    for change_set, description in zip(change_sets, descriptions, strict=True):
        damaged = RequestId()
        address = await place(deployment, damaged, values.define(3, 4))
        await deployment.js.publish(meta_subject(address.object), description)
        await request(deployment, change_set, damaged, address)

    daemon = await deployment.start(MAX_ATTEMPTS="1")
    await deployment.at_rest()

    for change_set, description in zip(change_sets, descriptions, strict=True):
        [letter] = await deployment.dead_letters(change_set)
        assert "DamagedBatch" in letter.headers[REASON], description
    assert daemon.process.poll() is None


async def test_a_batch_of_which_a_part_is_lost_is_buried_and_the_change_set_goes_on(
    deployment: Deployment,
) -> None:
    [change_set], values = new_change_sets(1), ExampleGraph()
    damaged = RequestId()
    address = await place(deployment, damaged, values.define(3, 4))
    await deployment.js.purge(f"OBJ_{deployment.streams.batches_bucket}", subject="$O.*.C.>")
    await request(deployment, change_set, damaged, address)
    await deployment.client.enqueue_updates(*change_set, values.define(1, 2))

    await deployment.start(MAX_ATTEMPTS="2")
    await deployment.at_rest()

    [letter] = await deployment.dead_letters(change_set)
    assert "DamagedBatch" in letter.headers[REASON]
    assert (await deployment.graph(change_set)).values[values.gross].value == 3


async def test_a_batch_beyond_the_limit_is_refused_unread(deployment: Deployment) -> None:
    """Of a client with limits of its own."""
    [change_set], values = new_change_sets(1), ExampleGraph()
    large = [*values.define(1, 2), *[set_to(values.net, "x" * 1000) for _ in range(600)]]

    await deployment.start(LIMITS__BATCH_BYTES="100000")
    _, reply = await deployment.client.enqueue_updates_with_reply(*change_set, large)

    error = (await reply).status.error
    assert "the batch is too large" in error.message
    assert "over 100000" in error.message
    await deployment.at_rest()
    assert await deployment.dead_letters(change_set) == []
    bucket = f"OBJ_{deployment.streams.batches_bucket}"
    assert await deployment.js.stream_subjects(bucket, "$O.*.C.>") == {}


async def test_a_batch_of_another_change_set_names_it_in_its_request(
    deployment: Deployment,
) -> None:
    """The request tells its readers where the batch was taken from; it is applied as any other."""
    [change_set, origin], values = new_change_sets(2), ExampleGraph()
    batch = (*change_set, origin.change_set_id, values.define(1, 2))

    await deployment.client.enqueue_updates_from_change_set(*batch)
    _, reply = await deployment.client.enqueue_updates_from_change_set_with_reply(*batch)

    stream = deployment.streams.requests_stream
    for sequence in (1, 2):
        stored = await deployment.js.get_message(stream, sequence=sequence)
        assert stored is not None
        sent = EnqueueUpdatesRequest.decode(stored.headers, stored.payload)
        assert sent.from_change_set_id == origin.change_set_id
    await deployment.start()
    assert isinstance((await reply).status, SuccessStatusV3)
    assert (await deployment.graph(change_set)).values[values.net].value == 1

"""Batches that nobody refers to are found and removed, and no others."""

import os
from pathlib import Path
from typing import Any

import pytest

from rebaser_client.requests import store_batch
from rebaser_core import codecs
from rebaser_core.ids import ChangeSet, RequestId
from rebaser_core.jetstream import ObjectNotFound, ObjectStore
from rebaser_core.messages import EnqueueUpdatesRequest, EnqueueUpdatesRequestV1, ObjectRef
from rebaser_core.updates import PutValue
from rebaser_core.versioning import MESSAGE_ID
from rebaser_server.commit_log.garbage_collection import GarbageCollector
from rebaser_server.errors import MissingBatch
from rebaser_server.files import TEMP_DIR
from rebaser_server.graph_application.content import graph_of
from tests.helpers.batches import new_id, put
from tests.helpers.deployment import Deployment, new_change_sets
from tests.helpers.eventually import eventually
from tests.helpers.scripted_owner import NOTHING, Owner


def many() -> list[PutValue]:
    return [PutValue(value_id=new_id(), value=n) for n in range(600)]


async def placed(deployment: Deployment, request: RequestId) -> ObjectRef:
    bucket = ObjectStore(deployment.js, deployment.streams.batches_bucket)
    address = await store_batch(bucket, request, many(), codecs.CBOR)
    assert isinstance(address, ObjectRef)
    return address


async def waiting(deployment: Deployment, change_set: ChangeSet) -> ObjectRef:
    """A large batch whose request nobody has handled yet."""
    request = RequestId()
    address = await placed(deployment, request)
    asked = EnqueueUpdatesRequestV1(
        id=request,
        workspace_id=change_set.workspace_id,
        change_set_id=change_set.change_set_id,
        updates_address=address,
    )
    headers, payload = EnqueueUpdatesRequest.encode(asked, codecs.JSON)
    headers.pop(MESSAGE_ID)
    await deployment.js.publish(deployment.streams.requests(change_set), payload, headers=headers)
    return address


async def dead(deployment: Deployment, change_set: ChangeSet) -> ObjectRef:
    """A large batch whose request is in the dead letters."""
    address = await waiting(deployment, change_set)
    stream, subject = (
        deployment.streams.requests_stream,
        deployment.streams.requests(change_set),
    )
    request = await deployment.js.get_message(stream, last_by_subject=subject)
    assert request is not None
    letters = deployment.streams.dead_letters(change_set)
    await deployment.js.publish(letters, request.payload, headers=request.headers)
    await deployment.js.delete_message(stream, request.sequence)
    return address


def results_of(deployment: Deployment) -> set[str]:
    return {path.stem for path in Path(deployment.settings.store.root).glob("results/*")}


async def test_batches_of_requests_dead_letters_and_commits_stay(
    deployment: Deployment,
) -> None:
    [change_set] = new_change_sets(1)
    owner = await Owner.of(deployment, change_set)
    commit = await owner.commit([update.to_wire() for update in many()])
    asked, given_up = await waiting(deployment, change_set), await dead(deployment, change_set)
    lost = await placed(deployment, RequestId())
    nobodys = await owner.archive.batches.put(RequestId(), many())
    collecting = deployment.collector()

    garbage = await collecting.find()
    await collecting.remove(garbage)

    assert garbage.counts() == {"objects": 1, "files": 1}
    bucket = ObjectStore(deployment.js, deployment.streams.batches_bucket)
    for address in (asked, given_up):
        assert await bucket.get(address.object)
    with pytest.raises(ObjectNotFound):
        await bucket.get(lost.object)
    with pytest.raises(MissingBatch):
        await owner.archive.batches.fetch(nobodys, RequestId())
    assert len(graph_of(await owner.archive.load(commit)).values) == 600
    assert (await collecting.find()).counts() == {}


class _Replaying(GarbageCollector):
    """A dead letter is enqueued again between its look at the requests and the one at letters."""

    async def _in_dead_letters(self, *times: Any) -> set[str]:
        stream = self._streams.dead_letters_stream
        letter = await self._streams.js.get_message(stream, sequence=1)
        assert letter is not None
        change_set = self._streams.parse_change_set(letter.subject)
        requests = self._streams.requests(change_set)
        await self._streams.js.publish(requests, letter.payload, headers=letter.headers)
        await self._streams.js.delete_message(stream, letter.sequence)
        return await super()._in_dead_letters(*times)


async def test_a_batch_of_a_letter_that_is_replayed_meanwhile_stays(
    deployment: Deployment,
) -> None:
    """Otherwise it is neither seen as a request nor as a letter."""
    [change_set] = new_change_sets(1)
    await dead(deployment, change_set)

    garbage = await deployment.collector(kind=_Replaying).find()

    assert garbage.counts() == {}


async def test_young_batches_stay(deployment: Deployment) -> None:
    """A client has placed its batch and is about to ask."""
    await placed(deployment, RequestId())
    unfinished = Path(deployment.settings.store.root) / TEMP_DIR / "mine"
    unfinished.parent.mkdir(parents=True)
    unfinished.write_bytes(b"half")

    assert (await deployment.collector(grace=60).find()).counts() == {}


async def test_files_and_objects_that_were_never_finished_are_removed(
    deployment: Deployment,
) -> None:
    root = Path(deployment.settings.store.root)
    (root / TEMP_DIR).mkdir(parents=True)
    (root / TEMP_DIR / "old").write_bytes(b"half")
    os.utime(root / TEMP_DIR / "old", (1, 1))
    bucket = deployment.streams.batches_bucket
    await deployment.js.publish(f"$O.{bucket}.C.{'a' * 32}", b"half")
    collecting = deployment.collector()

    garbage = await collecting.find()
    await collecting.remove(garbage)

    assert garbage.counts() == {"chunks": 1, "files": 1}
    assert not (root / TEMP_DIR / "old").exists()
    assert not await deployment.js.stream_subjects(f"OBJ_{bucket}")


async def test_a_batch_leaked_between_purge_and_delete_is_found(deployment: Deployment) -> None:
    """The process that purged the line died before it deleted what only that referred to."""
    [change_set] = new_change_sets(1)
    owner = await Owner.of(deployment, change_set, NOTHING)
    await owner.commit([update.to_wire() for update in many()])
    [leaked] = results_of(deployment)
    last = await owner.commit([put(new_id(), 1)])
    await owner.archive.log.purge(last)
    collecting = deployment.collector()

    await collecting.remove(await collecting.find())

    assert leaked not in results_of(deployment)


async def test_a_batch_that_is_placed_again_long_after_its_request_was_handled_stays(
    deployment: Deployment,
) -> None:
    """Its object is younger than the line that refers to it."""
    [change_set] = new_change_sets(1)
    owner = await Owner.of(deployment, change_set)
    commit = await owner.commit([update.to_wire() for update in many()])
    [kept] = results_of(deployment)
    later = 2**31
    os.utime(Path(deployment.settings.store.root) / f"results/{kept}.batch", (later, later))

    garbage = await deployment.collector(grace=-(2**31)).find()

    assert garbage.files == []
    assert graph_of(await owner.archive.load(commit)).values


async def test_daemons_collect_by_themselves(deployment: Deployment) -> None:
    lost = await placed(deployment, RequestId())
    for _ in range(2):
        await deployment.start(STORE__ORPHAN_RETENTION="1")

    bucket = ObjectStore(deployment.js, deployment.streams.batches_bucket)

    async def gone() -> bool:
        try:
            await bucket.info(lost.object)
        except ObjectNotFound:
            return True
        return False

    await eventually(gone)

"""The object store: whole objects or none, and what other clients read and write."""

import asyncio
import json

import nats.js.errors
import pytest
from nats.js.api import ObjectMeta

from rebaser_core.jetstream import (
    JetStream,
    ObjectDamaged,
    ObjectNotFound,
    ObjectStore,
    ObjectTooLarge,
    StreamConfig,
)
from rebaser_core.jetstream.object_store import CHUNK_SIZE

LARGE = bytes(range(256)) * (5 * CHUNK_SIZE // 512)  # two chunks and a half


@pytest.fixture
async def store(js: JetStream) -> ObjectStore:
    store = ObjectStore(js, "b")
    assert await store.ensure(StreamConfig(storage="memory")) == []
    return store


@pytest.mark.parametrize("payload", [b"", b"x", LARGE], ids=["empty", "small", "large"])
async def test_what_was_put_is_got(store: ObjectStore, payload: bytes) -> None:
    info = await store.put("a name / with ünicode", payload)

    assert await store.get("a name / with ünicode") == payload
    assert info.size == len(payload)


async def test_putting_again_replaces_the_object_and_its_chunks(
    js: JetStream, store: ObjectStore
) -> None:
    await store.put("a", LARGE)
    await store.put("a", b"small")

    assert await store.get("a") == b"small"
    assert len(await js.stream_subjects("OBJ_b", "$O.b.C.>")) == 1


async def test_deleting_leaves_no_chunks_and_nothing_to_get(
    js: JetStream, store: ObjectStore
) -> None:
    await store.put("a", LARGE)
    for _ in range(2):
        await store.delete("a")
    await store.delete("never")

    with pytest.raises(ObjectNotFound):
        await store.get("a")
    assert await js.stream_subjects("OBJ_b", "$O.b.C.>") == {}


async def test_missing_chunks_are_an_error_and_not_a_wait(
    js: JetStream, store: ObjectStore
) -> None:
    await store.put("a", LARGE)
    await js.purge("OBJ_b", subject="$O.b.C.>", keep=1)

    with pytest.raises(ObjectDamaged):
        async with asyncio.timeout(30):
            await store.get("a")


async def test_no_more_is_read_than_the_reader_would_take(
    js: JetStream, store: ObjectStore
) -> None:
    await store.put("a", LARGE)

    assert await store.get("a", max_bytes=len(LARGE)) == LARGE
    with pytest.raises(ObjectTooLarge, match=f"{len(LARGE)} bytes, over {len(LARGE) - 1}"):
        await store.get("a", max_bytes=len(LARGE) - 1)


async def test_an_object_with_more_chunks_than_it_says_is_damaged_and_not_read_to_its_end(
    js: JetStream, store: ObjectStore
) -> None:
    """Whoever puts it may say of it what he likes."""
    info = await store.put("a", LARGE)
    said = json.loads(info.to_json()) | {"size": 10}
    await js.publish("$O.b.M.YQ==", json.dumps(said).encode(), headers={"Nats-Rollup": "sub"})

    with pytest.raises(ObjectDamaged):
        await store.get("a", max_bytes=10)


async def test_nats_py_reads_what_we_put_and_we_read_what_it_put(
    js: JetStream, store: ObjectStore
) -> None:
    theirs = await js.nc.jetstream().object_store("b")
    await store.put("ours", LARGE)
    await theirs.put("theirs", LARGE, ObjectMeta(name="theirs", description="from nats-py"))

    assert (await theirs.get("ours")).data == LARGE
    assert await store.get("theirs") == LARGE
    await store.delete("theirs")
    with pytest.raises(nats.js.errors.ObjectNotFoundError):
        await theirs.get("theirs")


async def test_a_part_of_a_bucket_has_objects_and_subjects_of_its_own(
    js: JetStream, store: ObjectStore
) -> None:
    """One name has one object in the bucket, and one in each part of it."""
    one, two = store.part("one"), store.part("two")
    await store.put("a", b"whole")
    await one.put_once("a", b"first")
    await two.put("a", b"second")
    await two.put("a", b"third")

    assert [await each.get("a") for each in (store, one, two)] == [b"whole", b"first", b"third"]
    for kind in ("C", "M"):
        assert len(await js.stream_subjects("OBJ_b", f"$O.b.{kind}.two.*")) == 1
    await two.delete("a")
    with pytest.raises(ObjectNotFound):
        await two.get("a")
    assert [await each.get("a") for each in (store, one)] == [b"whole", b"first"]
    assert await js.stream_subjects("OBJ_b", "$O.b.C.two.>") == {}

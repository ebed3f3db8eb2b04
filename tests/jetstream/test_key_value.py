"""Keys and values: compare-and-swap, watching, and what other clients read and write."""

import asyncio
from unittest import mock

import pytest

from rebaser_core.jetstream import (
    JetStream,
    KeyNotFound,
    KeyValue,
    KeyValueEntry,
    KeyValueWatch,
    NoResponders,
    StreamConfig,
    Unsendable,
    WrongLastSequence,
)
from tests.jetstream.steps import consumers


@pytest.fixture
async def bucket(either_js: JetStream) -> KeyValue:
    bucket = KeyValue(either_js, "b")
    assert await bucket.ensure(StreamConfig(storage="memory"), history=5) == []
    return bucket


async def test_what_was_put_is_got_by_key_and_by_revision(bucket: KeyValue) -> None:
    first = await bucket.put("a.b", b"1")
    second = await bucket.put("a.b", b"2")

    entry = await bucket.get("a.b")
    assert (entry.key, entry.value, entry.revision) == ("a.b", b"2", second)
    assert (await bucket.get("a.b", revision=first)).value == b"1"
    with pytest.raises(KeyNotFound):
        await bucket.get("other", revision=first)


async def test_a_user_who_may_ask_for_some_keys_alone_reads_their_last_values(
    either_js: JetStream, bucket: KeyValue
) -> None:
    """By direct gets with the key in their subject; of several keys it is what was put last."""
    direct = KeyValue(either_js, "b", direct=True)
    await bucket.put("a.b", b"1")
    await bucket.put("a.c", b"2")
    await bucket.put("gone", b"3")
    await bucket.delete("gone")

    assert await direct.get("a.b") == await bucket.get("a.b")
    assert await direct.last("a.*") == await bucket.get("a.c")
    assert await direct.last("*") is None, "what was done last is a deletion"
    for missing in ("gone", "never"):
        with pytest.raises(KeyNotFound):
            await direct.get(missing)
    with pytest.raises(NoResponders):
        await KeyValue(either_js, "no-such-bucket", direct=True).get("a.b")


async def test_a_key_is_created_once_until_it_is_deleted(bucket: KeyValue) -> None:
    await bucket.create("a", b"1")
    with pytest.raises(WrongLastSequence):
        await bucket.create("a", b"2")

    await bucket.delete("a")
    with pytest.raises(KeyNotFound):
        await bucket.get("a")
    await bucket.create("a", b"3")
    assert (await bucket.get("a")).value == b"3"


async def test_of_two_updates_of_one_revision_one_wins(bucket: KeyValue) -> None:
    revision = await bucket.put("a", b"1")
    await bucket.update("a", b"2", revision)

    with pytest.raises(WrongLastSequence):
        await bucket.update("a", b"3", revision)
    with pytest.raises(WrongLastSequence):
        await bucket.delete("a", last_revision=revision)


async def test_a_purged_key_has_no_history(either_js: JetStream, bucket: KeyValue) -> None:
    first = await bucket.put("a", b"1")
    await bucket.purge("a")

    with pytest.raises(KeyNotFound):
        await bucket.get("a", revision=first)
    assert await either_js.stream_subjects("KV_b") == {"$KV.b.a": 1}


async def test_keys_are_those_with_a_value(either_js: JetStream, bucket: KeyValue) -> None:
    assert await bucket.keys() == []
    for key in ("a", "b", "c.d"):
        await bucket.put(key, b"")
    await bucket.delete("b")

    assert sorted(await bucket.keys()) == ["a", "c.d"]
    assert await bucket.keys("c.*") == ["c.d"]
    assert await consumers(either_js, "KV_b") == []


async def test_a_key_that_is_written_meanwhile_is_told_once(bucket: KeyValue) -> None:
    """A watch tells of each change; of one that deletes the key, too."""
    for key in ("a", "b", "c"):
        await bucket.put(key, b"")
    telling = KeyValueWatch.next
    told: list[str] = []

    async def changed_meanwhile(watch: KeyValueWatch) -> KeyValueEntry | None:
        entry = await telling(watch)
        if entry and not told:
            await bucket.put("a", b"")
            await bucket.delete("b")
        if entry:
            told.append(entry.key)
        return entry

    with mock.patch.object(KeyValueWatch, "next", changed_meanwhile):
        assert await bucket.keys() == ["c", "a"]
    assert sorted(told) == ["a", "a", "b", "b", "c"]


@pytest.mark.parametrize("key", ["", ">", "a.*", "a..b", ".a", "a.", "a b", "a\n"])
async def test_a_key_has_no_wildcards_and_no_empty_tokens(bucket: KeyValue, key: str) -> None:
    for attempt in (bucket.put(key, b""), bucket.create(key, b""), bucket.delete(key)):
        with pytest.raises(Unsendable):
            await attempt


async def test_a_watch_tells_what_is_there_and_then_what_changes(bucket: KeyValue) -> None:
    await bucket.put("a", b"1")
    await bucket.put("a", b"2")

    async with bucket.watch() as watch, asyncio.timeout(30):
        there = await anext(watch)
        assert there is not None
        assert (there.key, there.value) == ("a", b"2")
        assert await anext(watch) is None
        await bucket.delete("a")
        change = await anext(watch)
        assert change is not None
        assert change.is_deleted


async def test_nats_py_reads_what_we_put_and_we_read_what_it_put(bucket: KeyValue) -> None:
    theirs = await bucket._js.nc.jetstream().key_value("b")
    await bucket.put("ours", b"1")
    await theirs.put("theirs", b"2")
    await theirs.delete("ours")

    assert (await bucket.get("theirs")).value == b"2"
    assert await bucket.keys() == ["theirs"]

"""Another account's JetStream, or another domain's: all of it there, nothing here (ADR-19)."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import timedelta
from pathlib import Path

import pytest

from rebaser_core.jetstream import (
    ConnectOptions,
    ConsumerConfig,
    FlowControlIgnored,
    JetStream,
    JetStreamError,
    KeyValue,
    Misconfigured,
    NatsUnreachable,
    ObjectNotFound,
    ObjectStore,
    PullConsumer,
    PushSubscription,
    StreamConfig,
    connected,
    subscribe,
)
from rebaser_core.jetstream.object_store import CHUNK_SIZE
from tests.helpers.eventually import eventually
from tests.helpers.nats_process import NatsServer, running
from tests.jetstream.steps import consumers, has_pending, numbers, spied

LARGE = bytes(range(256)) * (100 * CHUNK_SIZE // 256)  # more than one flow control window

# the document's own, with the object store added as the key-value store is,
# and with a JetStream of the importing account's own if it is to be led into temptation
ACCOUNTS = """
accounts: {
    A: {
        users: [ {user: a, password: a} ]
        jetstream: enabled
        exports: [
            {service: '$JS.API.>' }
            {service: '$KV.>'}
            {service: '$O.>'}
            {stream: 'forI.>' }
        ]
    },
    I: {
        users: [ {user: i, password: i} ]
        %s
        imports: [
            {service: {account: A, subject: '$JS.API.>'}, to: 'fromA.>' }
            {service: {account: A, subject: '$KV.>'}, to: 'fromA.$KV.>' }
            {service: {account: A, subject: '$O.>'}, to: 'fromA.$O.>' }
            {stream: { subject: 'forI.>', account: 'A' } }
        ]
    }
}
"""


class Pair:
    """The JetStream that owns, the same one seen from elsewhere, and the local one there if any."""

    def __init__(self, owner: JetStream, seen: JetStream, local: JetStream | None) -> None:
        self.owner = owner
        self.seen = seen
        self.local = local


@asynccontextmanager
async def two_accounts(directory: Path, local: str) -> AsyncIterator[Pair]:
    async with AsyncExitStack() as stack:
        server = stack.enter_context(running(NatsServer(directory, ACCOUNTS % local)))

        async def as_user(name: str, **more: str):
            who = ConnectOptions(servers=(server.url,), user=name, password=name, **more)
            return await stack.enter_async_context(connected(who))

        yield Pair(
            JetStream(await as_user("a")),
            JetStream(await as_user("i", inbox_prefix="forI"), api_prefix="fromA"),
            JetStream(await as_user("i")) if local else None,
        )


HUB = """
jetstream { domain: hub }
leafnodes { listen: "127.0.0.1:-1" }
%s
"""
LEAF = """
jetstream { domain: leaf }
leafnodes { remotes: [ { url: "nats-leaf://127.0.0.1:%d" } ] }
"""
# what a hub needs, so that a put crosses: the server maps only `$KV` and `$OBJ` by itself
OBJECTS_OVER_THE_DOMAIN = 'mappings: { "$JS.hub.API.$O.>": "$O.>" }'


@asynccontextmanager
async def two_domains(directory: Path, more: str = OBJECTS_OVER_THE_DOMAIN) -> AsyncIterator[Pair]:
    async with AsyncExitStack() as stack:
        hub = stack.enter_context(running(NatsServer(directory / "hub", HUB % more)))
        leaf = stack.enter_context(running(NatsServer(directory / "leaf", LEAF % hub.leaf_port)))
        near = await stack.enter_async_context(connected(ConnectOptions(servers=(leaf.url,))))
        far = await stack.enter_async_context(connected(ConnectOptions(servers=(hub.url,))))
        seen = JetStream(near, domain="hub")

        async def linked() -> bool:
            try:
                await seen.request("INFO", timeout=0.2)
            except NatsUnreachable:
                return False
            return True

        await eventually(linked)
        yield Pair(JetStream(far), seen, JetStream(near))


@pytest.fixture(params=["", "jetstream: enabled"], ids=["no-local", "local"])
async def accounts(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Pair]:
    async with two_accounts(tmp_path, request.param) as pair:
        yield pair


@pytest.fixture
async def domains(tmp_path: Path) -> AsyncIterator[Pair]:
    async with two_domains(tmp_path) as pair:
        yield pair


@pytest.fixture(params=["accounts", "domains"])
async def pair(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Pair]:
    """Each with a JetStream of its own in between, which must stay untouched."""
    local = "jetstream: enabled"
    there = two_domains(tmp_path) if request.param == "domains" else two_accounts(tmp_path, local)
    async with there as pair:
        yield pair


async def test_streams_and_messages_are_theirs(accounts: Pair) -> None:
    seen, owner = accounts.seen, accounts.owner
    await seen.create_stream(StreamConfig(name="S", subjects=["s.>"]))
    for number in range(300):
        await owner.publish("s.a", b"%d" % number)

    async with seen.stream("S").ordered_consumer("s.a") as reader:
        found = []
        while (delivery := await reader.next(idle_timeout=0)) is not None:
            found.append(delivery)

    assert numbers(found) == list(range(300))
    assert await consumers(owner) == []
    if accounts.local:
        assert await accounts.local.stream_names() == []


async def test_a_consumer_is_pulled_across_though_a_request_gets_one_answer(
    accounts: Pair,
) -> None:
    """Of a pull for five, four messages would be delivered to nobody."""
    await accounts.owner.create_stream(StreamConfig(name="S", subjects=["s.>"]))
    first, second, third = [
        await accounts.seen.stream("S").create_consumer(
            ConsumerConfig(durable_name=name, ack_policy="explicit")
        )
        for name in ("a", "b", "c")
    ]
    assert await first.fetch(5, expires=0.2) == []
    for number in range(40):
        await accounts.owner.publish("s.a", b"%d" % number)

    async with asyncio.timeout(30):
        fetched = await first.fetch(5)
        async with second.messages(max_messages=10) as messages:
            streamed = [await anext(messages) for _ in range(40)]
        async with PullConsumer(accounts.seen, "S", third.name) as pull:
            taken = [await pull.take(4) for _ in range(40)]

    assert numbers(fetched) == list(range(5))
    assert numbers(streamed) == numbers(taken) == list(range(40))
    with pytest.raises(Misconfigured):
        await first.fetch(5, max_bytes=1000)


async def test_flow_control_that_cannot_be_answered_across_is_an_alarm(tmp_path: Path) -> None:
    """The document's configuration exports no `$JS.FC`: the server waits, and says so."""
    alarms: list[JetStreamError] = []
    config = ConsumerConfig(
        flow_control=True, idle_heartbeat=timedelta(seconds=0.1), ack_policy="none"
    )
    async with two_accounts(tmp_path, "") as pair:
        await pair.owner.create_stream(StreamConfig(name="S", subjects=["s.>"], storage="memory"))
        for _ in range(300):
            await pair.owner.connection.publish("s.a", bytes(50_000))
        async with await subscribe(
            pair.seen, stream="S", config=config, on_warning=alarms.append
        ) as subscription:
            reading = asyncio.ensure_future(_read_on(subscription))
            await eventually(lambda: any(isinstance(a, FlowControlIgnored) for a in alarms))
            reading.cancel()


async def _read_on(subscription: PushSubscription) -> None:
    async for _ in subscription:
        pass


async def test_an_export_with_many_answers_is_pulled_from_in_batches(tmp_path: Path) -> None:
    many = "{service: '$JS.API.>', response: stream }"
    config = (ACCOUNTS % "").replace("{service: '$JS.API.>' }", many)
    with running(NatsServer(tmp_path, config)) as server:
        who = ConnectOptions(servers=(server.url,), user="i", password="i", inbox_prefix="forI")
        async with connected(who) as nc:
            js = JetStream(nc, api_prefix="fromA", single_reply=False)
            await js.create_stream(StreamConfig(name="KV_b", subjects=["$KV.b.>"]))
            for number in range(100):
                await KeyValue(js, "b").put("k", b"%d" % number)
            async with js.stream("KV_b").ordered_consumer() as reader:
                found = [await anext(reader) for _ in range(100)]

    assert numbers(found) == list(range(100))


async def test_every_subject_published_begins_with_the_prefix(accounts: Pair) -> None:
    js = accounts.seen
    async with (
        spied(js, "$JS.>") as api,
        spied(js, "$KV.>") as keys,
        spied(js, "$O.>") as objects,
        spied(js, "fromA.>") as kept,
    ):
        await use_everything(js)
        await js.connection.ping(30)

    assert len(kept) > 10
    assert (api, keys, objects) == ([], [], [])


async def use_everything(js: JetStream) -> None:
    bucket, store = KeyValue(js, "b"), ObjectStore(js, "b")
    await bucket.ensure()
    await store.ensure()
    await bucket.put("k", b"1")
    await bucket.create("l", b"1")
    await bucket.delete("l")
    await bucket.purge("l")
    assert await bucket.keys() == ["k"]
    await store.put("o", LARGE)
    await store.put("o", LARGE[:1000])
    assert await store.get("o") == LARGE[:1000]


async def test_nothing_gets_into_a_local_bucket_of_the_same_name(pair: Pair) -> None:
    assert pair.local is not None
    await KeyValue(pair.local, "b").ensure()
    await ObjectStore(pair.local, "b").ensure()

    await use_everything(pair.seen)

    for stream in ("KV_b", "OBJ_b"):
        assert (await pair.local.stream_info(stream)).state.messages == 0
    assert (await KeyValue(pair.owner, "b").get("k")).value == b"1"
    assert await ObjectStore(pair.owner, "b").get("o") == LARGE[:1000]


async def test_large_objects_cross_both_ways(pair: Pair) -> None:
    here, there = ObjectStore(pair.seen, "b"), ObjectStore(pair.owner, "b")
    await here.ensure()
    await here.put("a", LARGE)
    await there.put("b", LARGE)

    assert await there.get("a") == LARGE
    assert await here.get("b", timeout=60) == LARGE


async def test_deleting_across_leaves_no_meta_without_chunks(pair: Pair) -> None:
    here, there = ObjectStore(pair.seen, "b"), ObjectStore(pair.owner, "b")
    await there.ensure()
    await there.put("a", LARGE)

    await here.delete("a")

    with pytest.raises(ObjectNotFound):
        await there.get("a")
    assert await pair.owner.stream_subjects("OBJ_b", "$O.b.C.>") == {}


async def test_where_a_put_cannot_cross_nothing_is_written_and_nothing_destroyed(
    tmp_path: Path,
) -> None:
    """A hub that does not map `$O`: an error, and neither bucket is touched."""
    async with two_domains(tmp_path, "") as domains:
        assert domains.local is not None
        here, there = ObjectStore(domains.seen, "b"), ObjectStore(domains.owner, "b")
        await there.ensure()
        await there.put("a", b"1")
        await ObjectStore(domains.local, "b").ensure()

        for attempt in (here.put("a", b"2"), here.delete("a")):
            with pytest.raises(NatsUnreachable):
                await attempt

        assert await here.get("a") == b"1"
        assert (await domains.local.stream_info("OBJ_b")).state.messages == 0


async def test_a_watch_follows_across(pair: Pair) -> None:
    here, there = KeyValue(pair.seen, "b"), KeyValue(pair.owner, "b")
    await there.ensure()
    await there.put("a", b"1")

    async with here.watch() as watch, asyncio.timeout(30):
        first = await anext(watch)
        assert (first.key, first.value) == ("a", b"1")
        assert await anext(watch) is None
        await here.put("a", b"2")
        assert (await anext(watch)).value == b"2"
        assert (await there.get("a")).value == b"2"


async def test_the_servers_own_domain_by_its_name_is_the_local_one(domains: Pair) -> None:
    """Nothing maps the views' subjects there."""
    assert domains.local is not None
    await use_everything(JetStream(domains.local.nc, domain="leaf"))

    assert await ObjectStore(domains.local, "b").get("o") == LARGE[:1000]


async def test_a_domain_may_be_given_as_its_prefix(domains: Pair) -> None:
    js = JetStream(domains.seen.nc, api_prefix="$JS.hub.API")
    await domains.owner.create_stream(StreamConfig(name="S", subjects=["s.>"]))
    consumer = await js.stream("S").create_consumer(ConsumerConfig(durable_name="d"))
    for number in range(5):
        await domains.owner.publish("s.a", b"%d" % number)

    await eventually(lambda: has_pending(domains.owner, 5))
    async with spied(js, "$JS.hub.API.CONSUMER.MSG.NEXT.>") as pulls:
        assert numbers(await consumer.fetch(5)) == list(range(5))
        await js.connection.ping(30)
    assert pulls == [{"batch": 5, "no_wait": True}]


async def test_acks_cross_a_domain(domains: Pair) -> None:
    await domains.owner.create_stream(StreamConfig(name="S", subjects=["s.>"]))
    await domains.owner.publish("s.a", b"1")
    config = ConsumerConfig(durable_name="d", ack_policy="explicit")
    consumer = await domains.seen.stream("S").create_consumer(config)

    [delivery] = await consumer.fetch(1)
    await delivery.ack(confirm=True)
    await domains.owner.publish("s.a", b"2")
    async with PullConsumer(domains.seen, "S", "d") as pull:
        await (await pull.take(5)).ack(confirm=True)

    assert (await domains.owner.consumer_info("S", "d")).num_ack_pending == 0


def test_a_prefix_and_a_domain_exclude_each_other() -> None:
    with pytest.raises(ValueError, match="either"):
        JetStream(None, api_prefix="x", domain="y")

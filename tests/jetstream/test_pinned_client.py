"""One client of a group gets everything, and when it goes another one does (ADR-42)."""

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from rebaser_core.jetstream import (
    ApiError,
    ConnectOptions,
    ConsumerNotFound,
    Delivery,
    JetStream,
    PriorityGroup,
    PullConsumer,
    connected,
)
from rebaser_core.jetstream.handles import Consumer
from tests.helpers.eventually import eventually
from tests.helpers.nats_process import NatsServer
from tests.jetstream.steps import (
    durable,
    filled,
    has_pending,
    numbers,
    publish_many,
    spied,
    state,
    waiting_pulls,
)
from tests.jetstream.test_consume import PULLS

JOBS = PriorityGroup("jobs")
TIMEOUT = timedelta(seconds=1)
RESILIENT = pytest.mark.parametrize("resilient", [True, False], ids=["newest", "first-edition"])


async def two_clients(js: JetStream, **config: object) -> tuple[Consumer, Consumer]:
    await filled(js)
    await durable(js, priority_groups=["jobs"], priority_policy="pinned_client", **config)
    return await js.stream("S").consumer("d"), await js.stream("S").consumer("d")


async def pinned_id(js: JetStream) -> str | None:
    [group] = (await state(js)).priority_groups
    return group.pinned_client_id


async def until_pulled(pulls: list[Any], *, with_pin: int, without: int) -> None:
    wanted = (with_pin, with_pin + without)
    await eventually(lambda: (sum("id" in pull for pull in pulls), len(pulls)) == wanted)


async def test_one_client_gets_all_and_says_so_in_its_pulls(js: JetStream) -> None:
    """In batches and continuously; the server says who it is, and since when."""
    ours, other = await two_clients(js)
    [group] = (await state(js)).priority_groups
    assert (group.group, group.pinned_client_id) == ("jobs", None)
    await publish_many(js, range(4))
    await eventually(lambda: has_pending(js, 4))
    async with spied(js, PULLS) as pulls:
        [first] = await ours.fetch(1, group=JOBS)
        assert await other.fetch(4, no_wait=True, group=JOBS) == []
        assert numbers(await ours.fetch(2, group=JOBS)) == [1, 2]
        async with asyncio.timeout(30), ours.messages(group=JOBS) as messages:
            assert int((await anext(messages)).payload) == 3
        await eventually(lambda: len(pulls) == 4)

    info = await state(js)
    [group] = info.priority_groups
    assert group.pinned_client_id == first.headers["Nats-Pin-Id"]
    assert group.pinned_ts is not None
    assert info.created < group.pinned_ts < info.ts
    pin = group.pinned_client_id
    assert [pull.get("id") for pull in pulls] == [None, None, pin, pin]


async def test_another_client_takes_over_when_the_pinned_one_pulls_no_more(js: JetStream) -> None:
    ours, other = await two_clients(js, priority_timeout=TIMEOUT)
    await publish_many(js, range(3))
    await eventually(lambda: has_pending(js, 3))
    assert numbers(await ours.fetch(1, group=JOBS)) == [0]

    assert numbers(await other.fetch(2, group=JOBS)) == [1, 2]

    assert await ours.fetch(1, no_wait=True, group=JOBS) == []


async def test_another_reader_takes_over_when_the_pinned_one_goes(js: JetStream) -> None:
    ours, other = await two_clients(js, priority_timeout=TIMEOUT)
    async with other.messages(group=JOBS) as follower:
        async with ours.messages(group=JOBS) as leader:
            await js.publish("s.a", b"0")
            assert int((await anext(leader)).payload) == 0
            following = asyncio.create_task(follower.next())
            await eventually(lambda: waiting_pulls(js, 2))
        await publish_many(js, range(1, 4))

        taken = [await following, await anext(follower), await anext(follower)]

    assert [int(one.payload) for one in taken if one] == [1, 2, 3]


async def test_a_batch_goes_on_without_a_pin_that_the_server_gave_up(js: JetStream) -> None:
    """The pull with the pin is ended with 423, which is no error."""
    ours, _ = await two_clients(js)
    await publish_many(js, range(2))
    await eventually(lambda: has_pending(js, 2))
    async with spied(js, PULLS) as pulls:
        await ours.fetch(1, group=JOBS)
        await js.unpin_consumer("S", "d", "jobs")
        assert numbers(await ours.fetch(1, no_wait=True, group=JOBS)) == [1]
        await eventually(lambda: len(pulls) == 3)

    assert [pull.get("id") is None for pull in pulls] == [True, False, True]


async def test_a_batch_that_waits_goes_on_without_its_pin(js: JetStream) -> None:
    ours, other = await two_clients(js)
    await publish_many(js, range(1))
    await ours.fetch(1, group=JOBS)
    waiting = asyncio.create_task(ours.fetch(1, expires=60, group=JOBS))
    await eventually(lambda: waiting_pulls(js))
    await js.unpin_consumer("S", "d", "jobs")
    taken_over = asyncio.create_task(other.fetch(1, expires=60, group=JOBS))
    await eventually(lambda: waiting_pulls(js, 2))

    await js.publish("s.a", b"1")
    assert numbers(await taken_over) == [1]
    await js.unpin_consumer("S", "d", "jobs")
    await js.publish("s.a", b"2")
    assert numbers(await waiting) == [2]


async def test_a_pin_that_another_client_has_by_now_is_forgotten(js: JetStream) -> None:
    ours, other = await two_clients(js)
    await publish_many(js, range(3))
    await eventually(lambda: has_pending(js, 3))
    await ours.fetch(1, group=JOBS)
    await js.unpin_consumer("S", "d", "jobs")
    assert numbers(await other.fetch(1, group=JOBS)) == [1]
    async with spied(js, PULLS) as pulls:
        assert await ours.fetch(1, no_wait=True, group=JOBS) == []
        await eventually(lambda: len(pulls) == 2)

    assert ["id" in pull for pull in pulls] == [True, False]
    assert await pinned_id(js) is not None


@RESILIENT
async def test_unpinning_hands_over_and_both_read_on(js: JetStream, resilient: bool) -> None:
    """The server ends the pull with the old pin behind the first message that others get."""
    ours, other = await two_clients(js)
    async with (
        spied(js, PULLS) as pulls,
        ours.messages(group=JOBS, resilient=resilient) as one,
        other.messages(group=JOBS, resilient=resilient) as another,
    ):
        await js.publish("s.a", b"0")
        await one.next()
        for turn, pinned, waiting in ((1, one, another), (2, another, one), (3, one, another)):
            leading = asyncio.create_task(pinned.next())
            following = asyncio.create_task(waiting.next())
            await until_pulled(pulls, with_pin=turn, without=turn + 1)
            await js.unpin_consumer("S", "d", "jobs")
            await publish_many(js, range(2 * turn, 2 * turn + 2))

            taken = [await following, await waiting.next()]
            assert numbers([one for one in taken if one]) == [2 * turn, 2 * turn + 1]
            leading.cancel()
            with pytest.raises(asyncio.CancelledError):
                await leading


async def test_that_none_is_pinned_is_success_for_unpinning(js: JetStream) -> None:
    """That there is no such group, or no such consumer, is an error."""
    await two_clients(js)

    await js.unpin_consumer("S", "d", "jobs")

    assert await pinned_id(js) is None
    with pytest.raises(ApiError, match="group does not exist"):
        await js.unpin_consumer("S", "d", "others")
    with pytest.raises(ConsumerNotFound):
        await js.unpin_consumer("S", "e", "jobs")


async def test_pulls_made_before_the_pin_came_hold_nothing_up(js: JetStream) -> None:
    """The server leaves all but the one waiting whose message brought it."""
    await two_clients(js)
    pulling = PullConsumer(js, "S", "d", group=JOBS, expires=600, idle_heartbeat=200)
    async with pulling as pull:
        for number, free in ((1, 1), (2, 4)):
            taking = asyncio.create_task(pull.take(free))
            await eventually(lambda number=number: waiting_pulls(js, number))
            taking.cancel()
            await asyncio.wait([taking])
        await publish_many(js, range(4))

        async with asyncio.timeout(30):
            taken = [await pull.take(free) for free in (4, 3, 2, 1)]

        info = await state(js)
    assert numbers(taken) == [0, 1, 2, 3]
    assert [one.delivered for one in taken] == [1] * 4
    assert (info.num_ack_pending, info.num_waiting) == (4, 0)


async def test_pulls_end_in_time_for_others_that_keep_the_pin(js: JetStream) -> None:
    ours, _ = await two_clients(js, priority_timeout=timedelta(seconds=3))
    async with spied(js, PULLS) as pulls, ours.messages(group=JOBS) as messages:
        await js.publish("s.a", b"0")
        await messages.next()
        reading = asyncio.create_task(messages.next())
        await eventually(lambda: len(pulls) >= 4)
        reading.cancel()

    assert {pull["expires"] for pull in pulls} == {1.5e9}
    assert {pull["idle_heartbeat"] for pull in pulls} == {0.75e9}
    assert ["id" in pull for pull in pulls][:4] == [False, True, True, True]


async def test_pulls_by_name_end_in_time_for_others_that_keep_the_pin(js: JetStream) -> None:
    """Who names a consumer learns from the server what it has."""
    await two_clients(js, priority_timeout=TIMEOUT)
    async with spied(js, PULLS) as pulls, PullConsumer(js, "S", "d", group=JOBS) as tasks:
        await js.publish("s.a", b"0")
        await tasks.take()

    assert {pull["expires"] for pull in pulls} == {0.5e9}


async def test_a_pinned_client_is_so_after_a_reconnect(js: JetStream, server: NatsServer) -> None:
    """If that takes less than the timeout, which is two minutes by default."""
    _, other = await two_clients(js)
    async with connected(ConnectOptions(servers=(server.url,))) as nc, spied(js, PULLS) as pulls:
        ours = await JetStream(nc).stream("S").consumer("d")
        async with ours.messages(group=JOBS) as leader, other.messages(group=JOBS) as follower:
            await js.publish("s.a", b"0")
            await (await anext(leader)).ack(confirm=True)
            leading = asyncio.create_task(leader.next())
            following = asyncio.create_task(follower.next())
            await until_pulled(pulls, with_pin=1, without=2)
            pinned = await pinned_id(js)
            nc._transport._io_writer.transport.abort()
            await until_pulled(pulls, with_pin=2, without=2)
            await publish_many(js, range(1, 3))

            taken = [await leading, await leader.next()]

            assert [(int(one.payload), one.delivered) for one in taken if one] == [(1, 1), (2, 1)]
            assert not following.done()
            following.cancel()
    assert await pinned_id(js) == pinned


async def test_readers_share_a_stream_without_loss_however_the_pin_moves(
    js: JetStream, server: NatsServer
) -> None:
    """Unpinned again and again, and once the server restarts, which forgets who was pinned."""
    clients = await two_clients(js)
    readers = [client.messages(group=JOBS, max_messages=20) for client in clients]
    taken: list[Delivery] = []

    async def take(delivery: Delivery) -> None:
        await delivery.ack(confirm=True)
        taken.append(delivery)

    async with readers[0], readers[1], asyncio.TaskGroup() as tasks:
        for reader in readers:
            tasks.create_task(reader.for_each(take))
        for start in range(0, 500, 50):
            await publish_many(js, range(start, start + 50))
            await js.unpin_consumer("S", "d", "jobs")
        await eventually(lambda: len(taken) == 500)
        server.stop()
        await asyncio.to_thread(server.start)
        await js.connection.wait_connected()
        await publish_many(js, range(500, 550))
        await eventually(lambda: len(taken) >= 550)
        for reader in readers:
            await reader.stop()

    assert sorted(numbers(taken)) == list(range(550))


async def test_a_batch_is_filled_where_a_request_gets_one_answer(js: JetStream) -> None:
    """As under a prefix (ADR-19)."""
    await two_clients(js)
    single = JetStream(js.nc, single_reply=True)
    ours = await single.stream("S").consumer("d")
    fetching = asyncio.create_task(ours.fetch(5, expires=60, group=JOBS))
    await eventually(lambda: waiting_pulls(js))
    await publish_many(js, range(5))

    async with asyncio.timeout(30):
        assert numbers(await fetching) == [0, 1, 2, 3, 4]


async def test_the_pin_is_the_servers_and_not_what_a_client_stored(js: JetStream) -> None:
    ours, _ = await two_clients(js)
    for _ in range(2):
        await js.publish("s.a", headers={"Nats-Pin-Id": "forged"})
    await eventually(lambda: has_pending(js, 2))
    async with spied(js, PULLS) as pulls:
        await ours.fetch(1, group=JOBS)
        await ours.fetch(1, group=JOBS)
        await until_pulled(pulls, with_pin=1, without=1)

    assert pulls[1]["id"] == await pinned_id(js)

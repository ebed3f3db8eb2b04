"""Pulls for a consumer's priority group: what they say, and when they are served (ADR-42)."""

import asyncio
from typing import Any

import pytest

from rebaser_core.jetstream import (
    ConsumerConfig,
    JetStream,
    Misconfigured,
    PriorityGroup,
    PullConsumer,
    pull_subscribe,
)
from tests.helpers.eventually import eventually
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
from tests.jetstream.test_consume import PULLS, QUICK, looked_up

JOBS = PriorityGroup("jobs")
OVERFLOW = ConsumerConfig(priority_groups=["jobs"], priority_policy="overflow")
PRIORITIZED = ConsumerConfig(priority_groups=["jobs"], priority_policy="prioritized")
PINNED = ConsumerConfig(priority_groups=["jobs"], priority_policy="pinned_client")


@pytest.mark.parametrize("name", ["", "a" * 17, "two words", "a.b", "ä", "a\n"])
def test_a_name_that_no_group_can_have_is_refused(name: str) -> None:
    with pytest.raises(Misconfigured, match="give 1 to 16 letters"):
        PriorityGroup(name)


@pytest.mark.parametrize(
    "wrong",
    [
        {"min_pending": 0},
        {"min_ack_pending": -1},
        {"priority": -1},
        {"priority": 10},
        {"min_pending": 1, "priority": 1},
    ],
    ids=str,
)
def test_options_that_no_policy_has_are_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(Misconfigured, match="give"):
        PriorityGroup("jobs", **wrong)


async def test_the_server_takes_the_names_that_are_taken_here(js: JetStream) -> None:
    longest = PriorityGroup("aZ09/_=-".ljust(16, "x"))
    await filled(js, "s.a")
    await durable(js, priority_groups=[longest.name], priority_policy="overflow")
    consumer = await js.stream("S").consumer("d")

    assert numbers(await consumer.fetch(1, group=longest)) == [1]


async def test_each_kind_of_pull_names_its_group_and_options(js: JetStream) -> None:
    first = PriorityGroup("jobs", priority=0)
    await looked_up(js, **vars_of(PRIORITIZED))
    consumer = await pull_subscribe(js, stream="S", consumer="d")
    async with spied(js, PULLS) as pulls, PullConsumer(js, "S", "d", group=first) as pull:
        for reading, count in (
            (consumer.fetch(1, expires=60, group=first), 2),
            (consumer.next(expires=60, group=first), 4),
            (consumer.messages(group=first).next(), 5),
            (consumer.consume(never, group=first), 6),
            (pull.take(), 7),
        ):
            task = asyncio.ensure_future(reading)
            await eventually(lambda count=count: len(pulls) == count)
            task.cancel()
            await asyncio.wait([task])

    assert [(one["group"], one["priority"]) for one in pulls] == [("jobs", 0)] * 7
    assert not {"id", "min_pending", "min_ack_pending"} & {name for one in pulls for name in one}


async def never(delivery: object) -> None:
    raise AssertionError(delivery)


def vars_of(config: ConsumerConfig) -> dict[str, Any]:
    return {name: value for name, value in vars(config).items() if value}


CONTRADICTIONS = pytest.mark.parametrize(
    ("config", "group", "advice"),
    [
        (OVERFLOW, None, "give one of jobs"),
        (OVERFLOW, PriorityGroup("others"), "give one of jobs"),
        (ConsumerConfig(), JOBS, "leave jobs out"),
        (PINNED, PriorityGroup("jobs", min_pending=1), "min_pending is for the policy overflow"),
        (PRIORITIZED, PriorityGroup("jobs", min_ack_pending=1), "min_ack_pending is for"),
        (OVERFLOW, PriorityGroup("jobs", priority=1), "priority is for the policy prioritized"),
    ],
    ids=("no-group", "another", "needless", "pending", "ack-pending", "priority"),
)


@CONTRADICTIONS
async def test_a_pull_that_contradicts_its_consumer_is_not_made(
    js: JetStream, config: ConsumerConfig, group: PriorityGroup | None, advice: str
) -> None:
    consumer = await looked_up(js, **vars_of(config))
    async with spied(js, PULLS) as pulls:
        for reading in (
            consumer.fetch(1, group=group),
            consumer.next(group=group),
            consumer.consume(never, group=group),
        ):
            with pytest.raises(Misconfigured, match=advice):
                await reading
        with pytest.raises(Misconfigured, match=advice):
            consumer.messages(group=group)
        await js.connection.ping(30)

    assert pulls == []


@CONTRADICTIONS
async def test_a_service_that_contradicts_its_consumer_does_not_pull(
    js: JetStream, config: ConsumerConfig, group: PriorityGroup | None, advice: str
) -> None:
    """Each time it is asked to; with a group, also if it knows whether acks are wanted."""
    await looked_up(js, **vars_of(config))
    acks = True if group else None
    async with (
        spied(js, PULLS) as pulls,
        PullConsumer(js, "S", "d", acks=acks, group=group) as pull,
    ):
        for _ in range(2):
            with pytest.raises(Misconfigured, match=advice):
                await pull.take()

    assert pulls == []


async def test_a_service_without_a_group_learns_from_the_refusal_what_to_do(js: JetStream) -> None:
    """Nothing is looked up for it where it says itself whether acks are wanted."""
    await looked_up(js, **vars_of(OVERFLOW))
    async with PullConsumer(js, "S", "d", acks=True) as pull:
        with pytest.raises(Misconfigured, match="give one of jobs"):
            await pull.take()


async def test_a_batch_comes_only_while_so_many_messages_wait(js: JetStream) -> None:
    consumer = await looked_up(js, **vars_of(OVERFLOW))
    three = PriorityGroup("jobs", min_pending=3)
    await publish_many(js, range(2))

    assert await consumer.fetch(9, no_wait=True, group=three) == []
    await publish_many(js, range(2, 4))
    await eventually(lambda: has_pending(js, 4))
    assert numbers(await consumer.fetch(9, no_wait=True, group=three)) == [0, 1]
    assert numbers(await consumer.fetch(9, no_wait=True, group=JOBS)) == [2, 3]


async def test_a_batch_comes_only_while_so_many_acks_are_missing(js: JetStream) -> None:
    consumer = await looked_up(js, **vars_of(OVERFLOW))
    two = PriorityGroup("jobs", min_ack_pending=2)
    await publish_many(js, range(6))
    await eventually(lambda: has_pending(js, 6))

    assert await consumer.fetch(2, no_wait=True, group=two) == []
    held = await consumer.fetch(2, no_wait=True, group=JOBS)
    assert numbers(await consumer.fetch(2, no_wait=True, group=two)) == [2, 3]
    for delivery in held:
        await delivery.ack(confirm=True)
    assert numbers(await consumer.fetch(1, no_wait=True, group=two)) == [4]
    assert (await state(js)).num_ack_pending == 3


async def test_of_two_conditions_one_is_enough(js: JetStream) -> None:
    consumer = await looked_up(js, **vars_of(OVERFLOW))
    either = PriorityGroup("jobs", min_pending=2, min_ack_pending=2)
    await publish_many(js, range(3))
    await eventually(lambda: has_pending(js, 3))

    assert numbers(await consumer.fetch(9, no_wait=True, group=either)) == [0, 1, 2]


async def test_a_pull_whose_condition_is_not_met_waits_like_any_other(js: JetStream) -> None:
    """With heartbeats; and it is served when the condition is met."""
    consumer = await looked_up(js, **vars_of(OVERFLOW))
    two = PriorityGroup("jobs", min_pending=2)
    await js.publish("s.a", b"0")
    async with spied(js, PULLS) as pulls, consumer.messages(group=two, **QUICK) as messages:
        reading = asyncio.create_task(messages.next())
        await eventually(lambda: len(pulls) >= 3)
        assert not reading.done()
        await js.publish("s.a", b"1")

        delivery = await reading

    assert delivery is not None
    assert int(delivery.payload) == 0
    assert pulls[0]["idle_heartbeat"] == 0.1e9


async def test_a_pull_of_a_lower_number_is_served_first(js: JetStream) -> None:
    consumer = await looked_up(js, **vars_of(PRIORITIZED))
    second = asyncio.create_task(
        consumer.fetch(2, expires=60, group=PriorityGroup("jobs", priority=2))
    )
    await eventually(lambda: waiting_pulls(js))
    first = asyncio.create_task(
        consumer.fetch(2, expires=60, group=PriorityGroup("jobs", priority=1))
    )
    await eventually(lambda: waiting_pulls(js, 2))

    await publish_many(js, range(4))

    assert numbers(await first) == [0, 1]
    assert numbers(await second) == [2, 3]


async def test_readers_of_a_lower_number_get_all_that_they_ask_for(js: JetStream) -> None:
    """Those of higher numbers get what is left over, and lose nothing."""
    consumer = await looked_up(js, **vars_of(PRIORITIZED))
    least = consumer.messages(group=PriorityGroup("jobs", priority=9))
    most = consumer.messages(group=JOBS, max_messages=5)
    async with least, most:
        rest = asyncio.create_task(least.next())
        await eventually(lambda: waiting_pulls(js))
        preferred = asyncio.create_task(most.next())
        await eventually(lambda: waiting_pulls(js, 2))
        await publish_many(js, range(7))

        assert [int((await preferred).payload), int((await rest).payload)] == [0, 5]


@pytest.mark.parametrize("config", [OVERFLOW, PRIORITIZED], ids=["overflow", "prioritized"])
async def test_a_header_that_a_client_stored_is_no_pin(
    js: JetStream, config: ConsumerConfig
) -> None:
    """A pull with a pin would be refused."""
    consumer = await looked_up(js, **vars_of(config))
    for _ in range(3):
        await js.publish("s.a", headers={"Nats-Pin-Id": "forged"})

    assert len(await consumer.fetch(1, group=JOBS)) == 1
    assert len(await consumer.fetch(1, group=JOBS)) == 1
    async with PullConsumer(js, "S", "d", group=JOBS) as pull:
        await pull.take()
        await js.publish("s.a", b"4")
        await pull.take()

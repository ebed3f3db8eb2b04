"""From a subject to a push subscription, with all that ADR-15 checks and sees to."""

import asyncio
from datetime import timedelta
from typing import Any
from unittest import mock

import pytest

from rebaser_core.jetstream import (
    ConsumerConfig,
    ConsumerInfo,
    ConsumerNotFound,
    FlowControlIgnored,
    HeartbeatsMissed,
    JetStream,
    JetStreamError,
    MessagesMissed,
    Misconfigured,
    NatsUnreachable,
    NotJetStream,
    StatusError,
    StreamConfig,
    StreamNotFound,
    pull_subscribe,
    subscribe,
)
from rebaser_core.jetstream.connection import Connection
from rebaser_core.jetstream.subscriptions import ConsumerSpec
from tests.helpers.eventually import eventually
from tests.helpers.nats_process import NatsServer
from tests.jetstream.steps import (
    consumers,
    durable,
    filled,
    numbers,
    publish_many,
    send_status,
    spied,
    state,
)
from tests.jetstream.test_status_message import require_flow_control_answered

HEARTBEAT = timedelta(seconds=0.3)
WATCHED = ConsumerConfig(idle_heartbeat=HEARTBEAT, flow_control=True)
SELDOM = WATCHED | ConsumerConfig(idle_heartbeat=timedelta(seconds=0.8))
"""Three of its heartbeats are longer than a busy machine may stand still."""


@pytest.mark.parametrize(
    ("wish", "why"),
    [
        ({}, "neither a subject nor a stream"),
        ({"queue": "q", "config": ConsumerConfig(idle_heartbeat=HEARTBEAT)}, "heartbeats"),
        ({"queue": "q", "config": ConsumerConfig(flow_control=True)}, "flow control"),
        ({"pull": True, "config": ConsumerConfig(ack_policy="none")}, "ack policy none"),
        ({"pull": True, "config": ConsumerConfig(ack_policy="all")}, "ack policy all"),
        ({"pull": True, "queue": "q"}, "queue group"),
        ({"pull": True, "config": ConsumerConfig(deliver_subject="x")}, "deliver_subject"),
        ({"consumer": "a", "durable": "b"}, "bound to a"),
        ({"config": ConsumerConfig(deliver_group="q")}, "deliver_group q without queue='q'"),
        ({"queue": "r", "config": ConsumerConfig(deliver_group="q")}, "deliver_group q"),
        ({"config": ConsumerConfig(filter_subject="s.b")}, "subject s.a, but filter s.b"),
        (
            {"config": ConsumerConfig(filter_subjects=["s.a", "s.b"])},
            "subject s.a, but filter s.a, s.b",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_wish_that_contradicts_itself_is_refused(wish: dict[str, Any], why: str) -> None:
    with pytest.raises(Misconfigured, match=why):
        ConsumerSpec(**({"subject": "s.a"} if wish else {}), **wish)


PUSH = ConsumerConfig(deliver_subject="to.d", filter_subject="s.a")


@pytest.mark.parametrize(
    ("existing", "wish", "why"),
    [
        (PUSH | ConsumerConfig(deliver_group="q"), {}, "for the queue group q"),
        (PUSH | ConsumerConfig(deliver_group="q"), {"queue": "r"}, "queue group q, not r"),
        (PUSH, {"queue": "q"}, "no deliver group"),
        (PUSH | ConsumerConfig(filter_subject="s.b"), {}, "filters s.b, not s.a"),
        (ConsumerConfig(), {}, "pull subscription is required"),
        (
            PUSH,
            {"config": ConsumerConfig(ack_wait=timedelta(seconds=1))},
            "ack_wait is 30000000000, not 1000000000",
        ),
        (PUSH | WATCHED | ConsumerConfig(deliver_group="q"), {"queue": "q"}, "flow control"),
        (
            PUSH | ConsumerConfig(idle_heartbeat=HEARTBEAT, deliver_group="q"),
            {"queue": "q"},
            "heartbeats",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
async def test_an_existing_consumer_must_be_what_is_wished_for(
    js: JetStream, existing: ConsumerConfig, wish: dict[str, Any], why: str
) -> None:
    await filled(js)
    await durable(js, given=existing)

    with pytest.raises(Misconfigured, match=why):
        await subscribe(js, "s.a", consumer="d", **wish)
    assert not (await state(js)).push_bound


@pytest.mark.parametrize(
    ("existing", "why"),
    [
        (PUSH, "no pull subscription"),
        (ConsumerConfig(ack_policy="none"), "ack policy none"),
        (ConsumerConfig(filter_subject="s.b"), "filters s.b"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
async def test_an_existing_consumer_must_be_fit_for_pulling(
    js: JetStream, existing: ConsumerConfig, why: str
) -> None:
    await filled(js)
    await durable(js, given=existing)

    with pytest.raises(Misconfigured, match=why):
        await pull_subscribe(js, "s.a", consumer="d")


async def test_the_stream_is_found_by_the_subject_if_it_is_the_only_one(js: JetStream) -> None:
    await js.create_stream(StreamConfig(name="T", subjects=["t.>"]))
    await js.create_stream(StreamConfig(name="U", subjects=["u.>"]))
    async with await subscribe(js, "t.a") as subscription:
        assert subscription.stream == "T"

    for subject in (">", "nowhere"):
        with pytest.raises(StreamNotFound):
            await subscribe(js, subject)
    assert await consumers(js, "T") == []


async def test_a_consumer_to_be_bound_to_must_exist_for_pushes_only(js: JetStream) -> None:
    await filled(js)
    with pytest.raises(ConsumerNotFound):
        await subscribe(js, "s.a", consumer="d")

    consumer = await pull_subscribe(js, "s.a", consumer="d")
    await durable(js)
    await js.publish("s.a", b"1")
    assert numbers(await consumer.fetch(1)) == [1]


async def test_a_pull_consumer_that_was_created_goes_with_its_object(js: JetStream) -> None:
    await filled(js, "s.a", "s.b")
    async with spied(js, "$JS.API.CONSUMER.CREATE.>") as created:
        async with await pull_subscribe(js, "s.a") as consumer:
            assert consumer.created
            assert numbers(await consumer.fetch(5, no_wait=True)) == [1]
        await eventually(lambda: len(created) == 1)
    assert await consumers(js) == []
    assert created[0]["config"] == {"ack_policy": "explicit", "filter_subject": "s.a"}

    await durable(js)
    async with await pull_subscribe(js, stream="S", durable="d") as consumer:
        assert not consumer.created
    assert await consumers(js) == ["d"], "what we did not create stays"


async def test_several_filters_are_given_with_the_stream(js: JetStream) -> None:
    await filled(js, "s.a", "s.b", "s.c")
    config = ConsumerConfig(filter_subjects=["s.a", "s.c"])

    async with await subscribe(js, stream="S", config=config) as subscription:
        assert numbers([await anext(subscription), await anext(subscription)]) == [1, 3]


async def test_messages_come_and_the_ephemeral_consumer_goes(either_js: JetStream) -> None:
    await filled(either_js, "s.a", "s.b", "s.a")
    config = ConsumerConfig(max_ack_pending=7)

    async with await subscribe(either_js, "s.a", config=config) as subscription:
        created = await either_js.consumer_config("S", subscription.consumer)
        assert (created.ack_policy, created.max_ack_pending) == ("explicit", 7)
        found = [await anext(subscription), await anext(subscription)]
        await found[0].ack(confirm=True)
        assert len(await consumers(either_js)) == 1

    assert numbers(found) == [1, 3]
    assert await consumers(either_js) == []


async def test_a_push_consumer_without_acks_gets_none(js: JetStream) -> None:
    await filled(js, "s.a")
    async with (
        spied(js, "$JS.ACK.>") as acks,
        await subscribe(js, "s.a", config=ConsumerConfig(ack_policy="none")) as subscription,
    ):
        delivery = await anext(subscription)
        await delivery.ack(confirm=True)
        await js.connection.ping(30)

    assert (acks, delivery.settled) == ([], True)


async def test_a_consumer_that_cannot_be_deleted_is_an_error(
    js: JetStream, server: NatsServer
) -> None:
    await filled(js)
    subscription = await subscribe(js, "s.a")
    js.timeout = 0.2
    server.freeze()

    with pytest.raises(NatsUnreachable):
        await subscription.unsubscribe()
    server.thaw()


async def test_a_durable_is_created_once_and_then_bound_to(js: JetStream) -> None:
    await filled(js, "s.a", "s.a")
    await durable(js, filter_subject="s.a", deliver_subject="to.d")
    other = ConsumerConfig(deliver_subject="only.this.may.differ")
    async with await subscribe(js, "s.a", durable="d", config=other) as subscription:
        assert not subscription.created
        await (await anext(subscription)).ack()

    assert await consumers(js) == ["d"], "what we did not create stays"
    async with await subscribe(js, "s.a", durable="e") as subscription:
        assert subscription.created
    assert await consumers(js) == ["d"]


async def test_a_second_subscriber_gets_an_error(js: JetStream) -> None:
    await filled(js)
    async with await subscribe(js, "s.a", durable="d"):
        with pytest.raises(Misconfigured, match="duplicate subscription"):
            await subscribe(js, "s.a", durable="d")


async def test_members_of_a_queue_share_a_durable_that_outlives_them(js: JetStream) -> None:
    await filled(js)
    first = await subscribe(js, "s.a", queue="q")
    second = await subscribe(js, "s.a", queue="q")
    assert await consumers(js) == ["q"]
    await publish_many(js, range(100))
    await eventually(lambda: len(first._inbox.queue) + len(second._inbox.queue) == 100)
    assert len(first._inbox.queue) < 100

    await first.unsubscribe()
    await js.publish("s.a", b"more")
    await eventually(lambda: b"more" in [m.data for m in second._inbox.queue])
    await second.unsubscribe()

    assert await consumers(js) == ["q"]


async def test_a_queue_with_a_durable_has_its_name(js: JetStream) -> None:
    await filled(js)
    async with (
        await subscribe(js, "s.a", queue="q", durable="d"),
        await subscribe(js, "s.a", queue="q", durable="d"),
    ):
        assert await consumers(js) == ["d"]
        assert (await js.consumer_config("S", "d")).durable_name == "d"


async def test_who_loses_the_race_to_create_joins_or_is_told(js: JetStream) -> None:
    await filled(js)

    members = await asyncio.gather(*(subscribe(js, "s.a", queue="q") for _ in range(5)))
    alone = await asyncio.gather(
        *(subscribe(js, "s.a", durable="d") for _ in range(5)), return_exceptions=True
    )

    assert [member.consumer for member in members] == ["q"] * 5
    assert sum(isinstance(one, Misconfigured) for one in alone) == 4, alone
    assert sorted(await consumers(js)) == ["d", "q"]
    await publish_many(js, range(200))
    await eventually(lambda: sum(len(member._inbox.queue) for member in members) == 200)
    assert all(member._inbox.queue for member in members), "each listens where messages come"


async def test_a_consumer_that_another_client_made_meanwhile_is_not_taken_over(
    js: JetStream,
) -> None:
    """It was not there when it was looked up, and is when it is created; nobody listens yet."""
    await filled(js)
    await durable(js, filter_subject="s.a", deliver_subject="to.d")
    look_up = JetStream.consumer_info
    absent = [ConsumerNotFound.named("not yet")]

    async def too_early(self: JetStream, stream: str, consumer: str) -> ConsumerInfo:
        if absent:
            raise absent.pop()
        return await look_up(self, stream, consumer)

    with (
        mock.patch.object(JetStream, "consumer_info", too_early),
        pytest.raises(Misconfigured, match="created by another client"),
    ):
        await subscribe(js, "s.a", durable="d")
    assert not (await state(js)).push_bound


async def test_there_is_a_listener_before_there_is_a_consumer(js: JetStream) -> None:
    await filled(js, "s.a")
    heard: list[Any] = []
    async with spied(js, "$JS.API.CONSUMER.CREATE.>") as created:
        subscription = await subscribe(js, "s.a", durable="d")
        heard.append(await state(js))
        await eventually(lambda: len(created) == 1)

    assert created[0]["config"]["deliver_subject"] == subscription._inbox.subject
    assert heard[0].push_bound
    await subscription.unsubscribe()


async def test_draining_hands_out_what_has_come_and_then_deletes(js: JetStream) -> None:
    await filled(js, "s.a", "s.a")
    subscription = await subscribe(js, "s.a")
    await eventually(lambda: len(subscription._inbox.queue) == 2)

    await subscription.drain()
    await js.publish("s.a", b"3")

    assert numbers([delivery async for delivery in subscription]) == [1, 2]
    assert await consumers(js) == []


async def test_a_handler_gets_what_had_come_before_the_drain(js: JetStream) -> None:
    await filled(js, "s.a", "s.a")
    subscription = await subscribe(js, "s.a")
    await eventually(lambda: len(subscription._inbox.queue) == 2)
    handled = []

    async def handler(delivery) -> None:
        handled.append(delivery)
        if len(handled) == 1:
            await subscription.drain()

    await subscription.for_each(handler)

    assert numbers(handled) == [1, 2]
    assert await consumers(js) == []


async def test_a_consumer_that_cannot_be_deleted_after_draining_is_an_alarm(
    js: JetStream, server: NatsServer
) -> None:
    await filled(js)
    alarms: list[JetStreamError] = []
    subscription = await subscribe(js, "s.a", on_warning=alarms.append)
    js.timeout = 0.2
    await subscription.drain()
    server.freeze()

    assert [delivery async for delivery in subscription] == []
    assert len(alarms) == 1
    server.thaw()


async def test_silence_is_an_alarm_after_three_heartbeats(
    js: JetStream, server: NatsServer
) -> None:
    await filled(js)
    alarms: list[JetStreamError] = []
    async with await subscribe(js, "s.a", config=SELDOM, on_warning=alarms.append) as subscription:
        waiting = asyncio.ensure_future(anext(subscription))
        await asyncio.sleep(2.8)  # longer than three heartbeats
        assert alarms == [], "heartbeats came"
        server.freeze()
        await eventually(lambda: len(alarms) > 1)
        server.thaw()
        await js.publish("s.a", b"1")
        assert int((await waiting).payload) == 1

    assert all(isinstance(alarm, HeartbeatsMissed) for alarm in alarms)
    assert all(str(alarm).endswith("silent for 2.4 s") for alarm in alarms)


async def test_how_many_heartbeats_are_an_alarm_is_up_to_the_user(
    js: JetStream, server: NatsServer
) -> None:
    await filled(js)
    alarms: list[JetStreamError] = []
    async with await subscribe(
        js, "s.a", config=WATCHED, on_warning=alarms.append, missed_heartbeats=2
    ) as subscription:
        reading = asyncio.ensure_future(anext(subscription))
        server.freeze()
        await eventually(lambda: len(alarms) > 0)
        server.thaw()
        reading.cancel()

    assert str(alarms[0]).endswith("silent for 0.6 s")


async def test_the_alarm_rests_while_there_is_no_connection(
    js: JetStream, server: NatsServer
) -> None:
    await filled(js)
    alarms: list[JetStreamError] = []
    subscription = await subscribe(
        js,
        "s.a",
        durable="d",
        config=SELDOM | ConsumerConfig(mem_storage=False),
        on_warning=alarms.append,
    )
    waiting = asyncio.ensure_future(anext(subscription))
    server.kill()
    await asyncio.sleep(2.8)  # longer than three heartbeats
    await asyncio.to_thread(server.start)
    await js.connection.wait_connected()
    await js.publish("s.a", b"1")

    assert int((await waiting).payload) == 1
    assert alarms == []
    await subscription.unsubscribe()


@pytest.mark.parametrize("queue", [None, "q"], ids=["", "queue"])
async def test_a_gap_is_an_alarm_but_not_for_a_queue(js: JetStream, queue: str | None) -> None:
    await filled(js, "s.a", "s.a")
    alarms: list[JetStreamError] = []
    async with await subscribe(js, "s.a", queue=queue, on_warning=alarms.append) as subscription:
        await eventually(lambda: len(subscription._inbox.queue) == 2)
        subscription._inbox.queue.popleft()
        await anext(subscription)
        await send_status(
            js,
            subscription._inbox.subject,
            "100 Idle Heartbeat",
            **{"Nats-Last-Consumer": "4", "Nats-Last-Stream": "4"},
        )
        await eventually(lambda: len(subscription._inbox.queue) == 1)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await anext(subscription)

    expected = [] if queue else ["deliveries 1 to 1", "deliveries 3 to 4"]
    assert [str(alarm).partition(" of ")[0] for alarm in alarms] == expected
    assert all(isinstance(alarm, MessagesMissed) for alarm in alarms)


async def test_flow_control_is_answered_when_reached_and_at_each_reminder(js: JetStream) -> None:
    await filled(js, "s.a")
    async with await subscribe(js, "s.a") as subscription:
        await require_flow_control_answered(js, subscription)


async def test_an_answer_to_flow_control_that_gets_lost_is_given_again(js: JetStream) -> None:
    """Each heartbeat reminds of it; a subscription that answered once would be silent for ever."""
    await filled(js, storage="memory")
    for _ in range(300):
        await js.connection.publish("s.a", bytes(50_000))
    config = WATCHED | ConsumerConfig(ack_policy="none")
    async with await subscribe(js, "s.a", config=config) as subscription:
        flow = subscription._flow_control
        flow._connection = Forgetful(js.connection)
        async with asyncio.timeout(60):
            for _ in range(300):
                await anext(subscription)

    assert flow._connection.lost > 0


class Forgetful:
    """A link that loses the first word on each subject."""

    def __init__(self, link: Connection) -> None:
        self._link = link
        self._seen: set[str] = set()
        self.lost = 0

    async def publish(self, subject: str) -> None:
        if subject in self._seen:
            await self._link.publish(subject)
        else:
            self._seen.add(subject)
            self.lost += 1


async def test_answers_to_flow_control_that_stay_unheard_are_an_alarm(js: JetStream) -> None:
    await filled(js)
    alarms: list[JetStreamError] = []
    config = ConsumerConfig(idle_heartbeat=HEARTBEAT, ack_policy="none")
    subscription = await subscribe(
        js, "s.a", config=config, on_warning=alarms.append, missed_heartbeats=1
    )
    async with subscription:
        reading = asyncio.ensure_future(anext(subscription))

        async def is_an_alarm() -> bool:
            stalled = {"Nats-Consumer-Stalled": "fc.1"}
            await send_status(js, subscription._inbox.subject, "100 Idle Heartbeat", **stalled)
            return any(isinstance(alarm, FlowControlIgnored) for alarm in alarms)

        await eventually(is_an_alarm)
        reading.cancel()


@pytest.mark.parametrize("line", ["409 Consumer is push based", "503", "799 Never Heard Of"])
async def test_other_statuses_are_errors_and_no_messages(js: JetStream, line: str) -> None:
    await filled(js)
    async with await subscribe(js, "s.a") as subscription:
        await send_status(js, subscription._inbox.subject, line)
        with pytest.raises(StatusError, match=line):
            async with asyncio.timeout(30):
                await anext(subscription)
        await js.publish("s.a", b"1")
        assert int((await anext(subscription)).payload) == 1


async def test_a_foreign_message_is_an_error_and_ends_nothing(js: JetStream) -> None:
    await filled(js)
    async with await subscribe(js, "s.a") as subscription:
        for reply in ("", "_INBOX.x"):  # the server lets nobody send `$JS.ACK`
            await js.nc.publish(subscription._inbox.subject, b"stray", reply=reply)
            with pytest.raises(NotJetStream):
                await anext(subscription)
        await js.publish("s.a", b"1", headers={"Status": "404"})
        assert (await anext(subscription)).headers == {"Status": "404"}

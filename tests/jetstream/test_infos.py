"""What the server tells of streams and consumers is typed; what a newer server adds is kept."""

from collections.abc import Iterator
from dataclasses import fields
from datetime import UTC, datetime, timedelta
from typing import Any, Final, cast

import pytest

from rebaser_core.jetstream import (
    ConsumerConfig,
    ConsumerInfo,
    JetStream,
    NotJetStream,
    StreamConfig,
    StreamInfo,
    StreamSource,
    subscribe,
)
from rebaser_core.jetstream.configs import JsonObject
from tests.jetstream.steps import filled, state

ENVELOPE: Final = {"type", "did_create", "total", "offset", "limit"}
"""What an answer of the API says of itself."""
ZERO: Final = "0001-01-01T00:00:00Z"
TIME: Final = "2026-11-22T01:02:03.123456789Z"
STATE: Final = {
    **dict.fromkeys(("messages", "bytes", "first_seq", "last_seq", "consumer_count"), 0),
    "first_ts": ZERO,
    "last_ts": ZERO,
}
STREAM_INFO: Final = {"config": {"name": "S"}, "created": TIME, "ts": TIME, "state": STATE}
PLACE: Final = {"consumer_seq": 1, "stream_seq": 2}
CONSUMER_INFO: Final = {
    "stream_name": "S",
    "name": "d",
    "created": TIME,
    "ts": TIME,
    "config": {},
    "delivered": PLACE,
    "ack_floor": PLACE,
    **{f"num_{name}": 0 for name in ("ack_pending", "redelivered", "waiting", "pending")},
}


def unknown(info: object) -> Iterator[str]:
    """All that is unknown in it, and in what it consists of."""
    if isinstance(info, list | tuple):
        for each in info:
            yield from unknown(each)
    if isinstance(info, JsonObject):
        yield from info.unknown
        for each in fields(info):
            yield from unknown(getattr(info, each.name))


async def test_the_server_tells_of_a_stream_what_has_a_type_here(js: JetStream) -> None:
    await filled(js, "s.a", "s.b", "s.b", "s.c")
    await js.delete_message("S", 2)
    made = await js.create_stream(StreamConfig(name="M", mirror=StreamSource(name="S")))
    copy = StreamConfig(name="C", sources=[StreamSource(name="S", filter_subject="s.a")])
    await js.create_stream(copy)

    told = await js.stream_info("S", "s.*")
    copies = [await js.stream_info("M"), await js.update_stream(copy)]

    assert {*unknown(told), *unknown(made), *unknown(copies)} <= ENVELOPE
    assert (told.config.name, told.state.messages, told.state.last_seq) == ("S", 3, 4)
    assert told.state.subjects == {"s.a": 1, "s.b": 1, "s.c": 1}
    assert (told.state.num_subjects, told.state.num_deleted) == (3, 1)
    assert told.created < told.state.first_ts < told.state.last_ts < told.ts
    assert (await js.stream("S").info()).config == told.config
    assert [copies[0].mirror.name, *(each.name for each in copies[1].sources)] == ["S", "S"]


async def test_the_server_tells_of_a_consumer_what_has_a_type_here(js: JetStream) -> None:
    await filled(js, "s.a", "s.a", "s.a")
    config = ConsumerConfig(durable_name="d", ack_policy="explicit", max_ack_pending=2)
    pinned = ConsumerConfig(
        durable_name="p",
        ack_policy="explicit",
        priority_groups=["g"],
        priority_policy="pinned_client",
        pause_until=datetime(2030, 1, 1, tzinfo=UTC),
    )
    async with await subscribe(js, "s.a", durable="d", config=config) as subscription:
        delivery = await anext(subscription)
        await delivery.ack(confirm=True)
        await anext(subscription)
        told = await state(js)
    paused = await js.create_consumer("S", pinned)

    assert {*unknown(told), *unknown(paused)} <= ENVELOPE
    assert (told.stream_name, told.name, told.config.max_ack_pending) == ("S", "d", 2)
    assert told.push_bound
    assert (told.ack_floor.stream_seq, told.num_redelivered) == (1, 0)
    assert told.delivered.stream_seq + told.num_pending == 3
    assert (paused.paused, paused.num_pending) == (True, 3)
    assert paused.pause_remaining is not None
    assert [each.field for each in paused.diff(ConsumerConfig())] == ["pause_until"]
    assert paused.diff(pinned) == []
    assert [each.group for each in paused.priority_groups] == ["g"]


def test_what_a_newer_server_tells_is_kept() -> None:
    newer = {"newer": {"a": [1]}}
    cluster = {"leader": "n1", "replicas": [{"name": "n2", "active": 1_500, **newer}]}
    said = {**STREAM_INFO, "state": {**STATE, **newer}, "cluster": cluster, **newer}

    info = StreamInfo.from_json(said)

    assert info.unknown == info.state.unknown == newer
    assert info.cluster is not None
    [peer] = info.cluster.replicas
    assert (peer.name, peer.unknown) == ("n2", newer)


def test_times_are_cut_to_microseconds() -> None:
    """The server counts nanoseconds; an info is cut to microseconds, as it is only read."""
    cut = datetime(2026, 11, 22, 1, 2, 3, 123_456, UTC)

    info = ConsumerInfo.from_json({**CONSUMER_INFO, "paused": True, "pause_remaining": 1_999})

    assert (info.created, info.ts) == (cut, cut)
    assert info.pause_remaining == timedelta(microseconds=1)
    assert StreamInfo.from_json(STREAM_INFO).state.first_ts == datetime(1, 1, 1, tzinfo=UTC)


@pytest.mark.parametrize(
    ("kind", "said", "missing"),
    [
        (StreamInfo, {**STREAM_INFO, "state": {**STATE, "last_seq": "0"}}, "last_seq"),
        (StreamInfo, {**STREAM_INFO, "state": None}, "state"),
        (StreamInfo, {**STREAM_INFO, "ts": "soon"}, "ts"),
        (StreamInfo, {}, "config, created, state, ts"),
        (ConsumerInfo, {**CONSUMER_INFO, "delivered": {}}, "consumer_seq, stream_seq"),
        (ConsumerInfo, {**CONSUMER_INFO, "num_pending": None}, "num_pending"),
    ],
)
def test_an_answer_without_what_is_always_said_is_an_error(
    kind: type[JsonObject], said: dict[str, Any], missing: str
) -> None:
    """A number that is 0 because it is missing would say that nothing is left."""
    with pytest.raises(NotJetStream, match=f"without {missing}$"):
        kind.from_json(said)


def test_an_answer_that_is_no_object_is_an_error() -> None:
    with pytest.raises(NotJetStream, match="not a StreamInfo"):
        StreamInfo.from_json(cast("Any", []))

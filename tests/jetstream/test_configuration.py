"""Configurations are what the server has in JSON, typed, and nothing of it is lost."""

from datetime import UTC, datetime, timedelta, timezone
from functools import partial
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rebaser_core.jetstream import (
    ApiError,
    ConsumerConfig,
    ConsumerLimits,
    Drift,
    JetStream,
    Misconfigured,
    NotJetStream,
    Placement,
    Republish,
    StreamConfig,
    StreamSource,
    SubjectTransform,
)
from rebaser_core.jetstream.configs import Configuration, diff_config
from tests.jetstream.steps import filled, spied

LEAVES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**63), 2**63 - 1),
    st.integers(0, 10**6).map(lambda micros: micros * 1000),
    st.floats(allow_nan=False),
    st.text(max_size=5),
    st.sampled_from(["file", "2026-11-22T01:02:03Z", "2026-11-22T01:02:03.5+02:00"]),
    st.datetimes(timezones=st.just(UTC)).map(datetime.isoformat),
)
NAMES = sorted(
    {name for kind in (StreamConfig, ConsumerConfig, StreamSource) for name in kind._kinds()}
)
KEYS = st.one_of(st.sampled_from([*NAMES, "unknown"]), st.text(max_size=5))
JSON = st.recursive(
    LEAVES,
    lambda inner: st.one_of(st.lists(inner, max_size=2), st.dictionaries(KEYS, inner, max_size=3)),
    max_leaves=4,
)

NOTHING = timedelta()
BACKOFF = [timedelta(seconds=2), timedelta(seconds=3)]


def same(one: Any, other: Any) -> bool:
    """As JSON: that is, true is not 1."""
    return repr(one) == repr(other)


@given(st.sampled_from([StreamConfig, ConsumerConfig]), st.dictionaries(KEYS, JSON, max_size=4))
def test_any_json_is_sent_back_as_it_was(kind: type[Configuration], said: dict[str, Any]) -> None:
    sent = kind.from_json(said).to_json()

    assert same(dict(sorted(sent.items())), dict(sorted(said.items())))


@pytest.mark.parametrize(
    ("said", "name", "read"),
    [
        ({"max_age": 1_500_000_000}, "max_age", timedelta(seconds=1.5)),
        ({"max_age": 1_500_000_001}, "max_age", None),
        ({"retention": "of a newer server"}, "retention", "of a newer server"),
        ({"num_replicas": True}, "num_replicas", None),
        ({"max_age": False}, "max_age", None),
        (
            {"placement": {"cluster": "a", "newer": 1}},
            "placement",
            Placement(cluster="a", unknown={"newer": 1}),
        ),
        (
            {"sources": [{"opt_start_time": "2026-11-22T01:02:03.5Z"}]},
            "sources",
            [StreamSource(opt_start_time=datetime(2026, 11, 22, 1, 2, 3, 500_000, UTC))],
        ),
        (
            {"mirror": {"opt_start_time": "2026-11-22T01:02:03.123456789Z"}},
            "mirror",
            StreamSource(unknown={"opt_start_time": "2026-11-22T01:02:03.123456789Z"}),
        ),
    ],
)
def test_what_is_typed_is_exact_and_the_rest_is_kept(
    said: dict[str, Any], name: str, read: object
) -> None:
    config = StreamConfig.from_json(said)

    assert getattr(config, name) == read
    assert config.unknown == ({} if read is not None else said)


def test_what_is_none_is_not_said() -> None:
    assert StreamConfig(name="S", max_msgs=0, deny_purge=False).to_json() == {
        "name": "S",
        "max_msgs": 0,
        "deny_purge": False,
    }


def test_the_right_one_of_two_configurations_takes_precedence() -> None:
    kept = StreamConfig(name="S", max_msgs=1, unknown={"newer": 1, "max_age": 1})

    assert kept | StreamConfig(max_msgs=2, max_age=timedelta()) == StreamConfig(
        name="S", max_msgs=2, max_age=timedelta(), unknown={"newer": 1}
    )


def test_a_time_is_said_with_its_zone() -> None:
    time = datetime.fromisoformat("2026-11-22T01:02:03.12")
    east = timezone(timedelta(hours=2))

    said = [
        ConsumerConfig(opt_start_time=time.replace(tzinfo=zone)).to_json() for zone in (UTC, east)
    ]

    assert [each["opt_start_time"][19:] for each in said] == [".12Z", ".12+02:00"]
    with pytest.raises(ValueError, match="no time zone"):
        ConsumerConfig(opt_start_time=time).to_json()


def test_what_is_no_configuration_is_no_answer_of_jetstream() -> None:
    with pytest.raises(NotJetStream):
        StreamConfig.from_json(cast("Any", ["name"]))


def test_only_what_is_said_is_compared() -> None:
    wanted = StreamConfig(max_msgs=-1, subjects=["b", "a"], metadata={"a": "b"})
    actual = StreamConfig(name="S", subjects=["a", "b"], metadata={"a": "c", "d": "e"})

    assert diff_config("S", wanted, actual) == [Drift("S", "metadata.a", "b", "c")]


async def test_the_server_takes_and_tells_every_field_by_its_name(js: JetStream) -> None:
    """A field that it did not know it would refuse; one that we did not know would be unknown."""
    stream = StreamConfig(
        name="S",
        description="all of it",
        subjects=["s.>"],
        retention="limits",
        max_consumers=9,
        max_msgs=1000,
        max_bytes=10**6,
        max_age=timedelta(hours=1),
        max_msgs_per_subject=10,
        max_msg_size=1000,
        discard="new",
        discard_new_per_subject=True,
        storage="file",
        num_replicas=1,
        duplicate_window=timedelta(minutes=1),
        sources=[StreamSource(name="T", filter_subject="t.>")],
        compression="s2",
        first_seq=5,
        subject_transform=SubjectTransform(src="s.>", dest="s.>"),
        republish=Republish(src="s.>", dest="again.>", headers_only=True),
        allow_direct=True,
        deny_delete=True,
        allow_rollup_hdrs=True,
        allow_msg_ttl=True,
        subject_delete_marker_ttl=timedelta(seconds=2),
        allow_atomic=True,
        consumer_limits=ConsumerLimits(inactive_threshold=timedelta(minutes=9), max_ack_pending=99),
        metadata={"a": "b"},
    )
    await js.create_stream(stream)
    actual = await js.stream_config("S")

    assert diff_config("S", stream, actual) == []
    assert actual.unknown == {}

    consumer = ConsumerConfig(
        durable_name="d",
        description="all of it",
        deliver_policy="by_start_time",
        opt_start_time=datetime(2026, 1, 2, 3, 4, 5, 600_000, UTC),
        ack_policy="explicit",
        ack_wait=timedelta(seconds=3),
        max_deliver=4,
        backoff=[timedelta(seconds=3), timedelta(seconds=5)],
        filter_subjects=["s.a", "s.b"],
        replay_policy="instant",
        sample_freq="50",
        max_waiting=7,
        max_ack_pending=8,
        max_batch=9,
        max_expires=timedelta(seconds=10),
        max_bytes=11,
        headers_only=True,
        inactive_threshold=timedelta(minutes=1),
        num_replicas=1,
        mem_storage=True,
        pause_until=datetime(2030, 1, 1, tzinfo=UTC),
        priority_groups=["g"],
        priority_policy="pinned_client",
        priority_timeout=timedelta(seconds=12),
    )
    await js.create_consumer("S", consumer)
    found = await js.consumer_config("S", "d")

    assert diff_config("S/d", consumer, found) == []
    assert found.unknown == {}


MADE_AGAIN = [
    partial(ConsumerConfig, ack_wait=NOTHING, max_ack_pending=0, max_deliver=0),
    partial(ConsumerConfig, max_waiting=0, max_batch=0, max_expires=NOTHING, max_bytes=0),
    partial(ConsumerConfig, max_waiting=-1, max_batch=-1, max_bytes=-1),
    partial(ConsumerConfig, ack_wait=timedelta(seconds=9), backoff=BACKOFF, max_deliver=5),
    partial(ConsumerConfig, priority_policy="none", priority_groups=[], backoff=[]),
    partial(
        ConsumerConfig,
        priority_policy="pinned_client",
        priority_groups=["g"],
        priority_timeout=NOTHING,
    ),
    partial(
        ConsumerConfig, inactive_threshold=NOTHING, num_replicas=0, mem_storage=False, metadata={}
    ),
    partial(ConsumerConfig, filter_subject="", description="", sample_freq="", rate_limit_bps=0),
    partial(ConsumerConfig, filter_subjects=["s.b", "s.a"]),
    partial(
        ConsumerConfig,
        deliver_subject="d",
        max_ack_pending=0,
        max_waiting=0,
        idle_heartbeat=NOTHING,
    ),
    partial(StreamConfig, num_replicas=0, duplicate_window=NOTHING, max_age=NOTHING, subjects=[]),
    partial(
        StreamConfig,
        max_msgs=0,
        max_bytes=0,
        max_msg_size=0,
        max_msgs_per_subject=0,
        max_consumers=0,
    ),
    partial(
        StreamConfig, persist_mode="default", compression="none", placement=Placement(cluster="")
    ),
    partial(StreamConfig, republish=Republish(src="", dest="again.>")),
    partial(
        StreamConfig,
        subject_delete_marker_ttl=timedelta(seconds=5),
        allow_msg_ttl=False,
        allow_rollup_hdrs=False,
    ),
    partial(StreamConfig, allow_msg_schedules=True, allow_rollup_hdrs=False),
    partial(StreamConfig, sources=[StreamSource(name="T", filter_subject="", opt_start_seq=0)]),
    partial(
        StreamConfig, consumer_limits=ConsumerLimits(inactive_threshold=NOTHING, max_ack_pending=0)
    ),
]
"""What says in several ways that the server may fill in what it likes."""


@pytest.mark.parametrize("make", MADE_AGAIN, ids=lambda make: " ".join(make.keywords))
async def test_what_the_server_fills_in_is_no_difference(
    js: JetStream, make: partial[StreamConfig] | partial[ConsumerConfig]
) -> None:
    """Each is made, and then wanted once more, under a name and as a durable."""
    await filled(js)
    config = make()
    if isinstance(config, StreamConfig):
        wanted = StreamConfig(name="Made", subjects=["made.>"]) | config
        assert [await js.ensure_stream(wanted) for _ in range(2)] == [[], []]
        return
    for named in (ConsumerConfig(name="n"), ConsumerConfig(durable_name="d")):
        again = named | ConsumerConfig(ack_policy="explicit") | config
        assert [await js.ensure_consumer("S", again) for _ in range(2)] == [[], []]


@pytest.mark.parametrize(
    ("wanted", "actual"),
    [
        (ConsumerConfig(max_ack_pending=-1), ConsumerConfig(max_ack_pending=1000)),
        (ConsumerConfig(ack_wait=timedelta(seconds=9)), ConsumerConfig(ack_wait=BACKOFF[0])),
        (ConsumerConfig(backoff=BACKOFF), ConsumerConfig(backoff=BACKOFF[::-1])),
        (ConsumerConfig(max_batch=0), ConsumerConfig(max_batch=5)),
        (StreamConfig(max_msgs=0), StreamConfig(max_msgs=5)),
        (StreamConfig(allow_rollup_hdrs=False), StreamConfig(allow_rollup_hdrs=True)),
        (StreamConfig(persist_mode="default"), StreamConfig(persist_mode="async")),
    ],
)
def test_what_the_server_would_not_fill_in_is_a_difference(
    wanted: Configuration, actual: Configuration
) -> None:
    assert len(diff_config("S", wanted, actual)) == 1


async def test_an_update_says_what_is_unknown_here(js: JetStream) -> None:
    """As of a newer server. This one does not know it, either, and refuses it."""
    await filled(js)
    newer = await js.stream_config("S") | StreamConfig(unknown={"newer": {"a": [1]}})

    async with spied(js, "$JS.API.STREAM.UPDATE.S") as updates:
        with pytest.raises(ApiError):
            await js.update_stream(newer | StreamConfig(max_msgs=5))
        await js.connection.ping(30)

    assert (updates[0]["newer"], updates[0]["max_msgs"]) == ({"a": [1]}, 5)


async def test_what_is_to_be_found_again_needs_a_name(js: JetStream) -> None:
    for made in (js.create_stream, js.update_stream, js.ensure_stream):
        with pytest.raises(Misconfigured, match="needs a name"):
            await made(StreamConfig(subjects=["s.>"]))
    with pytest.raises(Misconfigured, match="needs a name"):
        await js.ensure_consumer("S", ConsumerConfig())

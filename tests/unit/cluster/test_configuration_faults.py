"""What a difference in the configuration of NATS means, and what may be done about it."""

import pytest

from rebaser_core.jetstream import Drift
from rebaser_server.cluster.configuration_faults import MISSING, PURGED, Effect, judge, worst

COMMITS, REQUESTS = "stream a_REBASER_COMMITS", "stream a_REBASER_REQUESTS"


@pytest.mark.parametrize(
    ("drift", "effect", "can_be_mended"),
    [
        (Drift(COMMITS, "max_age", 0, 5), Effect.STOPS, True),
        (Drift("stream OBJ_REBASER_BATCHES", "max_age", 0, 5), Effect.STOPS, True),
        (Drift(REQUESTS, "max_age", 0, 5), Effect.LOSES, True),
        (Drift("stream REBASER_DEAD_LETTERS", "max_age", 0, 5), Effect.DIFFERS, True),
        (Drift(COMMITS, "storage", "file", "memory"), Effect.STOPS, False),
        (Drift(COMMITS, "persist_mode", None, "async"), Effect.STOPS, False),
        (Drift(COMMITS, "deny_purge", None, True), Effect.DIFFERS, False),
        (Drift(REQUESTS, "deny_delete", None, True), Effect.STOPS, False),
        (Drift(COMMITS, "retention", "limits", "workqueue"), Effect.STOPS, False),
        (Drift(COMMITS, "republish.dest", None, "x.>"), Effect.DIFFERS, True),
        (Drift(COMMITS, "of_a_newer_server", None, 5), Effect.DIFFERS, True),
        (Drift(COMMITS, "num_replicas", 3, 1), Effect.DIFFERS, True),
        (Drift(COMMITS, "num_replicas", 3, 5), Effect.DIFFERS, False),
        (Drift(REQUESTS, "max_msgs", 5, 3), Effect.DIFFERS, True),
        (Drift(REQUESTS, "max_msgs", 5, None), Effect.DIFFERS, False),
        (Drift(COMMITS, "max_msgs", -1, 5), Effect.DIFFERS, True),
        (MISSING._replace(name=COMMITS), Effect.STOPS, False),
        (MISSING._replace(name=REQUESTS), Effect.STOPS, False),
        (PURGED._replace(name=COMMITS), Effect.STOPS, False),
        (MISSING._replace(name="stream REBASER_DEAD_LETTERS"), Effect.DIFFERS, False),
    ],
    ids=str,
)
def test_a_difference_by_itself(drift: Drift, effect: Effect, *, can_be_mended: bool) -> None:
    [fault] = judge([drift])

    assert (fault.effect, fault.can_be_mended) == (effect, can_be_mended)
    assert fault.meaning
    assert fault.remedy


def test_a_limit_drops_what_is_old_only_where_the_stream_discards_it() -> None:
    limit = Drift(COMMITS, "max_msgs", -1, 5)
    old = Drift(COMMITS, "discard", "new", "old")

    refuses, drops = judge([limit]), judge([limit, old])

    assert "new messages are refused" in refuses[0].meaning
    assert "the oldest messages are dropped" in drops[0].meaning
    assert [fault.effect for fault in drops] == [Effect.STOPS, Effect.DIFFERS]


def test_a_limit_of_requests_drops_them_only_where_it_does_not_refuse_new_ones() -> None:
    """A stream may have been made while `REBASER_QUEUE__REQUESTS` was another one."""
    limit = Drift(REQUESTS, "max_msgs_per_subject", -1, 100)
    lower = Drift(REQUESTS, "max_msgs_per_subject", 100, 5)
    refuses = Drift(REQUESTS, "discard_new_per_subject", expected=False, actual=True)
    drops = Drift(REQUESTS, "discard_new_per_subject", expected=True, actual=None)

    effects = [
        [fault.effect for fault in judge(differences)]
        for differences in ([limit, refuses], [lower], [lower, drops], [limit])
    ]

    harmless, losing = Effect.DIFFERS, Effect.LOSES
    assert effects == [[harmless, harmless], [harmless], [losing, losing], [losing]]


def test_what_stops_work_comes_before_what_loses_requests() -> None:
    loses, stops = Drift(REQUESTS, "max_age", 0, 5), Drift(COMMITS, "sealed", None, actual=True)

    faults = judge([loses, stops])

    assert [worst(faults), worst(faults[:1]), worst([])] == [faults[1], faults[0], None]


@pytest.mark.parametrize(
    ("name", "remedy"),
    [
        (REQUESTS, "first_seq"),
        (COMMITS, "of the same time as the store's"),
        ("stream REBASER_DEAD_LETTERS", "or start them again to have an empty one"),
    ],
)
def test_what_is_missing_is_restored(name: str, remedy: str) -> None:
    [fault] = judge([MISSING._replace(name=name)])

    assert remedy in fault.remedy

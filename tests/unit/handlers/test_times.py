"""Times of timers: the first one, and the next of those that come again."""

from datetime import UTC, datetime

import pytest

from rebaser_core.calls import TimerChange
from rebaser_server.handlers.service import CallRefused
from rebaser_server.handlers.times import first_time, next_time, time_of

NOW = datetime(2026, 3, 28, 23, 30, 1, 500_000, tzinfo=UTC)


@pytest.mark.parametrize(
    ("when", "first"),
    [
        ({"after": 1.5}, "2026-03-28T23:30:03.000Z"),
        ({"after": 0}, "2026-03-28T23:30:01.500Z"),
        ({"at": "2020-01-01T00:00:00.000Z"}, "2020-01-01T00:00:00.000Z"),
        ({"at": "1969-12-31T23:59:59Z"}, "2026-03-28T23:30:01.500Z"),
        ({"at": "0001-01-01T00:00:00Z"}, "2026-03-28T23:30:01.500Z"),
        ({"every": "*/15 * * * *"}, "2026-03-28T23:45:00.000Z"),
        ({"every": "0 12 * * *", "zone": "America/New_York"}, "2026-03-29T16:00:00.000Z"),
    ],
)
def test_the_first_time_follows_from_when_the_request_was_stored(
    when: dict[str, object], first: str
) -> None:
    change = TimerChange.model_validate({"name": "t", **when})

    assert time_of(first_time(change, NOW)) == time_of(first)


def test_a_time_that_a_clock_skips_comes_at_once_after_it() -> None:
    """In Berlin there is no 2:30 on the 29th of March 2026."""
    found = next_time("30 2 * * *", "Europe/Berlin", NOW)

    assert found is not None
    assert time_of(found) == datetime(2026, 3, 29, 1, 0, tzinfo=UTC)


def test_the_next_time_is_behind_the_one_that_it_follows() -> None:
    following = next_time("0 * * * *", None, datetime(2026, 1, 1, tzinfo=UTC))

    assert following is not None
    assert time_of(following) == datetime(2026, 1, 1, 1, tzinfo=UTC)


@pytest.mark.parametrize(
    ("when", "reason"),
    [
        ({}, "one of at, after and every"),
        ({"after": 4e9}, "more than a hundred years"),
        ({"at": "9999-12-31T23:59:59.999Z"}, "more than a hundred years"),
        ({"at": "2027-02-30T09:00:00Z"}, "there is no time '2027-02-30T09:00:00Z'"),
        ({"after": 1, "zone": "UTC"}, "a zone is for `every`"),
        ({"every": "* * * *"}, "has not five fields"),
        ({"every": "* * * * Blursday"}, "is no cron"),
        ({"every": "0 0 30 2 *"}, "is no cron"),
        ({"every": "0 0 * * *", "zone": "Europe/Atlantis"}, "no time zone"),
    ],
)
def test_a_timer_that_never_calls_is_refused(when: dict[str, object], reason: str) -> None:
    with pytest.raises(CallRefused, match=reason):
        first_time(TimerChange.model_validate({"name": "t", **when}), NOW)

"""Delays double from the first to the longest, whatever the number of the attempt."""

from itertools import islice

from rebaser_core.jetstream.deadlines import Backoff

BACKOFF = Backoff(1, 10)


def test_delays_double_up_to_the_longest() -> None:
    """The limit holds however long it lasts."""
    assert list(islice(BACKOFF, 6)) == [1, 2, 4, 8, 10, 10]
    assert BACKOFF.delay(10**6) == 10


def test_an_attempt_before_the_first_waits_as_long_as_the_first() -> None:
    """A server may count deliveries from 0."""
    assert BACKOFF.delay(0) == BACKOFF.delay(1) == 1


def test_jitter_takes_up_to_half_of_the_delay() -> None:
    """It never makes a delay longer than its limit."""
    delays = [BACKOFF.jittered(5) for _ in range(200)]

    assert all(5 <= delay <= 10 for delay in delays)
    assert len(set(delays)) > 100

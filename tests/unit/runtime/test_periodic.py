"""Periodic work goes on after any round that fails."""

import asyncio

import pytest
from structlog.testing import capture_logs

from rebaser_core.jetstream import NatsUnreachable
from rebaser_server.runtime.containment import MAX_BACKOFF, repeat_every
from tests.helpers.panicking_tables import PanicException


class Enough(BaseException):
    """The pauses that a test wants to see were seen."""


async def pauses_of(errors, seconds):
    """The pauses between rounds that fail with these errors; None is a round that does not."""
    rounds, pauses = iter(errors), []

    async def do():
        error = next(rounds)
        if error is not None:
            raise error

    async def pause(span):
        pauses.append(span)
        if len(pauses) == len(errors):
            raise Enough

    with pytest.raises(Enough):
        await repeat_every(seconds, do, "takeover", first_delay=0, jitter=0, pause=pause)
    return pauses


async def test_a_round_that_fails_is_not_the_last():
    failing = [ValueError(), None, OSError(), PanicException()]

    assert await pauses_of(failing, 100) == [100, 100, 100, 100]


async def test_failures_in_a_row_come_ever_more_seldom():
    failing = [NatsUnreachable("gone")] * 9

    assert await pauses_of([*failing, None], 0.5) == [
        1, 2, 4, 8, 16, MAX_BACKOFF, MAX_BACKOFF, MAX_BACKOFF, MAX_BACKOFF, 0.5,
    ]  # fmt: skip


async def test_cancellation_ends_it():
    async def do():
        raise asyncio.CancelledError

    with pytest.raises(asyncio.CancelledError):
        await repeat_every(1, do, "takeover", first_delay=0)


async def test_an_error_that_is_ours_is_logged_with_its_trace_and_one_of_nats_without():
    with capture_logs() as logs:
        await pauses_of([ValueError("ours"), NatsUnreachable("gone")], 1)

    assert [(each["log_level"], each.get("exc_info", False)) for each in logs] == [
        ("error", True),
        ("warning", False),
    ]

"""Repeat a request to NATS until the server answers, or the time is over."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

from rebaser_core.jetstream import NatsUnreachable, Unavailable
from rebaser_core.jetstream.deadlines import Backoff

BACKOFF: Final = Backoff(0.05, 2.0)

T = TypeVar("T")


async def retry(
    call: Callable[[], Awaitable[T]],
    retry_for: float,
    pause: Callable[[float], Awaitable[None]] = asyncio.sleep,
) -> T:
    """Repeat `call` until the server answers, a `pause` after each failure; return its result.

    Raises:
        NatsUnreachable, Unavailable: the server did not answer for `retry_for` seconds.
        JetStreamError: any other error, at once, since a retry cannot help.
    """
    clock = asyncio.get_running_loop().time
    end, attempts = clock() + retry_for, 0
    while True:
        try:
            return await call()
        except (NatsUnreachable, Unavailable):
            if clock() >= end:
                raise
        attempts += 1
        await pause(BACKOFF.delay(attempts))

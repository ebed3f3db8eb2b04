"""Work that is done again and again beside everything else, whatever becomes of one round."""

import asyncio
import random
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final, Never

import structlog

from rebaser_core.jetstream import JetStreamError
from rebaser_core.jetstream.backoff import Backoff
from rebaser_server.runtime.containment import printable
from rebaser_server.runtime.failures import is_panic
from rebaser_server.telemetry import metrics

log: Final = structlog.get_logger()

MAX_BACKOFF: Final = 30.0
"""Seconds up to which the pause after a failed round grows, where the period is shorter."""

Pause = Callable[[float], Awaitable[object]]


@dataclass(slots=True)
class Round:
    """Whether it failed, known once it is over."""

    failed: bool = False


@contextmanager
def survived(what: metrics.Round) -> Iterator[Round]:
    """Log, count and swallow any error of the body: one round of what is done again."""
    this = Round()
    this.failed = True
    try:
        yield this
        this.failed = False
    except (JetStreamError, OSError) as error:  # NATS or the store, and not our fault
        log.warning("round failed", what=what, error=_describe(error))
    except BaseException as error:
        if not isinstance(error, Exception) and not is_panic(error):
            raise
        log.exception("round failed", what=what, error=_describe(error))
    if this.failed:
        metrics.ROUNDS_FAILED.labels(what).inc()


async def repeat_every(
    seconds: float,
    action: Callable[[], Awaitable[object]],
    what: metrics.Round,
    *,
    first_delay: float | None = None,
    jitter: float = 0.25,
    max_backoff: float = MAX_BACKOFF,
    pause: Pause = asyncio.sleep,
) -> Never:
    """Call `action` every `seconds` until cancelled, also after a round that fails.

    An error is logged and counted, and the next round comes after the period, or later: after
    each failure in a row the pause doubles, up to `max_backoff` if the period is shorter.
    `first_delay`: seconds until the first round (default: the period). `jitter`: the part
    by which a period may be shorter or longer, so that daemons do not act at the same moment.
    `pause` waits for so many seconds, or for less if there is news.
    """
    failures, backoff = 0, Backoff(seconds, max_backoff)
    if first_delay is None:
        first_delay = _jittered(seconds, jitter)
    if first_delay:
        await pause(first_delay)
    while True:
        with survived(what) as this:
            await action()
        failures = failures + 1 if this.failed else 0
        await pause(_jittered(max(seconds, backoff.delay(failures + 1)), jitter))


def _jittered(seconds: float, spread: float) -> float:
    return seconds * random.uniform(1 - spread, 1 + spread)


def _describe(error: BaseException) -> str:
    return printable(f"{type(error).__name__}: {error}")

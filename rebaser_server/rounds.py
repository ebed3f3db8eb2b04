"""Work that is done again and again beside everything else, whatever becomes of one round."""

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import Final, Never

import structlog

from rebaser_core.jetstream import JetStreamError
from rebaser_server import metrics
from rebaser_server.contained import printable

log: Final = structlog.get_logger()

LONGEST: Final = 30.0
"""Seconds up to which the pause after a failed round grows, where the period is shorter."""
_DOUBLINGS: Final = 10  # more are not needed for any period of ours to reach `LONGEST`

Pause = Callable[[float], Awaitable[object]]


async def every(
    seconds: float,
    do: Callable[[], Awaitable[object]],
    what: metrics.Round,
    *,
    first: float | None = None,
    spread: float = 0.25,
    pause: Pause = asyncio.sleep,
) -> Never:
    """Call `do` once in so many seconds until cancelled; a round that fails is not the last.

    Its error is logged and counted, and the next round comes after the period, or later:
    after each failure in a row the pause doubles, up to `LONGEST` where the period is shorter.
    `first`: seconds until the first round, the period if it is left out. `spread`: the part
    by which a period may be shorter or longer, so that daemons do not act at the same moment.
    `pause` waits for so many seconds, or for less where there is news.
    """
    failures = 0
    await pause(_jittered(seconds, spread) if first is None else first)
    while True:
        try:
            await do()
            failures = 0
        except (JetStreamError, OSError) as error:  # NATS or the store, and not our fault
            failures = _failed(what, failures)
            log.warning("round failed", what=what, error=_told(error))
        except Exception as error:
            failures = _failed(what, failures)
            log.exception("round failed", what=what, error=_told(error))
        longer = min(seconds * 2.0 ** min(failures, _DOUBLINGS), LONGEST)
        await pause(_jittered(max(seconds, longer), spread))


def _jittered(seconds: float, spread: float) -> float:
    return seconds * random.uniform(1 - spread, 1 + spread)  # noqa: S311 - jitter


def _failed(what: metrics.Round, failures: int) -> int:
    metrics.ROUNDS_FAILED.labels(what).inc()
    return failures + 1


def _told(error: Exception) -> str:
    return printable(f"{type(error).__name__}: {error}")

"""Containment of errors: a bad item of many is logged, counted and skipped.

It ends neither round nor process. A round that fails is followed by the next.
"""

import asyncio
import random
import time
from collections import OrderedDict, deque
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Final, Never

import structlog

from rebaser_core.errors import RebaserError
from rebaser_core.jetstream import JetStreamError
from rebaser_core.jetstream.deadlines import Backoff
from rebaser_server.runtime.failures import is_panic
from rebaser_server.telemetry import metrics

log: Final = structlog.get_logger()

_REPEAT_AFTER: Final = 3600.0
"""Seconds for which an item is not logged again; it is counted each time."""
MAX_LINES: Final = 10
"""Maximum number of lines that one kind of item may write in `_SPAN`, for any number of bad
items."""
_SPAN: Final = 60.0  # seconds
_REMEMBERED: Final = 1000  # items


def contained(
    what: metrics.Item, /, *, passing: tuple[type[Exception], ...] = (), **keys: object
) -> AbstractContextManager[None, bool]:
    """Log, count and swallow any error of the body, which deals with one item of many.

    `what` is the kind of item, `keys` say which one it is. Cancellation, `SystemExit`,
    `KeyboardInterrupt` and the errors in `passing` are let through. `passing` has errors that
    concern every other item as well, such as a NATS that does not answer. A panic of a library is
    an error like any other. The body may stop anywhere, so it must leave nothing half done that
    others rely on.
    """
    return _Containment(what, passing, keys)


@dataclass(frozen=True, slots=True)
class _Containment(AbstractContextManager[None, bool]):
    what: metrics.Item
    passing: tuple[type[Exception], ...]
    keys: dict[str, object]

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: object
    ) -> bool:
        is_contained = isinstance(error, Exception) or is_panic(error)
        if error is None or not is_contained or isinstance(error, self.passing):
            return False
        metrics.ITEMS_SKIPPED.labels(self.what).inc()
        shown = {key: printable(value) for key, value in self.keys.items()}
        if _log_limiter.admits(self.what, tuple(shown.items())):
            description = printable(f"{type(error).__name__}: {error}")
            # An error that we raise on purpose says all there is to say.
            cause = None if isinstance(error, RebaserError) else error
            log.error("item skipped", what=self.what, error=description, exc_info=cause, **shown)
        return True


def printable(value: object) -> str:
    """The first 500 characters of it as text, escaped where a terminal would obey them."""
    text = str(value)[:500]
    return text if text.isprintable() else ascii(text)[1:-1]


class _LogLimiter:
    """Memory of recent log lines, so that a bad item that stays does not fill the log."""

    def __init__(self) -> None:
        self._items: OrderedDict[tuple[object, ...], float] = OrderedDict()
        self._lines: dict[str, deque[float]] = {}

    def admits(self, what: str, item: tuple[object, ...]) -> bool:
        """Whether to write a line about the item; notes that it was written."""
        now, key = time.monotonic(), (what, item)
        lines = self._lines.setdefault(what, deque(maxlen=MAX_LINES))
        if now - self._items.get(key, -_REPEAT_AFTER) < _REPEAT_AFTER:
            return False
        if len(lines) == MAX_LINES and now - lines[0] < _SPAN:
            return False
        lines.append(now)
        self._items[key] = now
        self._items.move_to_end(key)
        while len(self._items) > _REMEMBERED:
            self._items.popitem(last=False)
        return True


_log_limiter: Final = _LogLimiter()


_FIRST_DELAY: Final = 1.0
LONGEST_DELAY: Final = 30.0
"""Maximum number of seconds between two attempts: the delay doubles up to it."""


def backoff(attempt: int) -> float:
    """Seconds to wait after that attempt, counted from 1: doubled each time, with jitter."""
    return Backoff(_FIRST_DELAY, LONGEST_DELAY).jittered(attempt)


MAX_BACKOFF: Final = 30.0
"""Seconds up to which the pause after a failed round grows, where the period is shorter."""

Pause = Callable[[float], Awaitable[object]]


@dataclass(slots=True)
class Round:
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

    An error is logged and counted, and the next round comes after the period, or later: after each
    failure in a row the pause doubles, up to `max_backoff` if the period is shorter. `first_delay`:
    seconds until the first round (default: the period). `jitter`: the part by which a period may be
    shorter or longer, so that daemons do not act at one moment. `pause(seconds)` waits, or returns
    earlier if there is news.
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

"""The times of timers, in UTC, to the millisecond."""

from datetime import UTC, datetime, timedelta
from typing import Final
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from cronsim import CronSim, CronSimError

from rebaser_core.calls import TimerChange
from rebaser_core.records import utc_text
from rebaser_server.handlers.service import CallRefused

_FIELDS: Final = 5
_LONGEST_CRON: Final = 500
_LONGEST: Final = timedelta(days=366 * 100)
_EARLIEST: Final = datetime(1971, 1, 1, tzinfo=UTC)
LATE: Final = timedelta(minutes=1)
"""Time behind which a call of `every` counts as missed: NATS calls within a second or two."""


def first_time(change: TimerChange, now: datetime) -> str:
    """Return the time of the first call.

    Raises:
        CallRefused: there is none; the message says why.
    """
    if change.every is not None:
        following = next_time(change.every, change.zone, now)
        if following is None:
            raise CallRefused(f"timer {change.name}: {change.every!r} never comes")
        return following
    if change.zone is not None:
        raise CallRefused(f"timer {change.name}: a zone is for `every`; `at` has one of its own")
    if change.at is not None:
        return _only_time(change.name, change.at, now)
    if change.after is None:
        raise CallRefused(f"timer {change.name}: one of at, after and every says when")
    if change.after > _LONGEST.total_seconds():
        raise CallRefused(f"timer {change.name}: {change.after:g} s are more than a hundred years")
    return utc_text(now + timedelta(seconds=change.after))


def _only_time(name: str, at: str, now: datetime) -> str:
    try:
        moment = time_of(at)
    except ValueError:
        raise CallRefused(f"timer {name}: there is no time {at!r}") from None
    if moment - now > _LONGEST:  # NATS would call at once: it counts nanoseconds up to 2262
        raise CallRefused(f"timer {name}: {at} is more than a hundred years ahead")
    # All that is past calls at once, and neither ids nor alarms have a time before 1970.
    return utc_text(now if moment < _EARLIEST else moment)


def next_time(every: str, zone: str | None, after: datetime) -> str | None:
    """Return the first time of cron behind `after`; None: there is none.

    A time that a clock skips, as daylight saving begins, comes at once after it; one that a clock
    shows twice comes once, or twice where hours or minutes are `*`: as Debian's cron has it.

    Raises:
        CallRefused: it is no cron, or there is no such zone.
    """
    try:
        local = after.astimezone(UTC if zone is None else ZoneInfo(zone))
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise CallRefused(f"there is no time zone {zone!r:.80}") from None
    if len(every) > _LONGEST_CRON:
        raise CallRefused(f"{every!r:.80} is no cron: it is too long")
    if len(every.split()) != _FIELDS:
        raise CallRefused(
            f"{every!r:.80} has not five fields: minute, hour, day of month, month, day of week"
        )
    try:
        found = next(CronSim(every, local), None)
    except CronSimError as error:
        raise CallRefused(f"{every!r:.80} is no cron: {error}") from None
    return None if found is None else utc_text(found)


def time_of(text: str) -> datetime:
    """Read what `utc_text` wrote."""
    return datetime.fromisoformat(text)

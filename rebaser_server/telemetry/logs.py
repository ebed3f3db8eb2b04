"""The log of the daemon, on stderr: JSON lines for programs, readable in a terminal.

Warnings and errors do not flood it: those of one kind beyond `BURST` come once a second at most. An
equal line comes again after pauses that double, with the number of lines left out.
"""

import atexit
import logging
import math
import sys
import threading
import time
import traceback
from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final, Literal, TextIO

import structlog
from structlog.typing import ExcInfo

from rebaser_core import trace_context
from rebaser_server.telemetry.log_options import LogLevel
from rebaser_server.terminal.lines import visible

LogFormat = Literal["auto", "json", "pretty"]
"""`auto`: pretty in a terminal, JSON elsewhere."""

BURST: Final = 20
"""Number of lines of one kind that may come at once."""
_LONGEST_PAUSE: Final = 60.0
"""Seconds up to which the pause between two equal lines grows, from one second."""
MORE: Final = "and_more_like_this"
"""Key of the number of lines that were left out before this one."""

_TRACEBACK: Final = "exc_info"
"""Key of an event's traceback, which is shown on further lines."""
_KIND: Final = "_kind"
"""Key of the kind that an event is counted with, if that is not its text; it is not shown."""
_COUNTED: Final = "_counted"
"""Key of an event about lines that were left out; it is not shown."""
_REMEMBERED: Final = 256
"""Number of kinds of lines, and of lines of one kind, that are distinguished."""
_LIMITED: Final = ("warning", "error", "critical")


def configure(
    instance_id: str,
    form: LogFormat = "auto",
    level: LogLevel = "info",
    mask: Callable[[str], str] = str,
) -> None:
    """Set logging up for the process. stdout stays free for results.

    Each event, with its traceback, is written as `mask` returns it, without secrets.
    Warnings and errors of libraries, which log in Python's own way, are events like all others,
    with the name of their `logger`.
    """
    terminal = sys.stderr.isatty()
    pretty = terminal if form == "auto" else form == "pretty"
    repetitions = _Repetitions()
    atexit.register(repetitions.tell_all)
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            repetitions.admit,
            _with_trace,
            *(_console_processors(colors=terminal) if pretty else _json_processors()),
            lambda _, __, line: mask(str(line)),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(
            logging.getLevelNamesMapping()[level.upper()]
        ),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        cache_logger_on_first_use=False,
    )
    structlog.contextvars.clear_contextvars()
    if not pretty:  # where lines of several come together
        structlog.contextvars.bind_contextvars(instance=instance_id)
    logging.basicConfig(handlers=[_Forwarder(logging.WARNING)], force=True)


class _Forwarder(logging.Handler):
    """Logs the records of Python's `logging` as events."""

    def emit(self, record: logging.LogRecord) -> None:
        place = f"{record.pathname}:{record.lineno}"
        structlog.get_logger().log(
            record.levelno,
            record.getMessage(),
            logger=record.name,
            exc_info=record.exc_info,
            **{_KIND: place},
        )


class _Repetitions:
    """Counts warnings and errors of one kind rather than repeating them: none is lost uncounted.

    A kind is an event or, for a library, the place in its code. Lines are equal if their keys have
    equal values, except numbers.
    """

    def __init__(self) -> None:
        self._kinds: OrderedDict[tuple[str, str], _Kind] = OrderedDict()
        self._lock = threading.RLock()
        self._has_thread = False

    def admit(
        self, _: object, __: str, event: structlog.typing.EventDict
    ) -> structlog.typing.EventDict:
        """Pass the event on, with the number of those left out before, or leave it out."""
        kind, is_counted = event.pop(_KIND, event["event"]), event.pop(_COUNTED, False)
        if is_counted or event["level"] not in _LIMITED:
            return event
        with self._lock:
            left_out = self._kind((event["level"], kind)).admit(event, time.monotonic())
            if left_out is None and not self._has_thread:
                teller = threading.Thread(target=self._tell_overdue, name="log counts", daemon=True)
                with suppress(RuntimeError):  # no more threads: the next line left out tries again
                    self._has_thread = True
                    teller.start()
                self._has_thread = teller.is_alive()
        if left_out is None:
            raise structlog.DropEvent
        return {**event, MORE: left_out} if left_out else event

    def _kind(self, key: tuple[str, str]) -> "_Kind":
        kind = self._kinds.setdefault(key, _Kind())
        self._kinds.move_to_end(key)
        if len(self._kinds) > _REMEMBERED:
            _, oldest = self._kinds.popitem(last=False)
            _log_counted(oldest.left_out(math.inf))
        return kind

    def _tell_overdue(self) -> None:
        """Log lines left out that no later line of their kind has counted, until none is left."""
        while self._has_thread:
            time.sleep(1.0)
            with self._lock:
                now = time.monotonic()
                said = [event for kind in self._kinds.values() for event in kind.left_out(now)]
                self._has_thread = any(kind.has_left_out for kind in self._kinds.values())
            _log_counted(said)

    def tell_all(self) -> None:
        """Log the lines left out, also before it is due."""
        with self._lock:
            kinds = list(self._kinds.values())
        _log_counted([event for kind in kinds for event in kind.left_out(math.inf)])


def _log_counted(events: list[structlog.typing.EventDict]) -> None:
    for event in events:
        level = logging.getLevelNamesMapping()[event.pop("level").upper()]
        structlog.get_logger().log(level, event.pop("event"), **event, **{_COUNTED: True})


class _Kind:
    """Lines of one kind: `BURST` of them may come at once, and one more with each second."""

    def __init__(self) -> None:
        self._tokens = float(BURST)
        self._at = time.monotonic()
        self._lines: OrderedDict[int, _Line] = OrderedDict()
        self._others = _Line(0.0)
        """Count of lines that were not written at all."""

    def admit(self, event: structlog.typing.EventDict, now: float) -> int | None:
        """Number of lines left out before it, if it may be written; None if it is left out, too."""
        text = _text(event)
        line = self._lines.get(text)
        if line is not None and now < line.due:
            line.leave_out(event)
            return None
        if not self._has_token(now):
            (line or self._others).leave_out(event)
            return None
        if line is not None and now < line.due + _LONGEST_PAUSE:
            return line.write(now)
        self._lines[text] = _Line(now + 1.0)
        self._lines.move_to_end(text)
        if len(self._lines) > _REMEMBERED:
            _, oldest = self._lines.popitem(last=False)
            self._others.add(oldest)
        return 0 if line is None else line.count

    def _has_token(self, now: float) -> bool:
        """Whether another line may be written, which it then is."""
        self._tokens = min(self._tokens + now - self._at, BURST)
        self._at = now
        if self._tokens < 1:
            return False
        self._tokens -= 1
        return True

    @property
    def has_left_out(self) -> bool:
        return any(line.count for line in (*self._lines.values(), self._others))

    def left_out(self, now: float) -> list[structlog.typing.EventDict]:
        """The last line of each that was left out, with the number of the others.

        Only those that are due count; at an infinite time all are due.
        """
        return [
            {**line.last, **({MORE: more} if (more := line.write(now) - 1) else {})}
            for line in (*self._lines.values(), self._others)
            if line.count and now >= line.due and (now == math.inf or self._has_token(now))
        ]


@dataclass(slots=True)
class _Line:
    """A line that was written, and the number of equal ones left out since."""

    due: float
    pause: float = 1.0
    count: int = 0
    last: structlog.typing.EventDict = field(default_factory=dict)

    def leave_out(self, event: structlog.typing.EventDict) -> None:
        self.count += 1
        self.last = {key: value for key, value in event.items() if key != _TRACEBACK}
        error = _error(event)
        if error is not None:
            self.last.setdefault("error", f"{type(error).__name__}: {error}")

    def add(self, other: "_Line") -> None:
        self.count += other.count
        self.last = other.last or self.last

    def write(self, now: float) -> int:
        """Return the number of lines left out; the next one may come after a longer pause."""
        count, self.count = self.count, 0
        self.pause = min(2 * self.pause, _LONGEST_PAUSE)
        self.due = now + self.pause
        return count


def _text(event: structlog.typing.EventDict) -> int:
    """A hash of all that the line says, except numbers."""
    said = [
        (key, str(value))
        for key, value in event.items()
        if key != _TRACEBACK and not isinstance(value, int | float)
    ]
    return hash((tuple(sorted(said)), repr(_error(event))))


def _error(event: structlog.typing.EventDict) -> BaseException | None:
    """The error whose traceback is shown with the event."""
    given = event.get(_TRACEBACK)
    if isinstance(given, BaseException) or given is None:
        return given
    return given[1] if isinstance(given, tuple) else sys.exc_info()[1] if given else None


def _with_trace(
    _: object, __: str, event: structlog.typing.EventDict
) -> structlog.typing.EventDict:
    """Says which span of a trace the line belongs to, where these are traced."""
    event.update(trace_context.current_ids())
    return event


def _json_processors() -> list[structlog.typing.Processor]:
    return [
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.format_exc_info,
        structlog.processors.JSONRenderer(default=str),
    ]


def _console_processors(*, colors: bool) -> list[structlog.typing.Processor]:
    """Format for a terminal: this machine's clock, one line for an event, tracebacks indented."""
    return [
        structlog.processors.TimeStamper(fmt="%H:%M:%S", utc=False),
        _visible,
        structlog.dev.ConsoleRenderer(colors=colors, exception_formatter=_indented),
    ]


def _visible(_: object, __: str, event: structlog.typing.EventDict) -> structlog.typing.EventDict:
    """The event without characters that a terminal obeys."""
    return {
        visible(key): value if key == _TRACEBACK else _one_line(value)
        for key, value in event.items()
    }


def _one_line(value: object) -> object:
    if value is None or isinstance(value, int | float):
        return value
    return visible(value if isinstance(value, str) else repr(value))


def _indented(stream: TextIO, exc_info: ExcInfo) -> None:
    """Write the traceback as Python shows it, with no line that could pass for an event."""
    text = "".join(traceback.format_exception(*exc_info)).rstrip("\n")
    stream.writelines(f"\n  {visible(line)}" for line in text.split("\n"))

"""How the daemon says what it does, on stderr: JSON lines for programs, readable in a terminal."""

import logging
import sys
import traceback
from collections.abc import Callable
from typing import Final, TextIO

import structlog
from structlog.typing import ExcInfo

from rebaser_core import trace_context
from rebaser_server.telemetry.log_options import LogFormat, LogLevel
from rebaser_server.terminal.lines import visible

_TRACEBACK: Final = "exc_info"
"""Key of an event's traceback, which is shown as lines of its own."""


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
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            _with_trace,
            structlog.processors.add_log_level,
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
        structlog.get_logger().log(
            record.levelno, record.getMessage(), logger=record.name, exc_info=record.exc_info
        )


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
    """By this machine's clock; an event is one line, and a traceback's lines are indented."""
    return [
        structlog.processors.TimeStamper(fmt="%H:%M:%S", utc=False),
        _visible,
        structlog.dev.ConsoleRenderer(colors=colors, exception_formatter=_indented),
    ]


def _visible(_: object, __: str, event: structlog.typing.EventDict) -> structlog.typing.EventDict:
    """The event with no character in it that a terminal obeys."""
    return {
        visible(key): value if key == _TRACEBACK else _one_line(value)
        for key, value in event.items()
    }


def _one_line(value: object) -> object:
    if value is None or isinstance(value, int | float):
        return value
    return visible(value if isinstance(value, str) else repr(value))


def _indented(stream: TextIO, exc_info: ExcInfo) -> None:
    """Write the traceback as Python shows it, no line of which can pass for an event."""
    text = "".join(traceback.format_exception(*exc_info)).rstrip("\n")
    stream.writelines(f"\n  {visible(line)}" for line in text.split("\n"))

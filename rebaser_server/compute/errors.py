"""Errors of dependent values updates that could not be computed.

DvuError
├── FunctionMissing       a function is not installed here, or its runtime is unknown
└── EvaluationFailed      the evaluator could not cope with what it was given

EvaluatorAway
├── SessionFailed         there is no Spark to run on; the next run tries again
│   └── JavaMissing       no Java that Spark can run on; an administrator must look
├── CodeDiffers           functions have other code where they are called than here
└── RunFailed             what computed has ended; nothing is lost by repeating the run

Only a `DvuError` or `Stalled` may in the end fail values: an update that another error ends is
tried again without end. A function that raises is none of these: its value fails, the run succeeds.
A run that found no room on a disk raises `DiskFull`, which says nothing of the values either.

Messages of failed values are short, and are made without trust in the error.
"""

import builtins
import os
import re
from collections.abc import Iterator
from errno import EDQUOT, ENOSPC
from itertools import groupby, islice
from pathlib import Path
from traceback import walk_tb
from types import FrameType
from typing import Final, TypeVar

from rebaser_server.compute.json_values import NotJson
from rebaser_server.runtime.failures import (
    DiskFull,
    EvaluatorAway,
    JobFailed,
    StoreDamaged,
    StoreFailed,
)

_NO_ROOM: Final = (os.strerror(ENOSPC), os.strerror(EDQUOT))
"""Endings of the messages by which libraries and Java report a full disk."""


_OF_THE_MACHINE: Final = frozenset(
    kind.__name__
    for kind in (*vars(builtins).values(), StoreFailed, StoreDamaged, DiskFull)
    if isinstance(kind, type) and issubclass(kind, OSError | ImportError | MemoryError)
)
"""Names of errors of the machine, which say nothing about the values."""


class DvuError(JobFailed):
    """Base of all failures of this package that may in the end fail values."""


class FunctionMissing(DvuError):
    """The function is missing; the message is that of each value that needs it."""


class EvaluationFailed(DvuError):
    """The evaluator itself raised an error, and has left no results behind."""

    crashed = True


class SessionFailed(EvaluatorAway):
    """Spark has no session to run on."""


class JavaMissing(SessionFailed):
    """Java is missing, or not new enough."""


class CodeDiffers(EvaluatorAway):
    """A function has other code where it would be called, so nothing was called."""


class RunFailed(EvaluatorAway):
    """The evaluator has ended, by itself or because of a value, and left no results behind."""

    crashed = True


E = TypeVar("E", bound=OSError)


def breakdown(kind: type[E], reason: str) -> E | DiskFull:
    """Return the error of a breakdown; `reason` has the words of the process that broke down."""
    is_full = any(text in reason for text in _NO_ROOM)
    return DiskFull(reason) if is_full else kind(reason)


def evaluator_error(name: str, reason: str) -> EvaluationFailed | EvaluatorAway | DiskFull:
    """Return the error that the evaluator in another process raised, by its class's name.

    Values are not to blame if the machine lacks memory, files or modules.
    """
    name = name.rpartition(".")[2]
    if name == CodeDiffers.__name__:
        return CodeDiffers(reason)
    if name in _OF_THE_MACHINE:
        return breakdown(RunFailed, reason)
    return EvaluationFailed(reason)


MAX_MESSAGE: Final = 1000
"""Maximum number of characters of a failed value's message, with its traceback."""
MAX_LINES: Final = 8
"""Maximum number of lines of a traceback: long ones keep their first and last four."""
_MAX_PLACE: Final = 400
_MAX_DEPTH: Final = 2000
_OURS: Final = f"{Path(__file__).parent.parent}/"
_CALLERS: Final = tuple(
    f"{_OURS}compute/{name}.py"
    for name in (
        *("evaluators", "evaluation", "call_watchdog", "isolation", "task_protocol"),
        *("functions/arrow", "spark/table_job"),
    )
)
_SPARKS: Final = re.compile(r"/(pyspark|py4j)(\.zip)?/")
"""Part of the path of each file of PySpark's: a traceback passes these over."""
_MIB: Final = 1 << 20
_name_of: Final = vars(type)["__name__"].__get__
"""The name of a class, even if its own class says otherwise."""


class ResultTooLarge(NotJson):
    """A result that has more bytes than a value may have."""

    def __init__(self, size: int, most: int) -> None:
        """Make the error for a result of `size` bytes as JSON, at least."""
        unit = _MIB if size // _MIB > most // _MIB > 0 else 1
        word = "MiB" if unit == _MIB else "bytes"
        has, may = _format_size(size, unit), _format_size(most, unit)
        super().__init__(f"the result has {has} {word}; at most {may} are allowed")


class TableRefused(NotJson):
    """A table that a function cannot take or return; the message is that of its value."""


def describe(error: BaseException) -> str:
    """Return the message for users of an exception, whose own code may do anything."""
    kind = type(error)  # the attribute of the error may lie
    name: str = _name_of(kind)
    try:
        # A plain str, since a subclass may have its own methods.
        text = str.__getitem__(str(error), slice(MAX_MESSAGE))
    except BaseException:  # an exception's own code is a function's, too
        return name
    if issubclass(kind, ResultTooLarge | TableRefused):
        return text
    if issubclass(kind, NotJson):
        return f"the result cannot be a value: {text}"
    return f"{name}: {text}" if text else name


def describe_call(error: BaseException) -> str:
    """Describe an error, with its function's traceback, the outermost line first.

    Files are named without their folders, so that all machines give one text.
    """
    return with_place(describe(error), error)


def with_place(text: str, error: BaseException) -> str:
    """Return a message about an error with its function's traceback."""
    try:
        lines = [line for line, _ in groupby(_lines_of_function(error))]
    except BaseException:  # an exception's own code is a function's, too
        return text
    if not lines:
        return text
    if len(lines) > MAX_LINES:
        lines = [*lines[: MAX_LINES // 2], "…", *lines[-(MAX_LINES // 2) :]]
    place = f" (at {', '.join(lines)[:_MAX_PLACE]})"
    return text[: MAX_MESSAGE - len(place)] + place


def _lines_of_function(error: BaseException) -> Iterator[str]:
    """Yield the lines of the function; none for a function of Rebaser's."""
    frames = islice(walk_tb(error.__traceback__), _MAX_DEPTH)
    called = [each for each in frames if not _is_caller(each[0])]
    if called and not _is_ours(called[0][0]):
        for frame, line in called:
            code = frame.f_code
            if not _is_ours(frame) and not _SPARKS.search(code.co_filename):
                file = code.co_filename.rpartition("/")[2]
                yield f"{file}:{line} in {code.co_name}"


def _is_caller(frame: FrameType) -> bool:
    name = frame.f_code.co_filename
    return name.startswith((*_CALLERS, "<"))


def _is_ours(frame: FrameType) -> bool:
    return frame.f_code.co_filename.startswith(_OURS)


def truncate(text: str) -> str:
    """Cut a message to the length that is stored."""
    text = text[: MAX_MESSAGE + 1].encode(errors="replace").decode()
    return text if len(text) <= MAX_MESSAGE else text[: MAX_MESSAGE - 1] + "…"


def _format_size(size: int, unit: int) -> str:
    return f"{size:,}" if unit == 1 else f"{size / unit:.4g}"

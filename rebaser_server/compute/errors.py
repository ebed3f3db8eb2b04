"""Why a dependent values update could not be computed.

DvuError
├── FunctionMissing       a function is not installed here, or its runtime is unknown
├── EvaluationFailed      the evaluator could not cope with what it was given
└── Stalled               nothing was computed for too long, and a function may be why

EvaluatorAway
├── SessionFailed         there is no Spark to run on; the next run tries again
│   └── JavaMissing       no Java that Spark can run on; an administrator must look
└── RunFailed             what computed has ended; nothing is lost by repeating the run

Only a `DvuError` may in the end fail values: an update that another error ends is tried again
however often it fails. A function that raises is none of these: its value fails, the run succeeds.
A run that found no room on a disk raises `DiskFull`, which says nothing of the values either.
"""

import builtins
import os
from errno import EDQUOT, ENOSPC
from typing import Final

from rebaser_server.runtime.failures import (
    DiskFull,
    EvaluatorAway,
    JobFailed,
    StoreDamaged,
    StoreFailed,
)

_NO_ROOM: Final = (os.strerror(ENOSPC), os.strerror(EDQUOT))
"""How libraries and Java end the message of such an error."""


_OF_THE_MACHINE: Final = frozenset(
    kind.__name__
    for kind in (*vars(builtins).values(), StoreFailed, StoreDamaged, DiskFull)
    if isinstance(kind, type) and issubclass(kind, OSError | ImportError | MemoryError)
)
"""Names of errors that say nothing of what was computed."""


class DvuError(JobFailed):
    """Any failure of this package."""


class FunctionMissing(DvuError):
    """No such function: shown as the message of each value that needs it."""


class EvaluationFailed(DvuError):
    """The evaluator itself raised an error, and has left no results behind."""

    crashed = True


class SessionFailed(EvaluatorAway):
    """There is no Spark to run on."""


class JavaMissing(SessionFailed):
    """There is no Java, or none that is new enough."""


class RunFailed(EvaluatorAway):
    """The evaluator has ended, by itself or because of a value, and left no results behind."""

    crashed = True


def breakdown(kind: type[RunFailed | SessionFailed], reason: str) -> EvaluatorAway | DiskFull:
    """The error of what broke down; `reason` has the words of the process that did."""
    is_full = any(text in reason for text in _NO_ROOM)
    return DiskFull(reason) if is_full else kind(reason)


def evaluator_error(name: str, reason: str) -> EvaluationFailed | EvaluatorAway | DiskFull:
    """The error for one that the evaluator raised, in another process, by its class's name.

    What the machine lacks, memory, files, modules, is not for the values to answer for.
    """
    if name.rpartition(".")[2] in _OF_THE_MACHINE:
        return breakdown(RunFailed, reason)
    return EvaluationFailed(reason)


class Stalled(DvuError):
    """The run was stopped. What it had computed is in its run store."""

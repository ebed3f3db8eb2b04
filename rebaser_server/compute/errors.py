"""Why a dependent values update could not be computed.

DvuError
├── FunctionMissing   a function is not installed here, or its runtime is unknown
├── SessionFailed     Spark did not start; the next run tries again
│   └── JavaMissing   no Java that Spark can run on; an administrator must look
├── RunFailed         the evaluation itself broke down; nothing is lost by repeating the run
└── Stalled           nothing was computed for too long

A function that raises is none of these: its value fails, the run succeeds. A run that found no room
on a disk raises `DiskFull`, which says nothing of the values either.
"""

import os
from errno import EDQUOT, ENOSPC
from typing import Final

from rebaser_server.runtime.failures import DiskFull, JobFailed

_NO_ROOM: Final = (os.strerror(ENOSPC), os.strerror(EDQUOT))
"""How libraries and Java end the message of such an error."""


class DvuError(JobFailed):
    """Any failure of this package."""


class FunctionMissing(DvuError):
    """No such function: shown as the message of each value that needs it."""


class SessionFailed(DvuError):
    """There is no Spark to run on."""


class JavaMissing(SessionFailed):
    """There is no Java, or none that is new enough."""


class RunFailed(DvuError):
    """The run ended without results, and has left none behind."""

    crashed = True


def breakdown(kind: type[RunFailed | SessionFailed], reason: str) -> DvuError | DiskFull:
    """The error of what broke down; `reason` has the words of the process that did."""
    is_full = any(text in reason for text in _NO_ROOM)
    return DiskFull(reason) if is_full else kind(reason)


class Stalled(DvuError):
    """The run was stopped. What it had computed is in its run store."""

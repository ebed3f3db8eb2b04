"""Failures that both the core and its application use.

OSError
├── DiskFull            a job came to nothing because a disk has no room
├── EvaluatorAway       a job came to nothing because its executor is away
└── StoreFailed         an operation of the store failed
    └── StoreDamaged    the store does not hold what was written

JobFailed               a background job came to nothing; the application says why
└── Stalled             nothing was computed for too long, and a function may be why

LibraryPanicked         a library gave up in the middle of a call
"""


class JobFailed(Exception):
    """A background job came to nothing, for a reason that the message gives a user."""

    crashed = False
    """Whether a process may have ended because of a value that it computed."""


class Stalled(JobFailed):
    """The job was stopped. Its results so far are in its run store."""


class DiskFull(OSError):
    """A background job came to nothing because a disk has no room: that is no fault of the job."""


class EvaluatorAway(OSError):
    """A background job came to nothing because its executor is not there, or ended under it.

    That is no fault of the job, which is tried again for as long as it takes.
    """

    crashed = False
    """Whether it may have ended because of a value that it computed."""


class StoreFailed(OSError):
    """An operation of the store failed. The store is unchanged."""


class StoreDamaged(StoreFailed):
    """The store does not have what was written. Waiting does not help."""


class LibraryPanicked(Exception):
    """A library in Rust panicked in a call, which came to nothing; other calls go on."""


def is_panic(error: BaseException | None) -> bool:
    """Whether a library in Rust panicked, which it reports by its own `BaseException`.

    The panic is an error of the call, as any `Exception` is, and no reason to end the process.
    """
    kind = type(error)
    return (kind.__module__, kind.__name__) == ("pyo3_runtime", "PanicException")

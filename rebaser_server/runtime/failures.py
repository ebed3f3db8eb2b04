"""Failures that the core and its application both speak of.

OSError
├── DiskFull            a job came to nothing because a disk has no room
├── EvaluatorAway       a job came to nothing because of what it runs on
└── StoreFailed         an operation of the store failed
    └── StoreDamaged    the store does not hold what was written

JobFailed               a background job came to nothing; the application says why
LibraryPanicked         a library gave up in the middle of a call
"""


class JobFailed(Exception):
    """A background job came to nothing, for a reason that the message tells a user."""

    crashed = False
    """Whether a process may have ended because of what it computed."""


class DiskFull(OSError):
    """A background job came to nothing because a disk has no room: that is no fault of the job."""


class EvaluatorAway(OSError):
    """A background job came to nothing because what it runs on is not there, or ended under it.

    That is no fault of the job, which is tried again for as long as it takes.
    """

    crashed = False
    """Whether it may have ended because of what it computed."""


class StoreFailed(OSError):
    """An operation of the store failed. The store holds what it held before."""


class StoreDamaged(StoreFailed):
    """The store does not hold what was written. Waiting does not help."""


class LibraryPanicked(Exception):
    """A library in Rust panicked in a call, which came to nothing; the others go on."""


def is_panic(error: BaseException | None) -> bool:
    """Whether a library in Rust panicked, which it says by a `BaseException` of its own.

    It is an error of what was asked of the library, as any `Exception` is, and no reason to end
    the process.
    """
    kind = type(error)
    return (kind.__module__, kind.__name__) == ("pyo3_runtime", "PanicException")

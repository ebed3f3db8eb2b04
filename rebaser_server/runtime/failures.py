"""Failures that the core and its application both speak of.

OSError
├── DiskFull            a job came to nothing because a disk has no room
├── EvaluatorAway       a job came to nothing because of what it runs on
└── StoreFailed         an operation of the store failed
    └── StoreDamaged    the store does not hold what was written

JobFailed               a background job came to nothing; the application says why
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

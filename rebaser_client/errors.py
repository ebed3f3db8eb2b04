"""Every error of asking.

RebaserError
└── ClientError
    ├── NotStored     the request may or may not be in the stream: ask again with the same id
    ├── OutcomeUnknown  nobody knows of the request: never stored, or forgotten
    └── Unreachable   no connection in time, nothing was sent
"""

from rebaser_core.errors import RebaserError


class ClientError(RebaserError):
    """Asking failed."""


class NotStored(ClientError):
    """The server did not confirm the request, or its task, in time. It may be stored all the same.

    Enqueue again with the same `request_id`: it will take effect once.
    """


class OutcomeUnknown(ClientError):
    """The request neither waits nor is remembered: never stored, or handled long ago."""


class Unreachable(ClientError):
    """NATS was not reached in time; nothing was sent."""

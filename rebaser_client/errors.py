"""Errors of the client, cut by what the caller must do next.

RebaserError
└── ClientError
    ├── AlreadyRegistered  a workspace or change set of that id is registered already
    ├── ClientClosed  nothing was sent: the client's connection was closed before
    ├── ClientForked  nothing was sent: the client is the parent process's
    ├── WrongEventLoop  nothing was sent: the client belongs to another event loop
    ├── InvalidDraft   nothing was sent: a graph that a program wrote makes no sense, and why
    ├── MissingPackage   a package is not installed that makes what was asked for
    ├── NameTaken     a workspace or an open change set has that name already
    ├── NoSuchChangeSet  no workspace or change set of that id or name is registered
    ├── NoSuchValue  the change set has no value of that name or id
    ├── AmbiguousAddress  several change sets may be meant; the message lists them
    ├── NotInWorkspace  nothing was sent: the change set is another workspace's, or none
    ├── NotConfirmed     the request may or may not be in the stream: ask again with the same id
    ├── RequestRefused       final: the change set takes no such request, and nothing was done
    │   └── RequestIdUsed   its id was another request's: send it under another one
    ├── RequestDead   final: no Rebaser can handle the request, it is in the dead letters
    ├── TooLarge      nothing was sent: it is beyond a limit of the deployment
    ├── QuotaExceeded       nothing was done: the workspace has as many change sets as it may
    ├── QueueFull     too much waits already, nothing was stored: ask again later
    ├── ReadRefused   a Rebaser answered that what was asked for cannot be had, and why
    ├── OutcomeUnknown  no Rebaser knows the request: never stored, or forgotten
    └── Unreachable   no connection in time, nothing was sent
"""

from rebaser_core.errors import RebaserError


class ClientError(RebaserError):
    """Base of all errors that the client raises."""


class ClientClosed(ClientError):
    """The client was closed; what was sent before is not taken back. Connect anew."""

    def __init__(self) -> None:
        super().__init__(
            "this client is closed: use it within the `with` of its `connect`, or connect anew"
        )


class ClientForked(ClientError):
    """The client is the parent process's, which still uses its connection. Connect anew."""

    def __init__(self) -> None:
        super().__init__(
            "this client was connected by the parent of this process, and a connection does not "
            "survive a fork: call `connect` in this process"
        )


class WrongEventLoop(ClientError):
    """The client was connected in another event loop, which alone may use it."""

    def __init__(self) -> None:
        super().__init__(
            "this client was connected in another event loop: use it there, connect another one "
            "in this loop, or take `rebaser_client.sync`, which threads may share"
        )


class NotConfirmed(ClientError):
    """The server did not confirm the request, or its task, in time. It may be stored all the same.

    Enqueue again with the same `request_id`: it will take effect once.
    """


class QueueFull(ClientError):
    """The server refused the request, since too much is waiting already. It is not stored.

    Ask again later, with the same `request_id` or a new one: the deployment's settings limit
    how much may wait (`REBASER_QUEUE__…`). A client that retries should wait longer each time.
    """


class OutcomeUnknown(ClientError):
    """The request is neither waiting nor remembered: never stored, or settled long ago."""


class Unreachable(ClientError):
    """NATS was not reached in time; nothing was sent."""


class ReadRefused(ClientError):
    """A Rebaser answered, and said why it refuses. Asking again is no use."""


class AlreadyRegistered(ClientError):
    """The id is registered already, with another record; nothing was done."""


class InvalidDraft(ClientError):
    """A graph that a program or a file describes makes no sense; nothing was sent."""


class MissingPackage(ClientError):
    """An optional dependency is missing; the message names the extra to install."""


class NoSuchChangeSet(ClientError):
    """The id or name is not that of a workspace or change set."""


class NoSuchValue(ClientError):
    """The change set has no value of that name or id."""


class AmbiguousAddress(ClientError):
    """Several change sets may be meant by an address; the message lists them with their ids."""


class NameTaken(ClientError):
    """A workspace, or an open change set of the workspace, has that name; nothing was done."""


class NotInWorkspace(ClientError):
    """The registry knows the change set elsewhere, or not as one; nothing was sent."""


class RequestRefused(ClientError):
    """The change set takes no such request, for instance because it is closed. Final."""


class RequestIdUsed(RequestRefused):
    """The id was another request's, whose commit the message names; this request was not done.

    Send it under a new id. An id may be used again only to repeat its request, unchanged.
    """


class RequestDead(ClientError):
    """The request is in the dead letters: no Rebaser can handle it. Final; nothing was done."""


class TooLarge(ClientError):
    """The request exceeds a limit; nothing was sent. The message says which limit, and where."""


class QuotaExceeded(ClientError):
    """The workspace has as many change sets as it may have; nothing was done."""

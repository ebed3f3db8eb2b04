"""Errors of the client alone, cut by what the caller must do next; others: `rebaser_core.errors`.

RebaserError
└── ClientError
    ├── ClientClosed  nothing was sent: the client's connection was closed before
    ├── ClientForked  nothing was sent: the client is the parent process's
    ├── WrongEventLoop  nothing was sent: the client belongs to another event loop
    ├── InvalidDraft   nothing was sent: a graph that a program wrote makes no sense, and why
    ├── MissingPackage   a package is not installed that makes what was asked for
    ├── NameTaken     a workspace or an open change set has that name already
    ├── NoSuchValue  the change set has no value of that name or id
    ├── AmbiguousAddress  several change sets may be meant; the message lists them
    ├── RequestRefused       final: the change set takes no such request, and nothing was done
    │   ├── RequestIdUsed   its id was another request's: send it under another one
    │   └── CallRejected    a handler refused the call, or does not take such a one, and why
    ├── CallTimeout   no answer yet: the call takes effect all the same, once it is stored
    ├── NoSuchService  nothing was sent: no worker ever served a service of that name
    ├── RequestDead   final: no Rebaser can handle the request, it is in the dead letters
    ├── ReadRefused   a Rebaser answered that what was asked for cannot be had, and why
    └── OutcomeUnknown  no Rebaser knows the request: never stored, or forgotten
"""

from typing import Final

from rebaser_core.errors import ClientError
from rebaser_core.ids import RequestId


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


class OutcomeUnknown(ClientError):
    """The request is neither waiting nor remembered: never stored, or settled long ago."""


class CallTimeout(ClientError):
    """There is no answer to a call yet. It takes effect all the same, once it is stored.

    `request_id` asks for its answer later, or repeats the call without a second effect.
    """

    def __init__(
        self,
        service: str,
        key: str,
        handler: str | None,
        request_id: RequestId,
        seconds: float | None,
    ) -> None:
        waited = "is not settled" if seconds is None else f"had no answer in {seconds:g} s"
        what = "a call" if handler is None else f"call {handler}"
        super().__init__(
            f"{what} of {service}/{key} {waited}: request {request_id}, which takes effect "
            "all the same if it is stored; ask with outcome(request_id)"
        )
        self.request_id: Final = request_id


class NoSuchService(ClientError):
    """A service of that name was never served by a worker; nothing was sent."""


class ReadRefused(ClientError):
    """A Rebaser answered, and said why it refuses. Asking again is no use."""


class InvalidDraft(ClientError):
    """A graph that a program or a file describes makes no sense; nothing was sent."""


class MissingPackage(ClientError):
    """An optional dependency is missing; the message names the extra to install."""


class NoSuchValue(ClientError):
    """The change set has no value of that name or id."""


class AmbiguousAddress(ClientError):
    """Several change sets may be meant by an address; the message lists them with their ids."""


class NameTaken(ClientError):
    """A workspace, or an open change set of the workspace, has that name; nothing was done."""


class RequestRefused(ClientError):
    """The change set takes no such request, for instance because it is closed. Final."""


class RequestIdUsed(RequestRefused):
    """The id was another request's, whose commit the message names; this request was not done.

    Send it under a new id. An id may be used again only to repeat its request, unchanged.
    """


class CallRejected(RequestRefused):
    """The handler refused the call, or does not take such a one; the message says why. Final."""


class RequestDead(ClientError):
    """The request is in the dead letters: no Rebaser can handle it. Final; nothing was done."""

"""Transient errors: those about NATS or the store, which say nothing about the work.

Work is retried after such an error, for as long as that lasts; any other counts as an attempt. So a
full disk makes no dead letter, and a request that can never be handled becomes one.
"""

from collections.abc import Callable
from typing import Final

from rebaser_core.errors import NotConfirmed, QueueFull, RebaserError
from rebaser_core.errors import Unreachable as NotConnected
from rebaser_core.jetstream import (
    ApiError,
    ConsumerNotFound,
    Full,
    HeartbeatsMissed,
    JetStreamError,
    MessagesMissed,
    NatsUnreachable,
    NotListed,
    StatusError,
    StreamNotFound,
    Unavailable,
    WrongLastSequence,
)
from rebaser_server.errors import AppendRefused

_SERVER_ERROR: Final = 500
"""Code from which on the server could not do it; lower codes refuse the request."""


def _is_server_error(error: BaseException) -> bool:
    return isinstance(error, ApiError) and error.code >= _SERVER_ERROR


_TRANSIENT: Final[dict[type[BaseException], bool | Callable[[BaseException], bool]]] = {
    BaseException: False,
    OSError: True,  # the store: a full disk, a device, a timeout, an endpoint that is away
    JetStreamError: False,
    NatsUnreachable: True,
    NotListed: True,
    StatusError: True,
    HeartbeatsMissed: True,
    MessagesMissed: True,
    ApiError: _is_server_error,
    StreamNotFound: True,  # a stream that is gone is no request's fault
    ConsumerNotFound: True,
    WrongLastSequence: True,
    Full: True,
    AppendRefused: lambda error: isinstance(error, AppendRefused) and is_transient(error.reason),
    Unavailable: True,
    RebaserError: False,
    NotConfirmed: True,
    QueueFull: True,
    NotConnected: True,
}
"""Classification of errors; the entry of an error's nearest ancestor counts."""


def is_transient(error: BaseException) -> bool:
    """Whether the work may succeed later, as far as this error can tell."""
    rule = next(_TRANSIENT[kind] for kind in type(error).__mro__ if kind in _TRANSIENT)
    return rule if isinstance(rule, bool) else rule(error)

"""Which errors are transient: they say nothing about the work, only about NATS or the store.

Work is retried after a transient error, however long that lasts; any other error counts as an
attempt. So a full disk makes no dead letter, and a request that can never be handled becomes one.
"""

from collections.abc import Callable
from typing import Final

from rebaser_client.errors import NotConfirmed, QueueFull
from rebaser_client.errors import Unreachable as NotConnected
from rebaser_core.errors import RebaserError
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
from rebaser_core.jetstream.backoff import Backoff
from rebaser_server.errors import AppendRefused

FIRST_DELAY: Final = 1.0
LONGEST_DELAY: Final = 30.0
"""Seconds between two attempts: the delay doubles from the first to the longest."""

_SERVER_ERROR: Final = 500
"""Codes below it refuse what was asked; from it on, the server could not do it."""


def _is_server_error(error: BaseException) -> bool:
    return isinstance(error, ApiError) and error.code >= _SERVER_ERROR


TRANSIENT: Final[dict[type[BaseException], bool | Callable[[BaseException], bool]]] = {
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
"""Of an error the entry of its nearest ancestor counts."""


def is_transient(error: BaseException) -> bool:
    """Whether the same work may succeed later, as far as this error can tell."""
    rule = next(TRANSIENT[kind] for kind in type(error).__mro__ if kind in TRANSIENT)
    return rule if isinstance(rule, bool) else rule(error)


def backoff(attempt: int) -> float:
    """Seconds to wait after the attempt of that number, from 1: doubled each time, with jitter."""
    return Backoff(FIRST_DELAY, LONGEST_DELAY).jittered(attempt)

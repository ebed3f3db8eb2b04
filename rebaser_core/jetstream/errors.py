"""Errors between us and JetStream, cut by what the caller must do next.

RebaserError
└── JetStreamError
    ├── NatsUnreachable            no answer: whether the server did it is unknown
    │   ├── NoResponders       nothing listens on the subject, as the server says
    │   ├── LoginRefused       a server is there, and does not take this user's secrets
    │   └── TlsFailed          a server is there, and one side does not accept the other's TLS
    ├── NotListed              connected, and not done with a long list in time
    ├── BadServerUrl           not the URL of a NATS server; nothing was tried
    ├── Unsendable             never left us and never will: subject or header not allowed
    │   └── Oversized          never left us: it does not fit into a message
    ├── NotJetStream           a message that JetStream did not deliver
    ├── StatusError            the server ended a pull or a push with an error status
    │   └── ConsumerGone       the consumer was deleted
    ├── HeartbeatsMissed       the server has been silent for too long
    ├── MessagesMissed         deliveries are missing, between those that came or behind them
    ├── FlowControlIgnored     the server does not hear the answers to its flow control
    ├── Misconfigured          what was asked for contradicts itself or what exists
    ├── BatchNotAtomic         the server knows no batches, and stored messages by themselves
    ├── ObjectDamaged          stored bytes do not match their digest or count
    ├── ObjectTooLarge         more bytes than the reader would take
    └── ApiError               the server answered with an error
        ├── NotFound           the thing named is not there
        │   ├── StreamNotFound
        │   ├── ConsumerNotFound
        │   ├── MessageNotFound
        │   ├── KeyNotFound
        │   └── ObjectNotFound
        ├── AlreadyExists      the name is taken, with another configuration
        ├── WrongLastSequence  a compare-and-swap lost
        ├── Full               no room for what is to be stored or made: a limit is reached
        │   ├── AccountLimit   the account allows no such stream, or no more streams or consumers
        │   ├── SubjectFull    the subject holds as many messages as it may
        │   └── StreamFull     the stream does, or the account, or the server's disk
        └── Unavailable        not now: no leader, or the same message is being stored

`translate_errors` and `propagate_cancellation` stand around calls of nats-py: its errors become
ours, and no cancellation is swallowed.
"""

import asyncio
import contextlib
from collections.abc import Iterator, Mapping
from http import HTTPStatus
from typing import Any, Final, Self

import nats.errors

from rebaser_core.errors import RebaserError

_NO_MESSAGE_FOUND: Final = 10037
_NO_ROOM: Final = "NATS has no room: its disk, or a limit of the server or the account, is full"
_OUT_OF_ROOM: Final = (
    10002,  # "resource limits exceeded for account"
    10023,  # "insufficient resources": of the server
    10047,  # "insufficient storage resources available"
)
_ACCOUNT_LIMITS: Final = {
    10026: "the NATS account, or the stream, allows no more consumers",
    10027: "the NATS account allows no more streams",
    10113: "the NATS account allows no stream without a limit of its bytes (`max_bytes_required`)",
    10122: "the NATS account allows no stream of so many bytes",
}
"""Limits on what may be made, by the code of the error."""
_STORE_FAILED: Final = 10077  # generic: only the description tells a full subject from a full disk


class JetStreamError(RebaserError):
    """Base of all errors of this package, but `ValueError` and `TypeError` for arguments."""


class NatsUnreachable(JetStreamError):
    """An answer did not come: not connected, connection lost, no responders, or too late."""


class NotListed(JetStreamError):
    """NATS answers, but was not done in time with the list of a stream's subjects.

    NATS goes through all of them for each part of the list.
    """


class BadServerUrl(JetStreamError, ValueError):
    """A server's URL has another scheme, lacks a host, or has an impossible port.

    The message says how such a URL looks. Trying again will fail again.
    """


class NoResponders(NatsUnreachable):
    """The subject has no listener: the server said so, at once."""


class LoginRefused(NatsUnreachable):
    """A server answers, and does not take the user's password, token, key or credentials."""


class TlsFailed(NatsUnreachable):
    """A server answers, and one side does not accept what the other has for TLS.

    Certificates may be renewed in their files while this is tried again.
    """


class Unsendable(JetStreamError):
    """The message was not sent: a bad subject, a bad header, or too large.

    Sending it again will fail again.
    """


class Oversized(Unsendable):
    """The message is too large: payload and headers, or subject and reply subject."""


class NotJetStream(JetStreamError):
    """The reply subject of the message is not an ack subject of ADR-15."""


class StatusError(JetStreamError):
    """A status message that is neither data, heartbeat, flow control nor an ordinary end."""

    def __init__(self, code: int, description: str) -> None:
        super().__init__(f"{code} {description}".rstrip())
        self.code = code
        self.description = description


class ConsumerGone(StatusError):
    """The consumer does not exist any more; asking again will not help."""

    def __init__(self, description: str = "Consumer Deleted", code: int = 409) -> None:
        super().__init__(code, description)


class HeartbeatsMissed(JetStreamError):
    """The server sent neither a message nor a heartbeat for as long as the alarm allows."""


class MessagesMissed(JetStreamError):
    """Messages were not delivered; they may be later.

    There is a gap in the consumer's sequence, or the leader has messages that none delivers.
    """


class FlowControlIgnored(JetStreamError):
    """The server goes on waiting for an answer to its flow control, and sends nothing meanwhile."""


class Misconfigured(JetStreamError):
    """The wish is one that ADR-15 forbids; nothing was created or subscribed to."""


class BatchNotAtomic(JetStreamError):
    """The server is older than 2.12: the first messages of the batch may be stored, or all."""


class ObjectDamaged(JetStreamError):
    """An object's chunks are missing, or are not those that were put."""


class ObjectTooLarge(JetStreamError):
    """An object has more bytes than its reader would take; it was not read."""


class ApiError(JetStreamError):
    """An error reply of the server. Nothing was done."""

    def __init__(self, code: int, err_code: int | None, description: str) -> None:
        self.code = code
        self.err_code = err_code
        self.description = description
        limit = _NO_ROOM if self.is_out_of_room else _ACCOUNT_LIMITS.get(err_code or 0)
        what = f"{limit}: {description}" if limit else description
        super().__init__(f"{what} (code {code}, err_code {err_code})")

    @property
    def is_out_of_room(self) -> bool:
        """Whether server or account have no room, which a stream's limits do not change."""
        return self.err_code in _OUT_OF_ROOM

    @classmethod
    def of(cls, error: Mapping[str, Any]) -> "ApiError":
        """Return the most telling error for the `error` member of a reply."""
        code, err_code = _integer(error.get("code")), _integer(error.get("err_code"))
        description = str(error.get("description", ""))
        code = 500 if code is None else code
        return _error_class(code, err_code, description)(code, err_code, description)


class NotFound(ApiError):
    @classmethod
    def named(cls, description: str) -> Self:
        """Return the error that the server would have sent, had it looked."""
        return cls(404, None, description)


class StreamNotFound(NotFound):
    pass


class ConsumerNotFound(NotFound):
    pass


class MessageNotFound(NotFound):
    pass


class KeyNotFound(NotFound):
    pass


class ObjectNotFound(NotFound):
    pass


class AlreadyExists(ApiError):
    pass


class WrongLastSequence(ApiError):
    pass


class Full(ApiError):
    """A limit is reached: retry once something else is deleted or the limit is raised."""


class AccountLimit(Full):
    """The account limits what may be made: raise the limit, or make something smaller."""


class SubjectFull(Full):
    pass


class StreamFull(Full):
    pass


class Unavailable(ApiError):
    """The cluster cannot answer now. Ask again; a publish with the same message id is safe."""


_ERROR_CLASSES: Final[dict[int | None, type[ApiError]]] = {
    10059: StreamNotFound,
    10014: ConsumerNotFound,
    _NO_MESSAGE_FOUND: MessageNotFound,
    10043: MessageNotFound,  # "sequence N not found"
    10058: AlreadyExists,  # "stream name already in use with a different configuration"
    10105: AlreadyExists,  # "consumer already exists"
    10148: AlreadyExists,  # a create that may not update
    10013: AlreadyExists,  # "consumer name already in use"
    10071: WrongLastSequence,
    10164: WrongLastSequence,  # from batches, without the sequence
    10158: Unavailable,  # "duplicate message id is in process"
    10002: StreamFull,  # "resource limits exceeded for account"
    **dict.fromkeys(_ACCOUNT_LIMITS, AccountLimit),
    10047: StreamFull,  # "insufficient storage resources available"
}


def _integer(number: object) -> int | None:
    return number if isinstance(number, int) else None


def _error_class(code: int, err_code: int | None, description: str) -> type[ApiError]:
    if err_code in _ERROR_CLASSES:
        return _ERROR_CLASSES[err_code]
    if err_code == _STORE_FAILED:
        if "per subject" in description:
            return SubjectFull
        return StreamFull if description.startswith("maximum") else ApiError
    if code == HTTPStatus.NOT_FOUND:
        return NotFound
    return Unavailable if code == HTTPStatus.SERVICE_UNAVAILABLE else ApiError


_UNSENDABLE: Final = (
    nats.errors.BadSubjectError,
    nats.errors.BadHeaderError,
)


@contextlib.contextmanager
def propagate_cancellation() -> Iterator[None]:
    """Raise `CancelledError` after a body that swallowed it, as nats-py's flush does."""
    task = asyncio.current_task()
    before = task.cancelling() if task else 0
    yield
    if task and task.cancelling() > before:
        raise asyncio.CancelledError


@contextlib.contextmanager
def translate_errors() -> Iterator[None]:
    """Turn what nats-py raises into errors of this package."""
    try:
        yield
    except (nats.errors.Error, OSError) as error:
        raise translate_error(error) from error


def translate_error(error: Exception) -> JetStreamError:
    """Return the error of this package for an error of nats-py."""
    if isinstance(error, nats.errors.MaxPayloadError):
        return Oversized(str(error))
    kind = Unsendable if isinstance(error, _UNSENDABLE) else NatsUnreachable
    return kind(f"{type(error).__name__}: {error}")

"""What can go wrong between us and JetStream, cut by what the caller must do next.

JetStreamError
├── NatsUnreachable            no answer: whether the server did it is unknown
│   ├── NoResponders       nothing listens on the subject, as the server says
│   └── TlsFailed          a server is there, and one side does not accept the other's TLS
├── NotListed              connected, and not done with a long list in time
├── BadServerUrl           not the URL of a NATS server; nothing was tried
├── Unsendable             never left us and never will: subject or header not allowed
│   └── Oversized          the same: it does not fit into a message
├── NotJetStream           a message that JetStream did not deliver
├── StatusError            the server ended a pull or a push with an error status
│   └── ConsumerGone       the consumer was deleted
├── HeartbeatsMissed       the server has been silent for too long
├── MessagesMissed         deliveries are missing, between those that came or behind them
├── FlowControlIgnored     the server does not hear the answers to its flow control
├── Misconfigured          what was asked for contradicts itself or what exists
├── BatchNotAtomic         the server knows no batches, and stored messages by themselves
├── ObjectDamaged          stored bytes do not match their digest or count
├── ObjectTooLarge         more octets than the reader would take
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
    │   ├── SubjectFull    the subject holds as many messages as it may
    │   └── StreamFull     the stream does, or the account, or the server's disk
    └── Unavailable        not now: no leader, or the same message is being stored

Calls of nats-py made honest: its errors become ours, and no cancellation is swallowed.
"""

import asyncio
import contextlib
from collections.abc import Iterator, Mapping
from http import HTTPStatus
from typing import Any, Final, Self

import nats.errors

_NO_MESSAGE_FOUND: Final = 10037
_NO_ROOM: Final = "NATS has no room: its disk, or a limit of the server or the account, is full"
_OUT_OF_ROOM: Final = (
    10002,  # "resource limits exceeded for account"
    10023,  # "insufficient resources": of the server
    10047,  # "insufficient storage resources available"
)
_STORE_FAILED: Final = 10077  # generic: only the description tells a full subject from a full disk


class JetStreamError(Exception):
    """All that this package raises, apart from `ValueError` and `TypeError` for arguments."""


class NatsUnreachable(JetStreamError):
    """No answer came: not connected, connection lost, no responders, or too late."""


class NotListed(JetStreamError):
    """NATS answers, but was not done in time with the list of a stream's subjects.

    It goes through all of them for each part of the list.
    """


class BadServerUrl(JetStreamError, ValueError):
    """A server's URL has another scheme, lacks a host, or has an impossible port.

    The message says how such a URL looks. Trying again will fail again.
    """


class NoResponders(NatsUnreachable):
    """Nothing listens on the subject: the server said so, at once."""


class TlsFailed(NatsUnreachable):
    """A server answers, and one side does not accept what the other has for TLS.

    Certificates may be renewed in their files while this is tried again.
    """


class Unsendable(JetStreamError):
    """Refused before it was sent: a bad subject, a bad header, or too large.

    Trying the same again will fail again.
    """


class Oversized(Unsendable):
    """Payload and headers, or subject and reply subject, are more than the server takes."""


class NotJetStream(JetStreamError):
    """Its reply subject is not an ack subject of ADR-15."""


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
    """Neither a message nor a heartbeat came for as long as the alarm allows."""


class MessagesMissed(JetStreamError):
    """Messages were not delivered; they may be later.

    There is a gap in the consumer's sequence, or the leader has messages that none delivers.
    """


class FlowControlIgnored(JetStreamError):
    """The server goes on waiting for an answer to its flow control, and sends nothing meanwhile."""


class Misconfigured(JetStreamError):
    """The workflow of ADR-15 forbids it; nothing was created or subscribed to."""


class BatchNotAtomic(JetStreamError):
    """The server is older than 2.12: the first messages of the batch may be stored, or all."""


class ObjectDamaged(JetStreamError):
    """An object's chunks are missing, or are not those that were put."""


class ObjectTooLarge(JetStreamError):
    """An object has more octets than its reader would take; it was not read."""


class ApiError(JetStreamError):
    """An error reply of the server. Nothing was done."""

    def __init__(self, code: int, err_code: int | None, description: str) -> None:
        self.code = code
        self.err_code = err_code
        self.description = description
        what = f"{_NO_ROOM}: {description}" if self.is_out_of_room else description
        super().__init__(f"{what} (code {code}, err_code {err_code})")

    @property
    def is_out_of_room(self) -> bool:
        """Whether server or account have no room for anything, whatever the stream's limits are."""
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
    """Not stored or made, and it will not be before something else is gone or a limit is raised."""


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
    10148: AlreadyExists,  # the same, of a create that may not update
    10013: AlreadyExists,  # "consumer name already in use"
    10071: WrongLastSequence,
    10164: WrongLastSequence,  # the same without the sequence, from batches
    10158: Unavailable,  # "duplicate message id is in process"
    10002: StreamFull,  # "resource limits exceeded for account"
    10026: Full,  # "maximum consumers limit reached"
    10027: Full,  # "maximum number of streams reached"
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
    """What an error of nats-py is called here."""
    if isinstance(error, nats.errors.MaxPayloadError):
        return Oversized(str(error))
    kind = Unsendable if isinstance(error, _UNSENDABLE) else NatsUnreachable
    return kind(f"{type(error).__name__}: {error}")

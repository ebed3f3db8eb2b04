"""Calls: requests to a handler of a service, for one of its keys.

A service is a workspace and a key of it a change set, so that all that is known of change sets
holds for keys. Their ids are digests of their names: who knows the names needs no registry.
"""

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Annotated, Any, ClassVar, Final, Literal

import orjson
from blake3 import blake3
from pydantic import Field, StringConstraints, ValidationError

from rebaser_core.errors import MalformedMessage
from rebaser_core.ids import ChangeSet, ChangeSetId, RequestId, WorkspaceId
from rebaser_core.records import RecordName, Timestamp, utc_text
from rebaser_core.versioning import (
    JsonValue,
    MessageType,
    Versioned,
    WireModel,
    first_error,
    header,
    parse_version,
)

ARGUMENTS_BYTES: Final = 256 * 1024
"""Maximum size of a call's arguments, as JSON."""

_MOST_OF_A_BYTE: Final = 6
"""Bytes of JSON that one byte of CBOR may take, as of `false` and its comma."""
_ID_BYTES: Final = 16

HandlerName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z_][A-Za-z0-9_]{0,99}$")]
"""Name of a handler or of a timer's call: as Python writes functions."""


def service_id(service: str) -> WorkspaceId:
    """Return the workspace that a service of that name is."""
    return WorkspaceId(blake3(b"rebaser service\0" + service.encode()).digest(_ID_BYTES))


def key_of(service: str, key: str) -> ChangeSet:
    """Return the change set that a key of that service is."""
    name = b"rebaser key\0" + service.encode() + b"\0" + key.encode()
    return ChangeSet(service_id(service), ChangeSetId(blake3(name).digest(_ID_BYTES)))


def arguments_violation(handler: str, arguments: Any, encoded: int) -> str | None:
    """Return the reason why a call has too large arguments, or None.

    `encoded` is the size of the whole request, in any encoding.
    """
    if encoded * _MOST_OF_A_BYTE <= ARGUMENTS_BYTES:  # as nearly always
        return None
    size = len(orjson.dumps(arguments))
    if size <= ARGUMENTS_BYTES:
        return None
    return f"the arguments of {handler} have {size:,} bytes, more than {ARGUMENTS_BYTES:,}"


def derived_id(name: str, milliseconds: int) -> RequestId:
    """Return an id of that time, the same for each call with equal arguments."""
    digest = blake3(name.encode()).digest(_ID_BYTES)
    return RequestId(milliseconds.to_bytes(6, "big") + digest[6:])


class Origin(WireModel):
    """Place of a call among those that one key sent: by it the receiver knows repetitions.

    Calls of one sender arrive in the order of these places.
    """

    change_set_id: ChangeSetId
    """The sender."""
    sequence: Annotated[int, Field(ge=1)]
    """Sequence of the request whose handler sent it."""
    index: Annotated[int, Field(ge=0)] = 0
    """Number among the calls that this handler sent, from 0."""


class TimerChange(WireModel):
    """A timer to set, or to cancel: a call is made later, once or again and again."""

    name: RecordName
    """Name within the key; a timer of that name is replaced."""
    at: Timestamp | None = None
    """The time of the only call."""
    after: Annotated[float, Field(ge=0, allow_inf_nan=False)] | None = None
    """Seconds from when NATS stored the request until the only call."""
    every: str | None = None
    """Five fields of cron: the times of calls."""
    zone: str | None = None
    """Time zone of `every`, by its name in the database of zones; None: UTC."""
    missed: Literal["once", "skip"] = "once"
    """Whether times of `every` that passed without a call are made up by one call, or left out."""


def timer_change(
    name: str | None,
    default: RequestId,
    *,
    at: datetime | None,
    after: timedelta | float | None,
    every: str | None,
    zone: str | None,
    missed: Literal["once", "skip"],
) -> TimerChange | None:
    """Return the timer that these describe; None for none of them.

    `default` names it, unless `name` does or it makes calls again and again.

    Raises:
        MalformedMessage: they contradict each other; the message names them as arguments.
    """
    words = ("at", at), ("after", after), ("every", every)
    given = [word for word, each in words if each is not None]
    if not given:
        if name is not None or zone is not None:
            raise MalformedMessage("a timer needs one of at=, after= and every=")
        return None
    if len(given) > 1:
        raise MalformedMessage(f"{' and '.join(given)} are given: a timer takes one of them")
    if every is not None and name is None:
        raise MalformedMessage("every= needs a name, timer=, by which it is moved and cancelled")
    if at is not None and getattr(at, "tzinfo", None) is None:  # so has a date, and text
        raise MalformedMessage("at= needs a time zone: datetime(…, tzinfo=UTC)")
    seconds = after.total_seconds() if isinstance(after, timedelta) else after
    try:
        return TimerChange(
            name=name or str(default),
            at=None if at is None else utc_text(at),
            after=None if seconds is None else float(seconds),
            every=every,
            zone=zone,
            missed=missed,
        )
    except ValidationError as error:
        raise MalformedMessage(f"timer: {first_error(error)}") from None
    except (TypeError, ValueError):
        raise MalformedMessage(f"after= is {after!r:.80}: give seconds, or a timedelta") from None
    except OverflowError:
        raise MalformedMessage("timer: no calendar has that time") from None


class Firing(WireModel):
    """The time of a timer's call that has come."""

    name: RecordName
    at: Timestamp


class CallRequestV1(Versioned):
    """Call a handler, or have it called later."""

    VERSION: ClassVar = 1
    workspace_id: WorkspaceId
    change_set_id: ChangeSetId
    service: RecordName
    key: RecordName
    handler: HandlerName
    arguments: list[JsonValue] | dict[str, JsonValue] = Field(default_factory=list)
    """Arguments by position, or by name."""
    service_version: Annotated[int, Field(ge=1)] = 1
    """Version of the service that the caller knows: an older worker leaves the call to a newer one.
    `SERVICE_VERSION` goes before it."""
    origin: Origin | None = None
    """Place among what a key sent; None for a client's call."""
    timer: TimerChange | None = None
    """Timer that is set to make this call; None: it is made now."""
    cancel: RecordName | None = None
    """Name of the timer that is cancelled in place of a call."""
    firing: Firing | None = None
    """Timer that makes this call, of which the key has the arguments."""
    seal: str | None = None
    """Proof that a worker wrote `origin` or `firing`."""


CallRequest: Final = MessageType("CallRequest", current=CallRequestV1, from_clients=True)

SERVICE_VERSION: Final = "X-Service-Version"
"""Header with the version of the service that the caller knows. In the body it would make a call
that is repeated once the service was upgraded another request under the same id."""


def read_call(headers: Mapping[str, str], payload: bytes) -> CallRequestV1:
    """Read a call, with the version that its header names. Raises as `MessageType.decode`."""
    call, said = CallRequest.decode(headers, payload), header(headers, SERVICE_VERSION)
    if said is None:
        return call
    version = parse_version(said)
    if not version:
        raise MalformedMessage(f"{SERVICE_VERSION} is no positive integer: {said[:40]!r}")
    return call.model_copy(update={"service_version": version})


class ServiceRecordV1(Versioned):
    """Description of a service, as the newest of its workers wrote it."""

    VERSION: ClassVar = 1
    workspace_id: WorkspaceId
    name: RecordName
    version: Annotated[int, Field(ge=1)]
    handlers: dict[HandlerName, JsonValue]
    """Handlers by name: what each does, and JSON schemas of its arguments and result."""
    state: JsonValue = None
    """JSON schema of the state of a key."""


ServiceRecord: Final = MessageType("ServiceRecord", current=ServiceRecordV1)


class StateQueryV1(Versioned):
    """Asks for the state of a key."""

    VERSION: ClassVar = 1
    workspace_id: WorkspaceId
    change_set_id: ChangeSetId


class TimerState(WireModel):
    """A timer that will make a call."""

    name: RecordName
    handler: HandlerName
    next: Timestamp
    every: str | None = None
    zone: str | None = None


class StateReplyV1(Versioned):
    """The state of a key as of its last commit; or the reason for no answer."""

    VERSION: ClassVar = 1
    commit: int = 0
    """Sequence of the last commit; 0: the key was never called."""
    key: str | None = None
    state: JsonValue = None
    state_version: int = 1
    timers: list[TimerState] = Field(default_factory=list)
    sending: int = 0
    """Number of calls to other keys that are not confirmed yet."""
    error: str | None = None


StateQuery: Final = MessageType("StateQuery", current=StateQueryV1, from_clients=True)
StateReply: Final = MessageType("StateReply", current=StateReplyV1)

"""Configurations of streams and consumers, and their state as the server reports it.

Names are those of nats-server 2.15. JSON is read and written without loss: fields that a newer
server adds are kept. `diff_config` and `excess_config` compare a configuration at the server with
the one we want.
"""

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields
from datetime import datetime, timedelta
from functools import cache
from types import NoneType, UnionType
from typing import (
    Any,
    ClassVar,
    Final,
    Literal,
    NamedTuple,
    Self,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

from rebaser_core.jetstream.errors import NotJetStream

_MICROSECOND: Final = timedelta(microseconds=1)
_IN_JSON: Final[Mapping[Any, type]] = {
    timedelta: int,  # nanoseconds
    datetime: str,  # RFC 3339
    Literal: str,
    Mapping: dict,
    Sequence: list,
}
_trailing_zeros: Final = re.compile(r"(?<=\.)(\d*?)0+(?=[+-])")


@dataclass(frozen=True, kw_only=True)
class JsonObject:
    """A JSON object of the server, with the server's names."""

    unknown: Mapping[str, Any] = field(default_factory=dict)
    """Fields that the class does not have, or that are of another type, as a newer server may
    send."""

    is_exact: ClassVar[bool] = True
    """Whether a value that cannot be kept whole, such as part of a microsecond, is `unknown`.
    Otherwise it is cut."""

    @classmethod
    def from_json(cls, said: Mapping[str, Any]) -> Self:
        """Read what the server says.

        Raises:
            NotJetStream: a required field is missing or of another type.
        """
        if not isinstance(said, Mapping):
            raise NotJetStream(f"not a {cls.__name__}: {str(said)[:100]}")
        kinds, known, unknown = cls._kinds(), {}, {}
        for name, value in said.items():
            try:
                known[name] = _read(kinds[name], value, is_exact=cls.is_exact)
            except (KeyError, TypeError, ValueError, OverflowError):
                unknown[name] = value
        if missing := cls._required() - known.keys():
            raise NotJetStream(f"a {cls.__name__} without {', '.join(sorted(missing))}")
        return cls(**known, unknown=unknown)

    @classmethod
    @cache
    def _kinds(cls) -> Mapping[str, Any]:
        """The type of each field, without the None that it may be."""
        hints = get_type_hints(cls)
        del hints["unknown"], hints["is_exact"]
        return {name: _without_none(hint) for name, hint in hints.items()}

    @classmethod
    @cache
    def _required(cls) -> frozenset[str]:
        """The fields that the server always says."""
        defaults = ((each.name, {each.default, each.default_factory}) for each in fields(cls))
        return frozenset(name for name, default in defaults if default == {MISSING})

    def to_json(self) -> dict[str, Any]:
        """Return it as the server has it; durations in nanoseconds, without fields that are None.

        Raises:
            ValueError: a time without a zone.
        """
        values = {each.name: getattr(self, each.name) for each in fields(self)}
        del values["unknown"]
        said = {name: _write(value) for name, value in values.items() if value is not None}
        return {**self.unknown, **said}


def _without_none(hint: Any) -> Any:
    if isinstance(hint, UnionType) or get_origin(hint) is Union:
        return next(each for each in get_args(hint) if each is not NoneType)
    return hint


def _read(kind: Any, value: Any, *, is_exact: bool) -> Any:
    """Read a value; raise `ValueError`, or another error, if it is not of this kind.

    With `is_exact` it also raises if `_write` would not turn the result back into `value`.
    """
    if type(value) is kind:  # the shortest way for most of them
        return value
    origin = get_origin(kind) or kind
    is_nested = isinstance(origin, type) and issubclass(origin, JsonObject)
    expected: Any = dict if is_nested else _IN_JSON.get(origin, origin)
    if type(value) is not expected:
        raise TypeError(f"{value!r} is of another type")
    found: Any = value
    if is_nested:
        found = kind.from_json(value)
    elif kind is timedelta:
        found = timedelta(microseconds=value // 1000)
    elif kind is datetime:
        found = datetime.fromisoformat(value)
    elif origin is Sequence:
        found = [_read(get_args(kind)[0], each, is_exact=is_exact) for each in value]
    if is_exact and _write(found) != value:
        raise ValueError(f"{value!r} cannot be kept exactly")
    return found


def _write(value: Any) -> Any:
    if isinstance(value, JsonObject):
        return value.to_json()
    if isinstance(value, timedelta):
        return value // _MICROSECOND * 1000
    if isinstance(value, datetime):
        return _write_time(value)
    if isinstance(value, list | tuple):
        return [_write(each) for each in value]
    return value


def _write_time(time: datetime) -> str:
    if time.tzinfo is None:
        raise ValueError(f"{time} has no time zone")
    return _trailing_zeros.sub(r"\1", time.isoformat()).replace("+00:00", "Z")


@dataclass(frozen=True, kw_only=True)
class Configuration(JsonObject):
    """A configuration; a field that is None is left to the server's default and not compared.

    `a | b` is `a` with the fields that `b` sets. `to_json` returns exactly what `from_json` read:
    `unknown` is sent as it is, and a known field takes precedence.
    """

    def __or__(self, other: Self) -> Self:
        return self.from_json({**self.to_json(), **other.to_json()})


C = TypeVar("C", bound=Configuration)

_UNSET = (None, False, 0, -1, "")

_FILLED_IN: Final[Mapping[str, Sequence[object]]] = {
    "ack_wait": (0,),
    "max_ack_pending": (0,),
    "max_waiting": (0, -1),
    "inactive_threshold": (0,),
    "priority_timeout": (0,),
    "num_replicas": (0,),
    "duplicate_window": (0,),
    "subjects": ([],),
    "republish.src": ("",),
}
"""Fields that the server replaces by a default if they have one of these values."""

_IMPLIED: Final = {
    "allow_msg_ttl": ("subject_delete_marker_ttl",),
    "allow_rollup_hdrs": ("subject_delete_marker_ttl", "allow_msg_schedules"),
}
"""Fields that the server makes true, even against the request, if one of the listed fields is
set."""

_DEFAULTS: Final[Mapping[str, Any]] = {
    "retention": "limits",
    "storage": "file",
    "discard": "old",
    "compression": "none",
    "num_replicas": 1,
    "deliver_policy": "all",
    "replay_policy": "instant",
}
"""Server's defaults that are neither zero nor empty."""

_SAYS_NOTHING: Final = {"priority_policy": "none", "persist_mode": "default"}
"""Texts that the server leaves out."""


class Drift(NamedTuple):
    """`field` of the stream or consumer `name` is `actual` and not `expected`, as in JSON."""

    name: str
    field: str
    expected: Any
    actual: Any

    def __str__(self) -> str:
        return f"{self.name}: {self.field} is {self.actual!r}, not {self.expected!r}"


def diff_config(name: str, expected: C, actual: C) -> list[Drift]:
    """Compare the fields that `expected` sets; others may have any value.

    The server leaves out what is false, zero or empty and writes -1 for "no limit"; these are
    equal. The order of subjects does not matter. A value that asks for the server's default, such
    as `max_ack_pending: 0`, is equal to any.
    """
    wanted = expected.to_json()
    differences = _differences("", wanted, actual.to_json())
    return [Drift(name, *each) for each in differences if not _is_filled_in(wanted, *each)]


def excess_config(name: str, expected: C, actual: C, besides: Collection[str] = ()) -> list[Drift]:
    """Return the fields of `actual` that `expected` leaves open and that are not in `besides`.

    Fields of a newer server are among them. Defaults of the server are not.
    """
    wanted = expected.to_json()
    return [
        Drift(name, field, _DEFAULTS.get(field), found)
        for field, found in actual.to_json().items()
        if field not in wanted
        and field not in besides
        and found != _DEFAULTS.get(field)
        and not _is_unset(found)
    ]


def _is_filled_in(wanted: Mapping[str, Any], field: str, value: Any, found: Any) -> bool:
    """Whether the server puts `found` in place of the value, and would do so again."""
    if field == "ack_wait" and wanted.get("backoff"):
        return bool(found == wanted["backoff"][0])
    if found is True and any(not _is_unset(wanted.get(each)) for each in _IMPLIED.get(field, ())):
        return True
    return value in _FILLED_IN.get(field, ()) or (
        found is None and value == _SAYS_NOTHING.get(field)
    )


def _differences(
    path: str, expected: Mapping[str, Any], actual: Mapping[str, Any]
) -> Iterator[tuple[str, Any, Any]]:
    for name, wanted in expected.items():
        found = actual.get(name)
        if isinstance(wanted, Mapping) and isinstance(found, Mapping):
            yield from _differences(f"{path}{name}.", wanted, found)
        elif not _equal(wanted, found):
            yield path + name, wanted, found


def _equal(wanted: Any, found: Any) -> bool:
    if wanted == found or (_is_unset(wanted) and _is_unset(found)):
        return True
    if isinstance(wanted, str) and isinstance(found, str):
        return _equal_time(wanted, found)
    if isinstance(wanted, Sequence) and isinstance(found, Sequence):
        if any(isinstance(each, int) for each in wanted):
            return False  # the order of durations matters
        return sorted(map(_text, wanted)) == sorted(map(_text, found))
    return False


def _is_unset(value: Any) -> bool:
    if isinstance(value, Mapping):
        return all(map(_is_unset, value.values()))
    return value in _UNSET or value in ([], ())


def _text(value: Any) -> str:
    """Return a text that is equal for items that are equal in a list."""
    if isinstance(value, Mapping):
        said = sorted((name, _text(each)) for name, each in value.items() if not _is_unset(each))
        return repr(said)
    return repr(value)


def _equal_time(wanted: str, found: str) -> bool:
    try:
        return datetime.fromisoformat(wanted) == datetime.fromisoformat(found)
    except (ValueError, TypeError):
        return False


DeliverPolicy = Literal[
    "all", "last", "new", "by_start_sequence", "by_start_time", "last_per_subject"
]
"""The message of the stream at which a consumer begins."""


@dataclass(frozen=True, kw_only=True)
class ConsumerConfig(Configuration):
    """A consumer. Sizes are bytes; a limit of -1 is no limit."""

    name: str | None = None
    durable_name: str | None = None
    description: str | None = None
    deliver_policy: DeliverPolicy | None = None
    opt_start_seq: int | None = None
    opt_start_time: datetime | None = None
    ack_policy: Literal["none", "all", "explicit"] | None = None
    ack_wait: timedelta | None = None
    max_deliver: int | None = None
    backoff: Sequence[timedelta] | None = None
    filter_subject: str | None = None
    filter_subjects: Sequence[str] | None = None
    replay_policy: Literal["instant", "original"] | None = None
    rate_limit_bps: int | None = None
    """Bits per second."""
    sample_freq: str | None = None
    """Percentage of acks that are reported."""
    max_waiting: int | None = None
    max_ack_pending: int | None = None
    max_batch: int | None = None
    max_expires: timedelta | None = None
    max_bytes: int | None = None
    headers_only: bool | None = None
    deliver_subject: str | None = None
    """Subject to deliver to, which makes it a push consumer."""
    deliver_group: str | None = None
    flow_control: bool | None = None
    idle_heartbeat: timedelta | None = None
    inactive_threshold: timedelta | None = None
    num_replicas: int | None = None
    mem_storage: bool | None = None
    direct: bool | None = None
    metadata: Mapping[str, str] | None = None
    pause_until: datetime | None = None
    priority_groups: Sequence[str] | None = None
    priority_policy: Literal["none", "overflow", "pinned_client", "prioritized"] | None = None
    priority_timeout: timedelta | None = None

    @property
    def is_acked(self) -> bool:
        """Whether it wants acks; the server's default is none."""
        return self.ack_policy not in (None, "none")


@dataclass(frozen=True, kw_only=True)
class Placement(Configuration):
    """Servers on which the replicas are."""

    cluster: str | None = None
    tags: Sequence[str] | None = None
    preferred: str | None = None


@dataclass(frozen=True, kw_only=True)
class SubjectTransform(Configuration):
    src: str | None = None
    dest: str | None = None


@dataclass(frozen=True, kw_only=True)
class Republish(SubjectTransform):
    """Subjects on which stored messages are published again."""

    headers_only: bool | None = None


@dataclass(frozen=True, kw_only=True)
class ExternalStream(Configuration):
    """Access to a source in another account or domain."""

    api: str | None = None
    deliver: str | None = None


@dataclass(frozen=True, kw_only=True)
class StreamSource(Configuration):
    """A stream whose messages are copied."""

    name: str | None = None
    opt_start_seq: int | None = None
    opt_start_time: datetime | None = None
    filter_subject: str | None = None
    subject_transforms: Sequence[SubjectTransform] | None = None
    external: ExternalStream | None = None


@dataclass(frozen=True, kw_only=True)
class ConsumerLimits(Configuration):
    """Limits of each consumer of the stream: its defaults, and the most that it may ask for."""

    inactive_threshold: timedelta | None = None
    max_ack_pending: int | None = None


@dataclass(frozen=True, kw_only=True)
class StreamConfig(Configuration):
    """A stream. Sizes are bytes; a limit of -1 is no limit."""

    name: str | None = None
    description: str | None = None
    subjects: Sequence[str] | None = None
    retention: Literal["limits", "interest", "workqueue"] | None = None
    max_consumers: int | None = None
    max_msgs: int | None = None
    max_bytes: int | None = None
    max_age: timedelta | None = None
    max_msgs_per_subject: int | None = None
    max_msg_size: int | None = None
    discard: Literal["old", "new"] | None = None
    discard_new_per_subject: bool | None = None
    storage: Literal["file", "memory"] | None = None
    num_replicas: int | None = None
    no_ack: bool | None = None
    duplicate_window: timedelta | None = None
    placement: Placement | None = None
    mirror: StreamSource | None = None
    sources: Sequence[StreamSource] | None = None
    compression: Literal["none", "s2"] | None = None
    first_seq: int | None = None
    subject_transform: SubjectTransform | None = None
    republish: Republish | None = None
    allow_direct: bool | None = None
    mirror_direct: bool | None = None
    sealed: bool | None = None
    deny_delete: bool | None = None
    deny_purge: bool | None = None
    allow_rollup_hdrs: bool | None = None
    allow_msg_ttl: bool | None = None
    subject_delete_marker_ttl: timedelta | None = None
    allow_msg_counter: bool | None = None
    allow_atomic: bool | None = None
    allow_batched: bool | None = None
    allow_msg_schedules: bool | None = None
    persist_mode: Literal["default", "async"] | None = None
    consumer_limits: ConsumerLimits | None = None
    metadata: Mapping[str, str] | None = None


@dataclass(frozen=True, kw_only=True)
class _Info(JsonObject):
    """State of a stream or consumer at a moment; times are cut to microseconds.

    A field without a default is required: an answer without it is `NotJetStream`.
    """

    is_exact: ClassVar[bool] = False


@dataclass(frozen=True, kw_only=True)
class PeerInfo(_Info):
    """A server that follows the leader."""

    name: str
    current: bool = False
    """Whether it has all messages that the leader has."""
    observer: bool = False
    offline: bool = False
    active: timedelta = timedelta()
    """Time since the leader last heard of it."""
    lag: int = 0
    """Operations that it is behind."""
    peer: str | None = None
    """Id of the server."""


@dataclass(frozen=True, kw_only=True)
class ClusterInfo(_Info):
    """The servers; without a cluster only `leader` is set."""

    name: str | None = None
    raft_group: str | None = None
    leader: str | None = None
    """Name of the leader; None while there is none."""
    leader_since: datetime | None = None
    replicas: Sequence[PeerInfo] = ()
    """All but the leader."""
    system_account: bool = False
    traffic_account: str | None = None


@dataclass(frozen=True, kw_only=True)
class SequencePair(_Info):
    """A place in a consumer's deliveries, and in its stream."""

    consumer_seq: int
    stream_seq: int
    last_active: datetime | None = None
    """Time of the last delivery or ack."""


@dataclass(frozen=True, kw_only=True)
class PriorityGroupState(_Info):
    """A priority group of a consumer, and its pinned client under the policy `pinned_client`."""

    group: str
    pinned_client_id: str | None = None
    """The pin of that client, if one is pinned."""
    pinned_ts: datetime | None = None
    """Time at which it was pinned; in the year 1 if none is."""


@dataclass(frozen=True, kw_only=True)
class ConsumerInfo(_Info):
    """A consumer, as its leader has it."""

    stream_name: str
    name: str
    created: datetime
    config: ConsumerConfig
    delivered: SequencePair
    """The last delivery."""
    ack_floor: SequencePair
    """Sequences up to which all is acked."""
    num_ack_pending: int
    """Number of messages that are delivered and not acked yet."""
    num_redelivered: int
    num_waiting: int
    """Number of pulls that wait for messages."""
    num_pending: int
    """Number of messages that were never delivered."""
    ts: datetime
    """Time of this report, by the server's clock."""
    cluster: ClusterInfo | None = None
    push_bound: bool = False
    """Whether a client listens where a push consumer delivers to."""
    paused: bool = False
    pause_remaining: timedelta | None = None
    priority_groups: Sequence[PriorityGroupState] = ()

    def diff(self, expected: ConsumerConfig) -> list[Drift]:
        """Compare the fields that `expected` sets, as `diff_config` does; a pause differs, too.

        A paused consumer delivers nothing, so an `expected` without `pause_until` wants no pause.
        """
        name = f"consumer {self.stream_name}/{self.name}"
        differences = diff_config(name, expected, self.config)
        if self.paused and expected.pause_until is None:
            differences.append(Drift(name, "pause_until", None, str(self.config.pause_until)))
        return differences


@dataclass(frozen=True, kw_only=True)
class LostMessages(_Info):
    """Messages that the server found damaged."""

    msgs: Sequence[int] = ()
    """Sequences of these messages."""
    bytes: int = 0


@dataclass(frozen=True, kw_only=True)
class StreamState(_Info):
    """The messages of a stream. Sizes are bytes."""

    messages: int
    bytes: int
    first_seq: int
    """Sequence of the first message; in an empty stream `last_seq + 1`, or 0 if it never had
    one."""
    first_ts: datetime
    """Time of the first message; in an empty stream the year 1."""
    last_seq: int
    """Sequence of the last message ever stored, whether or not it is still there."""
    last_ts: datetime
    consumer_count: int
    num_subjects: int = 0
    subjects: Mapping[str, int] = field(default_factory=dict)
    """Number of messages of each subject; only if the subjects were asked for."""
    num_deleted: int = 0
    """Number of sequences from `first_seq` to `last_seq` that have no message."""
    deleted: Sequence[int] = ()
    """Sequences without a message; only if they were asked for."""
    lost: LostMessages | None = None


@dataclass(frozen=True, kw_only=True)
class SourceInfo(_Info):
    """Progress of copying another stream."""

    name: str
    external: ExternalStream | None = None
    lag: int = 0
    """Messages that are still to be copied."""
    active: timedelta | None = None
    """Time since the other stream was last heard of; negative: never."""
    error: Mapping[str, Any] | None = None
    filter_subject: str | None = None
    subject_transforms: Sequence[SubjectTransform] | None = None


@dataclass(frozen=True, kw_only=True)
class StreamAlternate(_Info):
    """A stream with equal messages: a mirror, or the stream that is mirrored."""

    name: str
    cluster: str
    domain: str | None = None


@dataclass(frozen=True, kw_only=True)
class StreamInfo(_Info):
    """A stream, as its leader has it."""

    config: StreamConfig
    created: datetime
    state: StreamState
    ts: datetime
    """Time of this report, by the server's clock."""
    domain: str | None = None
    cluster: ClusterInfo | None = None
    mirror: SourceInfo | None = None
    sources: Sequence[SourceInfo] = ()
    alternates: Sequence[StreamAlternate] = ()

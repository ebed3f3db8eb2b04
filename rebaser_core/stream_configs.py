"""The streams of a deployment: their subjects, and how the server must keep them."""

from dataclasses import dataclass
from datetime import timedelta
from types import NoneType
from typing import Final

from rebaser_core.jetstream import ConsumerConfig, Drift, KeyValue, ObjectStore, StreamConfig
from rebaser_core.jetstream.configs import diff_config, excess_config
from rebaser_core.subjects import TASKS_CONSUMER, Subjects

DUPLICATE_WINDOW: Final = timedelta(minutes=10)
"""Time for which a request id is remembered; at least twice the clients' retry horizon (S-1)."""

_MAX_CONSUMERS: Final = 100_000
"""Maximum number of consumers of a stream. Named because a server of 2.15 or newer allows 1,000 by
default: each change set that is being worked on has one."""


@dataclass(frozen=True, slots=True)
class StreamOptions:
    """Differences between deployments. A limit that is None is no limit."""

    replicas: int = 1
    change_set_requests: int | None = None
    """Maximum number of waiting requests of one change set."""
    requests: int | None = None
    """Maximum number of waiting requests of all change sets."""
    stream_bytes: int | None = None
    """Maximum bytes of each stream."""
    batches_rollup: bool = True
    """Whether clients that may write into the bucket of batches may also wipe it."""
    atomic_batches: bool = True
    """Whether the server knows atomic batches: one of 2.12 or newer does (ADR-50)."""
    has_store: bool = False
    """Whether the files of the store are in NATS, too."""
    has_alarms: bool = False
    """Whether there are services, of whose timers NATS keeps alarms."""


_FREE: Final = (
    *("name", "description", "metadata", "placement", "compression", "first_seq"),
    *("max_consumers", "duplicate_window"),
)
"""Fields of a stream that operators may choose where we leave them open: none loses a message."""

_MORE_IS_FINE: Final = ("duplicate_window", "max_consumers")

_FREE_OF_CONSUMERS: Final = (
    *("name", "description", "metadata", "deliver_policy"),
    *("max_waiting", "pause_until"),  # its default is large; `ConsumerInfo.diff` has the pause
)


def stream_configs(subjects: Subjects, options: StreamOptions) -> list[StreamConfig]:
    """Return every stream. None has a maximum age: a message that vanishes by itself is lost (S-2).

    A full stream refuses new messages: to drop old ones would lose them, too.
    """
    common = _kept(options) | StreamConfig(max_consumers=_MAX_CONSUMERS, max_msgs_per_subject=-1)
    requests = StreamConfig(
        name=subjects.requests_stream,
        subjects=[subjects.join("rebaser.requests.>")],
        max_msgs=options.requests or -1,
        max_msgs_per_subject=options.change_set_requests or -1,
        discard_new_per_subject=options.change_set_requests is not None,
        duplicate_window=DUPLICATE_WINDOW,
    )
    tasks = StreamConfig(
        name=subjects.tasks_stream,
        subjects=[subjects.join("rebaser.tasks.>")],
        retention="workqueue",
        max_msgs_per_subject=1,
        discard_new_per_subject=True,
    )
    commits = StreamConfig(
        name=subjects.commits_stream,
        subjects=[subjects.join("rebaser.commits.>")],
        allow_atomic=options.atomic_batches or None,
    )
    dead_letters = StreamConfig(
        name=subjects.dead_letters_stream,
        subjects=[subjects.join("rebaser.dead-letters.>")],
    )
    configs = [common | each for each in (requests, tasks, commits, dead_letters)]
    return [*configs, alarms_config(subjects, options)] if options.has_alarms else configs


def alarms_config(subjects: Subjects, options: StreamOptions) -> StreamConfig:
    """Return the stream of alarms, which a server of 2.12 or newer takes (ADR-51).

    Full, it drops the oldest: NATS keeps no schedules where new messages are refused. Workers set
    alarms again that are gone.
    """
    return _kept(options) | StreamConfig(
        name=subjects.alarms_stream,
        subjects=[subjects.join("rebaser.alarms.>"), subjects.join("rebaser.ringing.>")],
        retention="workqueue",
        discard="old",
        max_msgs_per_subject=-1,
        allow_msg_schedules=True,
        allow_rollup_hdrs=True,
    )


def _kept(options: StreamOptions) -> StreamConfig:
    """Return the options of a stream whose messages are kept on disk until we delete them."""
    return StreamConfig(
        storage="file",
        num_replicas=options.replicas,
        retention="limits",
        discard="new",
        max_age=timedelta(),
        max_msgs=-1,
        max_bytes=options.stream_bytes or -1,
        max_msg_size=-1,
        allow_direct=True,
    )


def bucket_configs(subjects: Subjects, options: StreamOptions) -> list[StreamConfig]:
    """Return the streams of all buckets: batches first, then the registry and the pauses.

    The store comes last, if it is in NATS.
    """
    rollup = StreamConfig(max_msgs_per_subject=-1, allow_rollup_hdrs=options.batches_rollup)
    buckets = [
        ObjectStore.stream_config(subjects.batches_bucket) | rollup,
        KeyValue.stream_config(subjects.change_sets_bucket),
        KeyValue.stream_config(subjects.pauses_bucket),
    ]
    if options.has_store:
        store = StreamConfig(max_msgs_per_subject=-1)
        buckets.append(ObjectStore.stream_config(subjects.store_bucket) | store)
    return [_kept(options) | each for each in buckets]


def diff_stream(
    name: str, expected: StreamConfig, actual: StreamConfig, max_payload: int
) -> list[Drift]:
    """Return all differences between a stream and what it must be, in every field.

    `max_payload` is the size of the largest message that the server takes; a stream may have that
    limit, too.
    """
    differences = diff_config(name, expected, actual)
    differences += excess_config(name, expected, actual, _FREE)
    return [
        each
        for each in differences
        if not (each.field == "max_msg_size" and each.actual >= max_payload)
        and not (each.field in _MORE_IS_FINE and is_more(each))
        and not (each.field == "max_bytes" and not name.endswith("_REQUESTS") and is_more(each))
    ]


def is_more(drift: Drift) -> bool:
    """Whether a number is larger than it must be, or a limit is none."""
    if type(drift.expected) is not int or type(drift.actual) not in (int, NoneType):
        return False
    return drift.expected > 0 and ((drift.actual or -1) < 0 or drift.actual > drift.expected)


def excess_of_consumer(name: str, expected: ConsumerConfig, actual: ConsumerConfig) -> list[Drift]:
    """Return the fields that the tasks' consumer has beyond `tasks_consumer_config`."""
    return excess_config(name, expected, actual, _FREE_OF_CONSUMERS)


def tasks_consumer_config(subjects: Subjects, ack_wait: timedelta) -> ConsumerConfig:
    """The one consumer that all Rebasers share (S-3).

    A `max_deliver` would leave a task undeliverable that still refuses its successor. A
    `max_ack_pending` would cap the active change sets of the whole deployment.
    """
    return ConsumerConfig(
        durable_name=TASKS_CONSUMER,
        ack_policy="explicit",
        ack_wait=ack_wait,
        max_deliver=-1,
        max_ack_pending=-1,
        filter_subject=subjects.join("rebaser.tasks.*.*.*"),
    )

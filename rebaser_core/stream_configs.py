"""The streams of a deployment: where they are, and how the server must keep them."""

from dataclasses import dataclass
from datetime import timedelta
from types import NoneType
from typing import Final

from rebaser_core.jetstream import (
    ConsumerConfig,
    Drift,
    KeyValue,
    ObjectStore,
    StreamConfig,
)
from rebaser_core.jetstream.configs import diff_config, excess_config
from rebaser_core.subjects import TASKS_CONSUMER, Subjects

DUPLICATE_WINDOW: Final = timedelta(minutes=10)
"""How long a request id is remembered; at least twice the clients' retry horizon (S-1)."""

_MAX_CONSUMERS: Final = 100_000
"""Consumers that a stream may have. Said because a server of 2.15 or newer allows 1,000 where
nothing is said: each change set that is being worked on has one."""


@dataclass(frozen=True, slots=True)
class StreamOptions:
    """What differs between deployments. A limit that is None is none."""

    replicas: int = 1
    change_set_requests: int | None = None
    """Requests of one change set that may wait."""
    requests: int | None = None
    """Requests of all of them together that may wait."""
    requests_bytes: int | None = None
    """Bytes of all of them together, as the server stores them."""
    batches_rollup: bool = True
    """Whether who may write into the bucket of batches may also wipe it."""
    atomic_batches: bool = True
    """Whether the server knows atomic batches: one of 2.12 or newer does (ADR-50)."""


_FREE: Final = (
    *("name", "description", "metadata", "placement", "compression", "first_seq"),
    *("max_consumers", "duplicate_window"),
)
"""Fields of a stream that are anyone's choice where we leave them open: none loses a message."""

_MORE_IS_FINE: Final = ("duplicate_window", "max_consumers")

_FREE_OF_CONSUMERS: Final = (
    *("name", "description", "metadata", "deliver_policy"),
    *("max_waiting", "pause_until"),  # its default is large; `ConsumerInfo.diff` has the pause
)


def stream_configs(subjects: Subjects, options: StreamOptions) -> list[StreamConfig]:
    """Every stream. None has a maximum age: a message that vanishes by itself is lost (S-2).

    One that is full refuses what is new, for the same reason.
    """
    common = _kept(options) | StreamConfig(max_consumers=_MAX_CONSUMERS, max_msgs_per_subject=-1)
    requests = StreamConfig(
        name=subjects.requests_stream,
        subjects=[subjects.join("rebaser.requests.>")],
        max_msgs=options.requests or -1,
        max_bytes=options.requests_bytes or -1,
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
    return [common | each for each in (requests, tasks, commits, dead_letters)]


def _kept(options: StreamOptions) -> StreamConfig:
    """What is kept until we delete it, and is on disks."""
    return StreamConfig(
        storage="file",
        num_replicas=options.replicas,
        retention="limits",
        discard="new",
        max_age=timedelta(),
        max_msgs=-1,
        max_bytes=-1,
        max_msg_size=-1,
        allow_direct=True,
    )


def bucket_configs(subjects: Subjects, options: StreamOptions) -> list[StreamConfig]:
    """The streams of all buckets: batches first, then the registry and the pauses."""
    rollup = StreamConfig(max_msgs_per_subject=-1, allow_rollup_hdrs=options.batches_rollup)
    buckets = (
        ObjectStore.stream_config(subjects.batches_bucket) | rollup,
        KeyValue.stream_config(subjects.change_sets_bucket),
        KeyValue.stream_config(subjects.pauses_bucket),
    )
    return [_kept(options) | each for each in buckets]


def diff_stream(
    name: str, expected: StreamConfig, actual: StreamConfig, max_payload: int
) -> list[Drift]:
    """All in which a stream differs from what it must be, whether or not we say it.

    `max_payload`: octets of the largest message that the server takes; a stream may have that
    limit, too.
    """
    differences = diff_config(name, expected, actual)
    differences += excess_config(name, expected, actual, _FREE)
    return [
        each
        for each in differences
        if not (each.field == "max_msg_size" and each.actual >= max_payload)
        and not (each.field in _MORE_IS_FINE and is_more(each))
    ]


def is_more(drift: Drift) -> bool:
    """Whether a number is larger than it must be, or a limit is none."""
    if type(drift.expected) is not int or type(drift.actual) not in (int, NoneType):
        return False
    return drift.expected > 0 and ((drift.actual or -1) < 0 or drift.actual > drift.expected)


def excess_of_consumer(name: str, expected: ConsumerConfig, actual: ConsumerConfig) -> list[Drift]:
    """What the tasks' consumer has beyond `tasks_consumer_config`."""
    return excess_config(name, expected, actual, _FREE_OF_CONSUMERS)


def tasks_consumer_config(subjects: Subjects, ack_wait: timedelta) -> ConsumerConfig:
    """The one consumer that all Rebasers share (S-3).

    No `max_deliver`: it would leave a task undeliverable that still refuses its
    successor. No `max_ack_pending`: it would cap the active change sets of the
    whole deployment.
    """
    return ConsumerConfig(
        durable_name=TASKS_CONSUMER,
        ack_policy="explicit",
        ack_wait=ack_wait,
        max_deliver=-1,
        max_ack_pending=-1,
        filter_subject=subjects.join("rebaser.tasks.*.*.*"),
    )

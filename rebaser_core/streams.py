"""How the server must keep our streams. Here and nowhere else."""

from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from rebaser_core.jetstream import ConsumerConfig, StreamConfig
from rebaser_core.subjects import TASKS_CONSUMER, Subjects

DUPLICATE_WINDOW: Final = timedelta(minutes=10)
"""How long a request id is remembered; at least twice the clients' retry horizon (S-1)."""

MAX_CONSUMERS: Final = 100_000
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


def stream_configs(subjects: Subjects, options: StreamOptions) -> list[StreamConfig]:
    """Every stream. None has a maximum age: a message that vanishes by itself is lost (S-2).

    One that is full refuses what is new, for the same reason.
    """
    common = StreamConfig(
        storage="file",
        num_replicas=options.replicas,
        retention="limits",
        discard="new",
        max_age=timedelta(),
        max_msgs=-1,
        max_bytes=-1,
        max_consumers=MAX_CONSUMERS,
        allow_direct=True,
    )
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

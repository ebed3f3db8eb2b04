"""How the server must keep our streams, as its own JSON has it. Here and nowhere else."""

from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

from rebaser_core.subjects import TASKS_CONSUMER, Subjects

StreamConfig = dict[str, Any]

DUPLICATE_WINDOW: Final = timedelta(minutes=10)
"""How long a request id is remembered; at least twice the clients' retry horizon (S-1)."""

_NANOSECONDS: Final = 1_000_000_000


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


def nanoseconds(duration: timedelta) -> int:
    return round(duration.total_seconds() * _NANOSECONDS)


def stream_configs(subjects: Subjects, options: StreamOptions) -> list[StreamConfig]:
    """Every stream. None has a maximum age: a message that vanishes by itself is lost (S-2).

    One that is full refuses what is new, for the same reason.
    """
    common: StreamConfig = {
        "storage": "file",
        "num_replicas": options.replicas,
        "discard": "new",
        "max_age": 0,
        "max_msgs": -1,
        "max_bytes": -1,
        "max_consumers": MAX_CONSUMERS,
    }
    return [
        {
            **common,
            "name": subjects.requests_stream,
            "subjects": [subjects.join("rebaser.requests.>")],
            "retention": "limits",
            "allow_direct": True,
            "max_msgs": options.requests or -1,
            "max_bytes": options.requests_bytes or -1,
            "max_msgs_per_subject": options.change_set_requests or -1,
            "discard_new_per_subject": options.change_set_requests is not None,
            "duplicate_window": nanoseconds(DUPLICATE_WINDOW),
        },
        {
            **common,
            "name": subjects.tasks_stream,
            "subjects": [subjects.join("rebaser.tasks.>")],
            "retention": "workqueue",
            "allow_direct": True,
            "max_msgs_per_subject": 1,
            "discard_new_per_subject": True,
        },
        {
            **common,
            "name": subjects.commits_stream,
            "subjects": [subjects.join("rebaser.commits.>")],
            "retention": "limits",
            "allow_direct": True,
            **({"allow_atomic": True} if options.atomic_batches else {}),
        },
        {
            **common,
            "name": subjects.dead_letters_stream,
            "subjects": [subjects.join("rebaser.dead-letters.>")],
            "retention": "limits",
            "allow_direct": True,
        },
    ]


def tasks_consumer_config(subjects: Subjects, ack_wait: timedelta) -> StreamConfig:
    """The one consumer that all Rebasers share (S-3).

    No `max_deliver`: it would leave a task undeliverable that still refuses its
    successor. No `max_ack_pending`: it would cap the active change sets of the
    whole deployment.
    """
    return {
        "durable_name": TASKS_CONSUMER,
        "ack_policy": "explicit",
        "ack_wait": nanoseconds(ack_wait),
        "max_deliver": -1,
        "max_ack_pending": -1,
        "filter_subject": subjects.join("rebaser.tasks.*.*.*"),
    }

"""Metrics of a process's work, by Prometheus's names; read at `/metrics`.

Counters only grow and histograms only fill where the thing happens. The present state, such as
slots taken or requests waiting, is not kept here but looked up when asked for (`ops.endpoint`), so
that it cannot drift. No label has more values than this file shows, but for those of services,
which are what the process's own code declares. Each is there from the start, at 0: Prometheus's
increase() misses the first event of a counter that appears with it.
"""

from collections.abc import Iterable
from typing import Final, Literal, get_args

from prometheus_client import Counter, Histogram

from rebaser_core.commits import RequestOutcome

_WAITS: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 1800)
"""Bounds in seconds: from a request settled at once to one that waited for half an hour."""


def _counter(name: str, what: str, label: str, values: Iterable[str]) -> Counter:
    counter = Counter(f"rebaser_{name}", what, [label])
    for value in values:
        counter.labels(value)
    return counter


REQUESTS: Final = _counter(
    "requests", "Requests settled, by what became of them", "outcome", RequestOutcome
)
REQUEST_SECONDS: Final = Histogram(
    "rebaser_request_seconds",
    "From the storage of a client's request to its commit",
    buckets=_WAITS,
)
CORRECTIONS: Final = Counter("rebaser_corrections", "Updates changed to fit their change set")
RETRIES: Final = Counter("rebaser_retries", "Attempts put off until later")
COMMIT_CONFLICTS: Final = Counter(
    "rebaser_commit_conflicts", "Commits refused because the change set had another owner"
)
TASKS: Final = _counter("tasks", "Tasks taken, first or again", "delivery", ("first", "again"))
TASK_ENDS: Final = _counter(
    "task_ends",
    "How work on a task ended",
    "how",
    ("quiet", "turn over", "paused", "interrupted", "lost", "retried", "failed"),
)
LEASE_RENEWALS: Final = Counter("rebaser_lease_renewals", "Progress reports confirmed by NATS")
LEASE_LOSSES: Final = Counter("rebaser_lease_losses", "Tasks that may be another's by now")
DVUS: Final = _counter(
    "dvus",
    "Dependent values updates, by how they ended",
    "how",
    ("finished", "failed", "cancelled"),
)
DVU_SECONDS: Final = Histogram(
    "rebaser_dvu_seconds", "From the claim of an update to its committed result", buckets=_WAITS
)
COMMIT_TO_DVU_SECONDS: Final = Histogram(
    "rebaser_commit_to_dvu_seconds",
    "From a commit that left values to recompute to the commit of what came out",
    buckets=_WAITS,
)
DVU_VALUES: Final = _counter(
    "dvu_values",
    "Values of committed updates",
    "what",
    ("affected", "recomputed", "changed", "failed", "impure"),
)
CHECKPOINTS: Final = _counter(
    "checkpoints", "Checkpoints tried, by result", "result", ("written", "failed", "damaged")
)
CHECKPOINT_ROWS: Final = Counter(
    "rebaser_checkpoint_rows", "Values and functions that checkpoints wrote"
)
CHECKPOINT_SECONDS: Final = Histogram(
    "rebaser_checkpoint_seconds", "Time to write a checkpoint", buckets=_WAITS
)
PUBLICATIONS: Final = _counter(
    "publications",
    "Versions of published tables that were written, and looks at a head that failed",
    "result",
    ("written", "failed"),
)
RECONCILER_LOOKS: Final = _counter(
    "reconciler_looks", "Looks of the reconciler, by result", "result", ("done", "failed")
)
RECONCILER_SECONDS: Final = Histogram(
    "rebaser_reconciler_seconds", "Time of a look of the reconciler", buckets=_WAITS
)
RECONCILED: Final = Counter(
    "rebaser_reconciled_tasks", "Tasks made by the reconciler for work without a task"
)
TAKEN_OVER: Final = Counter(
    "rebaser_taken_over_tasks", "Tasks made anew because their Rebaser was presumed dead"
)
QUERIES: Final = _counter(
    "queries",
    "Queries heard, by what became of them",
    "how",
    ("answered", "refused", "busy", "stale"),
)
CallOutcome = Literal["returned", "rejected", "failed", "refused"]
CALLS: Final = Counter(
    "rebaser_calls",
    "Calls of handlers, each attempt, by what became of it",
    ["service", "handler", "outcome"],
)
CALL_SECONDS: Final = Histogram(
    "rebaser_call_seconds",
    "Time for which a handler ran",
    ["service", "handler"],
    buckets=(0.005, 0.05, 0.5, 5, 60),
)
NO_HANDLER: Final = "(unknown)"
"""Label of calls of handlers that their service does not have."""


def declare_handlers(service: str, handlers: Iterable[str]) -> None:
    """Begin to count the calls of a service's handlers."""
    for handler in (*handlers, NO_HANDLER):
        CALL_SECONDS.labels(service, handler)
        for outcome in get_args(CallOutcome):
            CALLS.labels(service, handler, outcome)


Item = Literal[
    "activity",
    "change set",
    "checkpoint",
    "heartbeat",
    "lineage",
    "object",
    "pause",
    "presumption",
    "publication",
    "query",
    "record",
    "remembered result",
    "request",
    "subject",
    "table",
    "task",
]
"""Kind of item of which one may be bad while the others are dealt with, see `contained`."""
ITEMS_SKIPPED: Final = _counter(
    "items_skipped", "Items that could not be dealt with among many", "what", get_args(Item)
)
Round = Literal[
    "capacity",
    "collection",
    "durability",
    "forgetting",
    "heartbeats",
    "impure",
    "inspection",
    "losses",
    "pauses",
    "presence",
    "publication",
    "reconciler",
    "slots",
    "strays",
    "takeover",
    "unsaved",
    "upkeep",
]
"""Job that is done in rounds, again and again, see `rounds`."""
ROUNDS_FAILED: Final = _counter(
    "rounds_failed", "Rounds of periodic work that came to nothing", "what", get_args(Round)
)
LOOP_LAG: Final = Histogram(
    "rebaser_event_loop_lag_seconds",
    "How late the event loop woke a sleeper",
    buckets=(0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1, 5),
)

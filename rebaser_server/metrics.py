"""What a process counts of its own work, by Prometheus's names; read at `/metrics`.

Counters only grow and histograms only fill where the thing happens. What *is*, such as
slots taken or requests waiting, is not kept here but looked up when asked for
(`ops.exposition`), so that it cannot drift. No label has more values than this file shows.
"""

from typing import Final

from prometheus_client import Counter, Histogram

_WAITS: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 1800)
"""Seconds: from a request handled at once to one that waited for half an hour."""

REQUESTS: Final = Counter(
    "rebaser_requests", "Requests settled, by what became of them", ["outcome"]
)
REQUEST_SECONDS: Final = Histogram(
    "rebaser_request_seconds", "From a request's storage to its commit", buckets=_WAITS
)
CORRECTIONS: Final = Counter("rebaser_corrections", "Updates changed to fit their change set")
RETRIES: Final = Counter("rebaser_retries", "Attempts put off until later")
COMMIT_CONFLICTS: Final = Counter(
    "rebaser_commit_conflicts", "Commits refused because the change set had another owner"
)
TASKS: Final = Counter("rebaser_tasks", "Tasks taken, first or again", ["delivery"])
TASK_ENDS: Final = Counter("rebaser_task_ends", "How work on a task ended", ["how"])
LEASE_RENEWALS: Final = Counter("rebaser_lease_renewals", "Progress reports confirmed by NATS")
LEASE_LOSSES: Final = Counter("rebaser_lease_losses", "Tasks that may be another's by now")
DVUS: Final = Counter("rebaser_dvus", "Dependent values updates, by how they ended", ["how"])
DVU_SECONDS: Final = Histogram(
    "rebaser_dvu_seconds", "From the claim of an update to its committed result", buckets=_WAITS
)
DVU_VALUES: Final = Counter("rebaser_dvu_values", "Values of committed updates", ["what"])
CHECKPOINTS: Final = Counter("rebaser_checkpoints", "Checkpoints tried, by result", ["result"])
CHECKPOINT_SECONDS: Final = Histogram(
    "rebaser_checkpoint_seconds", "Time to write a checkpoint", buckets=_WAITS
)
RECONCILED: Final = Counter(
    "rebaser_reconciled_tasks", "Tasks made by the reconciler for work that nobody had one for"
)
LOOP_LAG: Final = Histogram(
    "rebaser_event_loop_lag_seconds",
    "How late the event loop woke a sleeper",
    buckets=(0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1, 5),
)

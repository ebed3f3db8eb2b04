"""Statistics of this process's work, for the status page only."""

import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final

from rebaser_core.activities import ActivityKind
from rebaser_core.commits import RequestOutcome
from rebaser_core.errors import many
from rebaser_core.ids import ChangeSet, RequestId
from rebaser_server.telemetry import metrics

SECONDS: Final = 300
"""Number of seconds that the rates cover."""
_MAX_FAILURES: Final = 50
"""Number of the latest failures that are kept."""
_SETTLED: Final = {outcome: metrics.REQUESTS.labels(outcome) for outcome in RequestOutcome}
_MAX_WAITS: Final = 500
"""Number of latencies kept of each second: enough for the percentiles."""
_UPDATE_FAILED: Final = "update failed"
_IMPURE: Final = "function is not pure"
_NOT_OF_REQUESTS: Final = (_UPDATE_FAILED, _IMPURE)
_ENDS: Final = (ActivityKind.DVU_FINISHED, ActivityKind.DVU_FAILED, ActivityKind.DVU_CANCELLED)


@dataclass(slots=True)
class RunningDvu:
    """A dependent values update (DVU) that is running."""

    affected: int
    """Values that it may recompute, as far as is known by now."""
    done: int = 0
    since: datetime = field(default_factory=lambda: datetime.now(UTC))


@dataclass(slots=True)
class _HeldChangeSet:
    """A change set in one of our slots."""

    since: datetime = field(default_factory=lambda: datetime.now(UTC))
    requests: int = 0
    """Number of requests settled since the slot was taken."""
    last_request: float = field(default_factory=time.monotonic)
    update: RunningDvu | None = None


@dataclass(slots=True)
class _SecondBucket:
    """The requests of one second, and the waiting times of some of them."""

    at: int
    requests: int = 0
    waits: list[float] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class SparkAbsence:
    """Spark cannot compute at the moment."""

    reason: str
    is_first: bool
    """Whether Spark never could in this process."""
    since: datetime = field(default_factory=lambda: datetime.now(UTC))

    @property
    def brief(self) -> str:
        """Time of its loss, without the reason, which may name hosts and folders."""
        return f"away since {_iso(self.since)}"

    def __str__(self) -> str:
        return f"{self.brief}: {self.reason}"


class WorkStats:
    """Written by the code that does the work, read by the ops endpoint."""

    def __init__(self) -> None:
        self.started = datetime.now(UTC)
        self.held: dict[ChangeSet, _HeldChangeSet] = {}
        self.seconds: deque[_SecondBucket] = deque(maxlen=SECONDS)
        self.failures: deque[dict[str, Any]] = deque(maxlen=_MAX_FAILURES)
        self.pauses: Callable[[], list[dict[str, Any]]] = list
        """Pauses of the whole deployment, the oldest first."""
        self.durability: Callable[[], dict[str, Any] | None] = lambda: None
        """Times at which NATS syncs, and number of replicas; None before that was looked up."""
        self.spark_absence: Callable[[], SparkAbsence | None] = lambda: None
        """Reason why there is no Spark to compute on; None if there is, or before the first
        look."""
        self.spark_is_ready: Callable[[], bool] = lambda: False
        """Whether Spark computed when it last was to; False before it has started."""
        self.nats_problem: Callable[[], tuple[str, str] | None] = lambda: None
        """Reason why NATS does not take messages, or will not keep them, and what to do; or
        None."""
        self.is_stopped: Callable[[], bool] = lambda: False
        """Whether no new work may be begun because of that."""
        self.nats_problem_kind: Callable[[], str] = lambda: ""
        """Kind of that reason, or an empty text, and the largest part of a limit of NATS in use."""

    @contextmanager
    def hold(self, change_set: ChangeSet) -> Iterator[None]:
        """Show the change set as held while the body runs."""
        holding = self.held[change_set] = _HeldChangeSet()
        try:
            yield
        finally:
            if self.held.get(change_set) is holding:  # else this process took it over from itself
                del self.held[change_set]

    def request(
        self, change_set: ChangeSet, outcome: RequestOutcome, stored: float, corrected: int
    ) -> None:
        """Count a settled request, which NATS stored at `stored`, in seconds since 1970."""
        now = time.time()
        waited = max(0.0, now - stored)
        _SETTLED[outcome].inc()
        if outcome is not RequestOutcome.STALE:  # a stale request is a result of an older Rebaser
            metrics.REQUEST_SECONDS.observe(waited)
        if corrected:
            metrics.CORRECTIONS.inc(corrected)
        if not self.seconds or self.seconds[-1].at != int(now):
            self.seconds.append(_SecondBucket(int(now)))
        second = self.seconds[-1]
        second.requests += 1
        if len(second.waits) < _MAX_WAITS:
            second.waits.append(waited)
        self._recover(change_set, of_update=False)
        holding = self.held.get(change_set)
        if holding is not None:
            holding.requests += 1
            holding.last_request = time.monotonic()

    def activity(
        self,
        change_set: ChangeSet,
        kind: ActivityKind,
        request_id: RequestId | None,
        details: Mapping[str, Any],
    ) -> None:
        """Keep the parts of an activity that the page shows."""
        holding = self.held.get(change_set)
        match kind:
            case ActivityKind.DVU_STARTED if holding:
                holding.update = RunningDvu(details["affected"])
            case ActivityKind.DVU_PROGRESS if holding and holding.update:
                holding.update.done = details["done"]
                holding.update.affected = details["of"]
            case ActivityKind.DVU_FINISHED:
                self._recover(change_set, of_update=True)
                metrics.DVUS.labels("finished").inc()
                metrics.DVU_SECONDS.observe(details["seconds"])
                for what in ("affected", "recomputed", "changed"):
                    metrics.DVU_VALUES.labels(what).inc(details[what])
            case ActivityKind.DVU_FAILED:
                metrics.DVUS.labels("failed").inc()
                self.failure(change_set, _UPDATE_FAILED, details["reason"], request_id)
            case ActivityKind.DVU_CANCELLED:
                metrics.DVUS.labels("cancelled").inc()
            case ActivityKind.FUNCTION_IMPURE:
                self._impure(change_set, details)
            case _:
                pass
        if holding and kind in _ENDS:
            holding.update = None

    def _impure(self, change_set: ChangeSet, found: Mapping[str, Any]) -> None:
        """Keep that a function is not pure, in place of what was kept of it before."""
        mark = {"workspace": str(change_set.workspace_id), "function": found["function"]}
        for row in [row for row in self.failures if mark.items() <= row.items()]:
            self.failures.remove(row)
        results = f"{found['before']}, and then to {found['now']} from the same inputs"
        reason = f"{found['function']} came to {results}"
        self.failure(change_set, _IMPURE, reason)
        self.failures[-1] |= mark

    def failure(
        self, change_set: ChangeSet, what: str, reason: str, request_id: RequestId | None = None
    ) -> None:
        """Keep a failure that a person may want to see."""
        self.failures.append(
            {
                "at": _iso(datetime.now(UTC)),
                **change_set.plain(),
                "request": None if request_id is None else str(request_id),
                "what": what,
                "reason": reason[:300],
                "over": False,
            }
        )

    def _recover(self, change_set: ChangeSet, *, of_update: bool) -> None:
        """Mark failures of a change set's updates, or of its requests, as over."""
        if not self.failures:
            return
        workspace, its_id = map(str, change_set)
        for row in self.failures:
            if row["changeSet"] == its_id and row["workspace"] == workspace:
                is_of_request = row["what"] not in _NOT_OF_REQUESTS and "values" not in row
                row["over"] |= row["what"] == _UPDATE_FAILED if of_update else is_of_request

    def values_failed(self, change_set: ChangeSet, count: int) -> None:
        """Note that an update was committed, after which `count` values are failed.

        The note replaces the one of the update before.
        """
        ours = change_set.plain()
        for row in [
            row for row in self.failures if "values" in row and ours.items() <= row.items()
        ]:
            self.failures.remove(row)
        if count:
            what = f"{many(count, 'value')} failed"
            self.failure(change_set, what, "`rebaser dvu status` names them")
            self.failures[-1]["values"] = count

    def rates(self) -> list[dict[str, Any]]:
        """Requests and their latencies, second by second, oldest first; idle seconds left out."""
        now = int(time.time())
        return [
            {"at": second.at, "requests": second.requests, **_percentiles(second.waits)}
            for second in self.seconds
            if now - SECONDS < second.at < now
        ]

    def held_change_sets(self, most: int) -> list[dict[str, Any]]:
        """The change sets in our slots, the busiest first, at most `most`."""
        now = time.monotonic()
        by_idleness = sorted(
            self.held.items(), key=lambda item: (item[1].update is None, now - item[1].last_request)
        )
        return [
            {
                **change_set.plain(),
                "since": _iso(holding.since),
                "requests": holding.requests,
                "idleSeconds": round(now - holding.last_request, 1),
                "update": holding.update
                and {
                    "affected": holding.update.affected,
                    "done": holding.update.done,
                    "since": _iso(holding.update.since),
                },
            }
            for change_set, holding in by_idleness[:most]
        ]


def _percentiles(waits: list[float]) -> dict[str, float]:
    ordered = sorted(waits)
    return {
        "p50": round(ordered[len(ordered) // 2], 4),
        "p99": round(ordered[min(len(ordered) - 1, len(ordered) * 99 // 100)], 4),
    }


def _iso(moment: datetime) -> str:
    return moment.isoformat(timespec="milliseconds")

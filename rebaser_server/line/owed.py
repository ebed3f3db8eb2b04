"""What the next dependent values update is owed to: since when, and in whose traces."""

import time
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, Self

from opentelemetry.trace import SpanContext

from rebaser_core import tracing
from rebaser_core.ids import ChangeSet, RequestId
from rebaser_server import metrics


@dataclass(slots=True)
class Owed:
    """Filled as requests are committed, taken by the update that covers them."""

    since: float | None = None
    """When the first of them was committed, by the monotonic clock."""
    traces: list[SpanContext] = field(default_factory=list)
    """Of the first so many, in order."""

    def add(self, trace: SpanContext | None) -> None:
        """A request was committed that left values to recompute."""
        if self.since is None:
            self.since = time.monotonic()
        if trace is not None and len(self.traces) <= tracing.MOST_LINKS:
            self.traces.append(trace)

    def take(self) -> Self:
        """What is owed now is the caller's; of a debt that another run left, from now on."""
        taken = type(self)(self.since or time.monotonic(), self.traces)
        self.since, self.traces = None, []
        return taken

    def put_back(self, taken: Self) -> None:
        """The update that took it came to nothing."""
        self.since, self.traces = taken.since, taken.traces + self.traces

    def paid(self) -> None:
        """The update is committed."""
        if self.since is not None:
            metrics.COMMIT_TO_DVU_SECONDS.observe(time.monotonic() - self.since)

    def update(
        self, change_set: ChangeSet, claim: RequestId, affected: int
    ) -> AbstractContextManager[Any]:
        """The body is the update: a span in the first request's trace, linked to the others'."""
        return tracing.span(
            "rebaser dvu",
            change_set,
            parent=tracing.under(self.traces[0]) if self.traces else None,
            links=self.traces[1:],
            request=str(claim),
            affected=affected,
        )

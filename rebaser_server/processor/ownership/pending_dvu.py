"""The due dependent values update: since when it is due, and the traces of its requests."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from opentelemetry.trace import SpanContext

from rebaser_core import trace_context
from rebaser_core.commits import CommitV1
from rebaser_core.ids import ChangeSet, RequestId
from rebaser_server.telemetry import metrics

TraceOf = Callable[[int], SpanContext | None]
"""Returns the span of a request being handled, by its sequence, or None if it is not traced."""


@dataclass(slots=True)
class PendingDvu:
    """The requests, as they are committed, that the next update covers."""

    since: float | None = None
    """When the first of them was committed, by the monotonic clock."""
    traces: list[SpanContext] = field(default_factory=list)
    """The traces of the first few of them, in order."""
    running: "PendingDvu | None" = None
    """The requests that the update under way covers."""

    def restore(self, headers: Mapping[str, str]) -> None:
        """Continue the trace that the headers of the previous owner's last commit name."""
        context = trace_context.span_context_in(headers)
        self.traces = [] if context is None else [context]

    def record(self, entry: CommitV1, trace_of: TraceOf) -> None:
        """Note that `entry` is committed."""
        request = _request_with_roots(entry)
        if request is None:
            return
        if self.since is None:
            self.since = time.monotonic()
        trace = trace_of(request)
        if trace is not None and len(self.traces) <= trace_context.MAX_LINKS:
            self.traces.append(trace)

    def headers(
        self, entries: Sequence[CommitV1], trace_of: TraceOf
    ) -> dict[RequestId, Mapping[str, str]]:
        """Return trace headers of commits, by their ids: the trace of the update that is due.

        With them the next owner of the change set continues that trace.
        """
        headers: dict[RequestId, Mapping[str, str]] = {}
        waiting = next(iter(self.traces), None)
        running = next(iter(self.running.traces), None) if self.running else None
        for entry in entries:
            if waiting is None and (request := _request_with_roots(entry)) is not None:
                waiting = trace_of(request)
            due = (running if entry.control.claim else None) or waiting
            if entry.control.dvu_due and due is not None:
                headers[entry.id] = trace_context.trace_headers(due)
        return headers

    @contextmanager
    def span(
        self, change_set: ChangeSet, claim: RequestId, affected: int
    ) -> Iterator["PendingDvu"]:
        """Open the update's span in the first request's trace, linked to the others'.

        Unless the body calls `covered`, the next update covers these requests, too.
        """
        # An update that another run left due counts as due since this moment.
        taken = self.running = PendingDvu(self.since or time.monotonic(), self.traces)
        self.since, self.traces = None, []
        with trace_context.span(
            "rebaser dvu",
            change_set,
            parent=trace_context.child_context(taken.traces[0]) if taken.traces else None,
            links=taken.traces[1:],
            request=str(claim),
            affected=affected,
        ):
            yield taken
        self.running = None
        if taken.since is not None:
            self.since, self.traces = taken.since, taken.traces + self.traces

    def covered(self) -> None:
        """Note that the update's result is committed."""
        if self.since is not None:
            metrics.COMMIT_TO_DVU_SECONDS.observe(time.monotonic() - self.since)
        self.since = None


def _request_with_roots(entry: CommitV1) -> int | None:
    """Return the sequence of the request that the commit settles, if it left roots (D1)."""
    handled = entry.handled
    left = handled is not None and handled.sequence == entry.control.dirty_sequence
    return entry.control.dirty_sequence if left else None

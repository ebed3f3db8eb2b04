"""What the next dependent values update is owed to: since when, and in whose traces."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from opentelemetry.trace import SpanContext

from rebaser_core import trace_context
from rebaser_core.commits import CommitV1
from rebaser_core.ids import ChangeSet, RequestId
from rebaser_server.telemetry import metrics

TraceOf = Callable[[RequestId], SpanContext | None]
"""The span of a request that is in hand, if it is traced."""


@dataclass(slots=True)
class Owed:
    """Filled as requests are committed, taken by the update that covers them."""

    since: float | None = None
    """When the first of them was committed, by the monotonic clock."""
    traces: list[SpanContext] = field(default_factory=list)
    """Of the first so many, in order."""
    in_hand: "Owed | None" = None
    """What the update has taken that is under way."""

    def inherit(self, mark: Mapping[str, str]) -> None:
        """What another run left due is in the trace that the mark of its last line names."""
        named = trace_context.span_context_in(mark)
        self.traces = [] if named is None else [named]

    def add(self, line: CommitV1, trace_of: TraceOf) -> None:
        """The line is committed."""
        request = _roots_from(line)
        if request is None:
            return
        if self.since is None:
            self.since = time.monotonic()
        trace = trace_of(request)
        if trace is not None and len(self.traces) <= trace_context.MAX_LINKS:
            self.traces.append(trace)

    def marks(
        self, lines: Sequence[CommitV1], trace_of: TraceOf
    ) -> dict[RequestId, Mapping[str, str]]:
        """Headers of lines to be committed, by their ids: whose trace the update is in that is due.

        By them whoever takes the change set over goes on in that trace.
        """
        marks: dict[RequestId, Mapping[str, str]] = {}
        waiting = next(iter(self.traces), None)
        held = next(iter(self.in_hand.traces), None) if self.in_hand else None
        for line in lines:
            if waiting is None and (request := _roots_from(line)) is not None:
                waiting = trace_of(request)
            due = (held if line.head.claim else None) or waiting
            if line.head.dvu_due and due is not None:
                marks[line.id] = trace_context.trace_headers(due)
        return marks

    @contextmanager
    def update(self, change_set: ChangeSet, claim: RequestId, affected: int) -> Iterator["Owed"]:
        """The body is the update: a span in the first request's trace, linked to the others'.

        Unless it is `paid` by then, what it has taken is owed to the next one.
        """
        # What another run left is owed from now on.
        taken = self.in_hand = Owed(self.since or time.monotonic(), self.traces)
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
        self.in_hand = None
        if taken.since is not None:
            self.since, self.traces = taken.since, taken.traces + self.traces

    def paid(self) -> None:
        """What was taken is committed."""
        if self.since is not None:
            metrics.COMMIT_TO_DVU_SECONDS.observe(time.monotonic() - self.since)
        self.since = None


def _roots_from(line: CommitV1) -> RequestId | None:
    """The request that the line settles, if that left values to recompute."""
    handled = line.handled
    return handled.id if handled and handled.sequence == line.head.dirty_sequence else None

"""Traces of a run: the spans of its requests, and of the update that they made due.

`PendingDvu` knows since when an update is due, and the traces of its requests. `RequestSpans` are
handling, commit and reply; there are none while tracing is off.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any, Final

from opentelemetry import trace
from opentelemetry.trace import Span, SpanContext, Status, StatusCode

from rebaser_core import trace_context
from rebaser_core.commits import CommitV2
from rebaser_core.ids import ChangeSet, RequestId
from rebaser_core.jetstream import Delivery
from rebaser_server.telemetry import metrics

TraceOf = Callable[[int], SpanContext | None]
"""Function from a request's sequence to its span, or None if it is not being traced."""


@dataclass(slots=True)
class PendingDvu:
    """The requests, as they are committed, that the next update covers."""

    since: float | None = None
    """Time at which the first of them was committed, by the monotonic clock."""
    traces: list[SpanContext] = field(default_factory=list)
    """Traces of the first few of them, in order."""
    running: "PendingDvu | None" = None
    """Requests that the update under way covers."""

    def restore(self, headers: Mapping[str, str]) -> None:
        """Continue the trace that the headers of the previous owner's last commit name."""
        context = trace_context.span_context_in(headers)
        self.traces = [] if context is None else [context]

    def record(self, entry: CommitV2, trace_of: TraceOf) -> None:
        request = _request_with_roots(entry)
        if request is None:
            return
        if self.since is None:
            self.since = time.monotonic()
        trace = trace_of(request)
        if trace is not None and len(self.traces) <= trace_context.MAX_LINKS:
            self.traces.append(trace)

    def headers(
        self, entries: Sequence[CommitV2], trace_of: TraceOf
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


def _request_with_roots(entry: CommitV2) -> int | None:
    """Return the sequence of the request that the commit settles, if it left roots (D1)."""
    settled = entry.settled
    left = settled is not None and settled.sequence == entry.control.dirty_sequence
    return entry.control.dirty_sequence if left else None


_NO_SPAN: Final = nullcontext()
"""Placeholder for a span while tracing is off; it may be entered any number of times."""


class RequestSpans:
    """The spans of the requests being handled, by the requests' stream sequences."""

    def __init__(self, change_set: ChangeSet) -> None:
        self._change_set = change_set
        self._open: dict[int, Span] = {}
        self.on = trace_context.is_on()
        """Whether tracing is on. It is read once a run, since reading it costs more than all else
        here."""

    def begin(
        self, request: Delivery, id_of: Callable[[Delivery], RequestId]
    ) -> AbstractContextManager[Any]:
        """Begin the request's span, in the trace that its headers name; enter it as `use` does.

        `id_of` is asked for the request's id only while tracing is on.
        """
        sequence = request.stream_sequence
        if self.on:
            self._open[sequence] = trace_context.start_span(
                "rebaser handle",
                self._change_set,
                "CONSUMER",
                parent=trace_context.context_of(request.headers),
                request=str(id_of(request)),
                sequence=sequence,
            )
        return self.use(sequence)

    def use(self, sequence: int) -> AbstractContextManager[Any]:
        """Make the logs and messages of the body part of the request's span."""
        span = self._open.get(sequence)
        if span is None:
            return _NO_SPAN
        return trace.use_span(span, set_status_on_exception=False)

    def context(self, sequence: int) -> SpanContext | None:
        """Return the context of the request's span, for work that follows from the request."""
        span = self._open.get(sequence)
        return span.get_span_context() if span is not None else None

    def commit_spans(self, entries: Iterable[CommitV2]) -> AbstractContextManager[None]:
        return self._timed_commit(entries) if self._open else _NO_SPAN

    @contextmanager
    def _timed_commit(self, entries: Iterable[CommitV2]) -> Iterator[None]:
        start = time.time_ns()
        yield
        for entry in entries:
            span = self._open.get(entry.settled.sequence) if entry.settled else None
            if span is not None:
                parent, name = trace_context.child_context(span), "rebaser commit"
                trace_context.start_span(name, self._change_set, parent=parent, since=start).end()

    def result_span(self) -> AbstractContextManager[Any]:
        """Open a span for the commit of an update's result, in the current span."""
        return trace_context.span("rebaser commit", self._change_set) if self.on else _NO_SPAN

    def reply_span(self, sequence: int) -> AbstractContextManager[Any]:
        """Open a span for the reply to the caller."""
        if sequence not in self._open:
            return _NO_SPAN
        return trace_context.span("rebaser reply", self._change_set, "PRODUCER")

    def end(self, sequence: int, **attributes: Any) -> None:
        span = self._open.pop(sequence, None)
        if span is not None:
            span.set_attributes({f"rebaser.{name}": value for name, value in attributes.items()})
            span.end()

    def abandon(self, reason: str) -> None:
        """End all open spans: their requests were not settled this time."""
        while self._open:
            _, span = self._open.popitem()
            span.set_status(Status(StatusCode.ERROR, reason))
            span.end()

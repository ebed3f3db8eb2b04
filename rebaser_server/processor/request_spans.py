"""The spans of a run's requests: handed out, committed, answered. None while tracing is off."""

import time
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

from opentelemetry import trace
from opentelemetry.trace import Span, SpanContext, SpanKind, Status, StatusCode

from rebaser_core import trace_context
from rebaser_core.commits import CommitV1
from rebaser_core.ids import ChangeSet, RequestId
from rebaser_core.jetstream import Delivery


class RequestSpans:
    """Of requests in hand, by their ids."""

    def __init__(self, change_set: ChangeSet) -> None:
        self._change_set = change_set
        self._open: dict[RequestId, Span] = {}
        self.on = trace_context.is_on()
        """Asked once a run: to ask costs more than all the rest where there are no traces."""

    def begin(self, request_id: RequestId, request: Delivery) -> AbstractContextManager[Any]:
        """It is in hand: begin its span, in the trace that its headers name, and see `within`."""
        if self.on:
            self._open[request_id] = trace_context.start_span(
                "rebaser handle",
                self._change_set,
                SpanKind.CONSUMER,
                parent=trace_context.context_of(request.headers),
                request=str(request_id),
                sequence=request.stream_sequence,
            )
        return self.use(request_id)

    def use(self, request_id: RequestId) -> AbstractContextManager[Any]:
        """What the body logs and what it sends belongs to the request."""
        span = self._open.get(request_id)
        if span is None:
            return nullcontext()
        return trace.use_span(span, set_status_on_exception=False)

    def context(self, request_id: RequestId) -> SpanContext | None:
        """What follows from the request belongs there."""
        span = self._open.get(request_id)
        return span.get_span_context() if span is not None else None

    def commit_spans(self, entries: Iterable[CommitV1]) -> AbstractContextManager[None]:
        """The body commits the lines: a span in each of their requests'."""
        return self._timed_commit(entries) if self._open else nullcontext()

    @contextmanager
    def _timed_commit(self, entries: Iterable[CommitV1]) -> Iterator[None]:
        start = time.time_ns()
        yield
        for entry in entries:
            span = self._open.get(entry.handled.id) if entry.handled else None
            if span is not None:
                parent, name = trace_context.child_context(span), "rebaser commit"
                trace_context.start_span(name, self._change_set, parent=parent, since=start).end()

    def result_span(self) -> AbstractContextManager[Any]:
        """The body commits an update's result: a span in the update's, which is the current one."""
        return trace_context.span("rebaser commit", self._change_set) if self.on else nullcontext()

    def reply_span(self, request_id: RequestId) -> AbstractContextManager[Any]:
        """The body answers the caller."""
        if request_id not in self._open:
            return nullcontext()
        return trace_context.span("rebaser reply", self._change_set, SpanKind.PRODUCER)

    def end(self, request_id: RequestId, **attributes: Any) -> None:
        """It is out of hand; `attributes` say how."""
        span = self._open.pop(request_id, None)
        if span is not None:
            span.set_attributes({f"rebaser.{name}": value for name, value in attributes.items()})
            span.end()

    def abandon(self, reason: str) -> None:
        """What is still in hand came to nothing this time."""
        while self._open:
            _, span = self._open.popitem()
            span.set_status(Status(StatusCode.ERROR, reason))
            span.end()

"""One trace from a client to its reply, by OpenTelemetry; nothing happens unless it is set up.

Contexts travel in the headers of W3C Trace Context, `traceparent` and `tracestate`.
"""

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Final

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace import Link, Span, SpanContext, SpanKind
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from rebaser_core.ids import ChangeSet

MAX_LINKS: Final = 32
"""Of one span, to others that it has to do with."""

_TRACER: Final = trace.get_tracer("rebaser")
_W3C: Final = TraceContextTextMapPropagator()


def is_on() -> bool:
    """Whether this process has a provider of traces."""
    return not isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider)


def span(
    name: str,
    change_set: ChangeSet,
    kind: SpanKind = SpanKind.INTERNAL,
    *,
    parent: Context | None = None,
    links: Sequence[SpanContext] = (),
    **attributes: Any,
) -> AbstractContextManager[Span | None]:
    """A span around the body; a child of `parent`, or of the current one if there is none."""
    if not is_on():
        return nullcontext()
    return _TRACER.start_as_current_span(
        name,
        parent,
        kind,
        _attributes(change_set, attributes),
        [Link(each) for each in links[:MAX_LINKS]],
    )


def start_span(
    name: str,
    change_set: ChangeSet,
    kind: SpanKind = SpanKind.INTERNAL,
    *,
    parent: Context,
    since: int | None = None,
    **attributes: Any,
) -> Span:
    """A span that the caller ends, current nowhere; `since` is in nanoseconds of the epoch."""
    described = _attributes(change_set, attributes)
    return _TRACER.start_span(name, parent, kind, described, start_time=since)


def child_context(parent: Span | SpanContext) -> Context:
    """A context whose spans are children of that one."""
    if isinstance(parent, SpanContext):
        parent = trace.NonRecordingSpan(parent)
    return trace.set_span_in_context(parent, Context())


def context_of(headers: Mapping[str, str]) -> Context:
    """What the headers of a message say it belongs to; whatever their case: clients differ."""
    return _W3C.extract({name.lower(): value for name, value in headers.items()}, Context())


def span_context_in(headers: Mapping[str, str]) -> SpanContext | None:
    """The span that the headers of a message say it belongs to, if any."""
    named = trace.get_current_span(context_of(headers)).get_span_context()
    return named if named.is_valid else None


def inject(headers: Mapping[str, str]) -> Mapping[str, str]:
    """The headers, with those that say which span is current, if one is."""
    if not is_on():
        return headers
    carrier = dict(headers)
    _W3C.inject(carrier)
    return carrier


def trace_headers(span: SpanContext) -> dict[str, str]:
    """Headers that say that a message belongs to that span."""
    carrier: dict[str, str] = {}
    _W3C.inject(carrier, child_context(span))
    return carrier


def current_ids() -> dict[str, str]:
    """The current span in hexadecimal digits, by OpenTelemetry's names; empty without one."""
    span = trace.get_current_span().get_span_context()
    if not span.is_valid:
        return {}
    return {"trace_id": f"{span.trace_id:032x}", "span_id": f"{span.span_id:016x}"}


def _attributes(change_set: ChangeSet, more: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "messaging.system": "nats",
        "rebaser.workspace": str(change_set.workspace_id),
        "rebaser.change_set": str(change_set.change_set_id),
        **{f"rebaser.{name}": value for name, value in more.items()},
    }

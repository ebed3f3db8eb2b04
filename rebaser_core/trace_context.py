"""Traces from a client to its reply, by OpenTelemetry; nothing happens unless it is set up.

Contexts travel in the headers of W3C Trace Context, `traceparent` and `tracestate`. Functions
import OpenTelemetry when they need it: it is slow to import, and few processes that call them have
it on.
"""

import os
import sys
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from typing import TYPE_CHECKING, Any, Final, Literal

from rebaser_core.ids import ChangeSet

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.trace import Span, SpanContext, Tracer
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

MAX_LINKS: Final = 32
"""Maximum number of links from one span to others."""

Kind = Literal["INTERNAL", "PRODUCER", "CONSUMER"]
"""The name of a `SpanKind`."""

_API: Final = "opentelemetry.trace"
"""Module that a process imports before it has a provider, unless a variable names the provider."""
_NAMES_PROVIDER: Final = "OTEL_PYTHON_TRACER_PROVIDER" in os.environ


def is_on() -> bool:
    """Whether this process has a provider of traces."""
    trace: Any = sys.modules.get(_API)  # a third of the time that an import statement takes
    if trace is None:
        if not _NAMES_PROVIDER:
            return False
        from opentelemetry import trace

    return not isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider)


def span(
    name: str,
    change_set: ChangeSet,
    kind: Kind = "INTERNAL",
    *,
    parent: "Context | None" = None,
    links: "Sequence[SpanContext]" = (),
    **attributes: Any,
) -> "AbstractContextManager[Span | None]":
    """Run the body in a span; a child of `parent`, or of the current one if there is none."""
    if not is_on():
        return nullcontext()
    from opentelemetry.trace import Link, SpanKind

    return _tracer().start_as_current_span(
        name,
        parent,
        SpanKind[kind],
        _attributes(change_set, attributes),
        [Link(each) for each in links[:MAX_LINKS]],
    )


def start_span(
    name: str,
    change_set: ChangeSet,
    kind: Kind = "INTERNAL",
    *,
    parent: "Context",
    since: int | None = None,
    **attributes: Any,
) -> "Span":
    """Return a span that the caller ends, current nowhere; `since` is nanoseconds since 1970."""
    from opentelemetry.trace import SpanKind

    described = _attributes(change_set, attributes)
    return _tracer().start_span(name, parent, SpanKind[kind], described, start_time=since)


def child_context(parent: "Span | SpanContext") -> "Context":
    """Return a context whose spans are children of `parent`."""
    from opentelemetry import trace
    from opentelemetry.context import Context

    if isinstance(parent, trace.SpanContext):
        parent = trace.NonRecordingSpan(parent)
    return trace.set_span_in_context(parent, Context())


def context_of(headers: Mapping[str, str]) -> "Context":
    """Return the trace context in a message's headers, whose case differs between clients."""
    from opentelemetry.context import Context

    return _propagator().extract(
        {name.lower(): value for name, value in headers.items()}, Context()
    )


def span_context_in(headers: Mapping[str, str]) -> "SpanContext | None":
    """Return the span in a message's headers, if any."""
    from opentelemetry import trace

    named = trace.get_current_span(context_of(headers)).get_span_context()
    return named if named.is_valid else None


def continued(headers: Mapping[str, str]) -> "AbstractContextManager[Any]":
    """Make the spans of the body children of the one in the headers, if they name one."""
    if not headers or not is_on():
        return nullcontext()
    from opentelemetry import trace

    return trace.use_span(trace.get_current_span(context_of(headers)))


def inject(headers: Mapping[str, str]) -> Mapping[str, str]:
    """Return the headers, with those that name the current span, if there is one."""
    if not is_on():
        return headers
    carrier = dict(headers)
    _propagator().inject(carrier)
    return carrier


def trace_headers(span: "SpanContext") -> dict[str, str]:
    """Return headers that put a message into that span."""
    carrier: dict[str, str] = {}
    _propagator().inject(carrier, child_context(span))
    return carrier


def current_ids() -> dict[str, str]:
    """Return the current span in hexadecimal digits, under OpenTelemetry's names, if any."""
    if _API not in sys.modules:
        return {}
    from opentelemetry import trace

    span = trace.get_current_span().get_span_context()
    if not span.is_valid:
        return {}
    return {"trace_id": f"{span.trace_id:032x}", "span_id": f"{span.span_id:016x}"}


@cache
def _tracer() -> "Tracer":
    from opentelemetry import trace

    return trace.get_tracer("rebaser")


@cache
def _propagator() -> "TraceContextTextMapPropagator":
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    return TraceContextTextMapPropagator()


def _attributes(change_set: ChangeSet, more: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "messaging.system": "nats",
        "rebaser.workspace": str(change_set.workspace_id),
        "rebaser.change_set": str(change_set.change_set_id),
        **{f"rebaser.{name}": value for name, value in more.items()},
    }

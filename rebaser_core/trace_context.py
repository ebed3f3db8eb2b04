"""One trace from a client to its reply, by OpenTelemetry; nothing happens unless it is set up.

Contexts travel in the headers of W3C Trace Context, `traceparent` and `tracestate`. OpenTelemetry
is imported by what needs it: it is slow to import, and on in few of the processes that ask.
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
"""Of one span, to others that it has to do with."""

Kind = Literal["INTERNAL", "PRODUCER", "CONSUMER"]
"""The name of a `SpanKind`."""

_API: Final = "opentelemetry.trace"
"""What a process imports before it has a provider, unless a variable names the provider."""
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
    """A span around the body; a child of `parent`, or of the current one if there is none."""
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
    """A span that the caller ends, current nowhere; `since` is in nanoseconds of the epoch."""
    from opentelemetry.trace import SpanKind

    described = _attributes(change_set, attributes)
    return _tracer().start_span(name, parent, SpanKind[kind], described, start_time=since)


def child_context(parent: "Span | SpanContext") -> "Context":
    """A context whose spans are children of that one."""
    from opentelemetry import trace
    from opentelemetry.context import Context

    if isinstance(parent, trace.SpanContext):
        parent = trace.NonRecordingSpan(parent)
    return trace.set_span_in_context(parent, Context())


def context_of(headers: Mapping[str, str]) -> "Context":
    """What the headers of a message say it belongs to; whatever their case: clients differ."""
    from opentelemetry.context import Context

    return _propagator().extract(
        {name.lower(): value for name, value in headers.items()}, Context()
    )


def span_context_in(headers: Mapping[str, str]) -> "SpanContext | None":
    """The span that the headers of a message say it belongs to, if any."""
    from opentelemetry import trace

    named = trace.get_current_span(context_of(headers)).get_span_context()
    return named if named.is_valid else None


def inject(headers: Mapping[str, str]) -> Mapping[str, str]:
    """The headers, with those that say which span is current, if one is."""
    if not is_on():
        return headers
    carrier = dict(headers)
    _propagator().inject(carrier)
    return carrier


def trace_headers(span: "SpanContext") -> dict[str, str]:
    """Headers that say that a message belongs to that span."""
    carrier: dict[str, str] = {}
    _propagator().inject(carrier, child_context(span))
    return carrier


def current_ids() -> dict[str, str]:
    """The current span in hexadecimal digits, by OpenTelemetry's names; empty without one."""
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

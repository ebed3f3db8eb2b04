"""Export of traces: over OTLP, by OpenTelemetry's own `OTEL_*` variables; by default none."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from threading import Thread
from typing import TYPE_CHECKING, Final

from opentelemetry import trace

from rebaser_server.terminal import lines

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider

_SERVICE: Final = "rebaser"
"""`service.name`, unless `OTEL_SERVICE_NAME` or `OTEL_RESOURCE_ATTRIBUTES` say another."""
_PROTOCOL: Final = "http/protobuf"
_FLUSH_TIMEOUT: Final = 3.0  # seconds for spans that are not sent yet when a process ends

_ENDPOINTS: Final = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
_PROTOCOLS: Final = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")


def is_enabled(environment: Mapping[str, str]) -> bool:
    """Whether the variables ask to send traces: they name an exporter or an endpoint."""
    if environment.get("OTEL_SDK_DISABLED", "").lower() == "true":
        return False
    exporter = environment.get("OTEL_TRACES_EXPORTER")
    return exporter == "otlp" or (not exporter and any(map(environment.get, _ENDPOINTS)))


@contextmanager
def exported(environment: Mapping[str, str], instance: str) -> Iterator[None]:
    """Send the spans of the body where `environment`, which is the process's, says.

    A collector that does not answer costs spans and never the work: they wait in a queue of bounded
    length, and a background thread sends them.
    """
    provider = _provider(environment, instance) if is_enabled(environment) else None
    if provider is None:
        yield
        return
    trace.set_tracer_provider(provider)
    try:
        yield
    finally:
        ending = Thread(target=provider.shutdown, daemon=True)
        ending.start()
        ending.join(_FLUSH_TIMEOUT)


def _provider(environment: Mapping[str, str], instance: str) -> "TracerProvider | None":
    protocol = next(filter(None, map(environment.get, _PROTOCOLS)), _PROTOCOL)
    if protocol != _PROTOCOL:
        lines.complain(f"rebaser: no traces: OTLP by {protocol}; there is {_PROTOCOL}")
        return None
    try:
        from opentelemetry.exporter.otlp.proto.http import trace_exporter
        from opentelemetry.sdk.resources import OTELResourceDetector, Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError:
        lines.complain("rebaser: no traces: pip install 'rebaser[tracing]'")
        return None
    own = Resource.create({"service.name": _SERVICE, "service.instance.id": instance})
    # Ends by hand: at exit it would wait for half a minute for a collector that is away.
    provider = TracerProvider(
        resource=own.merge(OTELResourceDetector().detect()), shutdown_on_exit=False
    )
    provider.add_span_processor(BatchSpanProcessor(trace_exporter.OTLPSpanExporter()))
    return provider

"""When traces are sent, what log lines say of them, and what an update owes to whom."""

import json
from collections.abc import Iterator

import pytest
import structlog
from opentelemetry import trace

from rebaser_core.tracing import MOST_LINKS, context_of, injected, is_on
from rebaser_server import logs
from rebaser_server.line.owed import Owed
from rebaser_server.tracing import exported, is_wanted

ENDPOINT = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://collector:4318"}


@pytest.mark.parametrize(
    ("environment", "wanted"),
    [
        ({}, False),
        ({"OTEL_SERVICE_NAME": "prices", "OTEL_TRACES_SAMPLER": "always_on"}, False),
        (ENDPOINT, True),
        ({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://collector:4318/v1/traces"}, True),
        ({"OTEL_TRACES_EXPORTER": "otlp"}, True),
        (ENDPOINT | {"OTEL_TRACES_EXPORTER": ""}, True),
        (ENDPOINT | {"OTEL_TRACES_EXPORTER": "none"}, False),
        (ENDPOINT | {"OTEL_SDK_DISABLED": "true"}, False),
    ],
    ids=lambda each: " ".join(each) if isinstance(each, dict) else "",
)
def test_traces_are_sent_only_where_the_variables_say_so(
    environment: dict[str, str], wanted: bool
) -> None:
    assert is_wanted(environment) is wanted


def test_a_protocol_that_is_not_there_is_told_of_and_the_work_goes_on(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with exported(ENDPOINT | {"OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}, "one"):
        assert not is_on()

    assert "grpc" in capsys.readouterr().err


def test_what_is_not_traced_gets_no_header() -> None:
    headers = {"Nats-Msg-Id": "1"}

    assert injected(headers) is headers


@pytest.mark.parametrize("garbage", ["", "00-0-0-01", "ff" * 40, "00-é"])
def test_a_header_that_makes_no_sense_begins_no_trace(garbage: str) -> None:
    assert not context_of({"traceparent": garbage})


def test_an_update_that_came_to_nothing_leaves_its_debt_to_the_next() -> None:
    owed = Owed()
    owed.add(None)
    first = owed.take()
    owed.add(None)
    second = owed.since

    owed.put_back(first)

    assert owed.since == first.since
    assert second is not None
    assert first.since is not None
    assert first.since <= second


def test_traces_kept_are_bounded() -> None:
    owed = Owed()
    [context] = context_of({"traceparent": f"00-{1:032x}-{2:016x}-01"}).values()
    for _ in range(10 * MOST_LINKS):
        owed.add(context.get_span_context())

    assert len(owed.traces) == MOST_LINKS + 1


@pytest.fixture
def _as_it_was() -> Iterator[None]:
    before = structlog.get_config()
    yield
    structlog.contextvars.clear_contextvars()
    structlog.configure(**before)


@pytest.mark.usefixtures("_as_it_was")
def test_a_log_line_says_which_span_it_belongs_to(capsys: pytest.CaptureFixture[str]) -> None:
    logs.configure("one", "json")
    parent = {"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}
    span = trace.get_current_span(context_of(parent))
    with trace.use_span(span):
        structlog.get_logger().info("inside")
    structlog.get_logger().info("outside")

    inside, outside = map(json.loads, capsys.readouterr().err.splitlines())
    assert inside["trace_id"] == "0af7651916cd43dd8448eb211c80319c"
    assert inside["span_id"] == "b7ad6b7169203331"
    assert not {"trace_id", "span_id"} & {*outside}

"""When traces are sent, what log lines say of them, and what an update owes to whom."""

import json
from collections.abc import Iterator

import pytest
import structlog
from opentelemetry import trace
from opentelemetry.trace import SpanContext

from rebaser_core.commits import CommitV2, ControlState, DvuClaim, RequestOutcome, SettledRequest
from rebaser_core.ids import RequestId
from rebaser_core.trace_context import MAX_LINKS, context_of, inject, is_on, span_context_in
from rebaser_server.processor.request_traces import PendingDvu
from rebaser_server.telemetry import logs
from rebaser_server.telemetry.tracing import exported, is_enabled
from tests.helpers.deployment import new_change_sets

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
    assert is_enabled(environment) is wanted


def test_a_missing_protocol_is_logged_and_the_work_goes_on(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with exported(ENDPOINT | {"OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}, "one"):
        assert not is_on()

    assert "grpc" in capsys.readouterr().err


def test_messages_outside_a_trace_get_no_header() -> None:
    headers = {"Nats-Msg-Id": "1"}

    assert inject(headers) is headers


@pytest.mark.parametrize("garbage", ["", "00-0-0-01", "ff" * 40, "00-é"])
def test_a_header_that_makes_no_sense_begins_no_trace(garbage: str) -> None:
    assert not context_of({"traceparent": garbage})


def line(sequence: int, dirty: int, clean: int = 0, claim: DvuClaim | None = None) -> CommitV2:
    settled = SettledRequest(
        id=RequestId.from_int(sequence), sequence=sequence, outcome=RequestOutcome.APPLIED
    )
    head = ControlState(dirty_sequence=dirty, clean_sequence=clean, claim=claim)
    return CommitV2(id=RequestId(), previous=0, control=head, settled=settled)


def span_of(request: RequestId) -> SpanContext | None:
    return span_context_in({"traceparent": f"00-{int(request):032x}-{1:016x}-01"})


def carried_out(owed: PendingDvu, *, paid: bool) -> PendingDvu:
    [change_set] = new_change_sets(1)
    with owed.span(change_set, RequestId(), 1) as taken:
        if paid:
            taken.covered()
    return taken


def test_an_update_that_came_to_nothing_leaves_its_debt_to_the_next() -> None:
    owed = PendingDvu()
    owed.record(line(1, dirty=1), span_of)
    since = owed.since

    carried_out(owed, paid=False)
    owed.record(line(2, dirty=2), span_of)

    assert owed.since == since is not None
    assert [trace.trace_id for trace in owed.traces] == [1, 2]


def test_a_request_that_left_nothing_to_recompute_is_owed_nothing() -> None:
    """However long ago that was when one comes that does: the update's time is counted from it."""
    owed = PendingDvu()
    owed.record(line(1, dirty=1), span_of)
    [change_set] = new_change_sets(1)

    with owed.span(change_set, RequestId(), 1) as taken:
        owed.record(line(2, dirty=1), span_of)
        taken.covered()

    assert owed.since is None
    assert owed.traces == []


def test_a_line_names_the_trace_of_the_update_that_is_due_behind_it() -> None:
    claim = DvuClaim(id=RequestId(), covers=1)
    owed = PendingDvu()

    def marked(*lines: CommitV2) -> list[int]:
        marks = owed.headers(lines, span_of)
        for each in lines:
            owed.record(each, span_of)
        named = (span_context_in(marks.get(each.id, {})) for each in lines)
        return [span.trace_id if span else 0 for span in named]

    assert marked(line(1, dirty=0), line(2, dirty=2), line(3, dirty=3)) == [0, 2, 2]
    [change_set] = new_change_sets(1)
    with owed.span(change_set, RequestId(), 1) as taken:
        assert marked(line(4, dirty=4, claim=claim)) == [2]
        assert marked(line(5, dirty=4, clean=3)) == [4], "the result: what is still due came later"
        taken.covered()
    assert marked(line(6, dirty=4, clean=3)) == [4]
    assert marked(line(7, dirty=4, clean=4)) == [0]


def test_traces_kept_are_bounded() -> None:
    owed = PendingDvu()
    for sequence in range(1, 10 * MAX_LINKS):
        owed.record(line(sequence, dirty=sequence), span_of)

    assert len(owed.traces) == MAX_LINKS + 1


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

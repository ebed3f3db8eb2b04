"""One trace, from a client's enqueue to its reply and to the values that follow from it."""

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from rebaser_core.ids import ChangeSet
from rebaser_core.requests import ensure_task
from rebaser_core.subjects import TASKS_CONSUMER
from tests.helpers.batches import Batch, ExampleGraph, new_id, put
from tests.helpers.crash_points import AFTER_COMMIT, BEFORE_COMMIT, BEFORE_RESULT, doomed
from tests.helpers.deployment import Deployment, new_change_sets
from tests.helpers.eventually import eventually
from tests.helpers.paths import ROOT

OTEL = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_TRACES_EXPORTER", "OTEL_SDK_DISABLED")


class Collector:
    """Takes OTLP over HTTP, as a collector does."""

    def __init__(self) -> None:
        self.spans: list[dict[str, Any]] = []
        self.url = ""

    async def take(self, request: web.Request) -> web.Response:
        message = ExportTraceServiceRequest.FromString(await request.read())
        for resource in message.resource_spans:
            told = {each.key: each.value.string_value for each in resource.resource.attributes}
            for scope in resource.scope_spans:
                self.spans += [
                    {
                        "name": span.name, "trace": span.trace_id.hex(), "id": span.span_id.hex(),
                        "parent": span.parent_span_id.hex(),
                        "links": [link.trace_id.hex() for link in span.links],
                        "lasted": span.end_time_unix_nano - span.start_time_unix_nano,
                        "service": told["service.name"],
                        "instance": told["service.instance.id"],
                        "told": {a.key: a.value.string_value for a in span.attributes},
                    }
                    for span in scope.spans
                ]  # fmt: skip
        return web.Response()

    def named(self, name: str) -> list[dict[str, Any]]:
        return [span for span in self.spans if span["name"] == name]

    def by(self, instance: str) -> list[str]:
        """What it did, by the names of its spans."""
        mine = [span["name"] for span in self.spans if span["instance"] == instance]
        return sorted(name.removeprefix("rebaser ") for name in mine)


@pytest.fixture
async def collector(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Collector]:
    """What every process that is started is told of by OpenTelemetry's own variables."""
    collector = Collector()
    app = web.Application()
    app.router.add_post("/v1/traces", collector.take)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    collector.url = "http://{}:{}".format(*runner.addresses[0])
    for name in OTEL:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.url)
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "100")
    yield collector
    await runner.cleanup()


async def enqueue(deployment: Deployment, change_set: ChangeSet, file: Path) -> str:
    """By the command line: another process, which traces by the same variables."""
    process = await asyncio.create_subprocess_exec(
        Path(sys.executable).parent / "rebaser", "enqueue", *map(str, change_set), file,
        "--wait", "--unregistered",
        env=os.environ | {"REBASER_NATS__URL": deployment.nats.url},
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    out, err = await process.communicate()
    assert process.returncode == 0, err.decode()
    return out.decode()


async def ask(
    deployment: Deployment,
    change_set: ChangeSet,
    batch: Batch,
    trace: str,
    header: str = "traceparent",
) -> None:
    """As a client in another language does that is part of a trace."""
    request, js, streams = new_id(), deployment.js, deployment.streams
    body = {
        "id": request,
        "workspaceId": str(change_set.workspace_id),
        "changeSetId": str(change_set.change_set_id),
        "updatesAddress": {"inline": {"updates": batch}},
    }
    headers = {
        "X-CONTENT-TYPE": "application/json",
        "X-MESSAGE-TYPE": "EnqueueUpdatesRequest",
        "X-MESSAGE-VERSION": "1",
        "X-Reply-Inbox": "_INBOX.nobody",
        header: f"00-{trace}-{7:016x}-01",
    }
    payload = json.dumps({"v1": body}).encode()
    await js.publish(streams.requests(change_set), payload, headers=headers, message_id=request)
    await ensure_task(streams, change_set)


async def test_one_trace_spans_enqueue_handle_commit_update_and_reply(
    deployment: Deployment, collector: Collector, tmp_path: Path
) -> None:
    [change_set], file = new_change_sets(1), tmp_path / "batch.json"
    file.write_text(json.dumps(ExampleGraph().define()))
    await deployment.start_with_lease()

    await enqueue(deployment, change_set, file)

    await eventually(lambda: len(collector.spans) >= 7)  # each process sends those that ended
    spans = {span["id"]: span for span in collector.spans}

    def path(span: dict[str, Any]) -> list[str]:
        above = spans.get(span["parent"])
        return [*(path(above) if above else []), span["name"].removeprefix("rebaser ")]

    assert len({span["trace"] for span in collector.spans}) == 1
    assert {span["service"] for span in collector.spans} == {"rebaser"}
    assert sorted(map(path, collector.spans)) == [
        ["enqueue"],
        ["enqueue", "handle"],
        ["enqueue", "handle", "commit"],
        ["enqueue", "handle", "dvu"],
        ["enqueue", "handle", "dvu", "commit"],
        ["enqueue", "handle", "reply"],
        ["enqueue", "handle", "reply", "reply received"],
    ]
    assert all(span["lasted"] >= 0 for span in collector.spans)
    ids = {span["told"]["rebaser.change_set"] for span in collector.spans}
    assert ids == {str(change_set.change_set_id)}
    outcomes = {span["told"]["rebaser.outcome"] for span in collector.named("rebaser handle")}
    assert outcomes == {"applied"}


async def test_an_update_for_several_requests_is_linked_to_all_of_them(
    deployment: Deployment, collector: Collector
) -> None:
    """Traced by their callers, whose headers may have any case: clients of other languages do."""
    [change_set], values = new_change_sets(1), ExampleGraph()
    traces = [f"{number:032x}" for number in (1, 2, 3)]
    headers = ("traceparent", "Traceparent", "TRACEPARENT")
    for net, (trace, header) in enumerate(zip(traces, headers, strict=True)):
        await ask(deployment, change_set, values.define(net), trace, header)
    await deployment.start()

    def all_linked() -> bool:
        found = [{span["trace"], *span["links"]} for span in collector.named("rebaser dvu")]
        return bool(found) and set().union(*found) == set(traces)

    await eventually(all_linked, within=60)
    assert {span["trace"] for span in collector.named("rebaser commit")} == set(traces)


UPDATE = ("dvu", "commit")


@pytest.mark.parametrize(
    ("step", "successor"),
    [
        (BEFORE_COMMIT, ("handle", "commit", "reply", *UPDATE)),
        pytest.param(AFTER_COMMIT, ("handle", "reply", *UPDATE), marks=pytest.mark.long),
        pytest.param(BEFORE_RESULT, UPDATE, marks=pytest.mark.long),
    ],
    ids=lambda each: each if isinstance(each, str) else "",
)
async def test_a_takeover_continues_the_trace_of_the_request(
    deployment: Deployment, collector: Collector, step: str, successor: tuple[str, ...]
) -> None:
    """Killed at that step, the first one left nothing but what is stored.

    An update does not wait for the reply: where the first one did not come to it, another does.
    """
    [change_set], trace = new_change_sets(1), f"{5:032x}"
    first = await deployment.start("doomed", doomed(step))
    await ask(deployment, change_set, ExampleGraph().define(), trace)
    assert await first.ended() == -signal.SIGKILL

    await deployment.start("successor")

    done = (sorted(successor), sorted({*successor, "handle", "reply"}))
    await eventually(lambda: collector.by("successor") in done, within=60)
    assert {span["trace"] for span in collector.spans} == {trace}


async def test_a_log_line_of_a_request_leads_to_its_trace_and_back(
    deployment: Deployment, collector: Collector
) -> None:
    [change_set], trace = new_change_sets(1), f"{6:032x}"
    daemon = await deployment.start()

    await ask(deployment, change_set, [{"nonsense": {}}], trace)

    await eventually(lambda: bool(collector.named("rebaser handle")), within=60)
    [line], [span] = daemon.said("request dead-lettered"), collector.named("rebaser handle")
    assert (line["trace_id"], line["span_id"]) == (trace, span["id"])
    assert (line["request"], line["instance"]) == (
        span["told"]["rebaser.request"],
        span["instance"],
    )
    assert not [other for other in daemon.said("taken") if "trace_id" in other]


ROOMS = """
import asyncio
from opentelemetry import trace
from rebaser_client import connect
from rebaser_server import Context, Service

rooms = Service("rooms")
TRACER = trace.get_tracer("app")

@rooms.handler
async def tell(ctx: Context[None], to: str) -> None:
    with TRACER.start_as_current_span("own work"):
        await asyncio.sleep(0.1)
    ctx.to(to).send("hear")

@rooms.handler
async def hear(ctx: Context[None]) -> None:
    pass

async def tell_from(client, sender: str, to: str) -> None:
    with TRACER.start_as_current_span("caller"):
        await client.service(rooms).key(sender).call("tell", to)

async def main(url: str) -> None:
    calls = [(key, f"{key} {number}") for key in ("a", "b", "c", "d") for number in range(2)]
    async with connect(url) as client:
        await asyncio.gather(*(tell_from(client, *each) for each in calls))
"""
CALLER = """
import asyncio, os, sys
from rebaser_server.telemetry.tracing import exported
with exported(os.environ, "caller"):
    import rooms
    asyncio.run(rooms.main(sys.argv[1]))
"""


async def test_a_call_that_a_handler_sends_is_in_the_trace_of_the_call_that_sent_it(
    deployment: Deployment, collector: Collector, tmp_path: Path
) -> None:
    """Two calls of one key, whose sends leave together; and others beside them on one loop."""
    (tmp_path / "rooms.py").write_text(ROOMS)
    environment = os.environ | {
        "PYTHONPATH": str(ROOT),
        "REBASER_NATS__URL": deployment.nats.url,
        "REBASER_STORE__ROOT": deployment.settings.store.root,
        "REBASER_ACK_WAIT": "PT1M",
        "REBASER_QUIET_PERIOD": "PT0.3S",
    }
    # Made anew with that lease: a call that is handled again has a span more.
    await deployment.js.delete_consumer(deployment.streams.tasks_stream, TASKS_CONSUMER)

    async def run(*arguments: str) -> asyncio.subprocess.Process:
        return await asyncio.create_subprocess_exec(
            sys.executable, *arguments, env=environment, cwd=tmp_path
        )

    caller = await run("-c", CALLER, deployment.nats.url)
    streams = deployment.streams

    async def all_wait() -> bool:
        info = await streams.js.stream_info(streams.requests_stream)
        return info.state.messages == 8

    await eventually(all_wait)
    worker = await run("-m", "rebaser_server", "serve", "--app", "rooms:rooms")
    try:
        assert await caller.wait() == 0
        await eventually(lambda: len(collector.named("rebaser handle")) == 16)
    finally:
        worker.terminate()
        assert await worker.wait() == 0

    spans = {span["id"]: span for span in collector.spans}

    def path(span: dict[str, Any]) -> list[str]:
        above = spans.get(span["parent"])
        return [*(path(above) if above else []), span["name"].removeprefix("rebaser ")]

    called = ["caller", "enqueue", "handle"]
    heard = [span for span in collector.named("rebaser handle") if path(span) != called]
    assert [path(span) for span in heard] == [[*called, "enqueue", "handle"]] * 8
    assert len({span["trace"] for span in heard}) == 8
    own = collector.named("own work")
    assert [path(span) for span in own] == [[*called, "own work"]] * 8
    assert len({span["trace"] for span in own}) == 8


async def test_without_being_asked_for_nothing_is_traced_and_no_header_sent(
    deployment: Deployment, collector: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OTEL_EXPORTER_OTLP_ENDPOINT")
    [change_set] = new_change_sets(1)
    heard: list[dict[str, str]] = []

    async def hear(message: Any) -> None:
        heard.append(message.headers or {})

    await deployment.nc.subscribe(">", cb=hear)
    await deployment.start()
    _, reply = await deployment.client.enqueue_updates_with_reply(
        *change_set, ExampleGraph().define()
    )
    await reply
    await deployment.at_rest()

    assert any("X-Reply-Inbox" in headers for headers in heard)
    assert not [headers for headers in heard if "traceparent" in headers]
    assert not collector.spans


async def test_a_collector_that_is_gone_costs_spans_and_no_work(
    deployment: Deployment, collector: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9")
    [change_set] = new_change_sets(1)
    daemon = await deployment.start()
    for value in range(5):
        batch = [put(new_id(), value)]
        _, reply = await deployment.client.enqueue_updates_with_reply(*change_set, batch)
        await reply

    daemon.send(signal.SIGTERM)

    assert await daemon.ended() == 0

"""Requests to a daemon's endpoint that no browser sends: they are refused, and are no faults."""

import asyncio
import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import rebaser_server.ops
from rebaser_core.ids import ChangeSet
from rebaser_server.ops.actions import ACTIONS
from rebaser_server.ops.value_actions import VALUE_ACTIONS
from tests.helpers.batches import ExampleGraph
from tests.helpers.deployment import Daemon, Deployment, new_change_sets
from tests.integration.test_ops_endpoint import started, url_of

READINGS = (
    *("values", "value", "why", "log", "commit", "difference"),
    *("about", "effects.csv", "discussion"),
)
PATHS = (
    *("/healthz", "/readyz", "/metrics", "/config", "/status", "/identity"),
    *(f"/change-set/{reading}" for reading in READINGS),
    *("/dead-letters", "/change-sets", "/services", "/services/key"),
    *("/", "/page.css", "/shop/head", "/a%ff/b%00"),
    *("/dead-letters/0", "/dead-letters/1", "/dead-letters/999999999999999999"),
)
PARAMETERS = (
    *("workspace", "changeSet", "id", "commit", "search", "status", "family", "order", "at"),
    *("known", "token", "rows", "name", "service", "key"),
)
HOSTILE = (
    *("", "%00", "%ff", "%ed%a0%80", "-1", "0", "9" * 40, "1e9", "1_0", "%D9%A1", "0x1", "NaN"),
    *(
        "%0d%0aX:1",
        "a" * 7000,
        "*a" * 3000,
        "../..",
        "%2f%2f",
        "1;2",
        "'\"<script>",
        "%F0%9F%98%80",
    ),
)
HOSTS = (
    *("[::1", "a b", "%ff", "h:99999999", ":::", "", "[", "h:x", "\xff\xfe", "@", "u:p@h", "h:-1"),
    *("[v1.x]", "a" * 5000, "h/..", "?", "xn--", "\xdf", "."),
)
TARGETS = (
    *("http://[::1/", "http://a b/", "*", "//", "///", "/%", "/%zz", "http://x:99999999/status"),
    *("http:///status", "/status#x", "/status?%", "/..%2f..", "status", "//[::1/", "/:", "//@/"),
)
HEADERS = (
    *("Authorization: Bearer \xff", "Cookie: rebaser-ops-=\xff\x01", "Cookie: =;;;", "Expect: x"),
    *("Content-Type: a/b; charset=nope", "Content-Type: \xff", "Transfer-Encoding: x"),
    *("Content-Length: -1", "Content-Length: x", "Upgrade: websocket", "Sec-Fetch-Site: \xff"),
)
BODIES = (
    *(b"", b"{", b"null", b"[]", b"1", b"\xff", b'"x"', b"[" * 100_000, b'{"a":' * 50_000),
    *(b"9" * 100_000, b'{"workspace":NaN}', b'{"text":"\\ud800"}'),
)
FIELDS = ("workspace", "changeSet", "id", "text", "digest", "commit", "number", "reason")
CONTENTS = (None, "", "\0", -1, 0, 2**63, 10**40, 1.5, True, [], {}, "a" * 100_000, [[[]]])


def requests(change_set: ChangeSet) -> Iterator[tuple[str, str, str, bytes]]:
    """Each as its target, its host, one more header, and a body."""
    ids = {"workspace": str(change_set.workspace_id), "changeSet": str(change_set.change_set_id)}
    yield from (("/status", host, "", b"") for host in HOSTS)
    yield from ((target, "localhost", "", b"") for target in TARGETS)
    yield from (("/identity", "localhost", header, b"") for header in HEADERS)
    asked = "&".join(f"{name}={its}" for name, its in ids.items())
    for path in PATHS:
        for query in [f"{name}={its}" for name in PARAMETERS for its in HOSTILE]:
            yield f"{path}?{query}", "localhost", "", b""
            if path.startswith("/change-set/"):
                yield f"{path}?{asked}&{query}", "localhost", "", b""
    right = {"id": "net", "text": "5", "digest": "x", "commit": 1, "number": 1, "reason": ""}
    for name, action in {**ACTIONS, **VALUE_ACTIONS}.items():
        takes = {field.alias or key for key, field in action.body.model_fields.items()}
        body = {key: its for key, its in (ids | right).items() if key in takes}
        hostile = [body | {field: its} for field in body for its in CONTENTS]
        for each in [*BODIES, *(json.dumps(each).encode() for each in hostile)]:
            yield f"/actions/{name}", "localhost", "Content-Type: application/json", each


async def status(daemon: Daemon, target: str, host: str, header: str, body: bytes) -> int:
    reader, writer = await asyncio.open_connection(*address(daemon))
    lines = [f"{'POST' if '/actions/' in target else 'GET'} {target} HTTP/1.1", f"Host: {host}"]
    lines += ["Connection: close", f"Content-Length: {len(body)}"] if body else []
    head = "\r\n".join([*lines, *([header] if header else []), "", ""])
    writer.write(head.encode("latin-1") + body)
    answer = await asyncio.wait_for(reader.readline(), 60)
    writer.close()
    return int(answer.split()[1])


def address(daemon: Daemon) -> tuple[str, int]:
    host, _, port = url_of(daemon).removeprefix("http://").rstrip("/").rpartition(":")
    return host, int(port)


def test_all_routes_are_tried() -> None:
    """A new path, or a new parameter of one, belongs into the tables above."""
    files = Path(rebaser_server.ops.__file__).parent
    source = "".join(file.read_text() for file in files.glob("*.py"))
    paths = re.findall(r'web\.(?:get|post)\(\s*"(/[^"{]*)"', source)
    readings = re.findall(
        r'^            "([a-z]+)": self\._', (files / "pages.py").read_text(), re.MULTILINE
    )
    parameters = re.findall(r'request\.query\.get\("(\w+)"', source)

    assert paths
    assert {*paths, *(f"/change-set/{reading}" for reading in readings)} - {"/events"} <= {*PATHS}
    assert parameters
    assert {*parameters} <= {*PARAMETERS}


@pytest.mark.parametrize(
    ("variables", "every"),
    [
        pytest.param({}, 7, id="open"),
        pytest.param({"OPS__TOKEN": "hush"}, 7, id="token"),
        pytest.param({}, 1, id="all of them", marks=pytest.mark.long),
    ],
)
async def test_no_request_is_a_fault_of_the_daemon(
    deployment: Deployment, variables: dict[str, str], every: int
) -> None:
    [change_set] = new_change_sets(1)
    daemon = await started(deployment, OPS__LOCAL_ROLE="operator", **variables)
    await deployment.client.change_set(*change_set).enqueue(ExampleGraph().define())
    turns = asyncio.Semaphore(20)

    async def send(target: str, host: str, header: str, body: bytes) -> str | None:
        async with turns:
            code = await status(daemon, target, host, header, body)
        said = f"{code} {target[:100]} {host[:50]!r} {header!r} {body[:100]!r}"
        return said if code >= 500 else None

    sent = [*requests(change_set)][::every]
    found = await asyncio.gather(*(send(*each) for each in sent))

    assert [fault for fault in found if fault] == []
    assert "Traceback" not in daemon.said_in_all()

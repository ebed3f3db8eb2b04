"""What a running daemon shows over HTTP: health, metrics, settings, and its page."""

# ruff: noqa: S310 - loopback

import asyncio
import json
import os
import socket
import ssl
import subprocess
import urllib.error
import urllib.request
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from rebaser_client import builtin
from rebaser_core.requests import ensure_task
from rebaser_server.ops.endpoint import DEFAULT_PORT
from rebaser_server.runtime.ports import free_port
from tests.helpers.batches import ExampleGraph, new_id, set_to
from tests.helpers.deployment import Daemon, Deployment, new_change_sets
from tests.helpers.eventually import eventually


def url_of(daemon: Daemon) -> str:
    return str(daemon.said("ops endpoint started")[0]["url"])


async def get(url: str, *, trust: Path | None = None, **headers: str) -> tuple[int, str]:
    context = ssl.create_default_context(cafile=trust) if trust else None

    def read() -> tuple[int, str]:
        request = urllib.request.Request(url, headers=headers)
        try:
            with urllib.request.urlopen(request, timeout=60, context=context) as response:
                return response.status, response.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode()

    return await asyncio.to_thread(read)


async def headers_of(url: str) -> dict[str, str]:
    def read() -> dict[str, str]:
        with urllib.request.urlopen(url, timeout=60) as response:
            return dict(response.headers)

    return await asyncio.to_thread(read)


async def status_of(daemon: Daemon, rebasers: int = 1) -> dict[str, Any]:
    """Return the status once so many Rebasers are in it: a busy one may be left out."""
    shown: dict[str, Any] = {}

    async def all_are_in_it() -> bool:
        _, body = await get(url_of(daemon) + "status")
        shown.update(json.loads(body))
        return len(shown["rebasers"]) >= rebasers

    await eventually(all_are_in_it)
    return shown


async def started(deployment: Deployment, name: str = "", **variables: str) -> Daemon:
    daemon = await deployment.start(name, OPS__PORT="0", **variables)
    await eventually(lambda: bool(daemon.said("ops endpoint started")))
    return daemon


async def test_change_sets_come_by_their_last_edit(deployment: Deployment) -> None:
    """Checkpoints, computing again, refreshes and takeovers are commits, but no edits."""
    daemon = await started(deployment, QUIET_PERIOD="0.5")
    shop = await deployment.client.workspace("shop").create()
    async with shop.edit() as g:
        g.value("gross", builtin("sum"), g.source("net", 1))
    branch = await shop.fork("sale")
    async with branch.edit() as g:
        g.source("other", 2)
    async with shop.edit() as g:
        g.source("net", 3)
    mill = await deployment.client.workspace("mill").create()
    async with mill.edit() as g:
        g.source("net", 1)
    await deployment.at_rest()

    async def edited() -> dict[str, str]:
        _, body = await get(url_of(daemon) + "change-sets?order=recent")
        return {row["address"]: row["edited"] for row in json.loads(body)["changeSets"]}

    first = await edited()
    await shop.recompute(["gross"])
    await branch.refresh()
    await shop.checkpoint()
    await deployment.at_rest()
    daemon.kill()
    daemon = await started(deployment, "two", QUIET_PERIOD="0.5")
    await shop.recompute(["gross"])
    await deployment.at_rest()

    assert list(first) == ["mill/head", "shop/head", "shop/sale"]
    assert list((await edited()).items()) == list(first.items())
    async with branch.edit() as g:
        g.source("other", 4)

    async def is_first() -> bool:
        return next(iter(await edited())) == "shop/sale"

    await eventually(is_first)


async def test_health_follows_nats(deployment: Deployment) -> None:
    daemon = await started(deployment)

    assert (await get(url_of(daemon) + "healthz"))[0] == 200
    assert (await get(url_of(daemon) + "readyz"))[0] == 200
    deployment.nats.stop()

    async def unready() -> bool:
        return (await get(url_of(daemon) + "readyz"))[0] == 503

    await eventually(unready, within=60)
    assert (await get(url_of(daemon) + "healthz"))[0] == 200, "a restart would not help"
    await asyncio.to_thread(deployment.nats.start)

    async def ready() -> bool:
        return (await get(url_of(daemon) + "readyz"))[0] == 200

    await eventually(ready, within=60)


async def test_a_store_that_takes_no_files_is_not_ready_and_says_which_and_for_whom(
    deployment: Deployment, tmp_path: Path
) -> None:
    """A file stands where the store's directory for it would be, which refuses root as well."""
    store = tmp_path / "other store"
    store.mkdir()
    (store / "unfinished").write_text("")
    daemon = await started(deployment, STORE__ROOT=str(store))

    asked = await asyncio.gather(*(get(url_of(daemon) + "readyz") for _ in range(8)))
    healthy = await get(url_of(daemon) + "healthz")
    (store / "unfinished").unlink()

    for status, said in asked:
        assert status == 503
        assert f"{store} cannot be written by uid {os.getuid()}" in json.loads(said)["store"]
    assert healthy[0] == 200
    assert (await get(url_of(daemon) + "readyz"))[0] == 200
    assert list((store / "unfinished").iterdir()) == [], "what was written to see it is gone"


async def test_a_daemon_waits_for_nats_alive_and_not_ready(
    deployment: Deployment, tmp_path: Path
) -> None:
    """It takes tasks once NATS is there, without a restart; until then it admits as later."""
    port = str(free_port())
    await asyncio.to_thread(deployment.nats.stop)
    starting = asyncio.create_task(deployment.start(OPS__PORT=port, OPS__TOKEN="hush"))
    await eventually(lambda: bool(deployment.daemons))
    daemon = deployment.daemons[-1]
    await eventually(lambda: bool(daemon.said("waiting for nats")))

    async def answer(path: str) -> int:
        try:
            return (await get(f"http://127.0.0.1:{port}/{path}"))[0]
        except urllib.error.URLError:
            return 0

    async def alive() -> bool:
        return await answer("healthz") == 200

    await eventually(alive)
    assert await answer("readyz") == 503
    assert await answer("config") == 401
    assert "Content-Security-Policy" in await headers_of(f"http://127.0.0.1:{port}/healthz")
    await asyncio.to_thread(deployment.nats.start)
    await starting

    assert await answer("readyz") == 200


async def test_a_daemon_that_waits_for_nats_listens_where_probes_ask_or_nowhere(
    deployment: Deployment,
) -> None:
    """Without a port in the settings it takes no free one, which no probe knows of."""
    with socket.socket() as taken:
        with suppress(OSError):  # another test has it, and may give it back meanwhile
            taken.bind(("127.0.0.1", DEFAULT_PORT))
            taken.listen()
        await asyncio.to_thread(deployment.nats.stop)
        starting = asyncio.create_task(deployment.start())
        await eventually(lambda: bool(deployment.daemons))
        daemon = deployment.daemons[-1]
        await eventually(lambda: bool(daemon.said("waiting for nats")))

        listening = await asyncio.to_thread(_ports, daemon.process.pid)
        await asyncio.to_thread(deployment.nats.start)
        await starting

    assert listening <= {DEFAULT_PORT}


def _ports(pid: int) -> set[int]:
    """Address that the process listens at."""
    inodes = {str(path.readlink()) for path in Path(f"/proc/{pid}/fd").iterdir()}
    rows = [line.split() for line in Path(f"/proc/{pid}/net/tcp").read_text().splitlines()[1:]]
    mine = [row for row in rows if row[3] == "0A" and f"socket:[{row[9]}]" in inodes]
    return {int(row[1].rpartition(":")[2], 16) for row in mine}


async def test_what_was_done_is_counted_and_what_is_the_case_looked_up(
    deployment: Deployment,
) -> None:
    [change_set], values = new_change_sets(1), ExampleGraph()
    daemon = await started(deployment)
    _, reply = await deployment.client.enqueue_updates_with_reply(*change_set, values.define())
    await reply
    await deployment.at_rest()
    shown: dict[str, str] = {}

    async def the_run_is_over() -> bool:
        _, body = await get(url_of(daemon) + "metrics")
        shown.update(line.rsplit(" ", 1) for line in body.splitlines() if line[:1] != "#")
        ended = float(shown['rebaser_task_ends_total{how="quiet"}']) >= 1
        return ended and float(shown['rebaser_slots{state="busy"}']) == 0

    await eventually(the_run_is_over)  # a run acknowledges its task before it ends
    assert float(shown['rebaser_requests_total{outcome="applied"}']) == 1
    assert float(shown["rebaser_request_seconds_count"]) == 1
    assert float(shown['rebaser_dvus_total{how="finished"}']) == 1
    assert float(shown["rebaser_commit_to_dvu_seconds_count"]) == 1
    assert float(shown['rebaser_dvu_values_total{what="recomputed"}']) == 1
    assert float(shown['rebaser_checkpoints_total{result="written"}']) >= 1
    assert float(shown["rebaser_lease_renewals_total"]) >= 1
    assert float(shown["rebaser_queue_requests"]) == 0
    assert float(shown["rebaser_nats_up"]) == 1


async def test_each_rebaser_shows_what_all_of_them_hold(deployment: Deployment) -> None:
    change_sets, values = new_change_sets(4), ExampleGraph()
    daemons = [await started(deployment, n, QUIET_PERIOD="30") for n in ("one", "two")]
    for change_set in change_sets:
        _, reply = await deployment.client.enqueue_updates_with_reply(*change_set, values.define())
        await reply

    async def all_held() -> bool:
        shown = await status_of(daemons[0])
        held = [h["changeSet"] for rebaser in shown["rebasers"] for h in rebaser["holdings"]]
        return sorted(held) == sorted(str(c.change_set_id) for c in change_sets)

    await eventually(all_held)

    async def all_counted() -> bool:
        rebasers = (await status_of(daemons[1]))["rebasers"]
        return sum(second["requests"] for r in rebasers for second in r["rates"]) >= 4

    await eventually(all_counted)
    shown = await status_of(daemons[1], rebasers=2)
    assert [r["instance"].partition("/")[0] for r in shown["rebasers"]] == ["one", "two"]
    assert shown["queues"]["tasks_in_hand"] == 4


async def test_values_that_failed_are_counted_by_change_set_until_they_are_right(
    deployment: Deployment,
) -> None:
    """In the list of failures; a later update of the change set takes the place of an earlier."""
    [change_set], graph, quotient = new_change_sets(1), ExampleGraph(), new_id()
    func, other = new_id(), new_id()
    daemon = await started(deployment, QUIET_PERIOD="30")
    quotients = [
        {"putFunc": {"funcId": func, "name": "q", "runtime": "cel", "code": "100 / net"}},
        {"putValue": {"valueId": quotient, "funcId": func, "inputs": {"net": graph.net}}},
        {"putValue": {"valueId": other, "funcId": func, "inputs": {"net": graph.net}}},
    ]
    shown: list[dict[str, Any]] = []

    async def shows(*counts: int) -> bool:
        rebasers = (await status_of(daemon))["rebasers"]
        shown[:] = [row for rebaser in rebasers for row in rebaser["failures"]]
        return [row.get("values") for row in shown] == [*counts]

    await deployment.client.enqueue_updates(*change_set, [*graph.define(0, 1), *quotients])
    await eventually(lambda: shows(2))
    [row] = shown
    more = {"putValue": {"valueId": new_id(), "funcId": func, "inputs": {"net": graph.net}}}
    await deployment.client.enqueue_updates(*change_set, [more, set_to(graph.net, "x")])
    await eventually(lambda: shows(4))  # the sum, too
    await deployment.client.enqueue_updates(*change_set, [set_to(graph.net, 5)])

    await eventually(shows)
    assert (row["workspace"], row["changeSet"]) == tuple(map(str, change_set))
    assert row["what"] == "2 values failed"
    assert "rebaser dvu status" in row["reason"]


async def test_dead_letters_are_shown_with_their_reason_until_they_are_gone(
    deployment: Deployment,
) -> None:
    change_sets = new_change_sets(2)
    daemon = await started(deployment)
    for each in change_sets:
        await deployment.js.publish(deployment.streams.requests(each), b"\xff")
        await ensure_task(deployment.streams, each)  # a reconciler may, too
        await deployment.at_rest()
    listed: list[dict[str, Any]] = []

    async def shows(count: int) -> bool:
        listed[:] = (await status_of(daemon))["queues"]["latest_dead"]
        return len(listed) == count

    await eventually(lambda: shows(2))
    _, first = listed
    await deployment.js.delete_message(deployment.streams.dead_letters_stream, first["sequence"])

    await eventually(lambda: shows(1))
    assert first["changeSet"] == str(change_sets[0].change_set_id)
    assert listed[0]["changeSet"] == str(change_sets[1].change_set_id)
    assert "MalformedMessage" in listed[0]["reason"]


async def test_the_settings_in_force_are_shown_without_secrets(deployment: Deployment) -> None:
    daemon = await started(deployment, OPS__TOKEN="hush-hush")

    refused, why = await get(url_of(daemon) + "config")
    wrong, _ = await get(url_of(daemon) + "config", Authorization="Bearer hush")
    status, body = await get(url_of(daemon) + "config", Authorization="Bearer hush-hush")

    assert (refused, wrong, status) == (401, 401, 200)
    assert "token" in why
    assert json.loads(body)["ack_wait"] == "PT2S"
    assert "hush-hush" not in body
    assert (await get(url_of(daemon) + "healthz"))[0] == 200, "probes have no token"


async def test_the_ops_endpoint_speaks_https_with_a_certificate(
    deployment: Deployment, tmp_path: Path
) -> None:
    certificate, key = tmp_path / "ops.pem", tmp_path / "ops.key"
    await asyncio.to_thread(
        subprocess.run,
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2",
         "-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1",
         "-keyout", key, "-out", certificate],
        check=True, capture_output=True,
    )  # fmt: skip
    daemon = await started(deployment, OPS__CERTIFICATE=str(certificate), OPS__KEY=str(key))

    assert url_of(daemon).startswith("https://")
    assert (await get(url_of(daemon) + "healthz", trust=certificate))[0] == 200


async def test_a_port_that_was_asked_for_and_is_taken_ends_the_daemon_with_the_reason(
    deployment: Deployment,
) -> None:
    first = await started(deployment)
    taken = url_of(first).rstrip("/").rpartition(":")[2]

    with pytest.raises(
        AssertionError, match="REBASER_OPS__HOST and REBASER_OPS__PORT to an address"
    ):
        await deployment.start("second", OPS__PORT=taken)

    assert await deployment.daemons[-1].ended() == 1


@pytest.mark.parametrize(
    ("path", "kind"), [("", "text/html"), ("home.js", "javascript"), ("page.css", "css")]
)
async def test_the_page_needs_nothing_from_elsewhere(
    deployment: Deployment, path: str, kind: str
) -> None:
    daemon = await started(deployment)

    def read() -> tuple[str, str, str]:
        with urllib.request.urlopen(url_of(daemon) + path, timeout=60) as response:
            headers = response.headers
            return (
                headers["Content-Type"], headers["Content-Security-Policy"],
                response.read().decode(),
            )  # fmt: skip

    shown, policy, body = await asyncio.to_thread(read)

    assert kind in shown
    assert policy.startswith("default-src 'self'")
    assert "http://" not in body.replace("http://www.w3.org/2000/svg", "")
    assert "https://" not in body


@pytest.mark.parametrize(
    ("asked", "shown"),
    [
        ("//elsewhere/", "/elsewhere/"),
        ("/%5Celsewhere/", "/%5Celsewhere/"),
        ("/%09/elsewhere/", "/%09/elsewhere/"),
        ("/\\elsewhere/", "/elsewhere/"),
        ("/%2f%2felsewhere/", "/%2f%2felsewhere/"),
        ("/my%20shop/head", "/my%20shop/head"),
        ("/operator", "/operator"),
    ],
)
async def test_a_token_in_the_address_leads_to_no_other_site(
    deployment: Deployment, asked: str, shown: str
) -> None:
    """A browser takes what begins with two slashes, of either kind, for an address of another."""
    daemon = await started(deployment, OPS__TOKEN="hush")
    host, _, port = url_of(daemon).removeprefix("http://").rstrip("/").rpartition(":")

    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(f"GET {asked}?token=hush HTTP/1.1\r\nHost: {host}\r\n\r\n".encode())
    headers = (await reader.readuntil(b"\r\n\r\n")).decode().splitlines()
    writer.close()

    assert f"Location: {shown}" in headers
    assert any(header.startswith("Set-Cookie:") for header in headers)

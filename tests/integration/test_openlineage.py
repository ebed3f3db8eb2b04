"""Events in the format of OpenLineage about updates, sent to a server, or to one that is away."""

import json
import os
import signal
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from aiohttp import web

from rebaser_client import Draft, WorkspaceHandle, arrow
from tests.helpers.arrow_functions import install_arrow_functions
from tests.helpers.deployment import Deployment
from tests.helpers.eventually import eventually

ORDERS = pa.table({"day": ["mon", "tue", "mon"], "amount": pa.array([10, 90, 50], pa.int64())})
NO_SPARK = {"SPARK__MASTER": "sc://127.0.0.1:1"}


class Catalog:
    """A server that takes events."""

    def __init__(self) -> None:
        self.events: list[dict[str, Any]] = []
        self.tokens: set[str | None] = set()
        self.url = ""
        self.answers: list[int] = []
        """Statuses of the first answers; then 201."""

    async def take(self, request: web.Request) -> web.Response:
        self.tokens.add(request.headers.get("Authorization"))
        if self.answers:
            return web.Response(status=self.answers.pop(0))
        self.events.append(await request.json())
        return web.Response(status=201)

    def of(self, name: str) -> list[dict[str, Any]]:
        return [event for event in self.events if event["job"]["name"].endswith(name)]


@pytest.fixture
async def catalog() -> AsyncIterator[Catalog]:
    made = Catalog()
    app = web.Application()
    app.router.add_post("/api/v1/lineage", made.take)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    made.url = f"http://127.0.0.1:{runner.addresses[0][1]}/api/v1/lineage"
    yield made
    await runner.cleanup()


@pytest.fixture(autouse=True)
def functions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install_arrow_functions(tmp_path / "site")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "site"), prepend=os.pathsep)


async def load(deployment: Deployment) -> WorkspaceHandle:
    shop = await deployment.client.workspace("shop").create()
    g = Draft()
    orders, rate = g.table("orders", ORDERS), g.source("rate", 2)
    priced = g.value("priced", arrow("arrow.times"), orders=orders, rate=rate)
    g.value("by_day", arrow("arrow.by_day"), orders=priced)
    g.value("total", arrow("arrow.total"), orders=priced)
    g.value("wrong", arrow("arrow.durations"), orders=orders)
    await shop.load(g)
    await shop.settled()
    return shop


def names(datasets: list[dict[str, Any]]) -> list[str]:
    return [each["name"].rpartition("/")[2] for each in datasets]


async def test_an_update_is_a_run_with_a_run_for_each_table(
    deployment: Deployment, catalog: Catalog
) -> None:
    """With inputs, outputs, columns and rows; what is refused is left out, what is not is sent."""
    catalog.answers = [503]
    await deployment.start_with_lease(
        **NO_SPARK, LINEAGE__TARGET=catalog.url, LINEAGE__TOKEN="secret"
    )
    shop = await load(deployment)
    update = "/".join(map(str, await shop.ids()))

    async def is_complete() -> bool:
        return "COMPLETE" in [event["eventType"] for event in catalog.of(update)]

    await eventually(is_complete, within=60)

    assert catalog.tokens == {"Bearer secret"}
    started, ended = catalog.of(update)
    assert (started["eventType"], ended["eventType"]) == ("START", "COMPLETE")
    assert started["run"]["runId"] == ended["run"]["runId"]
    start, complete = catalog.of("/priced")
    assert (start["eventType"], complete["eventType"]) == ("START", "COMPLETE")
    assert complete["run"]["facets"]["parent"]["run"] == {"runId": started["run"]["runId"]}
    assert names(complete["inputs"]) == ["orders"]
    assert names(complete["outputs"]) == ["priced"]
    [output] = complete["outputs"]
    assert output["facets"]["schema"]["fields"] == [
        {"name": "day", "type": "string"},
        {"name": "amount", "type": "bigint"},
    ]
    assert output["outputFacets"]["outputStatistics"]["rowCount"] == 3
    [of_by_day] = [each for each in catalog.of("/by_day") if each["eventType"] == "COMPLETE"]
    [taken] = of_by_day["inputs"]
    assert taken["facets"] == output["facets"]
    assert taken["name"] == output["name"]
    failed = catalog.of("/wrong")[-1]
    assert failed["eventType"] == "FAIL"
    assert "column 'd' is of type" in failed["run"]["facets"]["errorMessage"]["message"]
    assert catalog.of("/total") == []


async def test_a_catalog_that_is_away_holds_up_nothing(deployment: Deployment) -> None:
    """The log says so, without the password."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # nothing listens there
        url = f"http://user:secret@127.0.0.1:{taken.getsockname()[1]}/"
        daemon = await deployment.start(**NO_SPARK, LINEAGE__TARGET=url)

        shop = await load(deployment)

        async def is_said() -> bool:
            return bool(daemon.said("lineage not sent"))

        await eventually(is_said, within=60)
        assert (await shop.values("total"))["total"].value == 300
        assert "user:secret" not in daemon.said_in_all()


async def test_events_go_to_a_file(deployment: Deployment, tmp_path: Path) -> None:
    """Events of an update that ends while the daemon stops are sent, too."""
    file = tmp_path / "events.jsonl"
    daemon = await deployment.start_with_lease(**NO_SPARK, LINEAGE__TARGET=str(file))
    shop = await load(deployment)
    update = "/".join(map(str, await shop.ids()))

    daemon.send(signal.SIGTERM)
    await daemon.ended()

    events = [json.loads(line) for line in file.read_text().splitlines()]
    kinds = [event["eventType"] for event in events if event["job"]["name"] == update]
    assert kinds == ["START", "COMPLETE"]

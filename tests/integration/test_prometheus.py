"""What `/metrics` shows is what alerts and dashboard ask for, as a real Prometheus reads it."""

import asyncio
import json
import re
import subprocess
import urllib.parse
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from tests.helpers.batches import ExampleGraph
from tests.helpers.deployment import Deployment, new_change_sets
from tests.helpers.eventually import eventually
from tests.helpers.machine_requirements import program
from tests.helpers.paths import ROOT
from tests.integration.test_ops_endpoint import get, started, url_of

DEPLOY = ROOT / "deploy"
RULES = DEPLOY / "prometheus" / "rules.yaml"
NAME = re.compile(r"\b(?:rebaser|process)_[a-z_]+")
LABEL_VALUES = 24
"""Values that any label of ours has, at most."""


def rules() -> list[str]:
    groups = yaml.safe_load(RULES.read_text())["groups"]
    return [rule["expr"] for group in groups for rule in group["rules"]]


def panels() -> list[str]:
    dashboard = json.loads((DEPLOY / "grafana" / "rebaser.json").read_text())
    return [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]


def tool(name: str) -> str:
    return program(name, package="prometheus")


def families(text: str) -> Iterator[Any]:
    yield from text_string_to_metric_families(text)


async def test_each_metric_that_alerts_and_dashboard_name_is_there_before_anything_happened(
    deployment: Deployment,
) -> None:
    """With all its labels: of a series that appears with its first event, that event is unseen."""
    daemon = await started(deployment)

    _, body = await get(url_of(daemon) + "metrics")

    samples = [sample for family in families(body) for sample in family.samples]
    there = {sample.name for sample in samples}
    for expression in [*rules(), *panels()]:
        assert set(NAME.findall(expression)) <= there, expression
        for name, label, value in re.findall(r'(\w+)\{(\w+)="(\w+)"\}', expression):
            assert any(s.name == name and s.labels[label] == value for s in samples), expression
    ours = [s for s in samples if s.name.startswith("rebaser_") and "le" not in s.labels]
    values: dict[tuple[str, str], set[str]] = {}
    for sample in ours:
        for label, value in sample.labels.items():
            values.setdefault((sample.name, label), set()).add(value)
    assert values
    assert all(len(found) <= LABEL_VALUES for found in values.values())


def test_alerts_fire_when_they_should_and_only_then() -> None:
    promtool = tool("promtool")

    for what in (["check", "rules", "rules.yaml"], ["test", "rules", "rules.test.yaml"]):
        done = subprocess.run(
            [promtool, *what], cwd=RULES.parent, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr


class Prometheus:
    """A real one, that scrapes one target."""

    def __init__(self, url: str) -> None:
        self._url = url

    async def ask(self, path: str, **query: str) -> Any:
        status, body = await get(f"{self._url}/api/v1/{path}?{urllib.parse.urlencode(query)}")
        assert status == 200, body
        return json.loads(body)["data"]

    async def value(self, query: str) -> float | None:
        found = (await self.ask("query", query=query))["result"]
        return float(found[0]["value"][1]) if found else None


@asynccontextmanager
async def prometheus(directory: Path, target: str) -> AsyncIterator[Prometheus]:
    binary = tool("prometheus")
    config = {
        "global": {"scrape_interval": "500ms", "scrape_timeout": "500ms"},
        "rule_files": [str(RULES)],
        "scrape_configs": [{"job_name": "rebaser", "static_configs": [{"targets": [target]}]}],
    }
    (directory / "prometheus.yaml").write_text(json.dumps(config))
    log = directory / "prometheus.log"
    with log.open("wb") as output:
        process = await asyncio.create_subprocess_exec(
            binary, f"--config.file={directory}/prometheus.yaml",
            f"--storage.tsdb.path={directory}/tsdb", "--web.listen-address=127.0.0.1:0",
            stdout=output, stderr=output,
        )  # fmt: skip
    try:
        address: list[str] = []

        def listens() -> bool:
            address[:] = re.findall(r'Listening on".*?address=(\S+)', log.read_text())
            return bool(address) and "Server is ready" in log.read_text()

        await eventually(listens, within=60)
        yield Prometheus(f"http://{address[0]}")
    finally:
        process.kill()
        await process.wait()


@pytest.mark.long
async def test_a_real_prometheus_reads_all_of_it(deployment: Deployment, tmp_path: Path) -> None:
    [change_set], values = new_change_sets(1), ExampleGraph()
    daemon = await started(deployment)
    target = url_of(daemon).removeprefix("http://").rstrip("/")
    async with prometheus(tmp_path, target) as server:

        async def scraped() -> bool:
            return await server.value("up") == 1

        await eventually(scraped, within=60)
        _, reply = await deployment.client.enqueue_updates_with_reply(*change_set, values.define())
        await reply
        await deployment.at_rest()

        async def counted() -> bool:
            counts = (
                'rebaser_requests_total{outcome="applied"}',
                "rebaser_commit_to_dvu_seconds_count",
            )
            return [await server.value(count) for count in counts] == [1, 1]

        await eventually(counted, within=60)
        for expression in panels():
            await server.ask("query", query=expression.replace("$__rate_interval", "1m"))
        loaded = (await server.ask("rules"))["groups"]
        assert [rule["query"] for group in loaded for rule in group["rules"]]
        assert not [r["lastError"] for g in loaded for r in g["rules"] if r.get("lastError")]
        assert await server.value("scrape_samples_scraped") < 500

"""`python -m tests.docs.pictures [idle]`: takes the pictures of the page in docs/images anew."""

import asyncio
import itertools
import os
import random
import re
import sys
import tempfile
from pathlib import Path
from typing import Any, Final

from playwright.async_api import Browser, Page, expect

from rebaser_client import cel
from rebaser_core.ids import ChangeSet
from tests.chaos.functions import install
from tests.docs.conftest import ROOT
from tests.helpers.batches import Batch, ExampleGraph, new_id, set_to
from tests.helpers.browser import browsing
from tests.helpers.deployment import Daemon, Deployment, deployed
from tests.helpers.nats_process import NatsServer, running
from tests.integration.test_ops_endpoint import started, url_of
from tests.integration.test_status_page import given_up

WIDTH: Final = 1100
PHONE: Final = 390
LOAD: Final = 45.0
"""Seconds of requests before the second picture, so that the plots show some."""
NAMES: Final = (
    ("prices", ("head", "euro in July", "new tax rate")),
    ("risk", ("head", "stress test")),
    ("catalogue", ("head", "spring", "returns", "Lisbon warehouse")),
)


class Prices:
    """Forty prices in dollars behind one rate, with taxes, baskets and a total."""

    def __init__(self) -> None:
        self.rate, self.pace, slow, total = (new_id() for _ in range(4))
        self.batch: Batch = [
            {
                "putFunc": {
                    "funcId": slow,
                    "name": "slow",
                    "runtime": "python",
                    "code": "chaos-slow",
                }
            },
            {"putFunc": {"funcId": total, "name": "sum", "runtime": "builtin", "code": "sum"}},
            {"putValue": {"valueId": self.rate, "name": "eur/usd", "value": 1.08}},
            {"putValue": {"valueId": self.pace, "name": "margin", "value": 0}},
        ]
        dollars = [self._put(f"usd/{n}", slow, self._paced(self.rate)) for n in range(40)]
        gross = [self._put(f"gross/{n}", slow, self._paced(one)) for n, one in enumerate(dollars)]
        baskets = [self._put(f"basket/{n}", total, {"values": gross[n::8]}) for n in range(8)]
        self._put("total", total, {"values": baskets})

    def _paced(self, value: str) -> dict[str, Any]:
        return {"value": value, "seconds": self.pace}

    def _put(self, name: str, func: str, inputs: dict[str, Any]) -> str:
        value = new_id()
        put_it = {"valueId": value, "name": name, "funcId": func, "inputs": inputs}
        self.batch.append({"putValue": put_it})
        return value

    def changed(self, rate: float, seconds: float) -> Batch:
        return [set_to(self.rate, rate), set_to(self.pace, seconds)]


async def taken(page: Page, name: str, height: int, width: int = WIDTH) -> None:
    await page.set_viewport_size({"width": width, "height": height})
    await expect(page.get_by_role("status")).to_contain_text("2 Rebasers", timeout=20_000)
    await page.screenshot(path=ROOT / "docs" / "images" / f"page-{name}.png")


async def opened(browser: Browser, daemon: Daemon) -> Page:
    page = await browser.new_page(color_scheme="light")
    await page.goto(url_of(daemon))
    await expect(page.get_by_role("status")).to_contain_text("NATS answers", timeout=20_000)
    return page


async def workspaces(deployment: Deployment) -> list[ChangeSet]:
    client, found = deployment.client, []
    for name, (_, *branches) in NAMES:
        workspace, head = await client.workspaces.create(name)
        found.append(ChangeSet(workspace.workspace_id, head.change_set_id))
        for branch in branches:
            record = await client.workspaces.fork(workspace.workspace_id, branch)
            found.append(ChangeSet(workspace.workspace_id, record.change_set_id))
    return found


async def asking(deployment: Deployment, change_sets: list[ChangeSet]) -> None:
    """Requests at changing rates."""
    values = {each: ExampleGraph() for each in change_sets}
    for each, its in values.items():
        await deployment.client.enqueue_updates(*each, its.define())
    end = asyncio.get_running_loop().time() + LOAD
    for number in itertools.count():
        if asyncio.get_running_loop().time() > end:
            return
        each = random.choice(change_sets)
        await deployment.client.enqueue_updates(*each, [set_to(values[each].net, number)])
        await asyncio.sleep(random.uniform(0, 0.1))


async def pictures(directory: Path, nats: NatsServer, browser: Browser) -> None:
    async with deployed(nats, directory) as deployment:
        one = await started(deployment, "one", INSTANCE_ID="rebaser-1", QUIET_PERIOD="600")
        await started(deployment, "two", INSTANCE_ID="rebaser-2", QUIET_PERIOD="600")
        page = await opened(browser, one)
        await asyncio.sleep(3)  # until each has heard of the other
        await taken(page, "idle", 420)
        if "idle" in sys.argv[1:]:
            return

        client, all_of_them = deployment.client, await workspaces(deployment)
        prices, (first, *rest) = Prices(), all_of_them
        _, reply = await client.enqueue_updates_with_reply(*first, prices.batch)
        await reply
        await asyncio.gather(*(asking(deployment, rest[n::3]) for n in range(3)))
        await client.enqueue_updates(*first, prices.changed(1.09, 0.25))
        bar = page.get_by_role("progressbar", name="prices / head")
        await expect(bar).to_have_attribute("value", re.compile("[1-9]"), timeout=60_000)
        await page.goto(f"{url_of(one)}deployment")
        await expect(page.locator("#working")).to_have_text(re.compile("[0-9]"), timeout=20_000)
        await taken(page, "deployment", 700)
        await page.goto(f"{url_of(one)}updates")
        await expect(page.locator("#drawing svg")).to_be_visible(timeout=20_000)
        await page.emulate_media(color_scheme="dark")
        await taken(page, "load", 800)
        await page.emulate_media(color_scheme="light")

        catalogue = client.change_set(*rest[-1])
        async with catalogue.edit() as g:
            g.value(
                "postage/Lisbon",
                cel("weight * rate"),
                weight=g.source("weight", "12 kg"),
                rate=g.source("rate", 2),
            )
        await given_up(deployment, rest[1])
        await client.enqueue_updates(*first, prices.changed(1.1, 0.25))
        await page.goto(url_of(one))
        await expect(bar).to_have_attribute("value", re.compile("[1-9]"), timeout=60_000)
        attention = page.get_by_role("region", name="Needs attention")
        await expect(attention).to_contain_text("postage/Lisbon", timeout=60_000)
        await expect(attention).to_contain_text("dead letter", timeout=60_000)
        await taken(page, "failures", 1000)
        await page.emulate_media(color_scheme="dark")
        await taken(page, "failures-dark", 1000)
        await taken(page, "failures-phone", 844, PHONE)


async def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        os.environ["PYTHONPATH"] = str(install(directory))
        with running(NatsServer(directory / "nats")) as nats:
            async with browsing() as browser:
                await pictures(directory, nats, browser)


if __name__ == "__main__":
    asyncio.run(main())

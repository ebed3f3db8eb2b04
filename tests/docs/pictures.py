"""`python -m tests.docs.pictures [DIRECTORY]`: takes all pictures of pages anew."""

import asyncio
import itertools
import os
import random
import re
import sys
import tempfile
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple

import pyarrow as pa
from PIL import Image
from playwright.async_api import Browser, Page, expect

from rebaser_client import arrow, cel
from rebaser_client.change_set import ChangeSetHandle, WorkspaceHandle
from rebaser_client.errors import RequestDead
from rebaser_server.settings.settings import OpsSettings, Role
from tests.chaos.functions import install
from tests.docs.conftest import ROOT
from tests.helpers.arrow_functions import install_arrow_functions
from tests.helpers.batches import Batch, ExampleGraph, new_id, set_to
from tests.helpers.browser import browsing
from tests.helpers.deployment import Deployment, deployed
from tests.helpers.nats_process import NatsServer, running
from tests.helpers.workers import Working
from tests.integration.test_ops_endpoint import started, url_of
from tests.integration.test_status_page import given_up

PATIENCE: Final = 60_000  # milliseconds
LOAD: Final = 45.0
"""Seconds of requests before the pictures of a deployment at work, so that the plots show some."""
MOST_BYTES: Final = 100_000
"""Most that a picture has: a page of the documentation is to load quickly."""
NAMES: Final = (
    ("risk", ("head", "stress test")),
    ("catalogue", ("head", "spring", "returns", "Lisbon warehouse")),
)
MARKETS: Final = {"DE": 0.19, "FR": 0.2, "UK": 0.2, "US": 0.07}
PRODUCTS: Final = 60
BRANCH: Final = "euro-in-july"
ORDERS: Final = '''
from dataclasses import dataclass, field
from datetime import timedelta
from rebaser_server.handlers import Context, Service

orders = Service("orders")

@orders.state
@dataclass
class Order:
    items: list[str] = field(default_factory=list)
    paid: bool = False

@orders.handler
async def add(ctx: Context[Order], item: str) -> int:
    ctx.state.items.append(item)
    ctx.send("remind", after=timedelta(days=3), timer="patience")
    return len(ctx.state.items)

@orders.handler
async def pay(ctx: Context[Order], card: str) -> str:
    if card.startswith("4000"):
        raise ConnectionError(f"the bank does not answer for card {card}")
    ctx.state.paid = True
    return "paid"

@orders.handler
async def remind(ctx: Context[Order]) -> None:
    """Write to who has not paid."""
'''
"""Orders that are paid by a bank, which does not answer for one card."""


class Shot(NamedTuple):
    """A picture of a page: `page-NAME.png`."""

    name: str
    height: int
    width: int = 1100
    dark: bool = False
    at: str = "body"
    """Selector of the element that the picture begins with."""


PHONE: Final = 390


async def tour(
    deployment: Deployment, browser: Browser, load: float
) -> AsyncIterator[tuple[Page, Sequence[Shot]]]:
    """Every page, in each state that differs much, with the pictures of it that the docs show.

    `deployment` has the functions of `functions_in`. `load` is how many seconds of requests come
    before the pages of a deployment at work.
    """
    own = {"QUIET_PERIOD": "600", "OPS__TOKENS": "ada operator s3cret"}
    one = await started(deployment, "one", INSTANCE_ID="rebaser-1", **own)
    await started(deployment, "two", INSTANCE_ID="rebaser-2", **own)
    page, url = await browser.new_page(color_scheme="light"), url_of(one)
    await page.goto(f"{url}?token=s3cret")
    await _connected(page)
    yield page, [Shot("idle", 420)]

    rates = _Rates()
    head = await (await deployment.client.workspace("prices").create()).ids()
    _, reply = await deployment.client.enqueue_updates_with_reply(*head, rates.batch)
    await reply
    change_sets = await _workspaces(deployment)
    await asyncio.gather(*(_asking(deployment, change_sets[n::3], load) for n in range(3)))
    await deployment.client.enqueue_updates(*head, rates.changed(1.09, 0.25))
    bar = page.get_by_role("progressbar", name="prices / head")
    await expect(bar).to_have_attribute("value", re.compile("[1-9]"), timeout=PATIENCE)
    yield page, []
    await page.goto(f"{url}deployment")
    await expect(page.locator("#working")).to_have_text(re.compile("[0-9]"), timeout=PATIENCE)
    await _connected(page)
    yield page, [Shot("deployment", 700)]
    await page.goto(f"{url}updates")
    await _connected(page)
    yield page, []

    shop = await _shop(deployment)
    await _branch(shop)
    async for each in _acted_on(page, url):
        yield each

    await given_up(deployment, await shop.ids())
    async for each in _operated(page, url):
        yield each

    await deployment.client.enqueue_updates(*head, rates.changed(1.1, 0.25))
    await page.goto(url)
    await expect(bar).to_have_attribute("value", re.compile("[1-9]"), timeout=PATIENCE)
    attention = page.get_by_role("region", name="Needs attention")
    await expect(attention).to_contain_text("postage", timeout=PATIENCE)
    await expect(attention).to_contain_text("dead letter", timeout=PATIENCE)
    await _connected(page)
    failures = Shot("failures", 1000)
    dark, phone = Shot("failures-dark", 1000, dark=True), Shot("failures-phone", 844, PHONE)
    yield page, [failures, dark, phone]


async def worker_tour(
    deployment: Deployment, browser: Browser
) -> AsyncIterator[tuple[Page, Sequence[Shot]]]:
    """The front page of a worker, and the page of a key at which a call failed for good."""
    ops, shop = OpsSettings(port=0, local_role=Role.OPERATOR), dict[str, Any]()
    exec(compile(ORDERS, "shop.py", "exec"), shop)  # noqa: S102 - its name is in the picture
    async with Working(deployment).worker(shop["orders"], ops=ops, max_attempts=1) as url:
        key = partial(Working(deployment).key, "orders")
        for number, item in enumerate(["teapot", "cup", "saucer", "spoon", "cup", "kettle"]):
            await key(f"o-{17 + number % 4}").call("add", item)
            if number > 3:
                await key(f"o-{17 + number % 4}").call("pay", "5100 0000 0000 0001")
        with suppress(RequestDead):
            await key("o-19").call("pay", "4000 0000 0000 0002")
        page = await browser.new_page(color_scheme="light")
        await page.goto(str(url))
        await expect(page.get_by_role("link", name="orders / o-19")).not_to_have_count(
            0, timeout=PATIENCE
        )
        yield page, [Shot("services", 670)]
        await page.goto(f"{url}key?service=orders&key=o-19")
        await page.get_by_role("heading", name="orders / o-19").wait_for(timeout=PATIENCE)
        await expect(page.locator("main")).to_contain_text("does not answer", timeout=PATIENCE)
        yield page, [Shot("key", 720)]


async def _connected(page: Page) -> None:
    await expect(page.get_by_role("status").first).to_contain_text("2 Rebasers", timeout=PATIENCE)


async def _acted_on(page: Page, url: str) -> AsyncIterator[tuple[Page, Sequence[Shot]]]:
    """A change set, a value of it, and a branch with a conflict and a table."""
    await page.goto(f"{url}shop/head")
    await page.get_by_role("button", name="price/*/UK").click(timeout=PATIENCE)
    await page.get_by_role("button", name="Difference of commit").first.click(timeout=PATIENCE)
    yield page, [Shot("change-set", 900)]
    await page.get_by_role("button", name="Difference of commit").first.click()
    await page.get_by_role("button", name="postage", exact=True).first.click()
    await expect(page.get_by_role("region", name="postage: failed")).to_be_visible(timeout=PATIENCE)
    await expect(page.locator("#whynot")).to_contain_text("postage", timeout=PATIENCE)
    yield page, [Shot("value", 900)]

    await page.goto(f"{url}shop/{BRANCH}")
    pattern = page.get_by_role("table", name="Effects by name pattern").locator("tbody tr")
    await expect(pattern).not_to_have_count(0, timeout=PATIENCE)
    await expect(page.locator("#digest")).not_to_contain_text("not known", timeout=PATIENCE)
    phone = Shot("branch-phone", 844, PHONE, dark=True)
    yield page, [Shot("branch", 900), phone]
    await page.get_by_role("button", name="Apply to head").click()
    await expect(page.get_by_role("dialog")).to_be_visible(timeout=PATIENCE)
    yield page, [Shot("apply", 700)]
    await page.keyboard.press("Escape")
    await page.get_by_role("searchbox", name="Search changes").fill("orders")
    rows = page.get_by_role("table", name="Computed effects").locator("tbody tr")
    await expect(rows).to_have_count(2, timeout=PATIENCE)
    yield page, [Shot("table", 420, at="#searchchanges")]
    await rows.get_by_role("button", name="orders/by day").click()
    await expect(page.locator("#tablesize")).to_be_visible(timeout=PATIENCE)
    yield page, []


async def _operated(page: Page, url: str) -> AsyncIterator[tuple[Page, Sequence[Shot]]]:
    """A dead letter, and a branch that is paused."""
    await page.goto(f"{url}letters")
    await page.get_by_role("button", name="Show dead letter").first.click(timeout=PATIENCE)
    yield page, []
    await page.goto(f"{url}operator")
    await page.get_by_role("button", name=f"Pause shop/{BRANCH}").click(timeout=PATIENCE)
    await page.get_by_role("textbox", name="Reason").fill("until the rates are confirmed")
    yield page, []
    await page.get_by_role("dialog").get_by_role("button", name="Pause").click()
    await expect(page.locator("#paused")).to_contain_text("confirmed", timeout=PATIENCE)
    navigation = page.get_by_role("navigation", name="Rebaser")
    await expect(navigation).to_contain_text("Dead letters 1", timeout=PATIENCE)
    dark, phone = Shot("operator-dark", 700, dark=True), Shot("operator-phone", 844, PHONE)
    yield page, [Shot("operator", 700), dark, phone]


class _Rates:
    """Forty prices in dollars behind one rate, with taxes, baskets and a total."""

    def __init__(self) -> None:
        self.rate, self.pace, slow, total = (new_id() for _ in range(4))
        paced = {"funcId": slow, "name": "slow", "runtime": "python", "code": "chaos-slow"}
        self.batch: Batch = [
            {"putFunc": paced},
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


async def _workspaces(deployment: Deployment) -> list[ChangeSetHandle]:
    found: list[ChangeSetHandle] = []
    for name, (_, *branches) in NAMES:
        workspace = await deployment.client.workspace(name).create()
        found += [workspace, *[await workspace.fork(branch) for branch in branches]]
    return found


async def _asking(deployment: Deployment, its: list[ChangeSetHandle], seconds: float) -> None:
    """Requests at changing rates."""
    graphs = [(await each.ids(), ExampleGraph()) for each in its]
    for ids, graph in graphs:
        await deployment.client.enqueue_updates(*ids, graph.define())
    end = asyncio.get_running_loop().time() + seconds
    for number in itertools.count():
        if asyncio.get_running_loop().time() > end:
            return
        ids, graph = random.choice(graphs)
        await deployment.client.enqueue_updates(*ids, [set_to(graph.net, number)])
        await asyncio.sleep(random.uniform(0, 0.1))  # the load itself


async def _shop(deployment: Deployment) -> WorkspaceHandle:
    """Prices in four markets, a failed value, and a table of orders with totals by day."""
    shop = await deployment.client.workspace("shop").create()
    draw = random.Random(7)
    days = [f"2026-07-{day:02}" for day in range(1, 8)]
    orders = pa.table(
        {
            "day": [days[n % 7] for n in range(500)],
            "amount": pa.array([draw.randrange(1, 900) / 4 for _ in range(500)]),
        }
    )
    async with shop.edit() as g:
        rates = {
            market: g.source(f"fx/{market}", draw.uniform(80, 120) // 1 / 100) for market in MARKETS
        }
        taxes = {market: g.source(f"tax/{market}", tax) for market, tax in MARKETS.items()}
        for product in range(1, PRODUCTS + 1):
            net = g.source(f"net/{product}", draw.randrange(100, 9_999) / 100)
            for market in MARKETS:
                given = {"net": net, "rate": rates[market], "tax": taxes[market]}
                price = cel("double(net) * double(rate) * (1.0 + double(tax))")
                g.value(f"price/{product}/{market}", price, **given)
        g.value("postage", cel("weight * 2"), weight=g.source("weight", "12 kg"))
        gross = g.value(
            "orders/in pounds",
            arrow("arrow.times", name="times"),
            orders=g.table("orders", orders, partition_by="day"),
            rate=rates["UK"],
        )
        g.value("orders/by day", arrow("arrow.by_day", name="by_day"), orders=gross)
    return shop


async def _branch(shop: WorkspaceHandle) -> None:
    branch = await shop.fork(BRANCH)
    async with branch.edit() as g:
        g.source("fx/UK", 1.12)
        g.source("net/3", 6.9)
        g.source("tax/DE", 0.16)
    async with shop.edit() as g:
        g.source("fx/UK", 0.86)


def functions_in(directory: Path) -> str:
    """A `PYTHONPATH` with what the daemons of the tour compute with."""
    install_arrow_functions(directory / "arrow")
    return os.pathsep.join([str(install(directory)), str(directory / "arrow")])


async def shown(page: Page, shot: Shot) -> None:
    """Let the page look as in that picture."""
    await page.set_viewport_size({"width": shot.width, "height": shot.height})
    await page.emulate_media(color_scheme="dark" if shot.dark else "light")


async def _take(page: Page, shot: Shot, into: Path) -> None:
    await shown(page, shot)
    status = page.get_by_role("status").first
    if "Rebaser" in await status.inner_text():
        await expect(status).to_contain_text("NATS answers", timeout=PATIENCE)
    begin = "(first) => scrollTo(0, first.getBoundingClientRect().top + scrollY - 16)"
    await page.locator(shot.at).evaluate(begin)
    file = into / f"page-{shot.name}.png"
    await page.screenshot(path=file)
    with Image.open(file) as taken:
        few = taken.convert("RGB").quantize(
            256, Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE
        )
    few.save(file, optimize=True)


async def _take_all(into: Path) -> None:
    for tour_of in (worker_tour, partial(tour, load=LOAD)):
        with tempfile.TemporaryDirectory() as name:
            directory = Path(name)
            os.environ["PYTHONPATH"] = functions_in(directory)
            with running(NatsServer(directory / "nats")) as nats:
                async with deployed(nats, directory) as deployment, browsing() as browser:
                    async for page, shots in tour_of(deployment, browser):
                        for shot in shots:
                            await _take(page, shot, into)


if __name__ == "__main__":
    asyncio.run(_take_all(Path(*sys.argv[1:]) if sys.argv[1:] else ROOT / "docs" / "images"))

"""`python -m tests.docs.action_pictures [DIRECTORY]`: pictures of the pages where people act."""

import asyncio
import random
import sys
import tempfile
from pathlib import Path
from typing import Final

from playwright.async_api import Browser, Page, expect

from rebaser_client import cel
from rebaser_client.change_set import WorkspaceHandle
from rebaser_core.ids import ChangeSet
from tests.docs.conftest import ROOT
from tests.helpers.browser import browsing
from tests.helpers.deployment import Deployment, deployed
from tests.helpers.nats_process import NatsServer, running
from tests.integration.test_ops_endpoint import started, url_of
from tests.integration.test_status_page import given_up

MARKETS: Final = {"DE": 0.19, "FR": 0.2, "UK": 0.2, "US": 0.07}
PRODUCTS: Final = 60
PATIENCE: Final = 60_000  # milliseconds
DESK: Final = (1100, 900)
LOW: Final = (1100, 700)
PHONE: Final = (390, 844)


async def shop_of(deployment: Deployment) -> WorkspaceHandle:
    shop = await deployment.client.workspace("shop").create()
    draw = random.Random(7)
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
    return shop


async def branch_of(shop: WorkspaceHandle) -> ChangeSet:
    branch = await shop.fork("euro-in-july")
    async with branch.edit() as g:
        g.source("fx/UK", 1.12)
        g.source("net/3", 6.9)
        g.source("tax/DE", 0.16)
    async with shop.edit() as g:
        g.source("fx/UK", 0.86)
    return await branch.ids()


async def taken(page: Page, size: tuple[int, int], file: Path, *, whole: bool = False) -> None:
    await page.set_viewport_size({"width": size[0], "height": size[1]})
    await page.evaluate("scrollTo(0, 0)")
    await page.screenshot(path=file, full_page=whole)


async def pictures(deployment: Deployment, browser: Browser, into: Path) -> None:
    daemon = await started(deployment, QUIET_PERIOD="600", OPS__TOKENS="ada operator s3cret")
    shop = await shop_of(deployment)
    await branch_of(shop)
    url = url_of(daemon)
    page = await browser.new_page(color_scheme="light")
    await page.goto(url + "?token=s3cret")
    await page.goto(url + "shop/euro-in-july")
    pattern = page.get_by_role("table", name="Effects by name pattern").locator("tbody tr")
    await expect(pattern).not_to_have_count(0, timeout=PATIENCE)
    await expect(page.locator("#digest")).not_to_contain_text("not known", timeout=PATIENCE)
    await taken(page, DESK, into / "page-branch.png")
    await page.get_by_role("button", name="Apply to head").click()
    await expect(page.get_by_role("dialog")).to_be_visible()
    await taken(page, LOW, into / "page-apply.png")
    await page.keyboard.press("Escape")
    await page.emulate_media(color_scheme="dark")
    await taken(page, PHONE, into / "page-branch-phone.png")
    await page.emulate_media(color_scheme="light")
    await page.goto(url + "shop/head")
    await page.get_by_role("button", name="price/*/UK").click(timeout=PATIENCE)
    await page.get_by_role("button", name="postage", exact=True).first.click()
    await expect(page.get_by_role("region", name="postage: failed")).to_be_visible(timeout=PATIENCE)
    await taken(page, DESK, into / "page-value.png")

    await given_up(deployment, await shop.ids())
    await page.goto(f"{url_of(daemon)}operator")
    await page.get_by_role("button", name="Pause shop/euro-in-july").click(timeout=PATIENCE)
    await page.get_by_role("textbox", name="Reason").fill("until the rates are confirmed")
    await page.get_by_role("dialog").get_by_role("button", name="Pause").click()
    await expect(page.locator("#paused")).to_contain_text("confirmed", timeout=PATIENCE)
    await expect(page.get_by_role("navigation")).to_contain_text("Dead letters 1", timeout=PATIENCE)
    await taken(page, LOW, into / "page-operator.png")
    await page.emulate_media(color_scheme="dark")
    await taken(page, LOW, into / "page-operator-dark.png")
    await taken(page, PHONE, into / "page-operator-phone.png", whole=True)


async def main(into: Path) -> None:
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        with running(NatsServer(directory / "nats")) as nats:
            async with deployed(nats, directory) as deployment, browsing() as browser:
                await pictures(deployment, browser, into)


if __name__ == "__main__":
    asyncio.run(main(Path(*sys.argv[1:]) if sys.argv[1:] else ROOT / "docs" / "images"))

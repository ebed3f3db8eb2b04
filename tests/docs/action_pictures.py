"""`python -m tests.docs.action_pictures [DIRECTORY]`: pictures of the pages where people act."""

import asyncio
import re
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

GOODS: Final = {"coffee": 6.4, "tea": 3.2, "cocoa": 4.75, "sugar": 1.1, "flour": 0.85, "rice": 2.3}
PATIENCE: Final = 60_000  # milliseconds
DESK: Final = (1100, 900)
LOW: Final = (1100, 700)
PHONE: Final = (390, 844)


async def shop_of(deployment: Deployment) -> WorkspaceHandle:
    shop = await deployment.client.workspace("shop").create()
    async with shop.edit() as g:
        rate = g.source("eur/usd", 1.08)
        tax = g.source("tax", 0.19)
        for name, price in GOODS.items():
            net = g.source(f"{name}/net", price)
            dollars = cel("double(net) * rate")
            usd = g.value(f"{name}/usd", dollars, net=net, rate=rate)
            gross = cel("double(usd) * (1.0 + tax)")
            g.value(f"{name}/gross", gross, usd=usd, tax=tax)
    return shop


async def branch_of(shop: WorkspaceHandle) -> ChangeSet:
    branch = await shop.fork("euro in July")
    async with branch.edit() as g:
        g.source("eur/usd", 1.12)
        g.source("coffee/net", 6.9)
        g.source("tea/net", 3.0)
    async with shop.edit() as g:
        g.source("coffee/net", 7.2)
    return await branch.ids()


async def taken(page: Page, size: tuple[int, int], file: Path, *, whole: bool = False) -> None:
    await page.set_viewport_size({"width": size[0], "height": size[1]})
    await page.evaluate("scrollTo(0, 0)")
    await page.screenshot(path=file, full_page=whole)


async def pictures(deployment: Deployment, browser: Browser, into: Path) -> None:
    daemon = await started(deployment, QUIET_PERIOD="600", OPS__TOKENS="ada operator s3cret")
    shop = await shop_of(deployment)
    branch = await branch_of(shop)
    page = await browser.new_page(color_scheme="light")
    await page.goto(url_of(daemon) + "operator?token=s3cret")
    address = f"workspace={branch.workspace_id}&changeSet={branch.change_set_id}"
    await page.goto(f"{url_of(daemon)}change-set?{address}")
    effects = page.get_by_role("table", name="Computed effects").locator("tbody tr")
    await expect(effects).to_have_count(2 * len(GOODS), timeout=PATIENCE)
    await taken(page, DESK, into / "page-branch.png")
    await page.emulate_media(color_scheme="dark")
    await taken(page, PHONE, into / "page-branch-phone.png")
    await page.get_by_label("Your comment").fill("Is 6.9 agreed? Head has 7.2 since noon.")
    await page.get_by_role("button", name="Comment").click()
    await expect(page.locator("#comments")).to_contain_text("since noon", timeout=PATIENCE)
    await page.evaluate("document.querySelector('#commentpart').scrollIntoView()")
    await page.screenshot(path=into / "page-comments-phone.png")
    await page.emulate_media(color_scheme="light")

    await given_up(deployment, await shop.ids())
    await page.goto(f"{url_of(daemon)}operator")
    await page.get_by_role("button", name="Pause shop/euro in July").click(timeout=PATIENCE)
    await page.get_by_role("textbox", name="Reason").fill("until the rates are confirmed")
    await page.get_by_role("button", name="Yes").click()
    await expect(page.locator("#paused")).to_contain_text("confirmed", timeout=PATIENCE)
    letters = page.get_by_role("button", name=re.compile("^Replay dead letter"))

    async def is_dead() -> None:
        await page.reload()
        await expect(letters.first).to_be_visible(timeout=2_000)

    for _ in range(20):
        try:
            await is_dead()
            break
        except AssertionError:
            continue
    await expect(page.locator("#found")).to_contain_text("open", timeout=PATIENCE)
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

"""The page of a change set, and of a branch, as people see it in a real browser."""

import re
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from playwright.async_api import Browser, Page, expect

from rebaser_client import builtin, cel, sql
from rebaser_client.change_set import WorkspaceHandle
from tests.helpers.batches import set_to
from tests.helpers.browser import CONTRASTS, Watched
from tests.helpers.deployment import Deployment
from tests.integration.test_ops_endpoint import get, started, url_of
from tests.integration.test_status_page import AA, PATIENCE, SCHEMES, rows

expect.set_options(timeout=PATIENCE)
HOSTILE = "<img src=x onerror=alert(1)>\u202e"


async def shop_of(deployment: Deployment) -> WorkspaceHandle:
    shop = await deployment.client.workspace("shop").create()
    async with shop.edit() as g:
        net, rate = g.source("net", 100), g.source("rate", 0.25)
        gross = g.value("gross", cel("double(net) * (1.0 + rate)"), net=net, rate=rate)
        g.value("twice", builtin("sum"), gross, gross)
        g.value("wrong", cel("net + 'x'"), net=net)
        g.source(HOSTILE, HOSTILE)
    return shop


def table(page: Page, caption: str) -> Any:
    return page.get_by_role("table", name=caption).locator("tbody tr")


@pytest.mark.long
async def test_values_why_and_commits_are_found_by_keyboard_and_a_branch_shows_its_effects(
    deployment: Deployment, browser: Browser
) -> None:
    daemon = await started(deployment, QUIET_PERIOD="30")
    shop = await shop_of(deployment)
    page = await browser.new_page()
    watched = Watched(page)
    await page.goto(url_of(daemon))

    await page.get_by_role("link", name="shop / head", exact=True).first.press("Enter")

    await expect(page.get_by_role("heading", level=1)).to_have_text("shop / head")
    await expect(rows(page, "Values")).to_have_count(6)
    await expect(rows(page, "Values").first).to_contain_text(re.compile("wrong.*overload.*failed"))
    await page.get_by_role("button", name="5 ok").press("Enter")
    await expect(rows(page, "Values")).to_have_count(5)
    await page.get_by_role("button", name="all 6").press("Enter")
    await page.get_by_role("searchbox", name="Search values by name").press_sequentially("GRO")
    await expect(rows(page, "Values")).to_have_count(1)
    await page.get_by_role("button", name="gross").press("Enter")
    await expect(page.get_by_role("region", name="gross: ok")).to_be_focused()
    await expect(page.locator("#text")).to_have_text("125.0")
    made = table(page, "Why it is what it is")
    await expect(made.filter(has_text="rate → gross")).to_contain_text("rate defined as 0.25")
    await table(page, "Inputs").get_by_role("button", name="net").press("Enter")
    await expect(page.get_by_role("region", name="net: ok")).to_be_focused()
    await expect(table(page, "Computed from it")).to_have_count(2)
    await table(page, "Computed from it").get_by_role("button", name="wrong").press("Enter")
    await expect(page.get_by_role("region", name="wrong: failed")).to_be_visible()
    await expect(page.locator("#message")).to_contain_text("overload")
    await expect(page.locator("#whynot")).to_contain_text("wrong failed: ")
    near = page.get_by_role("group", name="Inputs and dependents")
    await expect(near.get_by_role("link")).to_have_text(re.compile("net"))
    await page.keyboard.press("Escape")
    await expect(page.get_by_role("region", name="wrong: failed")).to_be_hidden()
    await page.get_by_role("button", name="Difference of commit").press("Enter")
    changed = rows(page, "Commits").filter(has_text="gross")
    await expect(changed).to_contain_text("not there → ")
    await page.get_by_role("button", name="Difference of commit").press("Enter")
    await expect(rows(page, "Commits")).to_have_count(2)
    assert await page.locator("main img").count() == 0
    await require_readable(page)

    await show_branch(deployment, shop, page, url_of(daemon))
    await require_readable(page)
    assert all(url.startswith(url_of(daemon)) for url in watched.asked), "nothing from elsewhere"
    assert not watched.complaints


async def show_branch(deployment: Deployment, shop: WorkspaceHandle, page: Page, url: str) -> None:
    branch = await shop.fork("sale")
    async with branch.edit() as g:
        g.source("net", 80)
        g.source("rate", 0.5)
    async with shop.edit() as g:
        g.source("net", 90)

    await page.goto(f"{url}shop/sale")

    edits, effects = table(page, "Edits of the branch"), table(page, "Computed effects")
    await expect(edits).to_have_count(2)
    await expect(edits.filter(has_text="net")).to_have_text(
        re.compile("net.*value.*90.*80.*head changed it, too; it was 100")
    )
    await expect(effects.first).to_contain_text("twice")  # by size, the largest first
    await expect(effects.nth(1)).to_have_text(re.compile(r"gross.*112\.5.*120\.0.*\+7\.5"))
    sort = page.get_by_role("table", name="Computed effects").get_by_role("button", name="Head")
    await sort.press("Enter")
    await expect(effects.first).to_contain_text("gross")
    await sort.press("Enter")
    await expect(effects.first).to_contain_text("twice")
    await page.get_by_role("searchbox", name="Search changes").fill("gro")
    await expect(effects).to_have_count(1)
    await expect(edits).to_contain_text("None has that name.")


async def test_values_are_a_tree_of_name_patterns_with_the_failed_ones_on_top(
    deployment: Deployment, browser: Browser
) -> None:
    """Names are in the order of their numbers; a pattern opens by a key, a search narrows all."""
    daemon = await started(deployment, QUIET_PERIOD="30")
    shop = await deployment.client.workspace("shop").create()
    async with shop.edit() as g:
        for n in range(30):
            net = g.source(f"net/{n}", n)
            price = cel("net + 'x'" if n == 7 else "net * 2")
            g.value(f"price/{n}/UK", price, net=net)
    page = await browser.new_page()
    watched = Watched(page)
    await page.goto(url_of(daemon) + "shop/head")

    values = rows(page, "Values")
    await expect(values).to_have_count(3, timeout=PATIENCE)
    await expect(values.first).to_contain_text("price/7/UK")
    await expect(values.nth(2)).to_have_text(re.compile(r"price/\*/UK.*30 values.*1 failed"))
    await page.get_by_role("button", name="price/*/UK").press("Enter")
    await expect(values).to_have_count(33)
    await expect(values.nth(3)).to_contain_text("price/7/UK")
    await expect(values.nth(6)).to_contain_text("price/2/UK")
    await expect(page.get_by_role("button", name="price/*/UK")).to_be_focused()
    await page.get_by_role("searchbox", name="Search values").fill("price/2")
    await expect(values).to_have_count(11)
    await page.get_by_role("searchbox", name="Search values").fill("PRICE/*9/*")
    await expect(values).to_have_count(3)
    await require_readable(page)
    assert not watched.complaints

    await page.goto(url_of(daemon) + "shop/nowhere")
    await expect(page.get_by_role("status")).to_contain_text("nowhere")


async def test_the_address_names_the_value_that_is_open(
    deployment: Deployment, browser: Browser
) -> None:
    """So it can be sent on and reloaded; back and forward open, change and close the value."""
    daemon = await started(deployment, QUIET_PERIOD="30")
    shop = await shop_of(deployment)
    names = {each.name: each.id for each in (await shop.values()).values()}
    page = await browser.new_page()
    watched = Watched(page)
    url = url_of(daemon) + "shop/head"
    await page.goto(url)

    await rows(page, "Values").get_by_role("button", name="gross").press("Enter")
    await expect(page.get_by_role("region", name="gross: ok")).to_be_visible()
    await expect(page).to_have_url(f"{url}?value={names['gross']}")
    await table(page, "Inputs").get_by_role("button", name="net").press("Enter")
    await expect(page).to_have_url(f"{url}?value={names['net']}")
    await page.reload()
    await expect(page.get_by_role("region", name="net: ok")).to_be_visible()
    await page.go_back()
    await expect(page.get_by_role("region", name="gross: ok")).to_be_visible()
    await page.go_back()
    await expect(page).to_have_url(url)
    await expect(page.locator("#chosen")).to_be_hidden()
    await page.go_forward()
    await expect(page.get_by_role("region", name="gross: ok")).to_be_focused()
    await page.keyboard.press("Escape")
    await expect(page).to_have_url(url)
    await page.go_back()
    await expect(page.get_by_role("region", name="gross: ok")).to_be_visible()
    await page.goto(f"{url}?value=nothing")
    await expect(page.get_by_role("heading", name="there is no such value")).to_be_visible()
    await expect(page.locator("#text")).to_be_hidden()
    await rows(page, "Values").get_by_role("button", name="gross").press("Enter")
    await expect(page.locator("#text")).to_have_text("125.0")
    assert not watched.complaints


async def test_all_inputs_dependents_commits_and_changes_can_be_shown(
    deployment: Deployment, browser: Browser
) -> None:
    """A button behind the first hundred shows the others, and the focus goes to the first."""
    daemon = await started(deployment, QUIET_PERIOD="30")
    shop = await deployment.client.workspace("shop").create()
    async with shop.edit() as g:
        rate = g.source("rate", 2)
        own = [g.value(f"own/{n}", builtin("sum"), rate) for n in range(150)]
        g.value("total", builtin("sum"), *own, *[g.source(f"net/{n}", n) for n in range(350)])
    rate_now = (await shop.values("rate"))["rate"]
    for n in range(101):
        await shop.enqueue([set_to(rate_now.id, n)])
    await shop.settled()
    page = await browser.new_page()
    watched = Watched(page)
    await page.goto(url_of(daemon) + "shop/head")

    await rows(page, "Values").get_by_role("button", name="total").press("Enter")
    inputs = table(page, "Inputs")
    await expect(inputs).to_have_count(101)
    await expect(inputs.last).to_have_text(re.compile("and 400 more"))
    await expect(page.locator("#near .more")).to_have_text("and 495 more")
    await inputs.last.get_by_role("button").press("Enter")
    await expect(inputs).to_have_count(500)
    await expect(inputs.nth(100).get_by_role("button")).to_be_focused()
    await page.evaluate("document.onvisibilitychange()")
    await page.get_by_role("searchbox", name="Search values").fill("rate")
    await rows(page, "Values").get_by_role("button", name="rate").press("Enter")
    await expect(table(page, "Computed from it")).to_have_count(101)
    await table(page, "Computed from it").last.get_by_role("button").press("Enter")
    await expect(table(page, "Computed from it")).to_have_count(150)

    commits = rows(page, "Commits")
    await expect(commits).to_have_count(101)
    await commits.last.get_by_role("button").press("Enter")
    await expect(commits.last).to_contain_text("a large batch")
    await page.get_by_role("button", name="Difference of commit").last.press("Enter")
    await expect(commits.last).to_have_text(re.compile(r"and 4\d\d more"))
    await commits.last.get_by_role("button").press("Enter")
    await expect(commits.filter(has_text="net/349")).to_have_count(1)
    await require_readable(page)
    assert not watched.complaints


QUERY = (
    "-- key: day\nSELECT day, sum(amount) AS total\nFROM orders\nWHERE day <> 'from'\nGROUP BY day"
)
BROKEN = """
() => [...document.querySelectorAll("td, th")].flatMap((cell) => {
  if (!cell.checkVisibility()) return [];
  const texts = document.createTreeWalker(cell, NodeFilter.SHOW_TEXT);
  const found = [];
  while (texts.nextNode())
    for (const { 0: word, index } of texts.currentNode.data.matchAll(/[^\\s/-]{1,20}/g)) {
      const range = document.createRange();
      range.setStart(texts.currentNode, index);
      range.setEnd(texts.currentNode, index + word.length);
      if (new Set([...range.getClientRects()].map(({ top }) => top)).size > 1) found.push(word);
    }
  return found;
})
"""
"""The words in the tables of a page that stand on more than one line."""


@pytest.mark.long
async def test_numbers_tables_and_code_are_shown_as_people_read_them(
    deployment: Deployment, browser: Browser
) -> None:
    """With few digits, and all of them on hover; rows as rows; a query with its lines and words."""
    daemon = await started(deployment, QUIET_PERIOD="30")
    shop = await deployment.client.workspace("shop").create()
    orders = pa.table({"day": ["Monday", "Tuesday"], "amount": [Decimal("1234.50"), None]})
    async with shop.edit() as g:
        g.source("price", 256.52901399999996)
        g.source("customers", 1_234_567)
        g.source("year", 2026)
        g.table("orders", orders)
        wrong = g.value("wrong", cel("year + 'x'"), year=g.source("another year", 2027))
        g.value("by day", sql(QUERY, name="totals"), orders=wrong)  # blocked
    page = await browser.new_page()
    watched = Watched(page)
    await page.goto(f"{url_of(daemon)}shop/head")
    values = rows(page, "Values")
    for name, shown, exact in (
        ("price", "256.529", "256.52901399999996"),
        ("customers", "1,234,567", "1234567"),
    ):
        figure = values.filter(has_text=name).locator("td").nth(1).locator("span")
        await expect(figure).to_have_text(shown)
        await expect(figure).to_have_attribute("title", exact)
    await expect(values.filter(has_text=re.compile("^year"))).to_contain_text("2026")

    await page.get_by_role("button", name="orders", exact=True).click()
    first = page.get_by_role("table", name="First rows of the table")
    await expect(first.locator("th")).to_have_text(["daystring", "amountdecimal(6,2)"])
    await expect(first.locator("td")).to_have_text(["Monday", "1234.50", "Tuesday", "null"])
    await page.get_by_role("button", name="by day").click()
    code = page.get_by_role("group", name="The function")
    await expect(code).to_have_text(QUERY)
    assert await code.locator("b").all_inner_texts() == [
        "SELECT",
        "AS",
        "FROM",
        "WHERE",
        "GROUP",
        "BY",
    ]
    assert await code.locator("q").all_inner_texts() == ["'from'"]
    await expect(page.locator("#func")).to_have_text("computed by totals (sql)")
    for width in (360, 768, 1280):
        await page.set_viewport_size({"width": width, "height": 900})
        assert await page.evaluate(BROKEN) == [], width
    await require_readable(page)

    branch = await shop.fork("euro")
    more = pa.table({"day": ["Monday", "Friday"], "amount": [Decimal("1250.00"), Decimal("7.25")]})
    async with branch.edit() as g:
        g.table("orders", more)
    await page.goto(f"{url_of(daemon)}shop/euro")
    await page.get_by_role("button", name="orders", exact=True).first.click()
    differing = page.get_by_role("table", name="Rows that differ from head's")
    await expect(page.locator("#differs")).to_contain_text("2 rows added, 2 removed")
    await expect(differing.locator("tbody tr")).to_have_text(
        ["addedMonday1250.00", "addedFriday7.25", "removedMonday1234.50", "removedTuesdaynull"]
    )
    assert await page.evaluate(BROKEN) == []
    assert not watched.complaints


async def test_digits_in_a_column_of_texts_are_shown_as_they_are(
    deployment: Deployment, browser: Browser
) -> None:
    """Zeros before an article's number, and what looks like an exponent, are part of it."""
    daemon = await started(deployment, QUIET_PERIOD="30")
    shop = await deployment.client.workspace("shop").create()
    async with shop.edit() as g:
        g.table("codes", pa.table({"sku": ["0012345", "12e34"], "pieces": [10_000, 1]}))
    branch = await shop.fork("next")
    async with branch.edit() as g:
        g.table("codes", pa.table({"sku": ["0012346", "12e34"], "pieces": [20_000, 1]}))
    page = await browser.new_page()

    await page.goto(f"{url_of(daemon)}shop/next")
    await page.get_by_role("button", name="codes", exact=True).first.click()

    first = page.get_by_role("table", name="First rows of the table")
    await expect(first.locator("td")).to_have_text(["0012346", "20,000", "12e34", "1"])
    differing = page.get_by_role("table", name="Rows that differ from head's")
    await expect(differing.locator("tbody tr")).to_have_text(
        ["added001234620,000", "removed001234510,000"]
    )


async def test_a_workspace_that_is_called_like_a_path_of_the_endpoint_has_pages(
    deployment: Deployment, browser: Browser
) -> None:
    daemon = await started(deployment)
    names = ("actions", "change-set", "dead-letters", "services")
    for name in names:
        await deployment.client.workspace(name).create()
    page = await browser.new_page()

    for name in names:
        await page.goto(url_of(daemon))
        await page.get_by_role("link", name=f"{name} / head", exact=True).click()
        await expect(page.get_by_role("heading", level=1)).to_have_text(f"{name} / head")


async def test_what_is_not_there_is_said_of_a_change_set_by_name(deployment: Deployment) -> None:
    """People know no ids."""
    daemon = await started(deployment, QUIET_PERIOD="30")
    shop = await deployment.client.workspace("shop").create()
    async with shop.edit() as g:
        g.source("net", 1)
    workspace, change_set = await shop.ids()
    asked = f"{url_of(daemon)}change-set/commit?workspace={workspace}&changeSet={change_set}"

    later = await get(f"{asked}&commit=999")
    takeover = await get(f"{asked}&commit=1")

    assert later == (404, "shop: the log ends at commit 2, before 999\n")
    assert takeover == (404, "shop: commit 1 applied no batch\n")


async def require_readable(page: Page) -> None:
    """Contrast by day and night, and nothing cut off if it is narrow."""
    overflow = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
    for width in (360, 1280):
        await page.set_viewport_size({"width": width, "height": 900})
        assert await page.evaluate(overflow) <= 0, width
        for scheme in SCHEMES:
            await page.emulate_media(color_scheme=scheme)
            contrasts = await page.evaluate(CONTRASTS)
            assert not [pair for pair in contrasts if pair[0] < AA], scheme


@pytest.mark.long
async def test_values_are_shown_to_other_machines_only_with_a_token(
    deployment: Deployment,
) -> None:
    shown = await started(deployment, OPS__HOST="0.0.0.0", OPS__TOKEN="secret")  # noqa: S104
    unguarded = await started(deployment, OPS__HOST="0.0.0.0")  # noqa: S104
    shop = await (await shop_of(deployment)).ids()
    asked = f"change-set/values?workspace={shop.workspace_id}&changeSet={shop.change_set_id}"
    bearer = {"Authorization": "Bearer secret"}

    assert (await get(url_of(shown) + asked))[0] == 401
    assert (await get(url_of(shown) + asked, **bearer))[0] == 200
    code, why = await get(url_of(unguarded) + asked)
    assert (code, "REBASER_OPS__TOKEN" in why) == (403, True)
    assert (await get(url_of(unguarded) + "change-set"))[0] == 403
    assert (await get(url_of(shown) + "change-set/values?workspace=x", **bearer))[0] == 400

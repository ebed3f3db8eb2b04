"""The page of a branch in a real browser: conflicts, effects, applied by digest, and reverted."""

import csv
import io
import re
from typing import Any

import pytest
from playwright.async_api import Browser, Locator, Page, expect

from rebaser_client import cel
from rebaser_client.change_set import WorkspaceHandle
from rebaser_core.ids import ChangeSet
from tests.helpers.browser import Watched
from tests.helpers.deployment import Deployment
from tests.integration.test_action_service import TOKENS, act, bearer, target
from tests.integration.test_change_set_page import require_readable, shop_of, table
from tests.integration.test_comparison_service import regions
from tests.integration.test_operator_page import agree, said
from tests.integration.test_ops_endpoint import get, started, url_of
from tests.integration.test_status_page import PATIENCE, rows

expect.set_options(timeout=PATIENCE)


async def sale_of(deployment: Deployment) -> tuple[WorkspaceHandle, ChangeSet]:
    """A workspace, and a branch where both it and head changed `net` and `rate`."""
    shop = await shop_of(deployment)
    branch = await shop.fork("sale")
    async with branch.edit() as g:
        g.source("net", 80)
        g.source("rate", 0.5)
    async with shop.edit() as g:
        g.source("net", 90)
        g.source("rate", 0.75)
    return shop, await branch.ids()


async def values(deployment: Deployment, change_set: ChangeSet) -> dict[str, Any]:
    graph = await deployment.graph(change_set)
    return {value.name or value.id: value.value for value in graph.values.values()}


async def test_a_branch_is_edited_resolved_applied_and_reverted_by_role(
    deployment: Deployment,
) -> None:
    """Over HTTP, as the page does it."""
    daemon = await started(deployment, QUIET_PERIOD="30", OPS__TOKENS=TOKENS)
    shop, sale = await sale_of(deployment)
    head = await shop.ids()
    ids = {value.name: value.id for value in (await deployment.graph(head)).values.values()}
    one = target(sale)

    new = one | {"id": ids["net"], "text": "70.0"}
    assert (await act(daemon, "set-value", new, "v1"))[0] == 403
    assert (await act(daemon, "set-value", target(head) | new | target(head), "a1"))[0] == 400
    assert (await act(daemon, "set-value", new | {"text": "seventy"}, "e1"))[0] == 400
    code, why = await act(daemon, "set-value", new, "e1")
    assert (code, "done by commit" in why) == (200, True)
    assert repr((await values(deployment, sale))["net"]) == "70.0"
    assert (await act(daemon, "take-theirs", one | {"id": ids["rate"]}, "e1"))[0] == 200
    assert (await values(deployment, sale))["rate"] == 0.75
    again = await act(daemon, "take-theirs", one | {"id": ids["rate"]}, "e1")
    assert again == (200, "the branch has what head has")

    asked = f"change-set/difference?{'&'.join(f'{k}={v}' for k, v in one.items())}"
    _, body = await get(url_of(daemon) + asked, **bearer("v1"))
    digest = re.findall(r'"digest": "([^"]+)"', body)[0]
    assert (await act(daemon, "apply", one | {"digest": digest}, "e1"))[0] == 403
    assert (await act(daemon, "apply", one | {"digest": "0" * 64}, "a1"))[0] == 409
    code, applied = await act(daemon, "apply", one | {"digest": digest}, "a1")
    assert (code, applied[:18]) == (200, "applied as commit ")
    assert (await values(deployment, head))["net"] == 70.0

    [commit] = re.findall(r"\d+", applied)
    undo = target(head) | {"commit": int(commit)}
    assert (await act(daemon, "revert", undo, "e1"))[0] == 403
    assert (await act(daemon, "revert", undo, "a1"))[0] == 200
    assert (await values(deployment, head))["net"] == 90
    log = await deployment.client.change_set(*head).log()
    assert [entry.author for entry in log if not entry.computed][-2:] == ["al", "al"]


@pytest.mark.long
async def test_what_is_asked_before_an_apply_is_what_applying_does_now(
    deployment: Deployment, browser: Browser
) -> None:
    """Also of a branch that slept while head went on, and on a page that was opened before."""
    daemon = await started(deployment, OPS__TOKENS=TOKENS)
    shop, branch = await regions(deployment)
    sleeping = await branch.ids()
    page = await browser.new_page()
    url = url_of(daemon)
    await page.goto(url + "?token=a1")
    await page.goto(url + "change-set?" + "&".join(f"{k}={v}" for k, v in target(sleeping).items()))
    effects = table(page, "Computed effects")
    await expect(effects).to_have_text([re.compile("both.*30.*31"), re.compile("puk.*10.*11")])
    await expect(page.locator("#editcount")).to_have_text("1")
    await expect(page.locator("#effectcount")).to_have_text("2")

    async with shop.edit() as g:
        g.source("uk", 12)
    await page.get_by_role("button", name="Apply to head").press("Enter")

    dialog = page.get_by_role("dialog")
    await expect(dialog).to_contain_text("Apply 1 edit to head? ")
    await expect(dialog).to_contain_text("Head changed uk, too: yours 11, theirs 12. Yours counts.")
    async with shop.edit() as g:
        g.source("uk", 13)
    await dialog.get_by_role("button", name="Apply to head").press("Enter")
    await expect(said(page)).to_contain_text("not the one that was reviewed")


@pytest.mark.long
async def test_conflicts_are_resolved_and_the_branch_is_applied_by_keyboard(
    deployment: Deployment, browser: Browser
) -> None:
    daemon = await started(deployment, QUIET_PERIOD="30", OPS__TOKENS=TOKENS)
    shop, sale = await sale_of(deployment)
    page = await browser.new_page()
    watched = Watched(page)
    url = url_of(daemon)
    await page.goto(url + "?token=a1")  # leaves a cookie
    await page.goto(url + "change-set?" + "&".join(f"{k}={v}" for k, v in target(sale).items()))

    both = table(page, "Changed by head, too")
    await expect(both).to_have_count(2)
    await expect(both.filter(has_text="net")).to_contain_text(re.compile("net.*100.*90.*80"))
    await require_readable(page)
    await page.get_by_role("button", name="Take theirs of rate").press("Enter")
    await expect(both).to_have_count(1)
    await page.get_by_role("button", name="Another value of net").press("Enter")
    dialog = page.get_by_role("dialog")
    await dialog.get_by_role("textbox", name="JSON").press_sequentially("seventy")
    await page.keyboard.press("Enter")
    await expect(said(page)).to_have_text(
        "'seventy': line 1, column 1: not JSON: Expecting value; put text in quotes"
    )
    await page.get_by_role("button", name="Another value of net").press("Enter")
    await dialog.get_by_role("textbox", name="JSON").press_sequentially("70")
    await page.keyboard.press("Enter")
    await expect(both.filter(has_text="net")).to_contain_text("70")
    drawn = page.get_by_role("group", name="Edits and effects as a graph").get_by_role("link")
    await expect(drawn.filter(has_text="⚠ net")).to_contain_text("90 → 70")
    await expect(drawn.filter(has_text="twice")).to_have_accessible_name(
        "twice 315.0 → 245.0, computed"
    )
    effects = table(page, "Computed effects")
    await expect(effects.nth(1)).to_have_text(re.compile(r"gross.*157\.5.*122\.5.*-35"))

    async with page.expect_download() as downloading:
        await page.get_by_role("link", name="as CSV").press("Enter")
    text = (await (await downloading.value).path()).read_text()
    assert list(csv.reader(io.StringIO(text)))[1][2:] == ["157.5", "122.5"]

    await page.get_by_role("button", name="Apply to head").press("Enter")
    await agree(page)
    await expect(said(page)).to_contain_text("applied as commit")
    await expect(page.locator("#kinds")).to_have_text("branchapplied")
    await expect(page.get_by_role("button", name="Apply to head")).to_be_hidden()
    assert (await values(deployment, await shop.ids()))["net"] == 70

    await page.goto(
        url + "change-set?" + "&".join(f"{k}={v}" for k, v in target(await shop.ids()).items())
    )
    await page.get_by_role("button", name=re.compile("^Revert commit")).first.press("Enter")
    await agree(page)
    await expect(said(page)).to_contain_text("done by commit")
    by_al = page.get_by_role("cell", name="al", exact=True)
    await expect(rows(page, "Commits").filter(has=by_al)).to_have_count(2)
    assert [line for line in watched.complaints if "400" not in line] == []


async def tab_to(page: Page, target: Locator, key: str = "Tab") -> None:
    """Press the key until the target has the focus, as one does who has no pointer."""
    await expect(target).to_be_visible()
    for _ in range(100):
        await page.keyboard.press(key)
        if await target.evaluate("(each) => each === document.activeElement"):
            return
    pytest.fail(f"{key} does not reach {target}")


@pytest.mark.long
async def test_a_whole_review_takes_no_pointer(deployment: Deployment, browser: Browser) -> None:
    """Begin at the front page; pass a conflict, a value and a comment; end at head's commit."""
    daemon = await started(deployment, QUIET_PERIOD="30", OPS__TOKENS=TOKENS)
    shop, _ = await sale_of(deployment)
    page = await browser.new_page()
    await page.goto(url_of(daemon) + "?token=a1")

    await tab_to(page, page.get_by_role("searchbox", name="Search"))
    await page.keyboard.type("sale")
    await expect(rows(page, "Change sets")).to_have_count(1)
    await tab_to(page, rows(page, "Change sets").get_by_role("link", name="shop / sale"))
    await page.keyboard.press("Enter")

    await tab_to(page, page.get_by_role("button", name="Take theirs of rate"))
    await page.keyboard.press("Enter")
    await expect(table(page, "Changed by head, too")).to_have_count(1)
    gross = table(page, "Effects by name pattern").get_by_role("button", name="gross")
    await tab_to(page, gross)
    await page.keyboard.press("Enter")
    await expect(page.get_by_role("region", name="gross: ok")).to_be_focused()
    await page.keyboard.press("Escape")
    await expect(gross).to_be_focused()
    await tab_to(page, page.get_by_role("textbox", name="Your comment"))
    await page.keyboard.type("fine by me")
    await tab_to(page, page.get_by_role("button", name="Comment", exact=True))
    await page.keyboard.press("Enter")
    await expect(rows(page, "Comments")).to_contain_text("fine by me")
    await tab_to(page, page.get_by_role("button", name="Apply to head"), "Shift+Tab")
    await page.keyboard.press("Enter")
    dialog = page.get_by_role("dialog")
    await expect(dialog).to_contain_text("Head changed net, too: yours 80, theirs 90.")
    await tab_to(page, dialog.get_by_role("button", name="Apply to head"))
    await page.keyboard.press("Enter")

    await expect(page.locator("#kinds")).to_have_text("branchapplied")
    found = await values(deployment, await shop.ids())
    assert (found["net"], found["rate"]) == (80, 0.75)


@pytest.mark.long
async def test_a_review_sums_up_effects_by_name_pattern_and_names_what_will_fail(
    deployment: Deployment, browser: Browser
) -> None:
    """One edit with many effects is one line, one box, and one sentence of the question."""
    daemon = await started(deployment, QUIET_PERIOD="30", OPS__TOKENS=TOKENS)
    shop = await deployment.client.workspace("shop").create()
    async with shop.edit() as g:
        rate = g.source("fx/UK", 1.0)
        for n in range(40):
            net = g.source(f"net/{n}", n)
            g.value(f"price/{n}/UK", cel("double(net) * rate"), net=net, rate=rate)
        g.value("whole", cel("10 / int(rate)"), rate=rate)
    branch = await shop.fork("euro")
    async with branch.edit() as g:
        g.source("fx/UK", 0.5)
    page = await browser.new_page()
    await page.goto(url_of(daemon) + "?token=a1")
    await page.goto(url_of(daemon) + "shop/euro")

    pattern = table(page, "Effects by name pattern").filter(has_text="price/*/UK")
    await expect(pattern).to_contain_text(re.compile("39.*780.*390.*-50 %"), timeout=PATIENCE)
    await expect(pattern).to_contain_text("price/39/UK: 39 → 19.5")
    await expect(pattern.get_by_role("img")).to_have_accessible_name("Moves from -50 % to -50 %")
    await expect(table(page, "Effects by name pattern").first).to_contain_text("whole")
    graph = page.get_by_role("group", name="Edits and effects as a graph")
    box = graph.get_by_role("link", name="price/*/UK 39 values")
    await expect(graph.get_by_role("link")).to_have_count(3)
    effects = table(page, "Computed effects")
    await expect(effects).to_have_count(21)
    await box.press("Enter")
    await expect(effects).to_have_count(39)
    await require_readable(page)
    await page.get_by_role("button", name="Apply to head").press("Enter")
    dialog = page.get_by_role("dialog")
    await expect(dialog).to_contain_text("Apply 1 edit to head? 40 computed values differ.")
    await expect(dialog).to_contain_text("whole will have no value: failed.")
    await expect(dialog).to_contain_text("price/*/UK: 39 values, sum 780 → 390, -50 %")
    await page.keyboard.press("Escape")
    await expect(page.get_by_role("button", name="Apply to head")).to_be_focused()

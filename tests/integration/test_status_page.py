"""The status page as people see it, in a real browser."""

import os
import re
from pathlib import Path
from typing import Any, Final, Literal

import pytest
from playwright.async_api import Browser, Page, expect

from rebaser_client import builtin, cel
from rebaser_core.ids import ChangeSet, RequestId
from rebaser_core.requests import ensure_task
from rebaser_server.processor.dead_letters import DIED_AT, REASON
from tests.chaos.functions import install
from tests.helpers.batches import ExampleGraph, new_id, put, set_to
from tests.helpers.browser import CONTRASTS, Watched
from tests.helpers.deployment import Daemon, Deployment, new_change_sets
from tests.helpers.eventually import eventually
from tests.integration.test_ops_endpoint import started, url_of

PATIENCE = 60_000  # milliseconds
expect.set_options(timeout=PATIENCE)
SCHEMES: Final[tuple[Literal["light", "dark"], ...]] = ("light", "dark")
AA = 4.5
"""Contrast of text that WCAG 2.1 asks for."""


async def opened(browser: Browser, daemon: Daemon, path: str = "") -> Page:
    page = await browser.new_page()
    page.set_default_timeout(PATIENCE)
    await page.goto(url_of(daemon) + path)
    await expect(page.get_by_role("status")).to_contain_text("NATS answers", timeout=PATIENCE)
    return page


def shown(page: Page, what: str) -> Any:
    """The number on a card."""
    return page.locator("dl > div", has_text=what).locator("dd").first


def rows(page: Page, section: str) -> Any:
    return page.get_by_role("region", name=section).locator("tbody tr")


class Slow:
    """Values that take `seconds` each, in `levels` levels, behind one source."""

    def __init__(self, count: int, seconds: float, levels: int = 2) -> None:
        self.source, self.pace, func = new_id(), new_id(), new_id()
        code = {"funcId": func, "name": "slow", "runtime": "python", "code": "chaos-slow"}
        self.batch = [{"putFunc": code}, put(self.source, 0), put(self.pace, 0)]
        self.hurry = [set_to(self.source, 1), set_to(self.pace, seconds)]
        below = [self.source] * count
        for level in range(levels):
            values = [new_id() for _ in range(count)]
            for place, value in enumerate(values):
                inputs = {"value": below[place], "seconds": self.pace}
                name = f"level {level + 1}/{place}"
                put_it = {"valueId": value, "name": name, "funcId": func, "inputs": inputs}
                self.batch.append({"putValue": put_it})
            below = values


async def given_up(deployment: Deployment, change_set: ChangeSet) -> None:
    """A request that ends in the dead letters, and one that no Rebaser of today can read."""
    js, streams = deployment.js, deployment.streams
    await js.publish(streams.requests(change_set), b"\xff")
    newer = {
        "X-CONTENT-TYPE": "application/json",
        "X-MESSAGE-TYPE": "EnqueueUpdatesRequest",
        "X-MESSAGE-VERSION": "999",
    }
    request = str(RequestId())
    await js.publish(streams.requests(change_set), b"{}", headers=newer, message_id=request)
    await ensure_task(streams, change_set)  # a reconciler may have been first


async def test_the_front_page_shows_change_sets_and_what_becomes_of_them_without_a_reload(
    deployment: Deployment, browser: Browser
) -> None:
    """First commands to begin with, then a failure with its next step before all else."""
    daemon = await started(deployment, QUIET_PERIOD="30")
    page = await browser.new_page(permissions=["clipboard-read", "clipboard-write"])
    watched = Watched(page)
    await page.goto(url_of(daemon))
    await expect(page.get_by_role("status")).to_have_text("1 Rebaser, NATS answers")
    beginning = page.get_by_role("region", name="Begin here")
    commands = ["init shop", "workspaces create shop", "load shop graph.yaml"]
    for number, command in enumerate(commands):
        await expect(beginning.locator("code").nth(number)).to_have_text(f"rebaser {command}")
        copying = beginning.get_by_role("button", name="Copy the command").nth(number)
        await copying.click()
        await expect(copying).to_have_text("Copied")
        assert await page.evaluate("navigator.clipboard.readText()") == f"rebaser {command}"
    await expect(beginning.locator("code")).to_have_count(len(commands))

    shop = await deployment.client.workspace("shop").create()
    async with shop.edit() as g:
        g.value("wrong", cel("net + 'x'"), net=g.source("net", 100))
    await shop.fork("euro in July")

    items = page.get_by_role("region", name="Needs attention").get_by_role("listitem")
    attention = items.filter(has_text="shop / head")  # the branch has the value, too
    await expect(attention).to_contain_text("1 value failed in shop / head", timeout=PATIENCE)
    await expect(attention).to_contain_text("wrong, computed by net + 'x': CelError")
    await expect(attention).to_contain_text("Mend the function or an input")
    await expect(beginning).to_be_hidden()
    await expect(rows(page, "Change sets")).to_have_count(2)
    head = rows(page, "Change sets").filter(has_text="shop / head")
    await expect(head).to_contain_text("shop / head1 failed")
    branch = page.get_by_role("link", name="shop / euro in July")
    assert await branch.get_attribute("href") == url_of(daemon) + "shop/euro%20in%20July"
    await attention.get_by_role("link", name="shop / head").press("Enter")
    await expect(page.get_by_role("region", name="wrong: failed")).to_be_visible()
    assert page.url.startswith(url_of(daemon) + "shop/head?value=")
    await page.go_back()
    await page.get_by_role("searchbox", name="Search").fill("JULY")
    await expect(rows(page, "Change sets")).to_have_count(1)

    async with shop.edit() as g:  # an update that computes other values leaves it failed
        g.value("twice", builtin("sum"), g.source("one", 1))
    await page.get_by_role("searchbox", name="Search").fill("")
    await expect(rows(page, "Change sets")).to_have_count(2)
    await expect(attention).to_contain_text("1 value failed")
    async with shop.edit() as g:
        g.value("wrong", builtin("sum"), g.source("one", 1))
    await expect(attention).to_have_count(0, timeout=PATIENCE)
    assert all(url.startswith(url_of(daemon)) for url in watched.asked), "nothing from elsewhere"
    assert not watched.complaints


@pytest.mark.long
async def test_failed_values_are_listed_again_after_a_restart(
    deployment: Deployment, browser: Browser
) -> None:
    """The page reads them from the change set, which outlives the daemon."""
    daemon = await started(deployment)
    shop = await deployment.client.workspace("shop").create()
    async with shop.edit() as g:
        g.value("wrong", cel("net + 'x'"), net=g.source("net", 100))
    await deployment.at_rest()
    daemon.kill()

    daemon = await started(deployment, "two")

    page = await browser.new_page(viewport={"width": 390, "height": 800})
    await page.goto(url_of(daemon))
    attention = page.get_by_role("region", name="Needs attention").get_by_role("listitem")
    await expect(attention).to_contain_text("1 value failed in shop / head", timeout=PATIENCE)
    await expect(attention).to_contain_text("wrong, computed by net + 'x': CelError")
    await expect(rows(page, "Change sets")).to_contain_text("shop / head1 failed")
    links = page.get_by_role("navigation")
    assert await links.evaluate("(nav) => nav.scrollWidth <= nav.clientWidth"), "all are in sight"


async def test_every_page_leads_to_every_other(deployment: Deployment, browser: Browser) -> None:
    """Numbers of the deployment have a page to themselves; held is apart from working."""
    [change_set], values = new_change_sets(1), ExampleGraph()
    daemon = await started(deployment, QUIET_PERIOD="30")
    _, reply = await deployment.client.enqueue_updates_with_reply(*change_set, values.define())
    await reply
    page = await opened(browser, daemon)
    watched = Watched(page)
    pages = ["Updates", "Dead letters", "Operate", "Deployment", "Workspaces"]
    for name in pages:
        navigation = page.get_by_role("navigation", name="Rebaser")
        await navigation.get_by_role("link", name=name).press("Enter")
        await expect(navigation.locator("[aria-current=page]")).to_have_text(name)
        await expect(navigation.get_by_role("link")).to_have_count(len(pages))
        await expect(page.get_by_role("heading", level=1)).to_have_count(1)
        if name == "Updates":
            await expect(rows(page, "Held, and at rest")).to_have_count(1, timeout=PATIENCE)
            await expect(rows(page, "Working on requests")).to_contain_text("No request")
        if name == "Deployment":
            await expect(shown(page, "Working")).to_have_text("0")
            await expect(page.locator("#heldnote")).to_have_text("1 held, at rest")
            plot = page.get_by_role("img", name=re.compile("Requests per second .* at most [1-9]"))
            await expect(plot).to_be_visible(timeout=PATIENCE)
            synced = re.compile(
                r"^NATS syncs: unknown: set REBASER_NATS__MONITORING .*; 1 replica$"
            )
            await expect(page.locator("#durability")).to_have_text(synced)
    assert not watched.complaints


@pytest.mark.long
async def test_an_update_is_shown_with_its_progress(
    deployment: Deployment, browser: Browser, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(install(tmp_path)), prepend=os.pathsep)
    [change_set], slow = new_change_sets(1), Slow(30, 0.2)
    daemon = await started(deployment, QUIET_PERIOD="30")
    _, reply = await deployment.client.enqueue_updates_with_reply(*change_set, slow.batch)
    await reply
    page = await opened(browser, daemon, "updates")
    watched = Watched(page)

    await deployment.client.enqueue_updates(*change_set, slow.hurry)

    bar = rows(page, "Running updates").get_by_role("progressbar")
    await expect(bar).to_have_accessible_name(re.compile("of 60 values"), timeout=PATIENCE)
    await expect(bar).to_have_attribute("value", re.compile("[1-9]"), timeout=PATIENCE)
    assert not watched.complaints


async def test_names_and_reasons_are_text_and_what_cannot_be_seen_is_written_out(
    deployment: Deployment, browser: Browser
) -> None:
    client, where = deployment.client, new_change_sets(1)[0]
    daemon = await started(deployment, QUIET_PERIOD="30")
    name = "<img src=x onerror=alert(1)>\u202e\u200b"
    workspace, head = await client.workspaces.create(name, workspace_id=where.workspace_id)
    where = ChangeSet(workspace.workspace_id, head.change_set_id)
    reason = {REASON: "<b>why</b>\x1b[31m\u2066", DIED_AT: "2026-11-22T00:00:00+00:00"}
    await deployment.js.publish(deployment.streams.dead_letters(where), b"", headers=reason)
    values = ExampleGraph()
    batch = values.define()
    batch[3]["putValue"]["name"] = "<i>sum</i>\n\u202e"
    _, reply = await client.enqueue_updates_with_reply(*where, batch)
    await reply

    page = await opened(browser, daemon, "updates")

    link = rows(page, "Held, and at rest").get_by_role("link")
    label = r"<img src=x onerror=alert(1)>\u202e\u200b / head"
    await expect(link).to_have_accessible_name(label, timeout=PATIENCE)
    await require_text(page)
    await page.goto(url_of(daemon))
    letters = page.get_by_role("region", name="Needs attention")
    await expect(letters).to_contain_text(r"<b>why</b>\x1b[31m\u2066", timeout=PATIENCE)
    await require_text(page)
    await page.get_by_role("link", name=label).press("Enter")
    await expect(page.get_by_role("heading", level=1)).to_have_text(label)
    await require_text(page)


async def require_text(page: Page) -> None:
    """No name or reason became an element, or holds what cannot be seen."""
    assert await page.locator("main img, main b, td i").count() == 0
    unseen = await page.evaluate(
        "/[\\u0000-\\u0008\\u001b\\u200b\\u202e\\u2066]/.test(document.body.textContent)"
    )
    assert not unseen


@pytest.mark.long
async def test_everybody_can_read_it(deployment: Deployment, browser: Browser) -> None:
    """Failures and all: contrast by day and night, names, and nothing cut off if it is narrow."""
    good, bad = new_change_sets(2)
    values = ExampleGraph()
    daemon = await started(deployment, QUIET_PERIOD="30")
    await deployment.client.enqueue_updates(*good, values.define())
    await given_up(deployment, bad)
    page = await opened(browser, daemon)
    attention = page.get_by_role("region", name="Needs attention")
    await expect(attention).to_contain_text("MalformedMessage", timeout=PATIENCE)
    await expect(attention).to_contain_text("left for a newer server", timeout=PATIENCE)
    for path in ("", "updates", "letters", "operator", "deployment"):
        await page.goto(url_of(daemon) + path)
        await expect(page.get_by_role("status")).to_contain_text("NATS answers", timeout=PATIENCE)
        await require_legible(page)


async def require_legible(page: Page) -> None:
    overflow = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
    for width in (360, 1280):
        await page.set_viewport_size({"width": width, "height": 900})
        assert await page.evaluate(overflow) <= 0, width
        for scheme in SCHEMES:
            await page.emulate_media(color_scheme=scheme)
            contrasts = await page.evaluate(CONTRASTS)
            assert len(contrasts) > 10
            assert not [pair for pair in contrasts if pair[0] < AA], scheme
    assert await page.get_by_role("heading", level=1).count() == 1
    label = "e.ariaLabel || e.getAttribute('aria-labelledby')"
    unnamed = f"(all) => all.filter((e) => !({label} || e.textContent)).map((e) => e.outerHTML)"
    for what in ("section", "svg", "progress", "button"):
        assert not await page.eval_on_selector_all(what, unnamed), what
    heads = "(all) => all.filter((table) => !table.tHead.querySelector('th[scope=col]')).length"
    assert await page.eval_on_selector_all("table", heads) == 0


@pytest.mark.long
async def test_the_page_shows_outages_of_nats_and_of_the_rebaser(
    deployment: Deployment, browser: Browser
) -> None:
    daemon = await started(deployment)
    page = await opened(browser, daemon)
    state = page.get_by_role("status")

    deployment.nats.stop()
    await expect(state).to_contain_text("NATS: ", timeout=PATIENCE)
    deployment.nats.start()
    await expect(state).to_have_text("1 Rebaser, NATS answers", timeout=PATIENCE)

    daemon.kill()
    await expect(state).to_contain_text("does not answer", timeout=PATIENCE)
    await eventually(lambda: daemon.process.poll() is not None)

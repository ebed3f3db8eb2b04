"""The operators' page in a real browser: what it shows, and what is done from it, by keyboard."""

import re
from datetime import UTC, datetime
from typing import Any

import pytest
from playwright.async_api import Browser, Page, expect

from rebaser_server.cluster.pauses import PauseStore
from rebaser_server.compute.memo import ImpureFunctions
from rebaser_server.files import SharedFiles
from rebaser_server.processor.dead_letters import DIED_AT, REASON
from tests.helpers.browser import Watched
from tests.helpers.deployment import Deployment, new_change_sets
from tests.helpers.eventually import eventually
from tests.integration.test_change_set_page import require_readable, shop_of
from tests.integration.test_ops_endpoint import started, url_of
from tests.integration.test_status_page import PATIENCE, rows

expect.set_options(timeout=PATIENCE)
TOKENS = "ada operator s3cret, vic viewer v1"


async def agree(page: Page, reason: str | None = None) -> None:
    """Answer the question that the page asks."""
    dialog = page.get_by_role("dialog")
    await expect(dialog).to_be_visible()
    if reason is not None:
        await dialog.get_by_role("textbox", name="Reason").press_sequentially(reason)
    await dialog.get_by_role("button").last.press("Enter")


def said(page: Page) -> Any:
    return page.get_by_role("alert")


@pytest.mark.long
async def test_operators_pause_resume_and_replay_by_keyboard(
    deployment: Deployment, browser: Browser
) -> None:
    daemon = await started(deployment, QUIET_PERIOD="30", OPS__TOKENS=TOKENS)
    shop = await (await shop_of(deployment)).ids()
    dead = {REASON: "<b>why</b>", DIED_AT: "2026-11-22T00:00:00+00:00"}
    await deployment.js.publish(deployment.streams.dead_letters(shop), b"", headers=dead)
    page = await browser.new_page()
    watched = Watched(page)
    await page.goto(url_of(daemon) + "letters?token=s3cret")

    await expect(page.locator("#visitor")).to_have_text("ada: operator")
    await expect(rows(page, "Dead letters")).to_contain_text("<b>why</b>")
    await page.get_by_role("button", name="Show dead letter 1").press("Enter")
    await expect(page.get_by_role("region", name="Dead letter 1")).to_be_focused()
    await expect(page.locator("#letter")).to_contain_text("cannot be decoded")
    await page.get_by_role("button", name="Replay dead letter 1").press("Enter")
    await agree(page)
    await expect(said(page)).to_contain_text("dead letter 1 cannot be decoded")

    await page.get_by_role("link", name="Operate").press("Enter")
    pause = page.get_by_role("button", name="Pause shop/head")
    await pause.press("Enter")
    await page.keyboard.press("Escape")
    assert await PauseStore(deployment.streams).all() == {}
    await expect(pause).to_be_focused()
    await pause.press("Enter")
    await agree(page, "a look")
    await expect(rows(page, "Paused")).to_contain_text("shop/head")
    await expect(rows(page, "Paused")).to_contain_text(re.compile("ada.*a look"))
    await expect(rows(page, "Open change sets")).to_contain_text("open, paused")
    await page.get_by_role("button", name="Resume shop/head").press("Enter")
    await expect(rows(page, "Paused")).to_contain_text("Nothing is paused.")
    await page.get_by_role("button", name="Checkpoint shop/head").press("Enter")
    await expect(said(page)).to_contain_text("is being written")
    await page.get_by_role("searchbox").fill("nowhere")
    await expect(rows(page, "Open change sets")).to_contain_text("No open change set")
    await require_readable(page)
    assert all(url.startswith(url_of(daemon)) for url in watched.asked), "nothing from elsewhere"
    assert [line for line in watched.complaints if "409" not in line] == []
    await eventually(lambda: len(daemon.said("action")) >= 4)


@pytest.mark.long
async def test_viewers_look_on(deployment: Deployment, browser: Browser) -> None:
    workspace, change_set = map(str, *new_change_sets(1))
    at = {"at": datetime.now(UTC).isoformat(), "workspace": workspace, "changeSet": change_set}
    results = {"function": "noise", "value": "it", "before": "1", "now": "2"}
    impure = ImpureFunctions(SharedFiles(deployment.settings.store.root))
    impure.add(workspace, "python", "noise", {**at, **results})
    daemon = await started(deployment, OPS__TOKENS=TOKENS)
    await shop_of(deployment)
    page = await browser.new_page()
    await page.goto(url_of(daemon) + "operator?token=v1")

    await expect(page.locator("#visitor")).to_have_text("vic: viewer")
    await expect(page.get_by_text("Your role may look on")).to_be_visible()
    await expect(rows(page, "Open change sets")).to_contain_text("shop / head")
    await expect(rows(page, "Functions that are not pure")).to_contain_text("noiseshow1, then 2")
    await expect(page.get_by_role("button", name="Pause")).to_have_count(0)

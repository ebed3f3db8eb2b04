"""A real browser for tests: headless Chromium, where the machine has one."""

import os
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final

from playwright.async_api import Browser, Page, async_playwright

from tests.helpers.machine_requirements import program

_NAMES: Final = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
_QUIET: Final = (
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
)  # fmt: skip

CONTRASTS: Final = """() => {
  const channels = (color) => color.match(/[\\d.]+/g).map(Number);
  const part = (c) => (c /= 255) <= 0.03928 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4;
  const light = ([r, g, b]) => 0.2126 * part(r) + 0.7152 * part(g) + 0.0722 * part(b);
  const behind = (element) => {
    for (let e = element; e; e = e.parentElement) {
      const box = e.localName === "g" ? e.querySelector("rect") : null;
      const c = channels(box ? getComputedStyle(box).fill : getComputedStyle(e).backgroundColor);
      if (c.length < 4 || c[3] > 0) return c;
    }
    return [255, 255, 255];
  };
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  const found = [];
  while (walker.nextNode()) {
    const element = walker.currentNode.parentElement;
    const style = getComputedStyle(element);
    const seen = walker.currentNode.data.trim() && element.getClientRects().length;
    if (!seen || style.visibility !== "visible" || element.closest("noscript, title")) continue;
    const ink = channels(element.closest("svg") ? style.fill : style.color);
    const [a, b] = [light(ink), light(behind(element))];
    const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    found.push([ratio, walker.currentNode.data.trim().slice(0, 40)]);
  }
  return found;
}"""
"""By WCAG 2.1, 1.4.3: the contrast of each piece of text that is shown, and its beginning."""


def chromium() -> str | None:
    """Its executable, if there is one: it comes with no Python package."""
    return os.environ.get("CHROMIUM") or next(filter(None, map(shutil.which, _NAMES)), None)


@asynccontextmanager
async def browsing() -> AsyncIterator[Browser]:
    """A browser for as long as the body runs; without one the test is skipped."""
    executable = chromium() or program(*_NAMES, package="chromium")
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=executable, args=[*_QUIET])
        try:
            yield browser
        finally:
            await browser.close()


class Watched:
    """What a page asked for and what it complained of."""

    def __init__(self, page: Page) -> None:
        self.asked: list[str] = []
        self.complaints: list[str] = []
        page.on("request", lambda request: self.asked.append(request.url))
        page.on("pageerror", lambda error: self.complaints.append(str(error)))
        page.on("console", self._said)

    def _said(self, message: Any) -> None:
        if message.type == "error":
            self.complaints.append(message.text)

"""Every page, in every state that the documentation shows, as axe-core judges it."""

import os
from pathlib import Path
from typing import Any, Final

import pytest
from axe_playwright_python.async_playwright import Axe
from playwright.async_api import Page

from tests.docs.pictures import PHONE, Shot, functions_in, shown, tour
from tests.helpers.browser import browsing
from tests.helpers.deployment import Deployment

CONTRAST: Final = "color-contrast"
LOOKS: Final = (
    (Shot("", 900), {}),
    (Shot("", 900, dark=True), {"runOnly": [CONTRAST]}),
    (Shot("", 844, PHONE), {"rules": {CONTRAST: {"enabled": False}}}),
)
"""On a desk by day and by night, and on a telephone; for each axe's options, since by night only
colours are others, and on a telephone only sizes."""
STATES: Final = 14


@pytest.mark.long
async def test_axe_finds_nothing_serious_on_any_page_in_any_state(
    deployment: Deployment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Idle, at work, with failures and with conflicts."""
    monkeypatch.setenv("PYTHONPATH", functions_in(tmp_path), prepend=os.pathsep)

    found, states = list[str](), 0
    async with browsing() as browser:
        async for page, _ in tour(deployment, browser, load=0):
            states += 1
            for look, options in LOOKS:
                await shown(page, look)
                found += [f"{page.url}, {look}: {each}" for each in await serious(page, options)]

    assert states == STATES
    assert not found, "\n".join(found)


async def serious(page: Page, options: dict[str, Any]) -> list[str]:
    """Rules that the page breaks in a way that keeps people from using it, each with an element."""
    broken = (await Axe().run(page, options=options)).response["violations"]
    return [
        f"{rule['id']}: {element['html'][:200]}"
        for rule in broken
        if rule["impact"] in ("serious", "critical")
        for element in rule["nodes"]
    ]
